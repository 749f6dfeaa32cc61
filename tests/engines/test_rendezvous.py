"""Who meets whom, decided without a clock, a socket or a task."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from recorded_steps import RecordedMachine, assert_replays

from handoff.engines.rendezvous import (
    MIN_RETIRED,
    DestinationConnected,
    Forgotten,
    Paired,
    Pending,
    QueueFull,
    Reason,
    Rejected,
    RejectionDropped,
    RejectionSent,
    Rendezvous,
    Retired,
    SessionLeft,
    SourceRegistered,
)
from handoff.engines.session_rows import (
    CancelRequested,
    DeadlineFired,
    DeadlineSet,
    PeerClosed,
    ShutdownRequested,
    TimerFired,
    TimerSet,
    TransportFailed,
)
from handoff.journal.terms import EndState, TimerName
from handoff.journal.vocabulary import EngineType, HandoffOrder, Side, Verdict


def source(handoff: int, room: str = "17", order: HandoffOrder = HandoffOrder.SOURCE_FIRST) -> SourceRegistered:
    return SourceRegistered(handoff, room, f"r{handoff}", order, EngineType.VLLM)


def destination(handoff: int, room: str = "17", dp_rank: int = 0) -> DestinationConnected:
    return DestinationConnected(handoff, room, f"r{handoff}", HandoffOrder.SOURCE_FIRST, EngineType.VLLM, dp_rank)


def rendezvous(max_sessions: int = 2, session_timeout_ms: float = 1000.0) -> RecordedMachine:
    return RecordedMachine(Rendezvous(max_sessions, session_timeout_ms))


def effects(machine: RecordedMachine, value: Any, at_ms: float = 0.0) -> list[Any]:
    return list(machine.offer(value, at_ms).effects)


def kinds(machine: RecordedMachine, value: Any, at_ms: float = 0.0) -> list[type]:
    return [type(effect) for effect in effects(machine, value, at_ms)]


@pytest.mark.parametrize(("first", "second"), [(source(1), destination(1, dp_rank=3)), (destination(1), source(1))])
def test_two_that_agree_are_paired_in_either_order(first: Any, second: Any) -> None:
    machine = rendezvous()
    assert kinds(machine, first) == [Pending, DeadlineSet]
    assert effects(machine, second, 5.0) == [Paired(1)]
    assert machine.machine.is_active(1)
    assert effects(machine, SessionLeft(1, EndState.SUCCESS), 10.0) == [
        Retired(1, Reason.SESSION_ENDED, 1010.0),
        TimerSet(TimerName.RETIREMENT, 1, 1010.0),
    ]
    assert not machine.machine.is_active(1)
    assert machine.machine.is_retired(1)
    assert_replays(machine.journal)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (destination(1, room="18"), "room"),
        (DestinationConnected(1, "17", "r2", HandoffOrder.SOURCE_FIRST, EngineType.VLLM), "request"),
        (DestinationConnected(1, "17", "r1", HandoffOrder.DESTINATION_FIRST, EngineType.VLLM), "order"),
        (DestinationConnected(1, "17", "r1", HandoffOrder.SOURCE_FIRST, EngineType.SGLANG), "engine_type"),
    ],
)
def test_two_that_differ_are_both_told_in_what_and_the_handoff_is_retired(
    other: DestinationConnected, differs: str
) -> None:
    machine = rendezvous()
    machine.offer(source(1))
    rejected = [effect for effect in effects(machine, other) if isinstance(effect, Rejected)]
    assert [each.side for each in rejected] == [Side.SOURCE, Side.DESTINATION]
    assert {each.differs for each in rejected} == {differs}
    assert all("identity or backend mismatch" in each.message for each in rejected)
    assert machine.machine.is_retired(1)
    assert_replays(machine.journal)


def test_arrivals_are_judged_in_the_written_order_of_conditions() -> None:
    machine = rendezvous(max_sessions=1)
    machine.offer(source(1))
    (duplicate,) = effects(machine, source(1))
    assert duplicate.reason is Reason.DUPLICATE
    assert "duplicate source participant" in duplicate.message
    (full,) = effects(machine, source(2))
    assert (full.reason, full.limit, full.pending, full.active) == (Reason.LIMIT_REACHED, 1, 1, 0)
    machine.offer(destination(1))
    for late in (source(1), destination(1)):
        (rejected,) = effects(machine, late)
        assert rejected.reason is Reason.ALREADY_SEEN
        assert "already active or retired" in rejected.message
    machine.offer(RejectionSent(1))
    (full,) = effects(machine, destination(2))
    assert (full.side, full.pending, full.active) == (Side.DESTINATION, 0, 1)
    machine.offer(SessionLeft(1, EndState.ERROR))
    (rejected,) = effects(machine, source(1))
    assert rejected.reason is Reason.ALREADY_SEEN
    machine.offer(ShutdownRequested())
    (rejected,) = effects(machine, source(1))
    assert rejected.reason is Reason.SHUTTING_DOWN
    assert_replays(machine.journal)


@pytest.mark.parametrize(
    ("arrival", "leaves", "told"),
    [
        (source(1), CancelRequested(1), [Side.SOURCE]),
        (destination(1), PeerClosed(1), []),
        (destination(1), TransportFailed("reset", 1), []),
        (source(1), DeadlineFired(TimerName.RENDEZVOUS_DEADLINE, 1, 1), [Side.SOURCE]),
        (destination(1), DeadlineFired(TimerName.RENDEZVOUS_DEADLINE, 1, 1), [Side.DESTINATION]),
    ],
)
def test_who_waits_may_leave_or_wait_too_long(arrival: Any, leaves: Any, told: list[Side]) -> None:
    machine = rendezvous()
    machine.offer(arrival)
    answer = effects(machine, leaves, 3.0)
    assert [effect.side for effect in answer if isinstance(effect, Rejected)] == told
    assert machine.machine.is_retired(1)
    assert machine.machine.pending_sides(1) == ()
    assert machine.offer(leaves, 4.0).verdict is Verdict.LATE
    assert_replays(machine.journal)


@pytest.mark.parametrize(
    "value",
    [
        CancelRequested(1),
        PeerClosed(1),
        TransportFailed("reset", 1),
        DeadlineFired(TimerName.RENDEZVOUS_DEADLINE, 1, 1),
        TimerFired(TimerName.RETIREMENT, 1),
        SessionLeft(1, EndState.SUCCESS),
        RejectionSent(1),
    ],
)
def test_what_concerns_nobody_is_late_and_changes_nothing(value: Any) -> None:
    machine = rendezvous()
    step = machine.offer(value)
    assert (step.verdict, step.effects) == (Verdict.LATE, ())


def test_a_deadline_of_an_earlier_wait_is_late() -> None:
    machine = rendezvous(session_timeout_ms=10.0)
    machine.offer(source(1))
    machine.offer(CancelRequested(1))
    machine.offer(TimerFired(TimerName.RETIREMENT, 1), 10.0)
    machine.offer(source(1), 11.0)
    assert machine.offer(DeadlineFired(TimerName.RENDEZVOUS_DEADLINE, 1, 1), 12.0).verdict is Verdict.LATE
    assert machine.machine.pending_sides(1) == (Side.SOURCE,)


def test_goodbyes_to_destinations_are_bounded() -> None:
    machine = rendezvous(max_sessions=1)
    machine.offer(source(1))
    assert kinds(machine, destination(2)) == [Rejected]
    assert kinds(machine, destination(3)) == [RejectionDropped]
    machine.offer(RejectionSent(2))
    assert kinds(machine, destination(3)) == [Rejected]
    assert_replays(machine.journal)


def test_shutdown_rejects_all_who_wait_and_comes_once() -> None:
    machine = rendezvous()
    machine.offer(source(1))
    machine.offer(destination(2))
    rejected = [effect for effect in effects(machine, ShutdownRequested()) if isinstance(effect, Rejected)]
    assert [(each.handoff, each.side) for each in rejected] == [(1, Side.SOURCE), (2, Side.DESTINATION)]
    assert machine.offer(ShutdownRequested()).verdict is Verdict.DUPLICATE
    assert_replays(machine.journal)


def test_a_full_queue_is_answered_with_its_limit() -> None:
    machine = rendezvous()
    (rejected,) = effects(machine, QueueFull(1, Side.SOURCE, 2))
    assert (rejected.reason, rejected.limit) == (Reason.QUEUE_FULL, 2)
    assert not machine.machine.is_retired(1)


def test_one_timer_serves_all_retirement() -> None:
    machine = rendezvous(max_sessions=8, session_timeout_ms=1000.0)
    for handoff in range(1, 5):
        machine.offer(source(handoff), 100.0 * handoff)
        armed = [each for each in kinds(machine, CancelRequested(handoff), 100.0 * handoff) if each is TimerSet]
        assert armed == ([TimerSet] if handoff == 1 else [])
    after = effects(machine, TimerFired(TimerName.RETIREMENT, 1), 1100.0)
    assert after == [Forgotten(1, Reason.EXPIRED), TimerSet(TimerName.RETIREMENT, 2, 1350.0)]
    after = effects(machine, TimerFired(TimerName.RETIREMENT, 2), 1350.0)
    assert after == [
        Forgotten(2, Reason.EXPIRED),
        Forgotten(3, Reason.EXPIRED),
        TimerSet(TimerName.RETIREMENT, 3, 1600.0),
    ]
    assert effects(machine, TimerFired(TimerName.RETIREMENT, 3), 1600.0) == [Forgotten(4, Reason.EXPIRED)]
    assert_replays(machine.journal)


def test_a_manager_of_one_session_still_remembers_a_handoff_after_the_next() -> None:
    machine = rendezvous(max_sessions=1)
    for handoff in range(1, MIN_RETIRED + 2):
        machine.offer(source(handoff))
        answer = effects(machine, CancelRequested(handoff))
    assert Forgotten(1, Reason.OUT_OF_ROOM) in answer
    assert machine.machine.is_retired(2)


class RendezvousRules(RuleBasedStateMachine):
    """Any inputs in any order: limits hold, everybody is answered once, and the rows replay."""

    handoffs = Bundle("handoffs")

    def __init__(self) -> None:
        super().__init__()
        self.machine = rendezvous(max_sessions=3, session_timeout_ms=50.0)
        self.at_ms = 0.0
        self.unanswered: dict[tuple[int, Side], int] = {}
        self.active: set[int] = set()
        self.timers: list[Any] = []
        self.goodbyes = 0

    def take(self, value: Any) -> None:
        self.at_ms += 1.0
        step = self.machine.offer(value, self.at_ms)
        for effect in step.effects:
            match effect:
                case Paired():
                    for side in Side:
                        self.unanswered[effect.handoff, side] -= 1
                    self.active.add(effect.handoff)
                case Rejected():
                    self.unanswered[effect.handoff, effect.side] -= 1
                    self.goodbyes += effect.side is Side.DESTINATION
                case RejectionDropped():
                    self.unanswered[effect.handoff, Side.DESTINATION] -= 1
                case DeadlineSet():
                    self.timers.append(DeadlineFired(effect.name, effect.generation, effect.handoff))
                case TimerSet():
                    self.timers.append(TimerFired(effect.name, effect.generation))
                case Retired() if effect.reason is Reason.PEER_CLOSED:
                    self.unanswered[effect.handoff, Side.DESTINATION] -= 1
                case _:
                    pass

    def arrive(self, arrival: Any, side: Side) -> None:
        key = (arrival.handoff, side)
        self.unanswered[key] = self.unanswered.get(key, 0) + 1
        self.unanswered.setdefault((arrival.handoff, Side.SOURCE), 0)
        self.unanswered.setdefault((arrival.handoff, Side.DESTINATION), 0)
        self.take(arrival)

    @rule(target=handoffs, handoff=st.integers(1, 6))
    def name(self, handoff: int) -> int:
        return handoff

    @rule(handoff=handoffs, room=st.sampled_from(["17", "18"]))
    def source_arrives(self, handoff: int, room: str) -> None:
        self.arrive(source(handoff, room), Side.SOURCE)

    @rule(handoff=handoffs)
    def destination_arrives(self, handoff: int) -> None:
        self.arrive(destination(handoff), Side.DESTINATION)

    @rule(handoff=handoffs, leaves=st.sampled_from([CancelRequested, PeerClosed]))
    def somebody_leaves(self, handoff: int, leaves: Any) -> None:
        self.take(leaves(handoff))

    @rule(data=st.data())
    def a_timer_fires(self, data: st.DataObject) -> None:
        if self.timers:
            self.take(data.draw(st.sampled_from(self.timers)))

    @rule(handoff=consumes(handoffs))
    def a_session_ends(self, handoff: int) -> None:
        self.take(SessionLeft(handoff, EndState.SUCCESS))
        self.active.discard(handoff)

    @rule()
    def a_goodbye_ends(self) -> None:
        if self.goodbyes:
            self.goodbyes -= 1
            self.take(RejectionSent(1))

    @rule()
    def shutdown(self) -> None:
        self.take(ShutdownRequested())
        assert all(count == 0 for count in self.unanswered.values())

    @invariant()
    def everybody_is_answered_once_or_waits(self) -> None:
        decider = self.machine.machine
        for (handoff, side), count in self.unanswered.items():
            assert count == (side in decider.pending_sides(handoff))
        assert self.active == {handoff for handoff in range(1, 7) if decider.is_active(handoff)}
        waiting = sum(1 for handoff in range(1, 7) if decider.pending_sides(handoff))
        assert waiting + len(self.active) <= decider.max_sessions
        assert self.goodbyes <= decider.max_sessions

    def teardown(self) -> None:
        if len(self.machine.journal.events) > 1:
            assert_replays(self.machine.journal)


RendezvousRules.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRendezvousRules = RendezvousRules.TestCase
