"""Replay agrees with what was recorded, and names the first row that re-execution would not have written."""

import attrs
import pytest
from alterations import Alteration, alterations, altered
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recorded_handoffs import (
    HELD,
    RESERVED,
    TRANSFERRED,
    RecordedHandoff,
    StoredList,
    healthy_and_broken,
    open_handoff,
    source_of,
)

from handoff.journal.coordinator_actor import FactOffered, HandoffStarted, OutcomeOffered
from handoff.journal.declarations import Note, RunEnded, RunStarted
from handoff.journal.divergence import DivergenceClass
from handoff.journal.event import Event
from handoff.journal.event_source import StoredRows
from handoff.journal.full_replay import FullReplay
from handoff.journal.port import MemoryJournal
from handoff.journal.replayer import MACHINES, Tier, replay
from handoff.journal.terms import EndState
from handoff.journal.vocabulary import ActionId, EngineType, FactName, OutcomeName

EVENTS = tuple(healthy_and_broken().events)
TIERS = pytest.mark.parametrize("tier", Tier)


def row(kind: str, name: str | None = None, handoff: int = 1, nth: int = 0) -> int:
    """Index of the n-th row of a kind."""
    found = [
        index
        for index, event in enumerate(EVENTS)
        if event.kind == kind and event.handoff == handoff and (name is None or event.name == name)
    ]
    return found[nth]


def changed(index: int, **changes: object) -> list[Event]:
    rows = list(EVENTS)
    rows[index] = attrs.evolve(rows[index], **changes)
    return rows


@TIERS
def test_an_unaltered_journal_agrees(tier: Tier) -> None:
    report = replay(source_of(EVENTS), tier)
    assert report.agrees, report.divergences
    assert report.handoffs == 6
    assert report.compared == sum(event.actor is not None for event in EVENTS)
    assert report.last_seq == (len(EVENTS) if tier is Tier.FULL else EVENTS[-1].seq)
    assert [(tally.actors, tally.re_executed) for tally in report.actors] == [(6, True)]


@TIERS
def test_an_empty_journal_agrees(tier: Tier) -> None:
    report = replay(source_of(()), tier)
    assert (report.agrees, report.rows, report.runs) == (True, 0, ())


@TIERS
def test_a_journal_that_ends_anywhere_agrees_and_says_that_it_ends_open(tier: Tier) -> None:
    heads = [index for index, event in enumerate(EVENTS) if event.is_head]
    for end in heads:
        report = replay(source_of(EVENTS[:end]), tier)
        assert report.agrees, (end, report.divergences)
        assert report.ends_open is (end > 0)


@TIERS
@pytest.mark.parametrize(
    ("rows", "kind", "seq"),
    [
        pytest.param(
            changed(row("action_issued", "start_transfer"), payload_json='{"delay_ms":9.0}'),
            DivergenceClass.TIMING_ONLY, row("action_issued", "start_transfer") + 1, id="another delay",
        ),
        pytest.param(
            changed(row("action_issued", "release_source"), name="cancel_source"),
            DivergenceClass.PAYLOAD, row("action_issued", "release_source") + 1, id="another action",
        ),
        pytest.param(
            changed(row("action_issued", "release_source"), action_id=7),
            DivergenceClass.PAYLOAD, row("action_issued", "release_source") + 1, id="another id",
        ),
        pytest.param(
            changed(row("coordinator_error", handoff=5), payload_json='{"code":"early_fact","message":"no"}'),
            DivergenceClass.PAYLOAD, row("coordinator_error", handoff=5) + 1, id="another refusal",
        ),
        pytest.param(
            changed(row("outcome_applied"), kind="outcome_late", verdict="late"),
            DivergenceClass.PAYLOAD, row("outcome_applied") + 1, id="another verdict",
        ),
        pytest.param(
            changed(row("outcome_applied"), kind="outcome_late"),
            DivergenceClass.PAYLOAD, row("outcome_applied") + 1, id="a kind that does not fit the verdict",
        ),
        pytest.param(
            altered(EVENTS, row("action_issued", "cancel_source", 3), Alteration.SWAPPED),
            DivergenceClass.REORDERED, row("action_issued", "cancel_source", 3) + 1, id="the cancels the other way",
        ),
    ],
)  # fmt: skip
def test_a_false_decision_is_named(tier: Tier, rows: list[Event], kind: DivergenceClass, seq: int) -> None:
    report = replay(source_of(rows), tier)
    first = report.divergences[0]
    assert (first.kind, first.seq) == (kind, seq), first.sentence
    assert first.actual is not None
    assert first.state is not None


