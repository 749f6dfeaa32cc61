"""Values become rows and rows values again; what cannot be read is said to be so."""

import math
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from attrs import frozen
from hypothesis import example, given
from hypothesis import strategies as st

from handoff.journal.coordinator_actor import (
    ActionIssued,
    CoordinatorActor,
    CoordinatorRefused,
    FactOffered,
    HandoffStarted,
    OutcomeOffered,
)
from handoff.journal.declarations import ActorStarted, HandoffOpened
from handoff.journal.event import COLUMNS, Event, StoredRow, event_from_row, payload_from_json, payload_to_json
from handoff.journal.port import ActorHandle, MemoryJournal
from handoff.journal.row_codec import UnreadableRow, decode, encode, kind_of, row_classes
from handoff.journal.step import crashed
from handoff.journal.terms import TERM_CODE, TERMS, ActorKind, Kind
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    FactName,
    HandoffOrder,
    OutcomeName,
    TimingMode,
    Verdict,
)


def event_of(value: object, verdict: Verdict | None = None, cause: int | None = None) -> Event:
    fields = encode(value, verdict, cause)
    return event_from_row((7, 7, 1, None, 3, None, 1.5, None, None, *fields))


TIMING = TransferTiming(TimingMode.DESTINATION_MISSING, 8, 1_000_000, 0.1)

VALUES = [
    (HandoffStarted(), Verdict.APPLIED),
    (OutcomeOffered(ActionId(3), OutcomeName.APPLIED, ActionName.ACTIVATE_DESTINATION), Verdict.DUPLICATE),
    (OutcomeOffered(ActionId(3), OutcomeName.FAILED, message="worker busy", synthesised=True), Verdict.CONFLICTING),
    (FactOffered(FactName.SOURCE_HELD, TIMING), Verdict.APPLIED),
    (FactOffered(FactName.DESTINATION_RESERVED, transferable_prompt_tokens=0), Verdict.INVALID),
    (ActionIssued(ActionId(2), ActionName.START_TRANSFER, 8.0), None),
    (CoordinatorRefused("early_fact", "sagte \N{LEFT DOUBLE QUOTATION MARK}nein"), None),
]


@pytest.mark.parametrize(("value", "verdict"), VALUES, ids=lambda item: type(item).__name__)
def test_a_value_reads_back_as_it_was_written(value: object, verdict: Verdict | None) -> None:
    event = event_of(value, verdict)
    assert decode(event, ActorKind.COORDINATOR) == value
    assert event.is_input is (verdict is not None)


def test_the_kind_of_an_outcome_tells_its_verdict() -> None:
    kinds = {kind_of(VALUES[1][0], verdict) for verdict in (Verdict.APPLIED, Verdict.DUPLICATE, Verdict.LATE)}
    assert kinds == {Kind.OUTCOME_APPLIED, Kind.OUTCOME_DUPLICATE, Kind.OUTCOME_LATE}


def test_a_crashed_input_has_a_row_of_its_own() -> None:
    (entry,) = crashed(VALUES[1][0]).entries
    event = event_of(entry.value, entry.verdict)
    assert (event.kind, event.verdict) == ("outcome_applied", "crashed")


def test_defaults_are_left_out_of_the_payload() -> None:
    assert event_of(OutcomeOffered(ActionId(0), OutcomeName.SUBMITTED), Verdict.APPLIED).payload_json is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"payload_json": '{"delay_ms": 1.0, "colour": "red"}'}, "colour"),
        ({"payload_json": "[1]"}, "object"),
        ({"payload_json": "{"}, "JSON"),
        ({"name": "submitted"}, "submitted"),
        ({"action_id": None}, "action_id"),
        ({"kind": "session_ended"}, "no rows of kind session_ended"),
    ],
)
def test_a_row_that_cannot_be_its_value_is_named_with_the_reason(change: Mapping[str, Any], reason: str) -> None:
    event = attrs.evolve(event_of(VALUES[5][0]), **change)
    with pytest.raises(UnreadableRow, match=reason) as refusal:
        decode(event, ActorKind.COORDINATOR)
    assert refusal.value.seq == 7


def test_a_caused_input_stores_nothing_that_its_cause_holds() -> None:
    with_cause = [spec for spec in row_classes() if spec.inherited]
    for spec in with_cause:
        names = {field.name for field in attrs.fields(spec.cls)}
        assert spec.inherited <= names


def test_every_kind_and_word_has_one_number_and_only_one() -> None:
    assert len(set(TERMS)) == len(TERMS) == len(TERM_CODE)
    assert {kind.value for kind in Kind} | {verdict.value for verdict in Verdict} <= set(TERMS)
    assert all(TERMS[code - 1] == word for word, code in TERM_CODE.items())


def test_the_table_and_the_event_have_the_same_columns() -> None:
    assert StoredRow._fields == COLUMNS
    assert [field.name for field in attrs.fields(Event)] == [*COLUMNS[:-1], "payload_json"]


floats = st.floats(allow_nan=True, allow_infinity=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | floats | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@given(st.dictionaries(st.text() | st.sampled_from(["$float", "$object"]), json_values))
@example({"$float": "nan"})
@example({"$object": {"$float": -0.0}})
def test_any_payload_reads_back_equal_to_the_last_bit(payload: dict[str, Any]) -> None:
    assert same(payload, payload_from_json(payload_to_json(payload)))


def test_the_memory_journal_numbers_rows_groups_and_actors() -> None:
    journal = MemoryJournal()
    handoff = journal.open_handoff(HandoffOpened("h1", HandoffOrder.SOURCE_FIRST), 0.0)
    machine = CoordinatorActor.build({"handoff_id": "h1", "order": "source_first"})
    actor = journal.start_actor(machine.SLOTS, "coordinator", machine.config(), 0.0, handoff=handoff)
    first = journal.append(actor, machine.step(HandoffStarted(), 0.5), 0.5)
    second = journal.append(actor, machine.step(OutcomeOffered(ActionId(0), OutcomeName.SUBMITTED), 1.5), 1.5)
    assert (actor, first, second) == (ActorHandle((1,), 1), 3, 5)
    assert [(event.seq, event.grp, event.actor, event.at_ms, event.kind) for event in journal.events] == [
        (1, 1, None, 0.0, "handoff_opened"),
        (2, 2, None, 0.0, "actor_started"),
        (3, 3, 1, 0.5, "handoff_started"),
        (4, 3, 1, 0.5, "action_issued"),
        (5, 5, 1, 1.5, "outcome_applied"),
    ]
    assert decode(journal.events[1]) == ActorStarted(1, ActorKind.COORDINATOR, "coordinator", machine.config())


@frozen
class Unregistered:
    """Not a row."""


def test_a_value_without_a_row_kind_cannot_be_written() -> None:
    with pytest.raises(KeyError):
        encode(Unregistered(), None, None)
