"""Both sessions as machines, without Trio: every phase, every input, late and repeated ones too."""

from collections.abc import Callable
from typing import Any, get_args

import attrs
import pytest
from handoff_fakes import handoff_uuid, unmodelled_timing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from recorded_steps import RecordedMachine, assert_replays

from handoff.engines.destination_session import ENDED_EARLY, MAX_ACTIONS, DestinationSession
from handoff.engines.session_machine import REFUSED, TAKEN, Phase, SessionMachine
from handoff.engines.session_rows import (
    CancelRequested,
    ChildrenStopped,
    CleanupFinished,
    CleanupReplied,
    CleanupStarted,
    CleanupTimedOut,
    CompletionDelivered,
    ControlCalled,
    ControlReplied,
    DeadlineFired,
    DeadlineMoved,
    DeadlineSet,
    FactObserved,
    JournalLost,
    LifecycleEnded,
    NotCarriedOut,
    ObserverEvent,
    OutboxFull,
    PeerClosed,
    SessionEnded,
    SessionInput,
    SessionStarted,
    ShutdownRequested,
    StopChildren,
    TimerCanceled,
    TimerFired,
    TimerSet,
    TornDown,
    TransportClosed,
    TransportFailed,
    WireFailed,
    WireFlushed,
    WireReceived,
    WireSent,
)
from handoff.engines.source_session import SourceSession
from handoff.journal.step import Step
from handoff.journal.terms import EndState, ObserverName, TimerName, WireName
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionName, FactName, HandoffOrder, OutcomeName, TimingMode, Verdict

HANDOFF = handoff_uuid(1)
TIMING = TransferTiming(TimingMode.DESTINATION_MISSING, 8, 1_000_000, 1.0)

A = ActionName
W = WireName


def source(order: HandoffOrder = HandoffOrder.SOURCE_FIRST, timeout_ms: float = 1000.0) -> RecordedMachine:
    return RecordedMachine(SourceSession(HANDOFF, timeout_ms, order))


def destination(timeout_ms: float = 1000.0) -> RecordedMachine:
    return RecordedMachine(DestinationSession(HANDOFF, timeout_ms))


def replied(action: ActionName, action_id: int, outcome: OutcomeName) -> ControlReplied:
    return ControlReplied(action, outcome, action_id)  # type: ignore[arg-type]


def ack(action_id: int, outcome: OutcomeName, message: str | None = None) -> WireReceived:
    return WireReceived(W.ACTION_ACK, action_id=action_id, outcome=outcome, message=message)  # type: ignore[arg-type]


def order(action: ActionName, action_id: int, **fields: Any) -> WireReceived:
    return WireReceived(W.ACTION, action_id=action_id, action=action, **fields)  # type: ignore[arg-type]


def held(timing: TransferTiming = TIMING) -> FactObserved:
    return FactObserved(FactName.SOURCE_HELD, transfer_timing=timing)


def reserved(tokens: int = 4) -> FactObserved:
    return FactObserved(FactName.DESTINATION_RESERVED, transferable_prompt_tokens=tokens)


def reserved_on_the_wire(tokens: int = 4) -> WireReceived:
    return WireReceived(W.FACT, fact=FactName.DESTINATION_RESERVED, transferable_prompt_tokens=tokens)


REGISTERED = WireReceived(W.REGISTERED)
TRANSFERRED = TimerFired(TimerName.TRANSFER, 1)
SOURCE_FIRST_PATH: list[Any] = [
    SessionStarted(),
    replied(A.SUBMIT_PREFILL, 0, OutcomeName.SUBMITTED),
    held(),
    ack(1, OutcomeName.ACCEPTED),
    reserved_on_the_wire(),
    TRANSFERRED,
    ack(3, OutcomeName.APPLIED),
    replied(A.RELEASE_SOURCE, 4, OutcomeName.APPLIED),
    WireFlushed(W.COMPLETE),
]
DESTINATION_PATH: list[Any] = [
    SessionStarted(),
    REGISTERED,
    order(A.RESERVE_DESTINATION, 0),
    replied(A.RESERVE_DESTINATION, 0, OutcomeName.ACCEPTED),
    reserved(),
    order(A.ACTIVATE_DESTINATION, 3),
    replied(A.ACTIVATE_DESTINATION, 3, OutcomeName.APPLIED),
    WireReceived(W.COMPLETE),
]


