"""Event lines of other systems become rows: in order, joined, and nothing is lost without being named."""

import gzip
import json

import pytest
from incidents import healthy_lines, imported, incident_paths, rows_of, written

from handoff.journal.declarations import ClockAligned, HandoffJoined
from handoff.journal.event_lines import LineRefused
from handoff.journal.exporter import exported_lines
from handoff.journal.foreign_lines import read_foreign
from handoff.journal.importer import import_lines
from handoff.journal.line_files import LinesUnreadable
from handoff.journal.reader import JournalReader
from handoff.journal.replay_report import Tier
from handoff.journal.replayer import replay
from handoff.journal.row_codec import decode
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.terms import Kind


def told(journal):
    """What the rows say, without numbers."""
    return [(e.kind, e.name, e.action_id, e.outcome, e.verdict) for e in journal.events if e.actor is not None]


def split(lines, *, offset_ms=0.0, rename=None, destination_clock="decode-1"):
    """One observer's lines as two sources would have written them, the destination's clock `offset_ms` ahead."""
    source = [{"source": "prefill-1", "role": "source", "clock": "prefill-1"}]
    destination = [{"source": "decode-1", "role": "destination", "clock": destination_clock}]
    for line in lines:
        far = line.get("fact") == "destination_reserved" or str(line.get("resource", "")).startswith("destination")
        if far:
            name = line["handoff"] if rename is None else rename
            destination.append({**line, "source": "decode-1", "handoff": name, "at_ms": line["at_ms"] + offset_ms})
        else:
            source.append({**line, "source": "prefill-1"})
    return source, destination


@pytest.mark.parametrize("path", incident_paths(), ids=lambda path: path.stem)
def test_a_coordinator_folded_over_an_incident_decides_what_the_file_says(path):
    journal, report = imported(path)
    assert report.unplaced == ()
    assert report.coordinators == len({e.handoff for e in journal.events if e.kind == Kind.ACTION_ISSUED})
    assert replay(rows_of(journal), Tier.CORE).agrees
    assert replay(rows_of(journal), Tier.FULL).agrees


def test_a_foreign_system_that_breaks_the_protocol_diverges_in_replay(tmp_path):
    lines = [line for line in healthy_lines("h1") if line.get("fact") != "transfer_completed"]
    journal, _ = imported(written(tmp_path / "a.jsonl", lines))
    report = replay(rows_of(journal))
    assert not report.agrees
    assert "activate_destination" in report.divergences[0].sentence


def test_facts_without_actions_are_a_witness_s_and_replay_as_recorded(tmp_path):
    lines = [line for line in healthy_lines("h1") if "action" not in line]
    journal, report = imported(written(tmp_path / "a.jsonl", lines))
    assert report.coordinators == 0
    assert {e.kind for e in journal.events if e.actor is not None} == {"fact_observed", "control_replied"}
    assert all(e.verdict is None for e in journal.events if e.actor is not None)
    assert replay(rows_of(journal), Tier.CORE).agrees
    assert replay(rows_of(journal), Tier.FULL).agrees


def test_the_order_of_actions_tells_the_order_of_the_handoff_when_nothing_else_does(tmp_path):
    lines = healthy_lines("h1")
    del lines[0]
    journal, _ = imported(written(tmp_path / "a.jsonl", lines))
    opened = next(decode(e) for e in journal.events if e.kind == Kind.HANDOFF_OPENED)
    assert opened.inferred
    assert opened.order == "source_first"
    assert replay(rows_of(journal)).agrees


def test_unknown_fields_and_unknown_lines_are_kept(tmp_path):
    lines = healthy_lines("h1")
    lines[2]["pod"] = "prefill-7"
    lines[1]["node"] = "n1"
    lines.append({"at_ms": 18.0, "handoff": "h1", "temperature": 81})
    journal, report = imported(written(tmp_path / "a.jsonl", lines))
    text = "\n".join(exported_lines(rows_of(journal)))
    for kept in ('"pod":"prefill-7"', '"node":"n1"', '"temperature":81'):
        assert kept in text
    assert report.without_meaning == 1
    assert report.unplaced == ()
    assert replay(rows_of(journal)).agrees


def test_a_torn_file_gives_what_can_be_read_and_names_the_rest(tmp_path):
    lines = [json.dumps(line) for line in healthy_lines("h1")]
    torn = [
        *lines[:5],
        lines[5] + lines[6],  # two writers' lines that ran together
        "\x00\x00garbage",
        lines[7][:-3] + lines[8],  # one that lost its end to the next
        *lines[9:-1],
        lines[-1][:30],  # cut off
    ]
    journal, report = imported(written(tmp_path / "a.jsonl", torn))
    assert [(entry.number, entry.reason) for entry in report.unplaced] == [
        (7, "it is not a JSON object"), (8, "it is not a JSON object"), (20 - 2, "it is not a JSON object"),
    ]  # fmt: skip
    assert report.lines == len(lines) - 2
    gap = next(e for e in journal.events if e.kind == Kind.GAP)
    assert gap.payload["lost"] == 3


