"""`handoff import` and `handoff export` as users meet them."""

import json
from pathlib import Path

import pytest
from incidents import healthy_lines, incident_paths, written
from jsonschema import Draft202012Validator

from handoff.cli.app import run
from handoff.journal.verify import verify_journal

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "import.schema.json").read_text())


def test_an_incident_goes_into_a_journal_and_out_again_with_the_same_digest_chain(tmp_path, capsys):
    path = next(path for path in incident_paths() if path.name.startswith("S13"))
    assert run(["import", str(path), "--journal", str(tmp_path / "a.db"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(document)
    assert document["handoffs"] == 2
    assert run(["export", str(tmp_path / "a.db"), "--out", str(tmp_path / "a.jsonl")]) == 0
    assert run(["import", str(tmp_path / "a.jsonl"), "--journal", str(tmp_path / "b.db")]) == 0
    one, other = verify_journal(tmp_path / "a.db"), verify_journal(tmp_path / "b.db")
    assert one.state == other.state == "sound"
    assert one.chain_head == other.chain_head is not None


def test_export_writes_to_standard_output(tmp_path, capsys):
    lines = written(tmp_path / "a.jsonl", healthy_lines("h1"))
    assert run(["import", str(lines), "--journal", str(tmp_path / "a.db")]) == 0
    assert "19 lines became" in capsys.readouterr().out
    assert run(["export", str(tmp_path / "a.db")]) == 0
    assert '"action":"submit_prefill"' in capsys.readouterr().out


def test_what_cannot_be_placed_is_listed_and_the_status_says_so(tmp_path, capsys):
    lines = written(tmp_path / "a.jsonl", [*healthy_lines("h1"), "{oops"])
    assert run(["import", str(lines), "--journal", str(tmp_path / "a.db")]) == 1
    assert "a.jsonl:20: it is not a JSON object: {oops" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["none.jsonl"])
def test_a_missing_file_is_one_error_line(tmp_path, capsys, name):
    assert run(["import", str(tmp_path / name), "--journal", str(tmp_path / "a.db")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert name in error
