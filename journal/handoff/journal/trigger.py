"""What first turned a handoff from its healthy path: one row, and what kind of blow it was.

Many rows may tell of one failure: a deadline fires on one side, its goodbye reaches the other, both clean up. The
trigger is the earliest row that told anybody, so everything later is a consequence of it or a failure of its own.
"""

from collections.abc import Callable
from enum import StrEnum

from attrs import frozen

from handoff.journal.chronicle import Chronicle, Role
from handoff.journal.event import Event
from handoff.journal.terms import Kind, WireName
from handoff.journal.vocabulary import FactName, OutcomeName, Verdict


class Blow(StrEnum):
    """The kinds of trigger."""

    TIMEOUT = "timeout"
    CANCELED = "canceled"
    SHUTDOWN = "shutdown"
    PEER_LOST = "peer_lost"
    FAILED = "failed"
    """An action was answered with a failure, or a failure was observed."""
    REFUSED = "refused"
    """The coordinator refused an input."""
    PROTOCOL = "protocol"
    """A peer said something that does not fit."""
    CRASHED = "crashed"
    REJECTED = "rejected"
    """It was never let in: no permit, no partner, no session."""


@frozen
class Trigger:
    """The first row that turned a handoff to failing."""

    blow: Blow
    role: Role
    event: Event
    text: str | None = None

    @property
    def seq(self) -> int:
        """Its row."""
        return self.event.seq

    @property
    def at_ms(self) -> float:
        """When it struck."""
        return self.event.at_ms

    @property
    def sentence(self) -> str:
        """What happened, in words, without the row's number."""
        return _SENTENCES[self.blow](self)


_BLOW_OF_KIND = {
    Kind.DEADLINE_FIRED.value: Blow.TIMEOUT,
    Kind.CANCEL_REQUESTED.value: Blow.CANCELED,
    Kind.SHUTDOWN_REQUESTED.value: Blow.SHUTDOWN,
    Kind.PEER_CLOSED.value: Blow.PEER_LOST,
    Kind.TRANSPORT_ERROR.value: Blow.PEER_LOST,
    Kind.WIRE_FAILED.value: Blow.PEER_LOST,
    Kind.LIFECYCLE_ENDED.value: Blow.FAILED,
    Kind.OUTBOX_FULL.value: Blow.FAILED,
    Kind.TORN_DOWN.value: Blow.CRASHED,
    Kind.JOURNAL_LOST.value: Blow.CRASHED,
}
_BLOW_OF_RESOURCE = {
    "peer_closed": Blow.PEER_LOST,
    "deadline_fired": Blow.TIMEOUT,
    "cancel_requested": Blow.CANCELED,
    "shutdown_requested": Blow.SHUTDOWN,
}
"""What an observer of another system, who sees no session of ours, writes for the same."""
_REJECTIONS = frozenset({Kind.REJECTED.value, Kind.PERMIT_REFUSED.value})
_HARMLESS = frozenset({Verdict.LATE, Verdict.DISCARDED, Verdict.DUPLICATE, Verdict.IGNORED_IN_CLEANUP})
_GOODBYES = frozenset({WireName.ABORT.value, WireName.PROTOCOL_ERROR.value, WireName.OVERLOADED.value})
_SIDES = (Role.SOURCE, Role.DESTINATION)


def trigger_of(chronicle: Chronicle) -> Trigger | None:
    """The first blow that struck a handoff, or None while it is healthy.

    Whatever made a session stop its work was a blow, even if the row by itself looks harmless.
    """
    ended: set[Role] = set()
    heads: dict[int, Event] = {}
    for event in chronicle.events:
        role = chronicle.role(event)
        if role in _SIDES:
            if event.kind == Kind.SESSION_ENDED:
                ended.add(role)
            if event.is_head:
                heads[event.seq] = event
        if role in ended:
            continue
        blow = _blow(event, role)
        if blow is None and event.kind == Kind.STOP_CHILDREN and event.grp in heads:
            event, blow = heads[event.grp], Blow.PROTOCOL  # noqa: PLW2901 - the row that began the step
        if blow is not None:
            return Trigger(blow, role, event, chronicle.text(event))
    return None