def renumbered(rows: list[Event]) -> list[Event]:
    """Rows given consecutive numbers, with groups and causes following: a forger's work."""
    number = {event.seq: place for place, event in enumerate(rows, start=1)}
    return [
        attrs.evolve(
            event,
            seq=number[event.seq],
            grp=number.get(event.grp, number[event.seq]),
            cause=None if event.cause is None else number.get(event.cause),
        )
        for event in rows
    ]


@TIERS
def test_a_removed_action_is_missing_even_if_the_numbers_were_closed_up(tier: Tier) -> None:
    index = row("action_issued", "activate_destination")
    rows = renumbered([*EVENTS[:index], *EVENTS[index + 1 :]])
    first = replay(source_of(rows), tier).divergences[0]
    assert first.kind is DivergenceClass.MISSING
    assert "activate_destination" in first.sentence


@TIERS
def test_an_action_nobody_ordered_is_extra(tier: Tier) -> None:
    index = row("action_issued", "activate_destination")
    twice = attrs.evolve(EVENTS[index], seq=10_000, name="cancel_destination")
    rows = renumbered([*EVENTS[: index + 1], twice, *EVENTS[index + 1 :]])
    first = replay(source_of(rows), tier).divergences[0]
    assert (first.kind, first.seq) == (DivergenceClass.EXTRA, index + 2)
    assert first.last_common == index + 1


def test_a_gap_in_the_numbers_is_named_by_the_full_tier() -> None:
    index = row("outcome_applied", handoff=2)
    rows = [*EVENTS[:index], *EVENTS[index + 1 :]]
    first = replay(source_of(rows), Tier.FULL).divergences[0]
    assert first.kind is DivergenceClass.MISSING
    assert first.sentence == f"row {index + 1} is missing before row {index + 2}"


def test_a_row_outside_its_step_is_reordered() -> None:
    rows = altered(EVENTS, row("outcome_applied"), Alteration.SWAPPED)
    assert rows is not None
    assert replay(source_of(rows), Tier.FULL).divergences[0].kind is DivergenceClass.REORDERED


def test_time_never_runs_backwards_within_an_actor() -> None:
    index = row("fact_applied", "source_held")
    rows = [attrs.evolve(event, at_ms=0.25) if event.grp == index + 1 else event for event in EVENTS]
    first = replay(source_of(rows), Tier.FULL).divergences[0]
    assert (first.kind, first.seq) == (DivergenceClass.TIMING_ONLY, index + 1)


@pytest.mark.parametrize("number", [4, None])
def test_handoffs_and_actors_are_numbered_in_the_order_of_their_rows(number: int | None) -> None:
    assert not replay(source_of(changed(row("handoff_opened", handoff=2), handoff=number)), Tier.FULL).agrees


def test_rows_of_an_actor_that_nobody_declared_are_a_fault_of_structure() -> None:
    for tier in Tier:
        report = replay(source_of(changed(row("outcome_applied"), actor=99, grp=row("outcome_applied") + 1)), tier)
        assert DivergenceClass.STRUCTURE in {divergence.kind for divergence in report.divergences}


def test_after_a_divergence_an_actor_is_skipped_and_the_others_are_compared() -> None:
    report = replay(source_of(changed(row("outcome_applied"), verdict="late")), Tier.FULL)
    assert report.divergence_count == 1
    assert report.skipped > 0
    assert report.skipped + report.compared == sum(event.actor is not None for event in EVENTS)


def a_whole_run(name: EndState = EndState.FINISHED, rows: int = 0, handoffs: int = 0) -> MemoryJournal:
    journal = MemoryJournal()
    journal.annotate(RunStarted(1, "test", 0), 0.0)
    open_handoff(journal, "h").proceed()
    journal.annotate(Note("a remark"), 9.0)
    journal.annotate(RunEnded(name, len(journal.events) + 1 + rows, 1 + handoffs), 9.0)
    return journal


def test_a_runs_last_row_says_how_it_ended() -> None:
    report = replay(source_of(a_whole_run(EndState.INTERRUPTED).events), Tier.FULL)
    assert [(run.run, run.name) for run in report.runs] == [(1, EndState.INTERRUPTED)]
    assert report.agrees
    assert not report.ends_open


@pytest.mark.parametrize("wrong", [{"rows": 1}, {"handoffs": 1}])
def test_a_last_row_that_counts_wrong_diverges(wrong: dict[str, int]) -> None:
    (only,) = replay(source_of(a_whole_run(**wrong).events), Tier.FULL).divergences
    (difference,) = only.differences
    assert difference.field == f"payload.{next(iter(wrong))}"


