"""Who meets whom at a prefill worker: a pure machine that pairs sources with destinations, in either order of arrival.

A handoff is *pending* while one of its two is there, *active* while their session runs, and *retired* for a while after
that, so that a late participant is told instead of waiting for nobody. The driver brings arrivals and what the world
says of those who wait; the machine answers with pairs, rejections and timers:

    unknown --source or destination--> pending --the other--> active --session ended--> retired --> unknown
                                          |                                                ^
                                          +---- canceled, peer closed, timed out ----------+

What becomes of an arrival, first match: the manager is closed: rejected; retired or active: rejected; a new handoff
and `max_sessions` are pending or active: rejected (a destination hears ``overloaded``); its role is taken: rejected,
the first stays; otherwise it is stored, and if both are there they are compared. Identity, order and engine type must
be equal, and nothing was scheduled yet; if they differ both are rejected and the handoff is retired.

**Timers, not ticks.** Each pending handoff has a deadline of its own. A cancel, and the end of a connection, are
inputs of their own and act at once. An idle manager writes no rows.

**Retirement** lasts at least the session timeout. One timer serves all of it: it is set for the oldest, but not
before a quarter of the timeout has passed, and when it fires it forgets everything that was due when it was set. So a
busy manager is woken at most four times per timeout, and a handoff stays retired for up to a quarter longer. The
number of retired handoffs is bounded as well, and the oldest is forgotten early. The bound is not `max_sessions` but
at least `MIN_RETIRED`: with the former, a manager of one session would forget a handoff after the very next one, and
a late duplicate would become pending for nobody.

**Nothing vanishes at shutdown.** Whoever is pending is rejected, and so is every registration that was still queued or
comes later.

**Rejections.** A source is told through its completion. A destination is told over its connection, which may take as
long as the peer likes; at most `max_sessions` such goodbyes run at once, and beyond that the connection is closed
without one (`rejection_dropped`).

| input | taken | otherwise |
| --- | --- | --- |
| source registered, destination connected | see above | rejected: invalid |
| canceled (source) | rejects both, retires | no source pending: late |
| peer closed, transport error (destination) | rejects the source, retires | no destination pending: late |
| rendezvous deadline | rejects whoever is there, retires | not the handoff's newest: late |
| retirement timer | forgets what was due | not the newest: late |
| session ended | retires | not active: late |
| rejection sent | frees its place | none was running: late |
| queue full | rejects the source | |
| shutdown | rejects all pending | again: duplicate |
"""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, assert_never

from attrs import define, field, frozen

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
from handoff.journal.row_codec import row
from handoff.journal.step import Step, StepBuilder
from handoff.journal.terms import ActorKind, EndState, Kind, TimerName
from handoff.journal.vocabulary import EngineType, HandoffOrder, Side, Verdict

MIN_RETIRED = 1024
"""Retired handoffs that are remembered at least, while they last."""
RENDEZVOUS_TIMEOUT_MS = 30_000.0
"""How long a participant waits for the other, in ms."""
_RETIREMENT_STEPS = 4


class Reason(StrEnum):
    """Why a participant was rejected, or a handoff retired."""

    ALREADY_SEEN = "already_seen"
    LIMIT_REACHED = "limit_reached"
    DUPLICATE = "duplicate"
    MISMATCH = "mismatch"
    CANCELED = "canceled"
    PEER_CLOSED = "peer_closed"
    TIMED_OUT = "timed_out"
    SHUTTING_DOWN = "shutting_down"
    QUEUE_FULL = "queue_full"
    SESSION_ENDED = "session_ended"
    OUT_OF_ROOM = "out_of_room"
    EXPIRED = "expired"


MESSAGES: Mapping[Reason, str] = {
    Reason.ALREADY_SEEN: "the handoff is already active or retired",
    Reason.LIMIT_REACHED: "handoff session limit reached",
    Reason.DUPLICATE: "duplicate {side} participant",
    Reason.MISMATCH: (
        "handoff identity or backend mismatch: {differs} is {expected} at the source and {actual} at the destination"
    ),
    Reason.CANCELED: "source request was canceled before rendezvous",
    Reason.PEER_CLOSED: "destination disconnected before rendezvous",
    Reason.TIMED_OUT: "handoff rendezvous timed out",
    Reason.SHUTTING_DOWN: "handoff manager is shutting down",
    Reason.QUEUE_FULL: "source admission failed: too many registrations wait",
}
"""What the rejected are told."""


