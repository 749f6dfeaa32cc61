"""A handoff as a ladder: source on the left, destination on the right, the wire between them.

Every row becomes a rung in the lane of whoever it happened to. The coordinator lives in the source's lane, since it is
the source session that owns it; rows of engines stand in the lane of the side that they work for. A frame that was
sent is an arrow in the wire's lane, and a frame that arrived an arrowhead.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from attrs import frozen

from handoff.journal.chronicle import SIDE_OF_ACTION, SIDE_OF_FACT, Chronicle, Role, text_in
from handoff.journal.event import Event
from handoff.journal.replay_report import row_document
from handoff.journal.terms import EndState, Kind
from handoff.journal.trigger import trigger_of
from handoff.journal.vocabulary import OutcomeName, Side, Verdict


class Lane(StrEnum):
    """Where a rung stands."""

    SOURCE = "source"
    DESTINATION = "destination"
    BOTH = "both"
    """It concerns the handoff as a whole."""


class Weight(StrEnum):
    """How much a rung matters to a reader."""

    QUIET = "quiet"
    """Bookkeeping: shown only when every row is asked for."""
    PLAIN = "plain"
    DECISION = "decision"
    """An action was ordered."""
    REMARK = "remark"
    """For people: no reader needs it."""
    TROUBLE = "trouble"
    GOOD = "good"


@frozen
class Rung:
    """One row of the ladder.

    Attributes:
        event: the row.
        lane: whose it is.
        text: what happened, in a few words.
        wire: what crosses the wire here, or None.
        rightwards: whether it crosses from source to destination.
        weight: how much it matters.
        blocks: block ids that the row names.
    """

    event: Event
    lane: Lane
    text: str
    wire: str | None
    rightwards: bool
    weight: Weight
    blocks: tuple[int, ...] | None


_QUIET = frozenset(
    kind.value
    for kind in (
        Kind.DEADLINE_SET, Kind.TIMER_SET, Kind.TIMER_CANCELED, Kind.WIRE_FLUSHED, Kind.FACT_OBSERVED,
        Kind.CHILDREN_STOPPED, Kind.STOP_CHILDREN, Kind.TRANSPORT_CLOSED, Kind.ENGINE_COMMAND, Kind.ENGINE_ANSWERED,
        Kind.ENGINE_ADVANCED, Kind.ENGINE_TOKENS, Kind.ACTOR_STARTED, Kind.OBSERVER_EVENT, Kind.REQUEST_PREPARED,
        Kind.ENGINE_LIFECYCLE, Kind.FORGOTTEN, Kind.RETIRED, Kind.CACHE_CHANGED,
    )
)  # fmt: skip
_TROUBLE = frozenset(
    kind.value
    for kind in (
        Kind.COORDINATOR_ERROR, Kind.TRANSPORT_ERROR, Kind.WIRE_FAILED, Kind.CLEANUP_TIMED_OUT, Kind.REJECTED,
        Kind.PERMIT_REFUSED, Kind.TORN_DOWN, Kind.JOURNAL_LOST, Kind.OUTCOME_CONFLICT, Kind.OUTCOME_INVALID,
        Kind.OUTCOME_UNKNOWN, Kind.NOT_CARRIED_OUT, Kind.OUTBOX_FULL, Kind.GAP,
    )
)  # fmt: skip
_REMARKS = frozenset(kind.value for kind in (Kind.FAULT, Kind.NOTE, Kind.LAG, Kind.RESOURCE))


def ladder_of(chronicle: Chronicle) -> Iterator[Rung]:
    """The rungs of a handoff, one for each row, in order."""
    trigger = trigger_of(chronicle)
    engines: dict[int, Lane] = {}
    for event in chronicle.events:
        role, content = chronicle.role(event), chronicle.content(event)
        lane = _lane(event, role, engines)
        weight = _weight(event)
        if trigger is not None and event.seq == trigger.seq:
            weight = Weight.TROUBLE
        yield Rung(
            event,
            lane,
            _text(event, content),
            _wire(event, role, content),
            _rightwards(event, role),
            weight,
            _blocks(event),
        )


def _lane(event: Event, role: Role, engines: dict[int, Lane]) -> Lane:
    if role in (Role.SOURCE, Role.COORDINATOR):
        return Lane.SOURCE
    if role is Role.DESTINATION:
        return Lane.DESTINATION
    if role is Role.JOURNAL:
        side = event.payload.get("side") or _resource_side(event)
        return Lane.BOTH if side is None else Lane(side)
    if role is Role.RENDEZVOUS:
        return Lane.DESTINATION if event.kind == Kind.DESTINATION_CONNECTED else Lane.SOURCE
    side = SIDE_OF_ACTION.get(str(event.name)) or SIDE_OF_FACT.get(str(event.name))
    if event.actor is None:
        return Lane.BOTH
    if side is not None:
        engines[event.actor] = Lane(side.value)
    return engines.get(event.actor, Lane.BOTH)


def _resource_side(event: Event) -> str | None:
    name = str(event.payload.get("resource", ""))
    return next((side.value for side in Side if name.startswith(side.value)), None)


def _weight(event: Event) -> Weight:
    if event.verdict in (Verdict.CRASHED, Verdict.CONFLICTING, Verdict.INVALID) or event.outcome == OutcomeName.FAILED:
        return Weight.TROUBLE
    if event.kind in _TROUBLE:
        return Weight.TROUBLE
    if event.kind in _REMARKS:
        return Weight.REMARK
    if event.kind == Kind.SESSION_ENDED and event.verdict is None:
        return Weight.GOOD if event.name == EndState.SUCCESS else Weight.TROUBLE
    if event.kind == Kind.ACTION_ISSUED:
        return Weight.DECISION
    return Weight.QUIET if event.kind in _QUIET else Weight.PLAIN


def _rightwards(event: Event, role: Role) -> bool:
    return (role is Role.SOURCE) is (event.kind == Kind.WIRE_SENT)


def _wire(event: Event, role: Role, content: Mapping[str, Any]) -> str | None:
    if role in (Role.SOURCE, Role.DESTINATION) and event.kind in (Kind.WIRE_SENT, Kind.WIRE_RECEIVED):
        return _frame(event, content)
    return None


def _frame(event: Event, content: Mapping[str, Any]) -> str:
    """A frame in a few words: its name, and what it carries."""
    inner = content.get("action") or content.get("fact")
    words = [str(event.name), *([str(inner)] if inner else []), *([event.outcome] if event.outcome else [])]
    if event.action_id is not None:
        words.append(f"({event.action_id})")
    return " ".join(words)


_PHRASES: dict[str, str] = {
    Kind.HANDOFF_OPENED.value: "opened",
    Kind.SESSION_STARTED.value: "session started",
    Kind.DEADLINE_FIRED.value: "deadline passed",
    Kind.CANCEL_REQUESTED.value: "told to cancel",
    Kind.SHUTDOWN_REQUESTED.value: "told to shut down",
    Kind.PEER_CLOSED.value: "peer closed the connection",
    Kind.CLEANUP_STARTED.value: "cleanup begins",
    Kind.CLEANUP_FINISHED.value: "cleanup is over",
    Kind.CLEANUP_TIMED_OUT.value: "cleanup got no answer in time",
    Kind.HANDOFF_STARTED.value: "coordinator started",
    Kind.PERMIT_REQUESTED.value: "asks for a permit",
    Kind.PERMIT_TAKEN.value: "permit taken",
    Kind.PERMIT_REFUSED.value: "permit refused",
    Kind.PERMIT_RETURNED.value: "permit returned",
}


def _text(event: Event, content: Mapping[str, Any]) -> str:
    """A row in a few words."""
    words = [_PHRASES.get(event.kind) or _phrase(event, content)]
    if event.action_id is not None and event.kind not in (Kind.WIRE_SENT, Kind.WIRE_RECEIVED):
        words.append(f"({event.action_id})")
    if event.verdict not in (None, Verdict.APPLIED):
        words.append(f"[{event.verdict}]")
    text = text_in(content)
    return " ".join(words) + (f": {text}" if text else "")


def _phrase(event: Event, content: Mapping[str, Any]) -> str:
    name = "" if event.name is None else str(event.name)
    match event.kind:
        case Kind.ACTION_ISSUED:
            delay = content.get("delay_ms")
            return f"orders {name}" + ("" if delay is None else f", {delay:g} ms")
        case Kind.WIRE_SENT:
            return f"sends {_frame(event, content)}"
        case Kind.WIRE_RECEIVED:
            return f"receives {_frame(event, content)}"
        case Kind.CONTROL_CALLED:
            return f"calls its engine: {name}"
        case Kind.CONTROL_REPLIED | Kind.CLEANUP_REPLIED:
            mapped = content.get("mapped")
            taken = "" if mapped in (None, event.outcome) else f", taken as {mapped}"
            return f"engine answers {name}: {event.outcome}{taken}"
        case Kind.SESSION_ENDED if event.is_input:
            return f"rendezvous hears that its session ended: {name}"
        case Kind.SESSION_ENDED:
            return f"session ends: {name}"
        case Kind.RESOURCE:
            return str(event.payload.get("resource"))
        case Kind.FAULT:
            return f"injected: {event.payload.get('do')} on {event.payload.get('on')}"
        case Kind.COORDINATOR_ERROR:
            return f"refused ({event.payload.get('code')})"
        case kind if kind.startswith("outcome_"):
            return f"outcome {event.outcome}" + (f" of {name}" if name else "")
        case kind if kind.startswith("fact_"):
            return f"fact {name} {kind.removeprefix('fact_')}"
        case kind:
            words = [kind.replace("_", " "), name, *([event.outcome] if event.outcome else [])]
            return " ".join(filter(None, words))


def _blocks(event: Event) -> tuple[int, ...] | None:
    blocks = event.payload.get("blocks")
    return None if not isinstance(blocks, list) else tuple(blocks)


def show_document(journal: str, chronicle: Chronicle) -> dict[str, Any]:
    """A handoff's ladder as a JSON document (docs/schemas/show.schema.json); every row is in it."""
    return {
        "schema": "handoff.show/1",
        "journal": journal,
        "handoff": chronicle.handoff_id,
        "number": chronicle.number,
        "run": chronicle.run,
        "rungs": [
            {
                "lane": rung.lane.value,
                "text": rung.text,
                "wire": None if rung.wire is None else {"frame": rung.wire, "rightwards": rung.rightwards},
                "weight": rung.weight.value,
                "row": row_document(rung.event),
            }
            for rung in ladder_of(chronicle)
        ],
    }