def walk(machine: RecordedMachine, path: list[Any], at_ms: float = 0.0) -> list[Any]:
    """Take the inputs; all effects."""
    return [effect for value in path for effect in machine.offer(value, at_ms).effects]


def sent(effects: Any) -> list[tuple[WireName, Any]]:
    return [(each.name, each.action or each.fact) for each in effects if isinstance(each, WireSent)]


# -- whole lives ------------------------------------------------------------------------------------------------------


def test_a_source_first_handoff_from_its_start_to_its_last_frame() -> None:
    machine = source()
    effects = walk(machine, SOURCE_FIRST_PATH)
    assert sent(effects) == [
        (W.REGISTERED, None),
        (W.FACT, FactName.SOURCE_HELD),
        (W.ACTION, A.RESERVE_DESTINATION),
        (W.ACTION, A.ACTIVATE_DESTINATION),
        (W.COMPLETE, None),
    ]
    assert [each.name for each in effects if isinstance(each, ControlCalled)] == [A.SUBMIT_PREFILL, A.RELEASE_SOURCE]
    assert [each.name for each in effects if isinstance(each, ObserverEvent)] == list(ObserverName)
    assert effects[-3:] == [
        TransportClosed(),
        SessionEnded(EndState.SUCCESS),
        CompletionDelivered(EndState.SUCCESS),
    ]
    assert_replays(machine.journal)


def test_a_destination_from_its_registration_to_its_completion() -> None:
    machine = destination()
    effects = walk(machine, DESTINATION_PATH)
    assert sent(effects) == [
        (W.ACTION_ACK, None),
        (W.FACT, FactName.DESTINATION_RESERVED),
        (W.ACTION_ACK, None),
    ]
    assert effects[-2:] == [TransportClosed(), SessionEnded(EndState.SUCCESS)]
    assert_replays(machine.journal)


@pytest.mark.parametrize("length", range(1, len(SOURCE_FIRST_PATH) - 1))
def test_a_source_that_fails_anywhere_cancels_and_says_goodbye(length: int) -> None:
    machine = source()
    walk(machine, SOURCE_FIRST_PATH[:length])
    failing = machine.offer(CancelRequested()).effects
    assert failing[-1] == StopChildren("source request was canceled")
    started = machine.offer(ChildrenStopped()).effects
    assert [type(each) for each in started] == [CleanupStarted, DeadlineSet, ControlCalled, WireSent]
    assert started[1].expires_ms == 30_000.0
    assert started[2] == ControlCalled(A.CANCEL_SOURCE)
    assert (started[3].name, started[3].message) == (W.ABORT, "source request was canceled")
    assert machine.offer(WireFlushed(W.ABORT)).effects == ()
    finished = machine.offer(CleanupReplied(A.CANCEL_SOURCE, OutcomeName.NOOP)).effects
    assert finished[0] == CleanupFinished(A.CANCEL_SOURCE, OutcomeName.NOOP)
    assert finished[-1] == CompletionDelivered(EndState.ERROR, "source request was canceled")
    assert_replays(machine.journal)


@pytest.mark.parametrize("length", range(1, len(DESTINATION_PATH)))
def test_a_destination_that_fails_anywhere_closes_its_connection_and_cancels(length: int) -> None:
    machine = destination()
    walk(machine, DESTINATION_PATH[:length])
    failing = machine.offer(PeerClosed()).effects
    assert [type(each) for each in failing] == [StopChildren, TransportClosed]
    assert failing[0].message.startswith(ENDED_EARLY)
    started = machine.offer(ChildrenStopped()).effects
    assert started[-1] == ControlCalled(A.CANCEL_DESTINATION)
    finished = machine.offer(CleanupReplied(A.CANCEL_DESTINATION, OutcomeName.APPLIED)).effects
    assert [type(each) for each in finished] == [CleanupFinished, SessionEnded]
    assert_replays(machine.journal)


