"""Findings on the incident histories: every stated code, one root cause, nothing beyond."""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from incidents import INCIDENTS, healthy_lines, imported, incident_paths, many_healthy, rows_of, written

from handoff.journal.examination import examine
from handoff.journal.finding import Certainty
from handoff.journal.finding_codes import CODES
from handoff.journal.findings import RULES
from handoff.journal.fixture import check, observe_lines, read_fixture

CODE_FIXTURES = INCIDENTS.parent / "codes"
NAMING_THE_VERDICT = {
    "reused_during_foreign_write", "write_landed_on_foreign_blocks", "read_after_source_release",
    "source_missing_at_start", "unknown_handoff",
}  # fmt: skip

incidents = pytest.mark.parametrize("path", incident_paths(), ids=lambda path: path.stem.partition("_")[0])


def of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def codes_of(events: Iterable[Mapping[str, Any]], end_ms: float | None = None) -> list[str]:
    return sorted(finding.code for finding in observe_lines(list(events), end_ms).examination.findings)


@incidents
def test_an_incident_gives_its_root_cause_its_consequences_and_nothing_else(path):
    assert check(read_fixture(path)) == []


@incidents
def test_the_same_is_found_without_rows_that_name_faults_or_verdicts(path):
    fixture = of(path)
    bare = [
        event
        for event in fixture["events"]
        if not {"fault", "error"} & event.keys() and event.get("resource") not in NAMING_THE_VERDICT
    ]
    assert codes_of(bare, fixture["end_ms"]) == codes_of(fixture["events"], fixture["end_ms"])


@incidents
def test_the_wording_of_a_message_decides_nothing(path):
    fixture = of(path)
    reworded = copy.deepcopy(fixture["events"])
    for event in reworded:
        if "message" in event:
            event["message"] = "?"
    assert codes_of(reworded, fixture["end_ms"]) == codes_of(fixture["events"], fixture["end_ms"])


# -- the same histories as two sources saw them ----------------------------------------------------------------------


def of_the_destination(event: Mapping[str, Any]) -> bool:
    resource = str(event.get("resource", ""))
    return event.get("fact") == "destination_reserved" or resource.startswith("destination")


def in_whole_seconds(at_ms: float, far: bool) -> float:
    return at_ms // 1000.0 * 1000.0


def on_clocks_20_ms_apart(at_ms: float, far: bool) -> float:
    return float(int(at_ms)) + (20.0 if far else 0.0)


Seen = Callable[[float, bool], float]
ways_of_seeing = pytest.mark.parametrize(
    ("seen", "resolution_ms", "far_clock"),
    [(in_whole_seconds, 1000.0, "host"), (on_clocks_20_ms_apart, 1.0, "other-host")],
    ids=["whole seconds", "clocks 20 ms apart"],
)


def as_two_sources(
    events: Iterable[Mapping[str, Any]], tmp_path: Path, seen: Seen, resolution_ms: float, far_clock: str
) -> list[Path]:
    near = [{"source": "prefill", "role": "source", "clock": "host", "resolution_ms": resolution_ms}]
    far = [{"source": "decode", "role": "destination", "clock": far_clock, "resolution_ms": resolution_ms}]
    for event in events:
        is_far = of_the_destination(event)
        line = {**event, "source": "decode" if is_far else "prefill", "at_ms": seen(event["at_ms"], is_far)}
        if "lease_deadline_ms" in event:
            line["lease_deadline_ms"] = seen(event["lease_deadline_ms"], is_far)
        (far if is_far else near).append(line)
    return [written(tmp_path / "near.jsonl", near), written(tmp_path / "far.jsonl", far)]


@ways_of_seeing
@incidents
def test_an_incident_keeps_its_codes_as_two_sources_saw_it(path, tmp_path, seen, resolution_ms, far_clock):
    fixture = of(path)
    files = as_two_sources(fixture["events"], tmp_path, seen, resolution_ms, far_clock)
    journal, report = imported(*files, end_ms=fixture["end_ms"])
    assert report.unplaced == ()
    found = {f.code for f in examine(rows_of(journal)).findings if f.certainty is not Certainty.UNKNOWN}
    assert set(fixture["findings"]) <= found


@ways_of_seeing
def test_healthy_handoffs_as_two_sources_saw_them_prove_nothing(tmp_path, seen, resolution_ms, far_clock):
    journal, _ = imported(*as_two_sources(many_healthy(2000), tmp_path, seen, resolution_ms, far_clock))
    assert [f for f in examine(rows_of(journal)).findings if f.certainty is Certainty.PROVED] == []


def test_healthy_handoffs_give_no_finding():
    assert observe_lines(many_healthy(2000)).examination.findings == ()


# -- each code -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CODE_FIXTURES.glob("*.json")), ids=lambda path: path.name[:-13])
def test_a_code_is_found_in_its_history_and_not_in_its_twin(path):
    fixture = read_fixture(path)
    assert check(fixture) == []
    code, _, twin = fixture.name.partition(".")
    found = codes_of(fixture.events, fixture.fields.get("end_ms"))
    assert (code in found) is not bool(twin)
    if twin:
        assert found == []


def test_every_code_of_the_table_is_shown_by_a_history_or_by_rows_of_a_session():
    shown = {path.name.partition(".")[0] for path in CODE_FIXTURES.glob("*.json")}
    shown |= {code for path in incident_paths() for code in (of(path)["root_cause"], *of(path)["consequences"])}
    of_sessions = {
        "split_verdict", "session_result_differs", "observed_before_validated", "abort_text_dropped", "pending_twice",
        "vanished_registration", "call_before_deadline", "retry_refused_early", "rejected", "complete_not_delivered",
        "protocol_violation",
    }  # fmt: skip
    assert set(CODES) - shown - of_sessions == set()


def test_every_rule_says_what_it_finds():
    assert all(rule.__doc__ for rule in RULES)


def test_no_remedy_is_to_wait_longer():
    for code, entry in CODES.items():
        for word in ("raise the timeout", "longer timeout", "increase"):
            assert word not in entry.remedy, code


# -- absence is evidence only where the row would have been seen ----------------------------------------------------


def test_a_missing_fact_is_unknown_when_no_source_could_have_shown_it(tmp_path):
    lines = [line for line in healthy_lines("h1") if line["at_ms"] < 10.0]
    declared = {"source": "prefill", "role": "source", "observes": ["source_held", "submit_prefill"]}
    seen = [declared, *({**line, "source": "prefill"} for line in lines)]
    journal, _ = imported(written(tmp_path / "a.jsonl", seen), end_ms=1000.0)
    (lost,) = [f for f in examine(rows_of(journal)).findings if f.code == "lost_fact"]
    assert lost.certainty is Certainty.UNKNOWN
    assert lost.would_settle == "a source that shows transfer_completed"


def test_the_order_of_two_sources_in_one_second_is_possible_at_most(tmp_path):
    fixture = of(next(path for path in incident_paths() if path.name.startswith("S13")))
    files = as_two_sources(fixture["events"], tmp_path, in_whole_seconds, 1000.0, "host")
    journal, _ = imported(*files, end_ms=fixture["end_ms"])
    (reuse,) = [f for f in examine(rows_of(journal)).findings if f.code == "unsafe_reuse"]
    assert reuse.certainty is Certainty.POSSIBLE
