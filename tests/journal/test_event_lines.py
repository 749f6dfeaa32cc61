"""The text form of a journal: rows written as lines and read again are the same rows."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from incidents import healthy_lines, imported, incident_paths, rows_of, written
from recorded_handoffs import healthy_and_broken

from handoff.journal.event import COLUMNS, Event, event_from_row
from handoff.journal.event_lines import LineWriter, NativeReader
from handoff.journal.event_source import EventList
from handoff.journal.exporter import export_lines, exported_lines
from handoff.journal.importer import import_lines
from handoff.journal.native_import import NativeRefused
from handoff.journal.port import MemoryJournal
from handoff.journal.terms import TERMS, Kind


def round_trip(events: list[Event]) -> list[Event]:
    writer, reader = LineWriter(), NativeReader()
    return [event_from_row(reader.row(json.loads(writer.line(event)))) for event in events]


def test_every_row_of_a_recorded_journal_comes_back_to_the_letter():
    events = healthy_and_broken().events
    assert round_trip(list(events)) == list(events)


def test_rows_imported_from_every_incident_come_back_to_the_letter():
    for path in incident_paths():
        journal, _ = imported(path)
        assert round_trip(journal.events) == journal.events, path.name


texts = st.text(st.characters(codec="utf-8"), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda items: st.lists(items, max_size=3) | st.dictionaries(texts, items, max_size=3),
    max_leaves=6,
)
keys = texts | st.sampled_from([*COLUMNS, "do", "fault", "handoff_id", "open"])
payload_texts = st.none() | st.one_of(
    st.dictionaries(keys, json_values, max_size=4).map(
        lambda payload: json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    ),
    st.sampled_from(["{}", "[]", "not json", '{"a": 1}', '{"a":1,"a":2}', '{"handoff_id":"h1","attempt":3}']),
)
words = st.none() | st.sampled_from(TERMS)
numbers = st.none() | st.integers(0, 2**63 - 1)


@st.composite
def rows(draw, seq: int) -> Event:
    small = st.none() | st.integers(1, 3)
    return Event(
        seq, draw(st.integers(1, seq)), draw(st.integers(1, 2)), draw(small), draw(small), draw(small),
        draw(st.floats(allow_nan=False)), draw(st.none() | st.floats(allow_nan=False)),
        draw(st.none() | st.floats(allow_nan=False)), draw(st.sampled_from([kind.value for kind in Kind])), draw(words),
        draw(numbers), draw(words), draw(words), draw(st.none() | st.integers(1, seq)), draw(numbers), draw(numbers),
        draw(numbers), draw(payload_texts),
    )  # fmt: skip


@given(st.integers(1, 8).flatmap(lambda count: st.tuples(*(rows(seq) for seq in range(1, count + 1)))))
def test_any_rows_at_all_come_back_to_the_letter(events):
    assert round_trip(list(events)) == list(events)


def test_a_line_says_what_happened_in_the_words_of_event_lines(tmp_path):
    journal, _ = imported(written(tmp_path / "lines.jsonl", healthy_lines("h1", request="r1", room=9, attempt=1)))
    lines = [json.loads(line) for line in exported_lines(rows_of(journal))]
    said = [{key: line[key] for key in ("open", "action", "outcome", "fact", "id") if key in line} for line in lines]
    assert {"open": {"order": "source_first", "engine_type": "vllm", "request": "r1", "room": "9"}} in said
    assert {"action": "submit_prefill", "id": 0} in said
    assert {"outcome": "submitted", "id": 0} in said
    assert {"fact": "destination_reserved"} in said
    assert all(line["handoff"] == "h1" for line in lines if "fact" in line)


def test_export_then_import_gives_the_same_rows_for_an_imported_journal(tmp_path):
    for path in incident_paths():
        journal, _ = imported(path)
        text = io.StringIO()
        export_lines(rows_of(journal), text)
        lines = tmp_path / f"{path.stem}.jsonl"
        lines.write_text(text.getvalue(), encoding="utf-8")
        again, report = imported(lines)
        assert report.native
        assert again.events == journal.events


def test_exporting_twice_gives_the_same_bytes():
    events = healthy_and_broken().events
    assert list(exported_lines(EventList(events))) == list(exported_lines(EventList(events)))


def test_a_native_journal_goes_into_an_empty_journal_only(tmp_path):
    journal, _ = imported(incident_paths()[0])
    lines = written(tmp_path / "native.jsonl", exported_lines(rows_of(journal)))
    with pytest.raises(NativeRefused, match="empty"):
        import_lines([lines], journal)
    with pytest.raises(NativeRefused, match="alone"):
        import_lines([lines, written(tmp_path / "other.jsonl", healthy_lines("h1"))], MemoryJournal(run=0))
