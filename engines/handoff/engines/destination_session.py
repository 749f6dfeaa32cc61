"""The destination's side of a handoff: a pure machine that answers the source and looks after one reservation.

It does what the source orders, one action at a time, and answers each with an acknowledgement. Rules that keep the two
sides together:

* **The acknowledgement goes before the fact.** The engine may observe the reservation before it has answered the
  action that asked for it. The fact is then kept and follows the acknowledgement, because the coordinator refuses a
  fact whose action was not acknowledged.
* **An action is carried out once.** One that comes again gets the stored answer again, and one that is still
  pending is not begun anew; the same number with other contents is an error. At most `MAX_ACTIONS` are answered.
* **Only this handoff's reservation is touched.** An action that names another handoff, or that is none of a
  destination's, is refused with a failed acknowledgement, and the session goes on.
* **Success needs both**: the source says ``complete``, nothing is pending, and an activation was applied. From then
  on the blocks belong to the decode.

Everything else ends the session without completion, and then the engine is told to cancel, whatever was or was not
reserved. The connection is closed before that: an end of the stream is this side's only goodbye, and the sooner the
source sees it, the sooner it frees its own side.

There is time for the registration to be answered (30 s) before the session's own clock starts.

| input | first | repeated, late or refused |
| --- | --- | --- |
| wire registered | starts the clock | again: error |
| wire action | becomes pending, engine is called | see above |
| control reply | acknowledgement sent; kept fact sent | no action pending under its number: duplicate |
| fact reserved | sent or kept | again: duplicate; never asked for: error |
| fact held, from the wire | moves the deadline | equal again: duplicate; other figures: conflicting, error |
| wire complete | success | too early: error |
| wire abort, protocol error, end of stream | end without completion; the text is kept | |
| cancel, shutdown, deadline | end without completion | |
"""

from collections.abc import Mapping
from typing import Any, ClassVar, assert_never

from attrs import define, field, frozen