def test_what_cannot_be_right_is_refused_with_what_would_be(tmp_path):
    bad = [
        {"at_ms": 0.0, "handoff": "h1", "action": "submit_prefil", "id": 0},
        {"at_ms": "late", "handoff": "h1", "fact": "failed"},
        {"handoff": "h1", "fact": "failed"},
        {"at_ms": 1.0, "fact": "failed"},
        {"at_ms": 1.0, "handoff": "h1", "resource": "source_held", "blocks": "0-3"},
    ]
    _, report = imported(written(tmp_path / "a.jsonl", bad))
    assert [(entry.number, entry.reason) for entry in report.unplaced] == [
        (1, "action 'submit_prefil' is unknown; did you mean 'submit_prefill'?"),
        (2, "at_ms must be a finite number, not 'late'"),
        (3, "it has no at_ms, and not both of at_min_ms and at_max_ms"),
        (4, "it belongs to a handoff and names none; add handoff"),
        (5, "blocks must be a list of whole numbers, not '0-3'"),
    ]


def test_gzip_and_plain_give_the_same_rows(tmp_path):
    plain = written(tmp_path / "a.jsonl", healthy_lines("h1"))
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert imported(plain)[0].events == imported(packed)[0].events


def test_a_gzip_file_that_was_cut_off_gives_its_beginning(tmp_path):
    text = "".join(json.dumps(line) + "\n" for i in range(200) for line in healthy_lines(f"h{i}", i * 1.0))
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(text.encode())[:-2000])
    _, report = imported(packed)
    assert report.lines > 100
    assert "compressed file ends too early" in report.unplaced[-1].reason


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(LinesUnreadable, match=r"none\.jsonl"):
        imported(tmp_path / "none.jsonl")


def test_two_files_give_the_same_rows_in_any_order_of_arguments(tmp_path):
    source, destination = split(healthy_lines("h1"), offset_ms=20.0)
    one, other = written(tmp_path / "z.jsonl", source), written(tmp_path / "a.jsonl", destination)
    assert imported(one, other)[0].events == imported(other, one)[0].events


@pytest.mark.parametrize("offset_ms", [-3000.0, -20.0, 0.0, 0.3, 20.0, 86_400_000.0])
def test_two_clocks_are_aligned_by_what_causes_what(tmp_path, offset_ms):
    source, destination = split(healthy_lines("h1"), offset_ms=offset_ms)
    journal, report = imported(written(tmp_path / "s.jsonl", source), written(tmp_path / "d.jsonl", destination))
    (aligned,) = report.clocks
    assert aligned.reference == "prefill-1"
    assert aligned.low_ms <= -offset_ms <= aligned.high_ms
    assert aligned.consistent
    assert replay(rows_of(journal)).agrees
    alone, _ = imported(written(tmp_path / "both.jsonl", healthy_lines("h1")))
    assert told(journal) == told(alone)
    stored = [decode(e) for e in journal.events if e.kind == Kind.CLOCK_ALIGNED]
    assert stored == [aligned]
    assert isinstance(aligned, ClockAligned)


def test_clocks_that_no_offset_explains_are_said_to_be_inconsistent(tmp_path):
    source, destination = split([*healthy_lines("h1"), *healthy_lines("h2", 100.0)])
    for line in destination[4:]:
        line["at_ms"] += 5000.0  # set between the two handoffs
    _, report = imported(written(tmp_path / "s.jsonl", source), written(tmp_path / "d.jsonl", destination))
    assert not report.clocks[0].consistent


def test_rows_keep_the_interval_in_which_they_lie(tmp_path):
    source, destination = split(healthy_lines("h1"), offset_ms=20.0)
    journal, _ = imported(written(tmp_path / "s.jsonl", source), written(tmp_path / "d.jsonl", destination))
    reserved = next(e for e in journal.events if e.name == "destination_reserved")
    assert reserved.at_min_ms <= 5.4 <= reserved.at_max_ms
    assert reserved.at_min_ms < reserved.at_max_ms


