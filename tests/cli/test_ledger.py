"""`handoff ledger` as users meet it."""

import json
from pathlib import Path

import pytest
from incidents import incident_paths
from jsonschema import Draft202012Validator

from handoff.cli.app import run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "ledger.schema.json").read_text())


@pytest.fixture
def stuck(tmp_path):
    path = next(path for path in incident_paths() if path.name.startswith("S17"))
    run(["import", str(path), "--journal", str(tmp_path / "a.db")])
    return tmp_path / "a.db"


def test_it_shows_who_owns_which_blocks_at_the_end(stuck, capsys):
    capsys.readouterr()
    assert run(["ledger", str(stuck)]) == 0
    out = capsys.readouterr().out
    assert "owed: 2 source_kv, 2 destination_kv" in out
    assert "4 5 6" in out


@pytest.mark.parametrize("options", [[], ["--at", "12"], ["--follow", "h1"]])
def test_json_is_one_document_of_its_schema(stuck, capsys, options):
    capsys.readouterr()
    assert run(["ledger", str(stuck), "--json", *options]) == 0
    Draft202012Validator(SCHEMA).validate(json.loads(capsys.readouterr().out))


def test_an_unknown_handoff_is_one_error_line(stuck, capsys):
    assert run(["ledger", str(stuck), "--follow", "nobody"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
