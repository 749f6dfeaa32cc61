"""A journal as a page and as a trace: everything is in them, and nothing has to be loaded."""

import io
import json
import re

import pytest
from incidents import healthy_lines, imported, incident_paths, rows_of, written

from handoff.cli.app import run
from handoff.journal.incident_page import incident_page
from handoff.journal.perfetto import export_perfetto

_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)


def of(code):
    return rows_of(imported(next(path for path in incident_paths() if path.name.startswith(f"{code}_")))[0])


def data_of(page):
    return json.loads(_DATA.search(page)[1])


def test_a_page_shows_the_handoffs_with_findings_their_rows_and_their_ledger():
    (writer, victim) = data_of(incident_page(of("S13"), "S13"))["handoffs"]
    assert writer["codes"] == ["unsafe_reuse"]
    assert victim["codes"] == ["unsafe_reuse"]
    rows = {row["seq"] for row in writer["rows"]} | {row["seq"] for row in victim["rows"]}
    assert {seq for finding in writer["findings"] for seq in finding["rows"]} <= rows
    assert any(row["d"].startswith("destination_blocks  blocks 0 1") for row in victim["rows"])
    assert [p["to"] for p in writer["postings"] if p["asset"] == "source kv"][-1] == "source pool"


def test_a_page_loads_nothing():
    page = incident_page(of("S13"), "S13")
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|fetch\(|https?://", page.replace("https://ui", ""))


def test_what_a_journal_says_cannot_end_the_page_s_script(tmp_path):
    lines = healthy_lines("h1")[:11]
    lines[2] = {**lines[2], "outcome": "failed", "message": "</script><script>alert(1)</script>"}
    page = incident_page(rows_of(imported(written(tmp_path / "a.jsonl", lines))[0]), "a")
    assert "</script><script>alert" not in page
    assert any("alert(1)" in json.dumps(handoff) for handoff in data_of(page)["handoffs"])


@pytest.mark.parametrize("count", [0, 2990])
def test_a_page_holds_handoffs_of_three_and_of_three_thousand_rows(tmp_path, count):
    lines = healthy_lines("h1")[:2] if count == 0 else healthy_lines("h1")[:11]
    lines += [{"at_ms": 20.0 + n, "handoff": "h1", "resource": "lease_renewed"} for n in range(count)]
    source = rows_of(imported(written(tmp_path / "a.jsonl", lines), end_ms=9000.0)[0])
    (handoff,) = data_of(incident_page(source, "a"))["handoffs"]
    assert len(handoff["rows"]) == len(lines) + 1


def test_a_healthy_journal_has_a_page_too(tmp_path):
    source = rows_of(imported(written(tmp_path / "a.jsonl", healthy_lines("h1")))[0])
    data = data_of(incident_page(source, "a"))
    assert data["summary"] == "0 of 1 handoffs have findings; 1 shown"


def test_a_trace_has_a_lane_for_each_side_spans_for_each_step_and_arrows(tmp_path):
    source = rows_of(imported(written(tmp_path / "a.jsonl", healthy_lines("h1")))[0])
    text = io.StringIO()
    count = export_perfetto(source, text)
    events = json.loads(text.getvalue())["traceEvents"]
    assert len(events) == count
    spans = {event["name"]: (event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert spans["prefill"] == (0.0, 5000.0)
    assert spans["transfer"] == (5500.0, 8000.0)
    assert spans["decode"] == pytest.approx((13700.0, 3300.0))
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"source", "destination"}
    flows = [event for event in events if event["ph"] in "sf"]
    assert [event["ph"] for event in flows] == ["s", "f", "s", "f"]
    assert flows[0]["id"] == flows[1]["id"] != flows[2]["id"]


def test_a_trace_marks_what_is_wrong():
    text = io.StringIO()
    export_perfetto(of("S13"), text)
    marks = [event for event in json.loads(text.getvalue())["traceEvents"] if event["ph"] == "i"]
    assert "unsafe_reuse" in {event["name"] for event in marks}


@pytest.mark.parametrize("form", ["html", "perfetto", "jsonl"])
def test_export_writes_each_form(tmp_path, form, capsys):
    run(["import", str(incident_paths()[0]), "--journal", str(tmp_path / "a.db")])
    assert run(["export", str(tmp_path / "a.db"), "--format", form, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").stat().st_size > 1000
    capsys.readouterr()
    assert run(["export", str(tmp_path / "a.db"), "--format", form]) == 0
    assert capsys.readouterr().out == (tmp_path / "out").read_text()
