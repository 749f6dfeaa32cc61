"""Sessions replay from their rows alone; leaving any kind of input out of a journal shows."""

from collections import Counter
from collections.abc import Sequence

import attrs
import pytest
from recorded_handoffs import source_of
from session_pair import MACHINES, TIMEOUT_MS, SessionPairs, Trouble

from handoff.journal.divergence import DivergenceClass
from handoff.journal.event import Event
from handoff.journal.port import MemoryJournal
from handoff.journal.replayer import Tier, replay
from handoff.journal.terms import ActorKind, EndState
from handoff.journal.vocabulary import ActionName, EngineType, FactName, OutcomeName, Side

TROUBLES = {
    "healthy": Trouble(),
    **{f"lost answer of {name}": Trouble(lost_answer=name) for name in list(ActionName)[:7]},
    **{f"failed {name}": Trouble(failed=name) for name in list(ActionName)[:7]},
    "no hold": Trouble(lost_fact=FactName.SOURCE_HELD),
    "no reservation": Trouble(lost_fact=FactName.DESTINATION_RESERVED),
    "canceled early": Trouble(cancel_ms=0.0),
    "canceled late": Trouble(cancel_ms=14.0),
    "slow submission": Trouble(slow_answer=ActionName.SUBMIT_PREFILL),
    "slow reservation": Trouble(slow_answer=ActionName.RESERVE_DESTINATION),
    "hung up": Trouble(hang_up_ms=8.0),
    "no source": Trouble(no_source=True),
    "dead source": Trouble(dead=Side.SOURCE, dead_ms=9.0),
    "dead destination": Trouble(dead=Side.DESTINATION, dead_ms=9.0),
    "release noop": Trouble(answers={ActionName.RELEASE_SOURCE: OutcomeName.NOOP}),
    "activation noop": Trouble(answers={ActionName.ACTIVATE_DESTINATION: OutcomeName.NOOP}),
}
ENGINES = pytest.mark.parametrize("engine", [EngineType.VLLM, EngineType.SGLANG])


def recorded(*troubles: Trouble, engine: EngineType = EngineType.VLLM) -> list[Event]:
    journal = MemoryJournal()
    pairs = SessionPairs(journal)
    for number, trouble in enumerate(troubles):
        pairs.add(f"h{number}", engine, number * 0.75, trouble)
    pairs.run()
    return journal.events


@ENGINES
@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_every_course_of_events_replays_in_both_tiers(trouble: Trouble, engine: EngineType) -> None:
    events = recorded(trouble, Trouble(), engine=engine)
    for tier in Tier:
        report = replay(source_of(events), tier, MACHINES)
        assert report.agrees, report.divergences[0]
    tallies = {tally.kind: tally for tally in report.actors}
    assert tallies[ActorKind.SOURCE_SESSION].re_executed
    assert tallies[ActorKind.COORDINATOR].re_executed
    assert not tallies[ActorKind.WITNESS].re_executed


def test_handoffs_side_by_side_replay_as_if_alone() -> None:
    events = recorded(*TROUBLES.values())
    report = replay(source_of(events), Tier.FULL, MACHINES)
    assert report.agrees, report.divergences[0]
    assert len(report.unended) == 2


def test_a_session_that_a_finished_run_left_behind_is_missing_its_end() -> None:
    journal = MemoryJournal(run=0)
    journal.begin_run(tool="test", wall_ns=0)
    pairs = SessionPairs(journal)
    pairs.add("h", trouble=Trouble(dead=Side.DESTINATION, dead_ms=9.0))
    pairs.run()
    journal.end_run(EndState.FINISHED, 2 * TIMEOUT_MS)
    (only,) = replay(source_of(journal.events), Tier.FULL, MACHINES).divergences
    assert only.kind is DivergenceClass.MISSING
    assert "never ended" in only.sentence