def test_a_transfer_under_way_is_given_up_with_its_timer() -> None:
    machine = source()
    effects = walk(machine, SOURCE_FIRST_PATH[:5], 2.0)
    assert TimerSet(TimerName.TRANSFER, 1, 6.0) in effects
    assert machine.offer(ShutdownRequested()).effects[0] == TimerCanceled(TimerName.TRANSFER, 1)
    assert machine.offer(TRANSFERRED).verdict is Verdict.LATE


# -- every input in every phase ---------------------------------------------------------------------------------------


def in_phase(phase: Phase, make: Callable[[], RecordedMachine]) -> RecordedMachine:
    machine = make()
    of_source = isinstance(machine.machine, SourceSession)
    if phase is Phase.FINISHING:
        walk(machine, SOURCE_FIRST_PATH[:-1])
    else:
        machine.offer(SessionStarted())
    if phase in (Phase.STOPPING, Phase.CLEANING, Phase.ENDED):
        machine.offer(CancelRequested())
    if phase in (Phase.CLEANING, Phase.ENDED):
        machine.offer(ChildrenStopped())
    if phase is Phase.ENDED:
        machine.offer(CleanupReplied(A.CANCEL_SOURCE, OutcomeName.NOOP))
        if of_source:
            machine.offer(WireFlushed(W.ABORT))
    assert machine.machine.phase is phase
    return machine


EXAMPLES: dict[type, Any] = {
    SessionStarted: SessionStarted(),
    WireReceived: WireReceived(W.COMPLETE),
    WireFlushed: WireFlushed(W.REGISTERED),
    WireFailed: WireFailed(W.REGISTERED, "reset"),
    OutboxFull: OutboxFull(W.ACTION),
    PeerClosed: PeerClosed(),
    TransportFailed: TransportFailed("reset"),
    ControlReplied: replied(A.SUBMIT_PREFILL, 0, OutcomeName.SUBMITTED),
    CleanupReplied: CleanupReplied(A.CANCEL_SOURCE, OutcomeName.APPLIED),
    FactObserved: held(),
    LifecycleEnded: LifecycleEnded(),
    DeadlineFired: DeadlineFired(TimerName.SESSION_DEADLINE, 1),
    TimerFired: TRANSFERRED,
    CancelRequested: CancelRequested(),
    ShutdownRequested: ShutdownRequested(),
    ChildrenStopped: ChildrenStopped(),
    TornDown: TornDown(),
    JournalLost: JournalLost(),
    NotCarriedOut: NotCarriedOut(),
}
SIDES = {"source": source, "destination": destination}


def test_there_is_an_example_of_every_input() -> None:
    assert EXAMPLES.keys() == set(get_args(SessionInput))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_an_input_that_a_phase_does_not_take_gets_the_phases_verdict_and_changes_nothing(
    side: str, phase: Phase, kind: type
) -> None:
    if side == "destination" and phase is Phase.FINISHING:
        assert Phase.FINISHING in TAKEN  # a destination never gets there
        return
    machine = in_phase(phase, SIDES[side])
    step = machine.offer(EXAMPLES[kind])
    if kind not in TAKEN[phase]:
        stale = kind in (DeadlineFired, TimerFired) and phase is not Phase.ENDED
        late = stale and step.verdict is Verdict.LATE
        assert late or step.verdict is REFUSED[phase]
        assert step.effects == ()
        assert machine.machine.phase is phase
    assert_replays(machine.journal)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("phase", [each for each in Phase if each is not Phase.ENDED])