def test_times_floored_to_seconds_are_put_in_causal_order(tmp_path):
    lines = [line for i in range(20) for line in healthy_lines(f"h{i}", i * 37.0)]
    lines.sort(key=lambda line: line["at_ms"])
    source, destination = split(lines, destination_clock="prefill-1")
    for stream in (source, destination):
        stream[0]["resolution_ms"] = 1000.0
        for line in stream[1:]:
            line["at_ms"] = line["at_ms"] // 1000.0 * 1000.0
    journal, _ = imported(written(tmp_path / "s.jsonl", source), written(tmp_path / "d.jsonl", destination))
    assert replay(rows_of(journal)).agrees
    assert {e.verdict for e in journal.events} <= {None, "applied"}


def test_two_names_of_one_handoff_are_joined_by_their_room(tmp_path):
    source, destination = split(healthy_lines("p-1", room=77), rename="d-1")
    destination.insert(1, {"source": "decode-1", "at_ms": 4.0, "handoff": "d-1", "open": {"room": 77}})
    journal, report = imported(written(tmp_path / "s.jsonl", source), written(tmp_path / "d.jsonl", destination))
    assert report.joined == (HandoffJoined("d-1", "room", "77"),)
    assert report.handoffs == 1
    assert replay(rows_of(journal)).agrees
    assert {e.verdict for e in journal.events} <= {None, "applied"}


def test_two_names_of_one_handoff_are_joined_when_one_side_prints_the_other_s(tmp_path):
    source, destination = split(healthy_lines("p-1"), rename="d-1")
    destination[1]["remote_request_id"] = "p-1"
    _, report = imported(written(tmp_path / "s.jsonl", source), written(tmp_path / "d.jsonl", destination))
    assert report.joined == (HandoffJoined("d-1", "remote_request_id", "p-1"),)


def test_a_key_that_three_names_share_joins_nothing_and_is_listed(tmp_path):
    source, destination = split(healthy_lines("p-1", room=77), rename="d-1")
    destination.insert(1, {"source": "decode-1", "at_ms": 4.0, "handoff": "d-1", "open": {"room": 77}})
    destination.insert(1, {"source": "decode-1", "at_ms": 4.0, "handoff": "d-2", "open": {"room": 77}})
    _, report = imported(written(tmp_path / "s.jsonl", source), written(tmp_path / "d.jsonl", destination))
    assert report.joined == ()
    assert report.ambiguous == (("room 77", ("d-1", "d-2", "p-1")),)


def test_two_names_in_one_stream_are_two_handoffs_even_with_one_room(tmp_path):
    lines = [*healthy_lines("h1", room=9), *healthy_lines("h2", 20.0, room=9)]
    _, report = imported(written(tmp_path / "a.jsonl", lines))
    assert report.handoffs == 2


def test_lost_lines_of_an_exported_journal_leave_a_gap_and_the_rest_readable(tmp_path):
    journal, _ = imported(incident_paths()[0])
    lines = list(exported_lines(rows_of(journal)))
    del lines[6]
    again, report = imported(written(tmp_path / "native.jsonl", lines))
    assert report.rows == len(lines) + 1
    assert [e.seq for e in again.events] == list(range(1, len(lines) + 2))
    assert again.events[6].kind == Kind.GAP
    assert not replay(rows_of(again)).agrees


def test_imported_into_a_file_and_read_back(tmp_path):
    lines = written(tmp_path / "a.jsonl", [line for i in range(40) for line in healthy_lines(f"h{i}", i * 1.0)])
    with SyncJournal.create(tmp_path / "j.db") as journal:
        report = import_lines([lines], journal)
    with JournalReader(tmp_path / "j.db") as reader:
        assert reader.last_seq == report.rows
        assert len(list(reader.handoffs())) == 40
        assert replay(reader).agrees
        again = written(tmp_path / "native.jsonl", exported_lines(reader))
    with SyncJournal.create(tmp_path / "k.db") as journal:
        import_lines([again], journal)
    with JournalReader(tmp_path / "j.db") as one, JournalReader(tmp_path / "k.db") as other:
        assert list(one.events()) == list(other.events())


def test_an_outcome_may_name_its_action_and_a_fault_the_action_it_struck():
    outcome = read_foreign({"at_ms": 1, "handoff": "h", "outcome": "applied", "action": "release_source", "id": 4})
    assert outcome.content.name == "release_source"
    fault = read_foreign({"at_ms": 1, "handoff": "h", "fault": "peer_dead", "action": "cancel_source"})
    assert fault.content.do == "peer_dead"
    assert fault.content.extra == {"action": "cancel_source"}


def test_a_source_line_with_a_negative_resolution_is_refused():
    with pytest.raises(LineRefused, match="resolution_ms"):
        read_foreign({"source": "a", "resolution_ms": -1.0})