from handoff.engines.boundary import DESTINATION_ACTIONS
from handoff.engines.session_machine import (
    JOURNAL_LOST,
    OUTBOX_FULL,
    SHUTTING_DOWN,
    TIMED_OUT,
    TORN_DOWN,
    SessionFailure,
    SessionMachine,
)
from handoff.engines.session_rows import (
    CancelRequested,
    ChildrenStopped,
    CleanupReplied,
    ControlCalled,
    ControlReplied,
    DeadlineFired,
    FactObserved,
    JournalLost,
    LifecycleEnded,
    NotCarriedOut,
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
from handoff.journal.terms import ActorKind, TimerName, WireName
from handoff.journal.transfer_timing import InvalidTransferTiming, TransferTiming, validate_transfer_timing
from handoff.journal.vocabulary import ActionId, ActionName, FactName, HandoffId, OutcomeName, Verdict

REGISTRATION_LIMIT_MS = 30_000.0
"""How long a destination waits for the source to arrive, in ms."""
MAX_ACTIONS = 16
"""How many actions a session answers; a handoff needs at most three of a destination."""
ENDED_EARLY = "destination handoff ended before completion"


@frozen
class _Order:
    """An action as the source sent it; equal contents are the same order."""

    action_id: ActionId
    action: ActionName
    delay_ms: float | None
    handoff_id: HandoffId | None


@frozen
class _Answer:
    """What an order was answered with."""

    order: _Order
    outcome: OutcomeName
    message: str | None


def _ended(reason: str) -> SessionFailure:
    """The end without completion, with its reason."""
    return SessionFailure(f"{ENDED_EARLY}: {reason}")


@define(eq=False)
class DestinationSession(SessionMachine):
    """One destination session; see the module.

    Attributes:
        registered: whether the source has answered the registration.
    """

    SLOTS: ClassVar[tuple[ActorKind, ...]] = (ActorKind.DESTINATION_SESSION,)

    registered: bool = field(default=False, init=False)
    _answers: dict[ActionId, _Answer] = field(factory=dict, init=False)
    _pending: _Order | None = field(default=None, init=False)
    _reserve_acknowledged: bool = field(default=False, init=False)
    _kept_tokens: int | None = field(default=None, init=False)
    _fact_sent: bool = field(default=False, init=False)
    _timing: TransferTiming | None = field(default=None, init=False)
    _missing_tokens: int | None = field(default=None, init=False)

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> "DestinationSession":
        """The machine that an `actor_started` row with this configuration describes."""
        return cls(HandoffId(config["handoff_id"]), config["session_timeout_ms"])

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row."""
        return {"handoff_id": self.handoff_id, "session_timeout_ms": self.session_timeout_ms}

    def _run(self, value: SessionInput) -> Verdict:
        match value:
            case SessionStarted():
                self._set_deadline(TimerName.REGISTRATION_DEADLINE, self._at_ms + REGISTRATION_LIMIT_MS)
                return Verdict.APPLIED
            case WireReceived():
                return self._receive(value)
            case ControlReplied():
                return self._answer(value)
            case FactObserved():
                return self._observe(value)
            case WireFlushed() | TimerFired() | NotCarriedOut():
                return Verdict.APPLIED
            case PeerClosed():
                raise _ended("the source closed the connection")
            case TransportFailed():
                raise _ended(value.message)
            case WireFailed():
                raise _ended(f"{value.name} could not be sent: {value.message}")
            case OutboxFull():
                raise _ended(OUTBOX_FULL)
            case LifecycleEnded():
                raise _ended(value.message or "the engine's lifecycle channel closed")
            case DeadlineFired():
                return self._time_out(value.name)
            case CancelRequested():
                raise _ended("the destination request was canceled")
            case ShutdownRequested():
                raise _ended(SHUTTING_DOWN)
            case TornDown():
                raise _ended(TORN_DOWN)
            case JournalLost():
                raise _ended(JOURNAL_LOST)
            case ChildrenStopped() | CleanupReplied():
                raise AssertionError("never taken while running")
            case _:
                assert_never(value)

    def _time_out(self, name: TimerName) -> Verdict:
        if name is TimerName.REGISTRATION_DEADLINE:
            if self.registered:
                return Verdict.LATE
            raise _ended("the source did not answer the registration in time")
        raise _ended(TIMED_OUT)

    # -- what the source says ---------------------------------------------------------------------------

    def _receive(self, received: WireReceived) -> Verdict:
        match received.name:
            case WireName.REGISTERED:
                if self.registered:
                    raise SessionFailure("the source answered the registration twice", Verdict.DUPLICATE)
                self.registered = True
                self._start_session_clock()
                return Verdict.APPLIED
            case WireName.ACTION:
                return self._take_order(received)
            case WireName.FACT:
                return self._take_fact(received)
            case WireName.COMPLETE:
                return self._complete()
            case WireName.ABORT | WireName.PROTOCOL_ERROR:
                raise _ended(f"the source sent {received.name}: {received.message}")
            case WireName.OVERLOADED:
                raise SessionFailure("the prefill worker is overloaded", Verdict.INVALID)
            case WireName.REGISTER | WireName.ACTION_ACK:
                raise SessionFailure(f"a destination cannot be sent {received.name}", Verdict.INVALID)

    def _take_order(self, received: WireReceived) -> Verdict:
        assert received.action_id is not None
        assert received.action is not None
        order = _Order(received.action_id, received.action, received.delay_ms, received.handoff_id)
        answered = self._answers.get(order.action_id)
        if answered is not None:
            if answered.order != order:
                raise SessionFailure(f"action {order.action_id} came again with other contents", Verdict.CONFLICTING)
            self._acknowledge(answered)
            return Verdict.DUPLICATE
        if self._pending is not None:
            if self._pending != order:
                raise SessionFailure(
                    f"action {order.action_id} came while action {self._pending.action_id} was pending",
                    Verdict.CONFLICTING,
                )
            return Verdict.DUPLICATE
        if len(self._answers) >= MAX_ACTIONS:
            raise SessionFailure(f"the source ordered more than {MAX_ACTIONS} actions", Verdict.INVALID)
        if order.handoff_id is not None:
            mismatch = f"action handoff {order.handoff_id} does not match bootstrap handoff {self.handoff_id}"
            return self._refuse(order, mismatch)
        if order.action not in DESTINATION_ACTIONS:
            return self._refuse(order, f"{order.action} is no action of a destination")
        self._pending = order
        self._out.add(ControlCalled(order.action, order.action_id))
        return Verdict.APPLIED

    def _refuse(self, order: _Order, reason: str) -> Verdict:
        self._store(_Answer(order, OutcomeName.FAILED, reason))
        return Verdict.INVALID

    def _take_fact(self, received: WireReceived) -> Verdict:
        if received.fact is not FactName.SOURCE_HELD or received.handoff_id is not None:
            raise SessionFailure(f"a destination cannot be told {received.fact} of that handoff", Verdict.INVALID)
        timing = received.transfer_timing
        assert timing is not None
        if self._timing is not None:
            if timing != self._timing:
                raise SessionFailure("the source changed its transfer timing", Verdict.CONFLICTING)
            return Verdict.DUPLICATE
        try:
            validate_transfer_timing(timing)
        except InvalidTransferTiming as error:
            raise SessionFailure(str(error), Verdict.INVALID) from error
        self._timing = timing
        self._allow_for(timing)
        return Verdict.APPLIED

    def _allow_for(self, timing: TransferTiming) -> None:
        if not self.registered:
            raise SessionFailure("a transfer was announced before the registration was answered", Verdict.INVALID)
        self._allow_for_transfer(timing, self._missing_tokens)

    def _complete(self) -> Verdict:
        activated = any(
            answer.order.action is ActionName.ACTIVATE_DESTINATION and answer.outcome is OutcomeName.APPLIED
            for answer in self._answers.values()
        )
        if self._pending is not None or not activated:
            raise SessionFailure("the source completed before the destination was activated", Verdict.INVALID)
        self._end()
        return Verdict.APPLIED

    # -- what the engine says -----------------------------------------------------------------------------

    def _answer(self, reply: ControlReplied) -> Verdict:
        order = self._pending
        if order is None or order.action_id != reply.action_id:
            return Verdict.DUPLICATE
        self._pending = None
        if reply.mapped is None:
            answer = _Answer(order, reply.outcome, reply.message)
        else:
            answer = _Answer(order, reply.mapped, reply.mapped_message)
        self._store(answer)
        if order.action is ActionName.RESERVE_DESTINATION:
            if answer.outcome is OutcomeName.ACCEPTED:
                self._reserve_acknowledged = True
                self._send_kept_fact()
            elif self._kept_tokens is not None:
                raise SessionFailure("a destination was reserved although its reservation was not accepted")
        return Verdict.APPLIED

    def _store(self, answer: _Answer) -> None:
        self._answers[answer.order.action_id] = answer
        self._acknowledge(answer)

    def _acknowledge(self, answer: _Answer) -> None:
        self._out.add(
            WireSent(
                WireName.ACTION_ACK, action_id=answer.order.action_id, outcome=answer.outcome, message=answer.message
            )
        )

    def _observe(self, fact: FactObserved) -> Verdict:
        if fact.name != FactName.DESTINATION_RESERVED or fact.transferable_prompt_tokens is None:
            raise SessionFailure(f"a destination's engine cannot observe {fact.name}", Verdict.INVALID)
        if self._fact_sent or self._kept_tokens is not None:
            return Verdict.DUPLICATE
        self._missing_tokens = fact.transferable_prompt_tokens
        if self._timing is not None:
            self._allow_for(self._timing)
        pending_reserve = self._pending is not None and self._pending.action is ActionName.RESERVE_DESTINATION
        if not self._reserve_acknowledged and not pending_reserve:
            raise SessionFailure("a destination was reserved that nobody asked for", Verdict.INVALID)
        self._kept_tokens = fact.transferable_prompt_tokens
        if self._reserve_acknowledged:
            self._send_kept_fact()
            return Verdict.APPLIED
        return Verdict.KEPT

    def _send_kept_fact(self) -> None:
        if self._kept_tokens is not None:
            tokens, self._kept_tokens = self._kept_tokens, None
            self._fact_sent = True
            self._out.add(
                WireSent(WireName.FACT, fact=FactName.DESTINATION_RESERVED, transferable_prompt_tokens=tokens)
            )

    # -- the way down -------------------------------------------------------------------------------------

    def _finish(self, value: SessionInput) -> Verdict:
        raise AssertionError(f"a destination has nothing to finish: {value}")

    def _cancel_action(self) -> ActionName:
        return ActionName.CANCEL_DESTINATION

    def _fail(self, message: str) -> None:
        super()._fail(message)
        self._close_transport()

    def _say_goodbye(self) -> None:
        """Closing the connection was the goodbye."""

    def _goodbye_said(self) -> bool:
        return True