@pytest.mark.parametrize("name", [TimerName.SESSION_DEADLINE, TimerName.CLEANUP_LIMIT, TimerName.TRANSFER])
def test_a_timer_that_is_not_the_newest_of_its_name_is_late_in_every_phase(
    side: str, phase: Phase, name: TimerName
) -> None:
    if side == "destination" and phase is Phase.FINISHING:
        phase = Phase.RUNNING
    machine = in_phase(phase, SIDES[side])
    fired = (TimerFired if name is TimerName.TRANSFER else DeadlineFired)(name, 99)
    step = machine.offer(fired)
    assert (step.verdict, step.effects) == (Verdict.LATE, ())


# -- rules of the source ----------------------------------------------------------------------------------------------


def failed(step: Step, machine: RecordedMachine) -> str:
    """The error with which a step failed its session."""
    assert machine.machine.failing
    stops = [each for each in step.effects if isinstance(each, StopChildren)]
    assert len(stops) == 1
    return str(stops[0].message)


def test_a_hold_before_the_submission_was_answered_is_kept() -> None:
    machine = source()
    machine.offer(SessionStarted())
    early = machine.offer(held())
    assert (early.verdict, sent(early.effects)) == (Verdict.KEPT, [])
    assert machine.offer(held()).verdict is Verdict.DUPLICATE
    answered = machine.offer(replied(A.SUBMIT_PREFILL, 0, OutcomeName.SUBMITTED))
    assert sent(answered.effects) == [(W.FACT, FactName.SOURCE_HELD), (W.ACTION, A.RESERVE_DESTINATION)]
    assert machine.offer(held()).verdict is Verdict.DUPLICATE
    assert_replays(machine.journal)


@pytest.mark.parametrize("answered", [True, False])
def test_a_hold_with_other_figures_ends_the_session(answered: bool) -> None:
    machine = source()
    walk(machine, [SessionStarted(), *([SOURCE_FIRST_PATH[1]] if answered else []), held()])
    step = machine.offer(held(unmodelled_timing()))
    assert step.verdict is Verdict.CONFLICTING
    assert "another transfer timing" in failed(step, machine)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (reserved(), "cannot observe"),
        (held(TransferTiming(TimingMode.FULL_PROMPT, 8, 1, -1.0)), "invalid handoff transfer bandwidth"),
        (held(TransferTiming(TimingMode.FULL_PROMPT, 8, 1, 5e-324)), "invalid handoff transfer delay"),
        (WireReceived(W.OVERLOADED), "overloaded"),
        (WireReceived(W.COMPLETE), "complete"),
        (WireReceived(W.FACT, fact=FactName.SOURCE_HELD, transfer_timing=TIMING), "source_held"),
        (
            WireReceived(
                W.FACT,
                fact=FactName.DESTINATION_RESERVED,
                transferable_prompt_tokens=4,
                handoff_id=handoff_uuid(2),
            ),
            "that handoff",
        ),
        (WireReceived(W.ABORT, message="no longer wanted"), "no longer wanted"),
        (WireReceived(W.PROTOCOL_ERROR, message="what was that"), "what was that"),
        (ack(7, OutcomeName.APPLIED), "unknown handoff action 7"),
        (reserved_on_the_wire(), "before its reservation"),
        (PeerClosed(), "closed the connection"),
        (TransportFailed("reset by peer"), "reset by peer"),
        (WireFailed(W.REGISTERED, "broken pipe"), "broken pipe"),
        (OutboxFull(W.ACTION), "too many frames"),
        (LifecycleEnded(), "source lifecycle channel closed"),
        (LifecycleEnded("the engine died"), "the engine died"),
        (DeadlineFired(TimerName.SESSION_DEADLINE, 1), "handoff session timed out"),
        (CancelRequested(), "source request was canceled"),
        (ShutdownRequested(), "shutting down"),
        (TornDown(), "torn down"),
        (JournalLost(), "journal"),
    ],
)
def test_what_ends_a_source_session_says_so(value: Any, says: str) -> None:
    machine = source()
    machine.offer(SessionStarted())
    assert says in failed(machine.offer(value), machine)
    assert_replays(machine.journal)


def test_an_observation_that_the_coordinator_refuses_was_never_observed() -> None:
    machine = source()
    machine.offer(SessionStarted())
    step = machine.offer(ack(0, OutcomeName.ACCEPTED))
    assert step.verdict is Verdict.INVALID
    assert not any(isinstance(effect, ObserverEvent) for effect in step.effects)