def without(events: Sequence[Event], kind: str, side: ActorKind) -> list[Event]:
    """The journal of a recorder that forgets every step whose input is of a kind; its numbers have no gap."""
    actors = {e.payload["actor"] for e in events if e.kind == "actor_started" and e.payload["kind"] == side}
    forgotten = {e.seq for e in events if e.is_head and e.is_input and e.kind == kind and e.actor in actors}
    kept = [event for event in events if event.grp not in forgotten]
    number = {event.seq: place for place, event in enumerate(kept, start=1)}
    return [
        attrs.evolve(
            event,
            seq=number[event.seq],
            grp=number[event.grp],
            cause=None if event.cause is None else number.get(event.cause, 0),
            payload_json=event.payload_json
            and event.payload_json.replace(f'"rows":{len(events)}', f'"rows":{len(kept)}'),
        )
        for event in kept
    ]


def finished_run() -> list[Event]:
    """Every course of events in which both sides live to their end, in a run that finished."""
    journal = MemoryJournal(run=0)
    journal.begin_run(tool="test", wall_ns=0)
    pairs = SessionPairs(journal)
    for number, trouble in enumerate(TROUBLES.values()):
        if trouble.dead is None:
            pairs.add(f"h{number}", EngineType.VLLM, number * 0.75, trouble)
    pairs.run()
    journal.end_run(EndState.FINISHED, journal.last_at_ms)
    return journal.events


ALL = finished_run()
SIDES = (ActorKind.SOURCE_SESSION, ActorKind.DESTINATION_SESSION)


def test_the_run_without_gaps_agrees() -> None:
    assert replay(source_of(ALL), Tier.FULL, MACHINES).agrees


def kinds_of(side: ActorKind) -> list[str]:
    actors = {e.payload["actor"] for e in ALL if e.kind == "actor_started" and e.payload["kind"] == side}
    counts = Counter(e.kind for e in ALL if e.is_head and e.is_input and e.actor in actors)
    return sorted(counts)


HARMLESS = {(ActorKind.DESTINATION_SESSION, "wire_flushed")}
"""A destination waits for no frame of its own to leave, so no decision depends on hearing that it did."""


@pytest.mark.parametrize(
    ("side", "kind"),
    [(side, kind) for side in SIDES for kind in kinds_of(side) if (side, kind) not in HARMLESS],
)
def test_a_recorder_that_forgets_a_kind_of_input_is_found_out(side: ActorKind, kind: str) -> None:
    report = replay(source_of(without(ALL, kind, side)), Tier.FULL, MACHINES)
    assert not report.agrees


def test_the_harmless_are_harmless() -> None:
    for side, kind in HARMLESS:
        assert kind in kinds_of(side)
        assert replay(source_of(without(ALL, kind, side)), Tier.FULL, MACHINES).agrees


def test_an_answer_altered_on_one_side_shows_at_the_input_that_it_caused() -> None:
    events = recorded(Trouble())
    index = next(i for i, e in enumerate(events) if e.kind == "wire_received" and e.name == "action_ack")
    falsified = [*events[:index], attrs.evolve(events[index], outcome="noop"), *events[index + 1 :]]
    first = replay(source_of(falsified), Tier.FULL, MACHINES).divergences[0]
    assert (first.kind, first.seq) == (DivergenceClass.PAYLOAD, events[index].seq)
    assert [(d.field, d.expected, d.actual) for d in first.differences] == [("outcome", "accepted", "noop")]
    assert first.caused_by[0] == events[index].cause


def test_a_cause_that_does_not_fit_is_a_fault_of_structure() -> None:
    events = recorded(Trouble())
    index = next(i for i, e in enumerate(events) if e.kind == "wire_received")
    other = next(e.seq for e in events if e.kind == "actor_started")
    for cause in (other, events[index].seq, events[index].seq + 1):
        falsified = [*events[:index], attrs.evolve(events[index], cause=cause), *events[index + 1 :]]
        assert replay(source_of(falsified), Tier.FULL, MACHINES).divergences[0].kind is DivergenceClass.STRUCTURE