def _blow(event: Event, role: Role) -> Blow | None:
    if event.verdict == Verdict.CRASHED:
        return Blow.CRASHED
    if event.verdict in _HARMLESS:
        return None
    if event.kind in _REJECTIONS:
        return Blow.REJECTED
    if role is Role.COORDINATOR:
        return _coordinated_blow(event)
    if role is Role.JOURNAL:
        return _BLOW_OF_RESOURCE.get(str(event.payload.get("resource"))) if event.kind == Kind.RESOURCE else None
    if role is Role.RENDEZVOUS and event.verdict == Verdict.APPLIED:
        return _BLOW_OF_KIND.get(event.kind)
    if role not in _SIDES or event.verdict is None:
        return None
    if event.kind == Kind.WIRE_RECEIVED and event.name in _GOODBYES:
        return Blow.PROTOCOL
    if event.kind == Kind.CONTROL_REPLIED and event.outcome == OutcomeName.FAILED:
        return Blow.FAILED
    if event.verdict in (Verdict.INVALID, Verdict.CONFLICTING, Verdict.UNKNOWN):
        return Blow.PROTOCOL
    return _BLOW_OF_KIND.get(event.kind)


def _coordinated_blow(event: Event) -> Blow | None:
    if event.kind == Kind.COORDINATOR_ERROR:
        return Blow.REFUSED
    if event.verdict != Verdict.APPLIED:
        return None
    if event.outcome == OutcomeName.FAILED or event.name == FactName.FAILED:
        return Blow.FAILED
    if event.name == FactName.TIMED_OUT:
        return Blow.TIMEOUT
    return Blow.CANCELED if event.name == FactName.CANCELED else None


def _side(trigger: Trigger) -> str:
    return f"the {trigger.role} side" if trigger.role in _SIDES else "the handoff"


def _why(trigger: Trigger) -> str:
    return f" ({trigger.text})" if trigger.text else ""


def _peer_lost(trigger: Trigger) -> str:
    if trigger.role is Role.JOURNAL:
        side = trigger.event.payload.get("side")
        return f"the connection to the {side or 'peer'} closed"
    if trigger.role is Role.RENDEZVOUS:
        return f"the connection of a waiting destination closed{_why(trigger)}"
    other = Role.DESTINATION if trigger.role is Role.SOURCE else Role.SOURCE
    how = "failed" if trigger.event.kind in (Kind.TRANSPORT_ERROR, Kind.WIRE_FAILED) else "was closed by its peer"
    return f"the {trigger.role} side's connection to the {other} {how}{_why(trigger)}"


def _failed(trigger: Trigger) -> str:
    event = trigger.event
    if event.kind == Kind.LIFECYCLE_ENDED:
        return f"the engine behind {_side(trigger)} stopped reporting"
    if event.kind == Kind.OUTBOX_FULL:
        return f"the outbox of {_side(trigger)} was full"
    if event.outcome == OutcomeName.FAILED:
        what = event.name or (f"action {event.action_id}" if event.action_id is not None else "an action")
        return f"{what} was answered with a failure{_why(trigger)}"
    return f"a failure of the handoff was observed{_why(trigger)}"


_SENTENCES: dict[Blow, Callable[[Trigger], str]] = {
    Blow.TIMEOUT: lambda t: f"the deadline of {_side(t)} passed",
    Blow.CANCELED: lambda t: f"{_side(t)} was told to cancel{_why(t)}",
    Blow.SHUTDOWN: lambda t: f"{_side(t)} was told to shut down",
    Blow.PEER_LOST: _peer_lost,
    Blow.FAILED: _failed,
    Blow.REFUSED: lambda t: f"the coordinator refused its input{_why(t)}",
    Blow.PROTOCOL: lambda t: f"{_side(t)} received {t.event.name or t.event.kind}{_why(t)}",
    Blow.CRASHED: lambda t: f"{_side(t)} was torn down in the middle of its work{_why(t)}",
    Blow.REJECTED: lambda t: f"it was not let in{_why(t)}",
}