def test_a_run_that_follows_another_is_not_counted_with_it() -> None:
    journal = MemoryJournal()
    journal.begin_run(tool="test", wall_ns=1)
    open_handoff(journal, "h").proceed()
    journal.end_run(EndState.FINISHED, 9.0)
    journal.begin_run(tool="test", wall_ns=2)
    journal.end_run(EndState.INTERRUPTED, 0.0, "SIGTERM")
    report = replay(source_of(journal.events), Tier.FULL)
    assert report.agrees, report.divergences
    assert [run.name for run in report.runs] == [EndState.FINISHED, EndState.INTERRUPTED]


def test_nothing_follows_a_runs_last_row() -> None:
    journal = a_whole_run()
    journal.annotate(Note("too late"), 10.0)
    assert not replay(source_of(journal.events), Tier.FULL).agrees


def test_actors_without_a_machine_are_recorded_not_re_executed() -> None:
    report = replay(source_of(changed(row("outcome_applied"), outcome="noop")), Tier.FULL, {})
    assert report.agrees
    assert [(tally.rows, tally.re_executed) for tally in report.actors] == [(len(EVENTS) - 12, False)]


def test_a_machine_that_raised_raises_again() -> None:
    index = row("outcome_applied")
    rows = [
        attrs.evolve(event, action_id=None, outcome=None) if place == index else event
        for place, event in enumerate(EVENTS)
    ]
    first = replay(source_of(rows), Tier.FULL).divergences[0]
    assert first.kind is DivergenceClass.PAYLOAD
    assert "action_id" in first.sentence


def test_a_machine_that_lost_its_seat_is_caught_up() -> None:
    journal = MemoryJournal()
    first = open_handoff(journal, "first")
    others = [open_handoff(journal, f"other-{number}") for number in range(5)]
    for other in others:
        other.proceed()
    first.proceed()
    report = FullReplay(source_of(journal.events), MACHINES, machines_at_once=2).run()
    assert report.agrees, report.divergences
    assert report.steps == sum(event.is_input for event in journal.events)


def test_stored_rows_are_folded_as_events_are() -> None:
    assert isinstance(StoredList(EVENTS), StoredRows)
    for rows in (EVENTS, *(altered_rows for _, _, altered_rows in alterations(EVENTS))):
        assert replay(StoredList(tuple(rows))) == replay(source_of(rows))


class Replayer(RuleBasedStateMachine):
    """Any history of coordinators, lawful or not, replays in both tiers after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = MemoryJournal()
        self.handoffs: list[RecordedHandoff] = []

    @rule(engine=st.sampled_from((EngineType.VLLM, EngineType.SGLANG)))
    def open(self, engine: EngineType) -> None:
        if len(self.handoffs) < 4:
            self.handoffs.append(open_handoff(self.journal, f"h{len(self.handoffs)}", engine))

    @precondition(lambda self: self.handoffs)
    @rule(
        data=st.data(), outcome=st.sampled_from(OutcomeName), action=st.integers(0, 9), text=st.none() | st.just("no")
    )
    def answer(self, data: st.DataObject, outcome: OutcomeName, action: int, text: str | None) -> None:
        data.draw(st.sampled_from(self.handoffs)).offer(OutcomeOffered(ActionId(action), outcome, message=text))

    @precondition(lambda self: self.handoffs)
    @rule(data=st.data(), admitted=st.booleans())
    def answer_the_latest(self, data: st.DataObject, admitted: bool) -> None:
        handoff = data.draw(st.sampled_from(self.handoffs))
        if handoff.issued and handoff.issued[-1].name != "complete":
            handoff.answer(handoff.issued[-1], None if admitted else OutcomeName.FAILED)

    @precondition(lambda self: self.handoffs)
    @rule(
        data=st.data(),
        fact=st.sampled_from(
            (HELD, RESERVED, TRANSFERRED, HandoffStarted(), *(FactOffered(name) for name in list(FactName)[3:]))
        ),
    )
    def observe(self, data: st.DataObject, fact: FactOffered | HandoffStarted) -> None:
        data.draw(st.sampled_from(self.handoffs)).offer(fact)

    @invariant()
    def both_tiers_agree(self) -> None:
        for tier in Tier:
            assert replay(source_of(self.journal.events), tier).agrees


TestReplayer = Replayer.TestCase