# -- inputs -----------------------------------------------------------------------------------------------------------


@row(Kind.SOURCE_REGISTERED)
@frozen
class SourceRegistered:
    """A source arrived, from its own process; `room` is text, as in all rows."""

    handoff: int
    room: str
    request: str
    order: HandoffOrder
    engine_type: EngineType


@row(Kind.DESTINATION_CONNECTED)
@frozen
class DestinationConnected:
    """A destination connected and registered."""

    handoff: int
    room: str
    request: str
    order: HandoffOrder
    engine_type: EngineType
    dp_rank: int = 0


@row(Kind.QUEUE_FULL)
@frozen
class QueueFull:
    """Registrations, or connections, came faster than they were taken, and this one found no place in their queue."""

    handoff: int
    side: Side
    limit: int


@row(Kind.REJECTION_SENT)
@frozen
class RejectionSent:
    """A rejected destination was told, or could not be (`message` says why)."""

    handoff: int
    message: str | None = None


@row(Kind.SESSION_ENDED, actors=(ActorKind.RENDEZVOUS,), inherited=("name",))
@frozen
class SessionLeft:
    """The handoff's source session ended, or died without a row (``error``, without a cause)."""

    handoff: int
    name: EndState


RendezvousInput = (
    SourceRegistered
    | DestinationConnected
    | CancelRequested
    | PeerClosed
    | TransportFailed
    | DeadlineFired
    | TimerFired
    | SessionLeft
    | RejectionSent
    | QueueFull
    | ShutdownRequested
)

# -- effects ----------------------------------------------------------------------------------------------------------


@row(Kind.PENDING)
@frozen
class Pending:
    """The first of the two is there and waits for the other."""

    handoff: int
    side: Side


@row(Kind.PAIRED)
@frozen
class Paired:
    """Both are there and agree: their session begins."""

    handoff: int


@row(Kind.REJECTED)
@frozen
class Rejected:
    """A participant is turned away and told why.

    Attributes:
        limit, pending, active: how full the manager is; with ``limit_reached``.
        differs, expected, actual: what the source and the destination said differently; with ``mismatch``.
    """

    handoff: int
    side: Side
    reason: Reason
    message: str
    limit: int | None = None
    pending: int | None = None
    active: int | None = None
    differs: str | None = None
    expected: str | None = None
    actual: str | None = None


@row(Kind.REJECTION_DROPPED)
@frozen
class RejectionDropped:
    """A destination is turned away without being told: too many are being told at the moment."""

    handoff: int
    reason: Reason


@row(Kind.RETIRED)
@frozen
class Retired:
    """The handoff cannot be joined any more; it is remembered until about `until_ms`."""

    handoff: int
    reason: Reason
    until_ms: float


@row(Kind.FORGOTTEN)
@frozen
class Forgotten:
    """A retired handoff is remembered no longer."""

    handoff: int
    reason: Reason


Arrival = SourceRegistered | DestinationConnected


@define
class _Pending:
    """A handoff of which somebody waits."""

    generation: int
    source: SourceRegistered | None = None
    destination: DestinationConnected | None = None