def test_the_deadline_allows_for_the_transfer_once_it_is_known() -> None:
    machine = source(timeout_ms=40.0)
    machine.offer(SessionStarted(), 7.0)
    walk(machine, SOURCE_FIRST_PATH[1:4], 10.0)
    assert machine.machine.deadline_ms == 47.0
    step = machine.offer(reserved_on_the_wire(4), 20.0)
    assert DeadlineMoved(TimerName.SESSION_DEADLINE, 2, 51.0) in step.effects
    again = machine.offer(reserved_on_the_wire(4), 21.0)
    assert (again.verdict, again.effects) == (Verdict.DUPLICATE, ())
    assert machine.offer(DeadlineFired(TimerName.SESSION_DEADLINE, 1), 47.0).verdict is Verdict.LATE
    assert machine.offer(DeadlineFired(TimerName.SESSION_DEADLINE, 2), 51.0).verdict is Verdict.APPLIED
    assert machine.machine.failing


def test_a_transfer_that_no_clock_can_wait_for_ends_the_session() -> None:
    machine = source()
    huge = TransferTiming(TimingMode.DESTINATION_MISSING, 1, 1 << 60, 1e-279)
    walk(machine, [*SOURCE_FIRST_PATH[:2], held(huge), ack(1, OutcomeName.ACCEPTED)])
    step = machine.offer(reserved_on_the_wire(1 << 60))
    assert "invalid handoff transfer delay" in failed(step, machine)


def test_a_failed_outcome_lets_the_coordinator_clean_up_and_abort() -> None:
    machine = source()
    walk(machine, SOURCE_FIRST_PATH[:6])
    step = machine.offer(ack(3, OutcomeName.FAILED, "the reservation is gone"))
    assert ControlCalled(A.CANCEL_SOURCE, 4) in step.effects  # type: ignore[arg-type]
    assert sent(step.effects) == [(W.ACTION, A.CANCEL_DESTINATION)]
    machine.offer(ack(5, OutcomeName.APPLIED))
    step = machine.offer(replied(A.CANCEL_SOURCE, 4, OutcomeName.APPLIED))
    assert sent(step.effects) == [(W.ABORT, None)]
    assert machine.machine.phase is Phase.FINISHING
    ended = machine.offer(WireFlushed(W.ABORT)).effects
    assert ended[-1] == CompletionDelivered(EndState.ERROR, "handoff canceled")
    assert_replays(machine.journal)


@pytest.mark.parametrize(
    "value", [CancelRequested(), ShutdownRequested(), PeerClosed(), TransportFailed("reset"), LifecycleEnded()]
)
def test_a_source_that_only_waits_for_its_last_frame_hears_nothing_else(value: Any) -> None:
    machine = in_phase(Phase.FINISHING, source)
    assert machine.offer(value).verdict is Verdict.LATE
    assert machine.offer(WireFlushed(W.COMPLETE)).effects[-1] == CompletionDelivered(EndState.SUCCESS)


@pytest.mark.parametrize("value", [WireFailed(W.COMPLETE, "reset"), DeadlineFired(TimerName.SESSION_DEADLINE, 2)])
def test_a_source_whose_last_frame_did_not_leave_has_failed(value: Any) -> None:
    machine = in_phase(Phase.FINISHING, source)
    machine.offer(value)
    assert machine.machine.failing


def test_a_reply_that_was_mapped_is_used_as_mapped() -> None:
    machine = source()
    walk(machine, SOURCE_FIRST_PATH[:7])
    step = machine.offer(
        ControlReplied(A.RELEASE_SOURCE, OutcomeName.NOOP, 4, mapped=OutcomeName.APPLIED)  # type: ignore[arg-type]
    )
    assert sent(step.effects) == [(W.COMPLETE, None)]
    assert_replays(machine.journal)


