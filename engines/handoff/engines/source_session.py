"""The source's side of a handoff: a pure machine that owns the coordinator and carries its decisions to both engines.

The coordinator orders one action after the other; the session knows who carries each out, and tells the coordinator
what came of it. Who does what:

* the source's own actions are calls of its engine;
* the destination's actions are frames, answered by frames;
* a transfer is a timer of its delay, in real time: the model of a data plane that nobody here has. It is scheduled at
  once;
* completion is a last frame. The session ends when that frame has left, within its deadline.

Three rules keep facts in order:

* **Acknowledgement before fact.** The engine may hold the prompt's KV before it has answered the submission. The hold
  is then kept, and offered right after the answer.
* **The fact goes before what follows from it.** The destination hears that the source is held before it is asked for
  anything because of it, so that it can extend its deadline first.
* **A hold is announced once.** An equal second one is a duplicate. One with other figures ends the session, whether the
  first was kept or offered: the two engines would no longer charge the same transfer.

The coordinator is never told of a failure of the session: a session that fails cleans up by itself
(`session_machine`), with one more cancel of the source, whatever the coordinator had asked for. The coordinator's own
cleanup is entered through failed outcomes alone. It ends in ``complete`` (canceled): the destination is sent an
abort, and the session ends with the error `CANCELED`, so that the session's end and the request's answer say the
same.

Observers hear of each step of the normalized lifecycle once, after the coordinator has taken what it follows from. What
the coordinator refuses was therefore never observed.

The request behind the source is answered last (`CompletionDelivered`): when the driver carries that out, the session's
permit is free and its handoff not active any more, so that a retry cannot meet its own predecessor.

| input | first | repeated, late or refused |
| --- | --- | --- |
| wire acknowledgement | offered to the coordinator | its verdict; a refusal is an error |
| wire fact reserved | offered; may move the deadline | the coordinator's verdict |
| wire abort, protocol error | error with its text | |
| any other message | error | |
| control reply | offered; may release a kept hold | not called, or answered: offered all the same |
| fact held | offered, or kept while the submission is unanswered | see above |
| fact reserved, from the own engine | error | |
| transfer timer | offered as completed | not the newest: late |
| end of stream, transport error, lifecycle ended | error | while finishing: late |
| cancel, shutdown, deadline | error | while finishing: late, but for the deadline |
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, assert_never

from attrs import define, field

from handoff.engines.session_machine import (
    JOURNAL_LOST,
    OUTBOX_FULL,
    SHUTTING_DOWN,
    TIMED_OUT,
    TORN_DOWN,
    Phase,
    SessionFailure,
    SessionMachine,
)
from handoff.engines.session_rows import (
    CancelRequested,
    ChildrenStopped,
    CleanupReplied,
    CompletionDelivered,
    ControlCalled,
    ControlReplied,
    DeadlineFired,
    FactObserved,
    JournalLost,
    LifecycleEnded,
    NotCarriedOut,
    ObserverEvent,
    OutboxFull,
    PeerClosed,
    SessionInput,
    SessionStarted,
    ShutdownRequested,
    TimerFired,
    TornDown,
    TransportFailed,
    WireFailed,
    WireFlushed,
    WireReceived,
    WireSent,
)
from handoff.journal.coordinator import Action, Coordinator
from handoff.journal.coordinator_actor import (
    CoordinatorActor,
    CoordinatorInput,
    FactOffered,
    HandoffStarted,
    OutcomeOffered,
)
from handoff.journal.terms import ActorKind, EndState, ObserverName, WireName
from handoff.journal.transfer_timing import InvalidTransferTiming, TransferTiming, validate_transfer_timing
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    Completion,
    FactName,
    HandoffId,
    HandoffOrder,
    OutcomeName,
    Verdict,
)

CANCELED = "handoff canceled"
REQUEST_CANCELED = "source request was canceled"
LIFECYCLE_CLOSED = "source lifecycle channel closed"
PEER_GONE = "the destination closed the connection before the handoff was complete"


@define(eq=False)
class SourceSession(SessionMachine):
    """One source session; see the module.

    Attributes:
        order: who is asked first.
        coordinator: what decides the order of actions.
    """

    SLOTS: ClassVar[tuple[ActorKind, ...]] = (ActorKind.SOURCE_SESSION, ActorKind.COORDINATOR)

    order: HandoffOrder
    coordinator: CoordinatorActor = field(init=False)
    _pending_submit: ActionId | None = field(default=None, init=False)
    _timing: TransferTiming | None = field(default=None, init=False)
    _hold_kept: bool = field(default=False, init=False)
    _missing_tokens: int | None = field(default=None, init=False)
    _observed: dict[ObserverName, None] = field(factory=dict, init=False)
    _last_frame: WireName | None = field(default=None, init=False)
    _abort_settled: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.coordinator = CoordinatorActor(Coordinator(self.handoff_id, self.order))

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> "SourceSession":
        """The machine that an `actor_started` row with this configuration describes."""
        return cls(HandoffId(config["handoff_id"]), config["session_timeout_ms"], HandoffOrder(config["order"]))

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row."""
        return {
            "handoff_id": self.handoff_id,
            "session_timeout_ms": self.session_timeout_ms,
            "order": self.order.value,
        }

    def _run(self, value: SessionInput) -> Verdict:
        match value:
            case SessionStarted():
                self._start_session_clock()
                self._out.add(WireSent(WireName.REGISTERED))
                return self._offer(HandoffStarted())
            case WireReceived():
                return self._receive(value)
            case ControlReplied():
                return self._answer(value)
            case FactObserved():
                return self._observe_engine(value)
            case TimerFired():
                self._transfer_timer = False
                return self._offer(FactOffered(FactName.TRANSFER_COMPLETED))
            case WireFlushed() | NotCarriedOut():
                return Verdict.APPLIED
            case PeerClosed():
                raise SessionFailure(PEER_GONE)
            case TransportFailed():
                raise SessionFailure(value.message)
            case WireFailed():
                raise SessionFailure(f"{value.name} could not be sent: {value.message}")
            case OutboxFull():
                raise SessionFailure(OUTBOX_FULL)
            case LifecycleEnded():
                raise SessionFailure(LIFECYCLE_CLOSED if value.message is None else value.message)
            case DeadlineFired():
                raise SessionFailure(TIMED_OUT)
            case CancelRequested():
                raise SessionFailure(REQUEST_CANCELED)
            case ShutdownRequested():
                raise SessionFailure(SHUTTING_DOWN)
            case TornDown():
                raise SessionFailure(TORN_DOWN)
            case JournalLost():
                raise SessionFailure(JOURNAL_LOST)
            case ChildrenStopped() | CleanupReplied():
                raise AssertionError("never taken while running")
            case _:
                assert_never(value)

    # -- the coordinator ----------------------------------------------------------------------------------

    def _offer(self, value: CoordinatorInput, *observations: ObserverName) -> Verdict:
        """Feed the coordinator, tell observers what it took, and carry out what it orders."""
        actions = self._consult(value)
        for name in observations:
            self._observe(name)
        self._carry_out(actions)
        return self.coordinator.core.verdict

    def _consult(self, value: CoordinatorInput, cause: int = 0) -> tuple[tuple[int, Action], ...]:
        actions = self.coordinator.offer(value, self._out, slot=1, cause=cause)
        refusal = self.coordinator.last_error
        if refusal is not None:
            raise SessionFailure(str(refusal), refusal.verdict)
        return actions

    def _carry_out(self, actions: Iterable[tuple[int, Action]]) -> None:
        for index, action in actions:
            match action.name:
                case ActionName.SUBMIT_PREFILL:
                    self._pending_submit = action.id
                    self._call(action, index)
                case ActionName.RELEASE_SOURCE:
                    self._observe(ObserverName.DESTINATION_ACTIVATED, index)
                    self._call(action, index)
                case ActionName.CANCEL_SOURCE:
                    self._call(action, index)
                case ActionName.RESERVE_DESTINATION | ActionName.ACTIVATE_DESTINATION | ActionName.CANCEL_DESTINATION:
                    self._out.add(WireSent(WireName.ACTION, action_id=action.id, action=action.name), cause=index)
                case ActionName.START_TRANSFER:
                    assert action.delay_ms is not None
                    scheduled = OutcomeOffered(action.id, OutcomeName.SCHEDULED, action.name)
                    self._carry_out(self._consult(scheduled, index))
                    self._set_transfer_timer(action.delay_ms, index)
                case ActionName.COMPLETE:
                    self._complete(index)
                case _:
                    assert_never(action.name)

    def _call(self, action: Action, cause: int) -> None:
        self._out.add(ControlCalled(action.name, action.id), cause=cause)

    def _complete(self, cause: int) -> None:
        self.phase = Phase.FINISHING
        if self.coordinator.core.completion is Completion.SUCCESS:
            self._observe(ObserverName.SOURCE_RELEASED, cause)
            self._last_frame = WireName.COMPLETE
            self._out.add(WireSent(WireName.COMPLETE), cause=cause)
        else:
            self.error = CANCELED
            self._last_frame = WireName.ABORT
            self._out.add(WireSent(WireName.ABORT, message=CANCELED), cause=cause)

    def _observe(self, name: ObserverName, cause: int | None = None) -> None:
        if name not in self._observed:
            self._observed[name] = None
            self._out.add(ObserverEvent(name), cause=cause)

    # -- what the destination says --------------------------------------------------------------------------

    def _receive(self, received: WireReceived) -> Verdict:
        match received.name:
            case WireName.ACTION_ACK:
                assert received.action_id is not None
                assert received.outcome is not None
                accepted = received.outcome is OutcomeName.ACCEPTED
                return self._offer(
                    OutcomeOffered(received.action_id, received.outcome, message=received.message),
                    *((ObserverName.DESTINATION_ACCEPTED,) if accepted else ()),
                )
            case WireName.FACT if received.fact is FactName.DESTINATION_RESERVED and received.handoff_id is None:
                return self._take_reservation(received.transferable_prompt_tokens)
            case WireName.ABORT | WireName.PROTOCOL_ERROR:
                raise SessionFailure(f"the destination sent {received.name}: {received.message}")
            case _:
                told = received.name if received.fact is None else f"{received.fact} of that handoff"
                raise SessionFailure(f"a source cannot be sent {told}", Verdict.INVALID)

    def _take_reservation(self, tokens: int | None) -> Verdict:
        fact = FactOffered(FactName.DESTINATION_RESERVED, transferable_prompt_tokens=tokens)
        actions = self._consult(fact)
        if self.coordinator.core.verdict is Verdict.APPLIED:
            self._missing_tokens = tokens
            self._observe(ObserverName.DESTINATION_RESERVED)
            if self._timing is not None:
                self._allow_for_transfer(self._timing, tokens)
        self._carry_out(actions)
        return self.coordinator.core.verdict

    # -- what the engine says -------------------------------------------------------------------------------

    def _answer(self, reply: ControlReplied) -> Verdict:
        assert reply.action_id is not None
        if reply.mapped is None:
            outcome, message = reply.outcome, reply.message
        else:
            outcome, message = reply.mapped, reply.mapped_message
        actions = self._consult(OutcomeOffered(reply.action_id, outcome, ActionName(reply.name), message))
        verdict = self.coordinator.core.verdict
        if reply.action_id == self._pending_submit:
            self._pending_submit = None
            if self._hold_kept:
                if outcome is not OutcomeName.SUBMITTED:
                    raise SessionFailure("a source was held although its prefill was not submitted")
                self._hold_kept = False
                self._announce_hold()
        self._carry_out(actions)
        return verdict

    def _observe_engine(self, fact: FactObserved) -> Verdict:
        timing = fact.transfer_timing
        if fact.name != FactName.SOURCE_HELD or timing is None:
            raise SessionFailure(f"a source's engine cannot observe {fact.name}", Verdict.INVALID)
        if self._timing is not None:
            if timing != self._timing:
                raise SessionFailure("the source was held again with another transfer timing", Verdict.CONFLICTING)
            return Verdict.DUPLICATE
        try:
            validate_transfer_timing(timing)
        except InvalidTransferTiming as error:
            raise SessionFailure(str(error), Verdict.INVALID) from error
        self._timing = timing
        self._allow_for_transfer(timing, self._missing_tokens)
        if self._pending_submit is not None:
            self._hold_kept = True
            return Verdict.KEPT
        return self._announce_hold()

    def _announce_hold(self) -> Verdict:
        actions = self._consult(FactOffered(FactName.SOURCE_HELD, transfer_timing=self._timing))
        verdict = self.coordinator.core.verdict
        if verdict is Verdict.APPLIED:
            self._out.add(WireSent(WireName.FACT, fact=FactName.SOURCE_HELD, transfer_timing=self._timing))
            self._observe(ObserverName.SOURCE_HELD)
        self._carry_out(actions)
        return verdict

    # -- the end --------------------------------------------------------------------------------------------

    def _finish(self, value: SessionInput) -> Verdict:
        match value:
            case WireFlushed():
                if value.name == self._last_frame:
                    if self.error is None:
                        self._observe(ObserverName.COMPLETED)
                    self._end()
                return Verdict.APPLIED
            case WireFailed():
                raise SessionFailure(f"{value.name} could not be sent: {value.message}")
            case OutboxFull():
                raise SessionFailure(OUTBOX_FULL)
            case DeadlineFired():
                raise SessionFailure(TIMED_OUT)
            case TornDown():
                raise SessionFailure(TORN_DOWN)
            case JournalLost():
                raise SessionFailure(JOURNAL_LOST)
            case _:
                return Verdict.APPLIED

    def _cancel_action(self) -> ActionName:
        return ActionName.CANCEL_SOURCE

    def _say_goodbye(self) -> None:
        self._out.add(WireSent(WireName.ABORT, message=self.error))

    def _note_goodbye(self, value: WireFlushed | WireFailed | OutboxFull) -> None:
        if value.name == WireName.ABORT:
            self._abort_settled = True

    def _goodbye_said(self) -> bool:
        return self._abort_settled

    def _end(self) -> None:
        super()._end()
        self._out.add(CompletionDelivered(EndState.SUCCESS if self.error is None else EndState.ERROR, self.error))
