"""Two histories compared by meaning, and the one change that makes the difference."""

import json
from pathlib import Path

import pytest
from incidents import healthy_lines, imported, incident_paths, many_healthy, rows_of, written
from jsonschema import Draft202012Validator

from handoff.cli.app import run
from handoff.journal.bisection import EditKind, NothingToBisect, bisect_handoffs
from handoff.journal.chronicle import Chronicle, chronicle_of
from handoff.journal.journal_diff import DifferenceKind, diff_journals

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def source_of(tmp_path, lines, name="a"):
    return rows_of(imported(written(tmp_path / f"{name}.jsonl", lines))[0])


def incident(code: str) -> Path:
    return next(path for path in incident_paths() if path.name.startswith(f"{code}_"))


def chronicle(code: str, name: str = "h1") -> Chronicle:
    source = rows_of(imported(incident(code))[0])
    return chronicle_of(source, next(each for each in source.handoffs() if each.handoff_id == name))


def test_a_history_is_the_same_as_itself_later_and_under_other_names(tmp_path):
    lines = many_healthy(12)
    later = [{**line, "at_ms": line["at_ms"] * 2 + 100, "handoff": "x" + line["handoff"]} for line in lines]
    diff = diff_journals(source_of(tmp_path, lines), source_of(tmp_path, later, "b"))
    assert diff.same
    assert diff.paired == 12


def test_the_first_row_that_differs_is_named_with_what_follows_from_it(tmp_path):
    lines = healthy_lines("h1")
    other = [dict(line) for line in lines]
    other[10]["outcome"], other[10]["message"] = "failed", "connection reset"
    (found,) = diff_journals(source_of(tmp_path, lines), source_of(tmp_path, other, "b")).differing
    assert found.first.kind is DifferenceKind.CHANGED
    assert found.first.fields == {"outcome": ("scheduled", "failed")}
    assert found.first.a is not None
    assert found.first.a.action_id == 2


def test_a_row_that_one_side_lacks_is_said_to_be_the_other_s(tmp_path):
    lines = healthy_lines("h1")
    (found,) = diff_journals(source_of(tmp_path, lines), source_of(tmp_path, lines[:-1], "b")).differing
    assert found.first.kind is DifferenceKind.ONLY_IN_A
    assert found.first.dependents_a == ()


def test_handoffs_are_paired_by_request_and_the_rest_is_listed(tmp_path):
    a = [*healthy_lines("p1", request="r1", attempt=1), *healthy_lines("p2", 50.0, request="r2", attempt=1)]
    b = [*healthy_lines("q2", request="r2", attempt=1), *healthy_lines("q3", 50.0, request="r3", attempt=1)]
    diff = diff_journals(source_of(tmp_path, a), source_of(tmp_path, b, "b"))
    assert (diff.paired, diff.only_a, diff.only_b) == (1, ("p1",), ("q3",))
    assert diff.differing == ()


def test_the_deadline_that_came_first_is_found_to_make_the_difference():
    found = bisect_handoffs(chronicle("S32"), chronicle("S32b"))
    (edit,) = found.edits
    assert (found.good.completion, found.bad.completion) == ("success", "canceled")
    assert edit.kind is EditKind.PUT_IN
    assert str(edit) == "timed_out comes in at place 6"


def test_one_value_is_found_to_make_the_difference(tmp_path):
    lines = healthy_lines("h1")
    bad = [dict(line) for line in lines[:12]]
    bad[10]["outcome"], bad[10]["message"] = "failed", "connection reset"
    good_source, bad_source = source_of(tmp_path, lines), source_of(tmp_path, bad, "b")
    pair = [chronicle_of(source, source.handoff(1)) for source in (good_source, bad_source)]
    found = bisect_handoffs(*pair)
    assert [str(edit) for edit in found.edits] == ["scheduled of action 2 becomes failed of action 2"]


def test_one_input_that_is_missing_is_found_to_make_the_difference():
    (edit,) = bisect_handoffs(chronicle("S01"), chronicle("S03")).edits
    assert edit.kind is EditKind.LEFT_OUT
    assert str(edit) == "transfer_completed is left out"


def test_two_that_ended_alike_cannot_be_bisected():
    with pytest.raises(NothingToBisect, match="alike"):
        bisect_handoffs(chronicle("S01"), chronicle("S32"))


def test_two_orders_cannot_be_bisected():
    with pytest.raises(NothingToBisect, match="same order"):
        bisect_handoffs(chronicle("S02"), chronicle("S03"))


@pytest.fixture
def journals(tmp_path):
    for code in ("S32", "S32b"):
        run(["import", str(incident(code)), "--journal", str(tmp_path / f"{code}.db")])
    return tmp_path / "S32.db", tmp_path / "S32b.db"


@pytest.mark.parametrize(("command", "status"), [("diff", 1), ("bisect", 0)])
def test_the_commands_answer_people_and_programs(journals, capsys, command, status):
    capsys.readouterr()
    assert run([command, *map(str, journals)]) == status
    assert "timed_out" in capsys.readouterr().out
    assert run([command, *map(str, journals), "--json"]) == status
    schema = json.loads((SCHEMAS / f"{command}.schema.json").read_text())
    Draft202012Validator(schema).validate(json.loads(capsys.readouterr().out))


def test_a_journal_does_not_differ_from_itself(journals, capsys):
    assert run(["diff", str(journals[0]), str(journals[0])]) == 0
    assert run(["bisect", str(journals[0]), str(journals[0])]) == 2
    assert capsys.readouterr().err.startswith("error: no pair")