def test_a_cleanup_that_is_not_answered_ends_at_its_limit() -> None:
    machine = in_phase(Phase.CLEANING, source)
    step = machine.offer(DeadlineFired(TimerName.CLEANUP_LIMIT, 1))
    assert step.effects[0] == CleanupTimedOut(A.CANCEL_SOURCE)
    assert machine.machine.ended


def test_a_goodbye_that_never_leaves_ends_at_the_limit_without_blaming_the_engine() -> None:
    machine = in_phase(Phase.CLEANING, source)
    machine.offer(CleanupReplied(A.CANCEL_SOURCE, OutcomeName.APPLIED))
    assert machine.offer(CleanupReplied(A.CANCEL_SOURCE, OutcomeName.NOOP)).verdict is Verdict.DUPLICATE
    step = machine.offer(DeadlineFired(TimerName.CLEANUP_LIMIT, 1))
    assert not any(isinstance(effect, CleanupTimedOut) for effect in step.effects)
    assert machine.machine.ended


# -- rules of the destination -----------------------------------------------------------------------------------------


def test_an_action_that_comes_again_is_answered_again_and_not_carried_out_again() -> None:
    machine = destination()
    walk(machine, DESTINATION_PATH[:3])
    pending = machine.offer(order(A.RESERVE_DESTINATION, 0))
    assert (pending.verdict, pending.effects) == (Verdict.DUPLICATE, ())
    machine.offer(DESTINATION_PATH[3])
    again = machine.offer(order(A.RESERVE_DESTINATION, 0))
    assert again.verdict is Verdict.DUPLICATE
    assert sent(again.effects) == [(W.ACTION_ACK, None)]
    assert machine.offer(DESTINATION_PATH[3]).verdict is Verdict.DUPLICATE


@pytest.mark.parametrize("answered", [True, False])
def test_an_action_that_comes_again_with_other_contents_ends_the_session(answered: bool) -> None:
    machine = destination()
    walk(machine, DESTINATION_PATH[: 4 if answered else 3])
    step = machine.offer(order(A.ACTIVATE_DESTINATION, 0))
    assert step.verdict is Verdict.CONFLICTING
    failed(step, machine)


@pytest.mark.parametrize("action", [A.SUBMIT_PREFILL, A.RELEASE_SOURCE, A.CANCEL_SOURCE, A.COMPLETE])
def test_an_action_that_is_no_destinations_is_refused_and_the_session_goes_on(action: ActionName) -> None:
    machine = destination()
    walk(machine, DESTINATION_PATH[:2])
    (refusal,) = machine.offer(order(action, 0)).effects
    assert (refusal.name, refusal.outcome) == (W.ACTION_ACK, OutcomeName.FAILED)
    assert machine.machine.phase is Phase.RUNNING


def test_the_number_of_actions_is_bounded() -> None:
    machine = destination()
    walk(machine, [*DESTINATION_PATH[:2], *(order(A.COMPLETE, number) for number in range(MAX_ACTIONS))])
    step = machine.offer(order(A.COMPLETE, MAX_ACTIONS))
    assert "more than" in failed(step, machine)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (REGISTERED, "twice"),
        (WireReceived(W.COMPLETE), "before the destination was activated"),
        (WireReceived(W.OVERLOADED), "overloaded"),
        (WireReceived(W.ACTION_ACK, action_id=0, outcome=OutcomeName.APPLIED), "cannot be sent"),  # type: ignore[arg-type]
        (reserved_on_the_wire(), "cannot be told"),
        (WireReceived(W.ABORT, message="handoff canceled"), "handoff canceled"),
        (held(), "cannot observe"),
        (reserved(), "nobody asked for"),
        (PeerClosed(), ENDED_EARLY),
        (LifecycleEnded(), ENDED_EARLY),
        (DeadlineFired(TimerName.SESSION_DEADLINE, 1), "timed out"),
        (
            WireReceived(
                W.FACT, fact=FactName.SOURCE_HELD, transfer_timing=TransferTiming(TimingMode.FULL_PROMPT, 1, 1, -1.0)
            ),
            "invalid handoff transfer bandwidth",
        ),
    ],
)
def test_what_ends_a_destination_session_says_so(value: Any, says: str) -> None:
    machine = destination()
    walk(machine, DESTINATION_PATH[:2])
    assert says in failed(machine.offer(value), machine)
    assert_replays(machine.journal)