@define
class Rendezvous:
    """The rendezvous of one prefill worker; see the module. Handoffs are named by their number in the journal.

    Attributes:
        max_sessions: handoffs that may be pending or active at once, at least 1.
        session_timeout_ms: how long a handoff stays retired, in ms.
        rendezvous_timeout_ms: how long a participant waits for the other, in ms.
    """

    SLOTS: ClassVar[tuple[ActorKind, ...]] = (ActorKind.RENDEZVOUS,)

    max_sessions: int
    session_timeout_ms: float
    rendezvous_timeout_ms: float = RENDEZVOUS_TIMEOUT_MS
    closed: bool = field(default=False, init=False)
    _pending: dict[int, _Pending] = field(factory=dict, init=False)
    _active: dict[int, None] = field(factory=dict, init=False)
    _retired: dict[int, float] = field(factory=dict, init=False)
    _retirement: deque[int] = field(factory=deque, init=False)
    _retirement_armed: bool = field(default=False, init=False)
    _retirement_due_ms: float = field(default=0.0, init=False)
    _generation: int = field(default=0, init=False)
    _retirement_generation: int = field(default=0, init=False)
    _rejections_running: int = field(default=0, init=False)
    _out: StepBuilder = field(factory=StepBuilder, init=False, repr=False)
    _at_ms: float = field(default=0.0, init=False, repr=False)

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> "Rendezvous":
        """The machine that an `actor_started` row with this configuration describes."""
        return cls(config["max_sessions"], config["session_timeout_ms"], config["rendezvous_timeout_ms"])

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row."""
        return {
            "max_sessions": self.max_sessions,
            "session_timeout_ms": self.session_timeout_ms,
            "rendezvous_timeout_ms": self.rendezvous_timeout_ms,
        }

    def pending_sides(self, handoff: int) -> tuple[Side, ...]:
        """Which of a handoff's two participants wait."""
        pending = self._pending.get(handoff)
        if pending is None:
            return ()
        there = ((Side.SOURCE, pending.source), (Side.DESTINATION, pending.destination))
        return tuple(side for side, arrival in there if arrival is not None)

    def is_active(self, handoff: int) -> bool:
        """Whether the handoff's session runs."""
        return handoff in self._active

    def is_retired(self, handoff: int) -> bool:
        """Whether the handoff ended and is still remembered."""
        return handoff in self._retired

    def step(self, value: RendezvousInput, at_ms: float) -> Step:
        """Take one input that the driver saw at `at_ms` (ms since the run's start)."""
        self._out, self._at_ms = StepBuilder(), at_ms
        self._out.add(value)
        return self._out.finish(self._take(value))

    def _take(self, value: RendezvousInput) -> Verdict:
        match value:
            case SourceRegistered() | DestinationConnected():
                return self._arrive(value)
            case CancelRequested():
                return self._give_up(value.handoff, Side.SOURCE, Reason.CANCELED)
            case PeerClosed() | TransportFailed():
                return self._give_up(value.handoff, Side.DESTINATION, Reason.PEER_CLOSED)
            case DeadlineFired():
                return self._time_out(value)
            case TimerFired():
                return self._expire(value)
            case SessionLeft():
                if value.handoff not in self._active:
                    return Verdict.LATE
                del self._active[value.handoff]
                self._retire(value.handoff, Reason.SESSION_ENDED)
                return Verdict.APPLIED
            case RejectionSent():
                if self._rejections_running == 0:
                    return Verdict.LATE
                self._rejections_running -= 1
                return Verdict.APPLIED
            case QueueFull():
                self._out.add(self._rejection(value.handoff, value.side, Reason.QUEUE_FULL, limit=value.limit))
                return Verdict.APPLIED
            case ShutdownRequested():
                return self._shut_down()
            case _:
                assert_never(value)

    # -- arrivals -----------------------------------------------------------------------------------------

    def _arrive(self, arrival: Arrival) -> Verdict:
        handoff = arrival.handoff
        side = Side.SOURCE if isinstance(arrival, SourceRegistered) else Side.DESTINATION
        pending = self._pending.get(handoff)
        if self.closed:
            self._reject(handoff, side, Reason.SHUTTING_DOWN)
        elif handoff in self._active or handoff in self._retired:
            self._reject(handoff, side, Reason.ALREADY_SEEN)
        elif pending is None and len(self._pending) + len(self._active) >= self.max_sessions:
            self._reject(
                handoff,
                side,
                Reason.LIMIT_REACHED,
                limit=self.max_sessions,
                pending=len(self._pending),
                active=len(self._active),
            )
        elif side in self.pending_sides(handoff):
            self._reject(handoff, side, Reason.DUPLICATE)
        else:
            self._store(arrival, side, pending)
            return Verdict.APPLIED
        return Verdict.INVALID

    def _store(self, arrival: Arrival, side: Side, pending: _Pending | None) -> None:
        handoff = arrival.handoff
        if pending is None:
            self._generation += 1
            pending = self._pending[handoff] = _Pending(self._generation)
            self._out.add(Pending(handoff, side))
            name, expires_ms = TimerName.RENDEZVOUS_DEADLINE, self._at_ms + self.rendezvous_timeout_ms
            self._out.add(DeadlineSet(name, self._generation, expires_ms, handoff))
        if isinstance(arrival, SourceRegistered):
            pending.source = arrival
        else:
            pending.destination = arrival
        if pending.source is not None and pending.destination is not None:
            self._meet(handoff, pending.source, pending.destination)

    def _meet(self, handoff: int, source: SourceRegistered, destination: DestinationConnected) -> None:
        for differs in ("room", "request", "order", "engine_type"):
            expected, actual = str(getattr(source, differs)), str(getattr(destination, differs))
            if expected != actual:
                self._dissolve(handoff, Reason.MISMATCH, differs=differs, expected=expected, actual=actual)
                return
        del self._pending[handoff]
        self._active[handoff] = None
        self._out.add(Paired(handoff))

    # -- what the world says of those who wait ---------------------------------------------------------------

    def _give_up(self, handoff: int | None, side: Side, reason: Reason) -> Verdict:
        if handoff is None or side not in self.pending_sides(handoff):
            return Verdict.LATE
        self._dissolve(handoff, reason)
        return Verdict.APPLIED

    def _time_out(self, fired: DeadlineFired) -> Verdict:
        pending = None if fired.handoff is None else self._pending.get(fired.handoff)
        if pending is None or pending.generation != fired.generation:
            return Verdict.LATE
        assert fired.handoff is not None
        self._dissolve(fired.handoff, Reason.TIMED_OUT)
        return Verdict.APPLIED

    def _shut_down(self) -> Verdict:
        if self.closed:
            return Verdict.DUPLICATE
        self.closed = True
        for handoff in tuple(self._pending):
            self._dissolve(handoff, Reason.SHUTTING_DOWN)
        return Verdict.APPLIED

    def _dissolve(self, handoff: int, reason: Reason, **details: str) -> None:
        """Reject whoever waits, and retire the handoff. A destination that left cannot be told."""
        for side in self.pending_sides(handoff):
            if side is Side.SOURCE or reason is not Reason.PEER_CLOSED:
                self._reject(handoff, side, reason, **details)
        del self._pending[handoff]
        self._retire(handoff, reason)

    def _reject(self, handoff: int, side: Side, reason: Reason, **details: Any) -> None:
        if side is Side.DESTINATION:
            if self._rejections_running >= self.max_sessions:
                self._out.add(RejectionDropped(handoff, reason))
                return
            self._rejections_running += 1
        self._out.add(self._rejection(handoff, side, reason, **details))

    def _rejection(self, handoff: int, side: Side, reason: Reason, **details: Any) -> Rejected:
        message = MESSAGES[reason].format(side=side.value, **details)
        return Rejected(handoff, side, reason, message, **details)

    # -- retirement -----------------------------------------------------------------------------------------

    def _retire(self, handoff: int, reason: Reason) -> None:
        until_ms = self._at_ms + self.session_timeout_ms
        self._retired[handoff] = until_ms
        self._retirement.append(handoff)
        self._out.add(Retired(handoff, reason, until_ms))
        if len(self._retirement) > max(self.max_sessions, MIN_RETIRED):
            self._forget(Reason.OUT_OF_ROOM)
        if not self._retirement_armed:
            self._arm_retirement()

    def _arm_retirement(self) -> None:
        earliest_ms = self._at_ms + self.session_timeout_ms / _RETIREMENT_STEPS
        self._retirement_armed = True
        self._retirement_due_ms = max(self._retired[self._retirement[0]], earliest_ms)
        self._retirement_generation += 1
        self._out.add(TimerSet(TimerName.RETIREMENT, self._retirement_generation, self._retirement_due_ms))

    def _expire(self, fired: TimerFired) -> Verdict:
        if not self._retirement_armed or fired.generation != self._retirement_generation:
            return Verdict.LATE
        self._retirement_armed = False
        while self._retirement and self._retired[self._retirement[0]] <= self._retirement_due_ms:
            self._forget(Reason.EXPIRED)
        if self._retirement:
            self._arm_retirement()
        return Verdict.APPLIED

    def _forget(self, reason: Reason) -> None:
        handoff = self._retirement.popleft()
        del self._retired[handoff]
        self._out.add(Forgotten(handoff, reason))
