"""Incidents become fixtures: cut out, made smaller, checked, and collected by pytest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from incidents import healthy_lines, imported, incident_paths, many_healthy, rows_of, written

from handoff.cli.app import run
from handoff.journal.excerpt import excerpt
from handoff.journal.finding import Certainty
from handoff.journal.fixture import FixtureUnreadable, check, observe_lines, read_fixture, write_fixture
from handoff.journal.fixture_export import FixtureRefused, as_python_test, fixture_fields, incident_of
from handoff.journal.fleet import Fleet
from handoff.journal.replayer import replay
from handoff.journal.shrink import NothingToKeep, shrink_lines

S13 = next(path for path in incident_paths() if path.name.startswith("S13"))


def unsafe_reuse_in_a_crowd(healthy: int):
    """Many healthy handoffs, and among them one whose blocks were given away too early."""
    lines = many_healthy(healthy)
    for event in json.loads(S13.read_text())["events"]:
        if "fault" in event:
            continue
        blocks = {"blocks": [block + 100 for block in event["blocks"]]} if "blocks" in event else {}
        name = {"h1": "writer", "h2": "victim"}[event["handoff"]]
        lines.append({**event, **blocks, "at_ms": event["at_ms"] + 200.0, "handoff": name})
    return sorted(lines, key=lambda line: line["at_ms"])


@pytest.mark.parametrize("path", incident_paths(), ids=lambda path: path.stem.partition("_")[0])
def test_an_excerpt_of_every_handoff_shows_what_the_journal_shows(path):
    fixture = json.loads(path.read_text())
    journal, _ = imported(path, end_ms=fixture["end_ms"])
    source = rows_of(journal)
    lines = excerpt(source, [declared.number for declared in source.handoffs()])
    again = observe_lines(lines, fixture["end_ms"]).fields
    assert again == {**observe_lines(fixture["events"], fixture["end_ms"]).fields}


def test_one_unsafe_reuse_among_20_000_rows_shrinks_to_a_page():
    lines = unsafe_reuse_in_a_crowd(1050)
    assert len(lines) > 19_900
    small = shrink_lines(lines, "unsafe_reuse")
    assert len(small) <= 40
    observed = observe_lines(small)
    assert [finding.code for finding in observed.examination.root_causes] == ["unsafe_reuse"]
    assert observed.report.unplaced == ()


def test_shrinking_keeps_no_line_without_which_the_finding_stays():
    small = shrink_lines(unsafe_reuse_in_a_crowd(10), "unsafe_reuse")
    for left_out in range(len(small)):
        fewer = small[:left_out] + small[left_out + 1 :]
        assert shrink_is_needed(fewer), small[left_out]


def shrink_is_needed(lines) -> bool:
    """Whether a history lacks the finding, or has one more, or could not have happened."""
    observed = observe_lines(lines)
    codes = {finding.code for finding in observed.examination.findings}
    proved = {finding.code for finding in observed.examination.root_causes if finding.certainty is Certainty.PROVED}
    allowed = {finding.code for finding in observe_lines(unsafe_reuse_in_a_crowd(10)).examination.findings}
    return "unsafe_reuse" not in proved or not codes <= allowed or not replay(rows_of(observed.journal)).agrees


def test_shrinking_for_a_finding_that_is_not_there_is_refused():
    with pytest.raises(NothingToKeep, match="found: nothing"):
        shrink_lines(healthy_lines("h1"), "lost_outcome")


def test_a_written_fixture_reads_as_it_was(tmp_path):
    fields = {"format": 1, "id": "a", "root_cause": None, "events": healthy_lines("h1")}
    write_fixture(tmp_path / "a.handoff.json", fields)
    assert read_fixture(tmp_path / "a.handoff.json").fields == fields


@pytest.mark.parametrize("text", ["{", "[]", '{"events": 3}', '{"format": 99, "events": []}'])
def test_a_file_that_is_no_fixture_is_named(tmp_path, text):
    (tmp_path / "a.handoff.json").write_text(text)
    with pytest.raises(FixtureUnreadable, match=r"a\.handoff\.json"):
        read_fixture(tmp_path / "a.handoff.json")


def test_a_mismatch_speaks_of_handoffs(tmp_path):
    fields = {"id": "a", "completions": {"h1": "canceled"}, "root_cause": "lost_fact", "events": healthy_lines("h1")}
    write_fixture(tmp_path / "a.handoff.json", fields)
    told = [str(mismatch) for mismatch in check(read_fixture(tmp_path / "a.handoff.json"))]
    assert told == [
        "root_cause: expected lost_fact, found None",
        "completions of handoff h1: expected canceled, found success",
    ]


def test_an_exported_python_test_passes_and_fails_when_the_rule_is_broken(tmp_path, monkeypatch):
    journal, _ = imported(written(tmp_path / "a.jsonl", unsafe_reuse_in_a_crowd(10)))
    incident = incident_of(rows_of(journal))
    fields = fixture_fields(incident, shrink_lines(incident.lines, "unsafe_reuse"))
    scope: dict[str, object] = {}
    exec(as_python_test(fields), scope)
    scope["test_unsafe_reuse_is_found"]()

    monkeypatch.setattr(Fleet, "_unsafe_reuse", lambda *arguments: iter(()))
    with pytest.raises(AssertionError):
        scope["test_unsafe_reuse_is_found"]()


def test_several_incidents_must_be_told_apart(tmp_path):
    lines = [*unsafe_reuse_in_a_crowd(2), *healthy_lines("lonely", 900.0)[:11]]
    journal, _ = imported(written(tmp_path / "a.jsonl", lines), end_ms=2000.0)
    with pytest.raises(FixtureRefused, match="lost_fact of lonely"):
        incident_of(rows_of(journal))
    assert incident_of(rows_of(journal), code="lost_fact").finding.handoffs == ("lonely",)


# -- commands and plugin ---------------------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path):
    run(["import", str(S13), "--journal", str(tmp_path / "a.db")])
    assert run(["fixture", "export", str(tmp_path / "a.db"), "--out", str(tmp_path / "reuse.handoff.json")]) == 0
    return tmp_path / "reuse.handoff.json"


def test_from_a_journal_to_a_checked_fixture(exported, capsys):
    assert run(["fixture", "check", str(exported)]) == 0
    assert run(["fixture", "shrink", str(exported)]) == 0
    assert run(["fixture", "check", str(exported), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["fixtures"][0]["holds"]


def test_check_exits_1_when_a_fixture_is_found_otherwise(exported, capsys):
    fields = {**json.loads(exported.read_text()), "root_cause": "lost_fact"}
    exported.write_text(json.dumps(fields))
    assert run(["fixture", "check", str(exported)]) == 1
    assert "root_cause: expected lost_fact, found unsafe_reuse" in capsys.readouterr().out


def test_a_finding_that_is_not_there_is_one_error_line(exported, capsys):
    assert run(["fixture", "export", str(exported.parent / "a.db"), "--code", "lost_fact", "--out", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no such finding")


def pytest_on(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, "."], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_pytest_collects_fixtures_and_accepts_what_is_found(exported):
    assert pytest_on(exported.parent).returncode == 0
    fields = {**json.loads(exported.read_text()), "root_cause": "lost_fact"}
    exported.write_text(json.dumps(fields))
    failed = pytest_on(exported.parent)
    assert failed.returncode == 1
    assert "root_cause: expected lost_fact, found unsafe_reuse" in failed.stdout
    accepted = pytest_on(exported.parent, "--handoff-accept")
    assert accepted.returncode == 0
    assert "accepted fixtures" in accepted.stdout
    assert pytest_on(exported.parent).returncode == 0