def test_the_sources_hold_moves_the_destinations_deadline_and_must_stay_the_same() -> None:
    machine = destination(timeout_ms=40.0)
    walk(machine, DESTINATION_PATH[:4], 3.0)
    hold = WireReceived(W.FACT, fact=FactName.SOURCE_HELD, transfer_timing=TIMING)
    assert machine.offer(hold, 4.0).effects == ()
    assert DeadlineMoved(TimerName.SESSION_DEADLINE, 2, 47.0) in machine.offer(reserved(4), 5.0).effects
    assert machine.offer(hold, 6.0).verdict is Verdict.DUPLICATE
    other = WireReceived(W.FACT, fact=FactName.SOURCE_HELD, transfer_timing=unmodelled_timing())
    assert machine.offer(other, 7.0).verdict is Verdict.CONFLICTING


def test_the_registration_limit_means_nothing_once_the_source_has_answered() -> None:
    machine = destination()
    machine.offer(SessionStarted())
    machine.offer(REGISTERED)
    assert machine.offer(DeadlineFired(TimerName.REGISTRATION_DEADLINE, 1)).verdict is Verdict.LATE


def test_a_reservation_of_an_action_that_was_refused_is_an_error() -> None:
    machine = destination()
    walk(machine, DESTINATION_PATH[:3])
    assert machine.offer(reserved()).verdict is Verdict.KEPT
    step = machine.offer(replied(A.RESERVE_DESTINATION, 0, OutcomeName.FAILED))
    assert "not accepted" in failed(step, machine)


# -- both, under whatever the world does ------------------------------------------------------------------------------


