"""Some handoffs of a journal as event lines that people can read: what fixtures are made of.

A journal of ours holds ten rows of sessions, engines and frames for each one that matters to a reader. An excerpt tells
the handoff as an observer would: what the coordinator ordered and was told, who owned which blocks, and from the
sessions' rows only what struck them and what their cleanup gave up. It carries no numbers, so it can be edited.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import define, field

from handoff.journal.chronicle import Role
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource, declared_actor
from handoff.journal.terms import ActorKind, Kind
from handoff.journal.vocabulary import OutcomeName, Verdict

_COORDINATOR_ROWS = frozenset(
    kind.value
    for kind in (
        Kind.ACTION_ISSUED, Kind.OUTCOME_APPLIED, Kind.OUTCOME_DUPLICATE, Kind.OUTCOME_CONFLICT, Kind.OUTCOME_INVALID,
        Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_LATE, Kind.FACT_APPLIED, Kind.FACT_IGNORED,
    )
)  # fmt: skip
_STRUCK = {
    Kind.PEER_CLOSED.value: "peer_closed",
    Kind.TRANSPORT_ERROR.value: "peer_closed",
    Kind.DEADLINE_FIRED.value: "deadline_fired",
    Kind.CANCEL_REQUESTED.value: "cancel_requested",
    Kind.SHUTDOWN_REQUESTED.value: "shutdown_requested",
}
_ROLES = {
    ActorKind.SOURCE_SESSION: Role.SOURCE,
    ActorKind.DESTINATION_SESSION: Role.DESTINATION,
    ActorKind.COORDINATOR: Role.COORDINATOR,
    ActorKind.WITNESS: Role.WORKER,
}
_OTHER = {Role.SOURCE: "destination", Role.DESTINATION: "source"}
_GIVEN_UP = {Role.SOURCE: "source_freed", Role.DESTINATION: "destination_freed"}


def excerpt(source: EventSource, handoffs: Collection[int]) -> list[dict[str, Any]]:
    """The lines of some handoffs, in order, with the declarations of the sources that saw them.

    Args:
        source: the journal.
        handoffs: the numbers of the handoffs.
    """
    teller = _Teller()
    events = (event for number in sorted(handoffs) for event in source.events(handoff=number))
    declared = list(source.events(kinds=(Kind.SOURCE_DECLARED.value, Kind.CLOCK_ALIGNED.value)))
    beside = [e for e in source.events(kinds=(Kind.RESOURCE.value,)) if e.handoff is None]
    lines = [line for event in declared for line in teller.lines(event)]
    told = sorted([*events, *beside], key=lambda event: event.seq)
    lines += [line for event in told for line in teller.lines(event)]
    seen = {line["source"] for line in lines if "at_ms" in line and "source" in line}
    return [line for line in lines if "at_ms" in line or line.get("source") in seen]


@define
class _Teller:
    """Turns rows into lines of an observer."""

    _roles: dict[int, Role] = field(factory=dict)
    _names: dict[int, str] = field(factory=dict)
    _sources: dict[int, str] = field(factory=dict)

    def lines(self, event: Event) -> Iterator[dict[str, Any]]:
        kind = event.kind
        if kind == Kind.ACTOR_STARTED:
            declared = declared_actor(event)
            self._roles[declared.actor] = _ROLES.get(declared.kind, Role.JOURNAL)
        elif kind == Kind.SOURCE_DECLARED and event.source is not None:
            payload = dict(event.payload)
            self._sources[event.source] = payload["source"]
            yield {**_flat(payload)}
        elif kind == Kind.HANDOFF_OPENED and event.handoff is not None:
            payload = _flat(event.payload)
            self._names[event.handoff] = payload.pop("handoff_id")
            payload.pop("inferred", None)
            attempt = {} if event.attempt is None else {"attempt": event.attempt}
            yield self._line(event, {"open": {**payload, **attempt}})
        elif kind == Kind.RESOURCE:
            yield self._line(event, _flat(event.payload))
        elif event.actor is not None:
            said = self._said(event, self._roles.get(event.actor, Role.JOURNAL))
            if said is not None:
                yield self._line(event, said)

    def _line(self, event: Event, said: Mapping[str, Any]) -> dict[str, Any]:
        line: dict[str, Any] = {"at_ms": event.at_ms}
        if event.at_min_ms is not None and event.at_max_ms is not None:
            line.update(at_min_ms=event.at_min_ms, at_max_ms=event.at_max_ms)
        if event.handoff is not None:
            line["handoff"] = self._names[event.handoff]
        if event.source is not None:
            line["source"] = self._sources[event.source]
        line.update(said)
        if event.kind not in _STRUCK:  # there the generation is a timer's
            told = {"rank": event.rank, "generation": event.generation}
            line.update((word, item) for word, item in told.items() if item is not None)
        return line

    def _said(self, event: Event, role: Role) -> Mapping[str, Any] | None:
        if role is Role.COORDINATOR and event.kind in _COORDINATOR_ROWS:
            return _of_a_coordinator(event)
        if role is Role.WORKER and event.kind in (Kind.FACT_OBSERVED, Kind.CONTROL_REPLIED):
            return _of_a_coordinator(event)
        if role not in _OTHER:
            return None
        if event.kind in _STRUCK and event.verdict == Verdict.APPLIED:
            name = _STRUCK[event.kind]
            return {"resource": name, "side": _OTHER[role] if name == "peer_closed" else role.value}
        gave_up = event.kind == Kind.CLEANUP_REPLIED and event.outcome in (OutcomeName.APPLIED, OutcomeName.NOOP)
        return {"resource": _GIVEN_UP[role]} if gave_up else None


def _of_a_coordinator(event: Event) -> Mapping[str, Any]:
    payload = _flat(event.payload)
    payload.pop("inferred", None)
    if event.kind == Kind.ACTION_ISSUED:
        return {"action": event.name, "id": event.action_id, **payload}
    if event.outcome is not None:
        number = {} if event.action_id is None else {"id": event.action_id}
        named = {} if event.name is None else {"of": event.name}
        return {"outcome": event.outcome, **number, **named, **payload}
    return {"fact": event.name, **payload}


def _flat(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload with its further fields beside its own, as they came."""
    flat = {key: item for key, item in payload.items() if key != "extra"}
    extra = payload.get("extra")
    return {**flat, **extra} if isinstance(extra, Mapping) else flat
