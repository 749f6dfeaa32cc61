"""A journal that can be shown to others: nothing of the names is left, and everything that decides is."""

import json

import pytest
from incidents import healthy_lines, imported, incident_paths, rows_of, written

from handoff.cli.app import run
from handoff.journal.examination import examine
from handoff.journal.exporter import exported_lines
from handoff.journal.redaction import RedactionRefused, Redactor, redacted
from handoff.journal.replayer import replay

KEY = b"a key for tests"


def exported(source) -> str:
    return "\n".join(exported_lines(source))


@pytest.mark.parametrize("path", incident_paths(), ids=lambda path: path.stem.partition("_")[0])
def test_a_redacted_incident_replays_and_is_found_as_before(path):
    source = rows_of(imported(path)[0])
    seen = redacted(source, KEY)
    assert [(f.code, f.certainty, f.rows) for f in examine(seen).findings] == [
        (f.code, f.certainty, f.rows) for f in examine(source).findings
    ]
    assert replay(seen).agrees
    text = exported(seen)
    names = {event["handoff"] for event in json.loads(path.read_text())["events"] if "handoff" in event}
    assert not any(f'"{name}"' in text for name in names)


def secretive(tmp_path, **fields):
    lines = healthy_lines("acme-corp-7", request="alice@example.com", room=9)
    lines[10] = {**lines[10], "outcome": "failed", "message": "could not reach gpu-12.acme.internal:8998", **fields}
    return rows_of(imported(written(tmp_path / "a.jsonl", lines[:11]))[0])


def test_names_hosts_and_messages_are_gone_wherever_they_stand(tmp_path):
    text = exported(redacted(secretive(tmp_path, pod="acme-prefill-3", nested={"ip": ["10.1.2.3"]}), KEY))
    for private in ("acme", "alice", "example", "gpu-12", "10.1.2.3", 'prefill-3"'):
        assert private not in text
    assert '"message":"t' in text


def test_equal_names_have_equal_tokens_and_another_key_other_ones():
    one, same, other = Redactor(KEY), Redactor(KEY), Redactor(b"another")
    assert one.name("req-7") == same.name("req-7") != other.name("req-7")
    assert one.name("req-7-d").startswith(one.name("req-7"))
    assert len(one.name("92fe81f6-47b6-8ac0-a7d8-89fd819f4355")) == 36


def test_a_field_whose_name_is_private_is_replaced_too(tmp_path):
    text = exported(redacted(secretive(tmp_path, labels={"team.acme.com/owner": 1}), KEY))
    assert "acme" not in text


def test_what_still_looks_private_is_refused_with_its_row(tmp_path):
    lines = healthy_lines("h1")
    lines[3]["resource"] = "source_held"
    lines.insert(4, {"at_ms": 5.0, "handoff": "h1", "fault": "10.1.2.3 gone"})
    source = rows_of(imported(written(tmp_path / "a.jsonl", lines))[0])
    with pytest.raises(RedactionRefused, match=r"row \d+ still shows what looks like an address: '10\.1\.2\.3'"):
        redacted(source, KEY)


def test_nothing_is_written_when_redaction_is_refused(tmp_path, capsys):
    lines = [*healthy_lines("h1"), {"at_ms": 20.0, "handoff": "h1", "fault": "see https://wiki.acme.com/x"}]
    run(["import", str(written(tmp_path / "a.jsonl", lines)), "--journal", str(tmp_path / "a.db")])
    assert run(["export", str(tmp_path / "a.db"), "--redact", "--out", str(tmp_path / "out.jsonl")]) == 1
    assert capsys.readouterr().err.startswith("error: row ")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_redacted_export_goes_into_a_journal_again(tmp_path):
    path = next(path for path in incident_paths() if path.name.startswith("S13"))
    run(["import", str(path), "--journal", str(tmp_path / "a.db")])
    out = tmp_path / "out.jsonl"
    assert run(["export", str(tmp_path / "a.db"), "--redact", "--key", "k", "--out", str(out)]) == 0
    assert run(["import", str(out), "--journal", str(tmp_path / "b.db")]) == 0
    assert run(["why", str(tmp_path / "b.db")]) == 1