class TwoSessions(RuleBasedStateMachine):
    """Both machines, joined by frames that may be lost, doubled or late, and engines that answer when they like."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ms = 0.0
        self.recorded: dict[str, RecordedMachine] = {}
        self.frames: dict[str, list[WireReceived]] = {"source": [], "destination": []}
        self.calls: dict[str, list[ControlCalled]] = {"source": [], "destination": []}
        self.timers: dict[str, list[Any]] = {"source": [], "destination": []}
        self.flushes: dict[str, list[WireFlushed]] = {"source": [], "destination": []}
        self.cleanups: dict[str, int] = {"source": 0, "destination": 0}
        self.ends: dict[str, list[SessionEnded]] = {"source": [], "destination": []}

    @initialize(order=st.sampled_from(HandoffOrder))
    def begin(self, order: HandoffOrder) -> None:
        self.recorded = {"source": source(order), "destination": destination()}
        for side in self.recorded:
            self.take(side, SessionStarted())

    def machine(self, side: str) -> SessionMachine:
        decider: SessionMachine = self.recorded[side].machine
        return decider

    def take(self, side: str, value: Any) -> None:
        self.at_ms += 1.0
        peer = "destination" if side == "source" else "source"
        for effect in self.recorded[side].offer(value, self.at_ms).effects:
            match effect:
                case WireSent():
                    self.frames[peer].append(WireReceived(*attrs.astuple(effect, recurse=False)))
                    self.flushes[side].append(WireFlushed(effect.name, effect.action_id))
                case ControlCalled():
                    self.cleanups[side] += effect.action_id is None
                    self.calls[side].append(effect)
                case DeadlineSet() | DeadlineMoved():
                    self.timers[side].append(DeadlineFired(effect.name, effect.generation))
                case TimerSet():
                    self.timers[side].append(TimerFired(effect.name, effect.generation))
                case SessionEnded():
                    self.ends[side].append(effect)
                case _:
                    pass

    sides = st.sampled_from(["source", "destination"])

    @rule(side=sides, deed=st.sampled_from(["deliver", "deliver", "deliver", "lose", "double", "late"]))
    def a_frame(self, side: str, deed: str) -> None:
        frames = self.frames[side]
        if not frames:
            return
        if deed in ("deliver", "double"):
            self.take(side, frames[0])
        if deed in ("deliver", "lose"):
            del frames[0]
        if deed == "late":
            frames.append(frames.pop(0))

    @rule(side=sides, as_ordered=st.integers(0, 5).map(bool), data=st.data())
    def the_engine_answers(self, side: str, as_ordered: bool, data: st.DataObject) -> None:
        if not self.calls[side]:
            return
        called = self.calls[side].pop(0)
        natural = {A.SUBMIT_PREFILL: OutcomeName.SUBMITTED, A.RESERVE_DESTINATION: OutcomeName.ACCEPTED}
        outcome = natural.get(called.name, OutcomeName.APPLIED)
        if not as_ordered:
            outcome = data.draw(st.sampled_from(OutcomeName))
        message = "refused" if outcome is OutcomeName.FAILED else None
        if called.action_id is None:
            self.take(side, CleanupReplied(called.name, outcome, message))
        else:
            self.take(side, ControlReplied(called.name, outcome, called.action_id, message))

    @rule(tokens=st.integers(0, 8))
    def the_destination_observes(self, tokens: int) -> None:
        self.take("destination", reserved(tokens))

    @rule(mode=st.sampled_from(TimingMode))
    def the_source_observes(self, mode: TimingMode) -> None:
        self.take("source", held(TransferTiming(mode, 8, 1_000_000, 1.0)))

    @rule(side=sides)
    def a_frame_leaves(self, side: str) -> None:
        if self.flushes[side]:
            self.take(side, self.flushes[side].pop(0))

    @rule(side=sides, data=st.data())
    def a_timer_fires(self, side: str, data: st.DataObject) -> None:
        self.take(side, data.draw(st.sampled_from(self.timers[side])))

    @precondition(lambda self: self.at_ms > 15)
    @rule(side=sides, data=st.data())
    def the_world_intervenes(self, side: str, data: st.DataObject) -> None:
        values = [
            PeerClosed(), TransportFailed("reset"), LifecycleEnded(), CancelRequested(), ShutdownRequested(),
            TornDown(), JournalLost(), WireFailed(W.ACTION, "reset"), OutboxFull(W.FACT), NotCarriedOut(),
        ]  # fmt: skip
        self.take(side, data.draw(st.sampled_from(values)))

    @rule(side=sides)
    def children_stop(self, side: str) -> None:
        if self.machine(side).phase is Phase.STOPPING:
            self.take(side, ChildrenStopped())

    @invariant()
    def each_side_ends_at_most_once_and_cancels_exactly_when_it_failed(self) -> None:
        for side, recorded in self.recorded.items():
            machine = recorded.machine
            assert len(self.ends[side]) == machine.ended
            assert self.cleanups[side] <= 1
            if machine.phase is Phase.CLEANING:
                assert self.cleanups[side] == 1
            if machine.ended and machine.error is None:
                assert self.cleanups[side] == 0

    @invariant()
    def a_source_succeeds_only_after_the_destination_was_activated_and_the_source_released(self) -> None:
        if self.recorded and self.ends["source"] and self.ends["source"][0].name is EndState.SUCCESS:
            core = self.recorded["source"].machine.coordinator.core
            assert core.activation_applied
            assert core.source_cleaned
            assert not core.cancel_source_issued

    def teardown(self) -> None:
        for side, recorded in self.recorded.items():
            machine = recorded.machine
            if not (machine.ended or machine.failing):
                self.take(side, ShutdownRequested())
            if machine.phase is Phase.FINISHING:
                self.take(side, WireFailed(W.COMPLETE, "reset"))
            if machine.phase is Phase.STOPPING:
                self.take(side, ChildrenStopped())
            if machine.phase is Phase.CLEANING:
                self.take(side, DeadlineFired(TimerName.CLEANUP_LIMIT, 1))
            assert machine.ended
            assert_replays(recorded.journal)


TwoSessions.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestTwoSessions = TwoSessions.TestCase
