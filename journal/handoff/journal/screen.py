"""Which handoffs deserve a second look: a cheap pass over all rows that passes the plainly healthy ones.

Of a million handoffs a handful failed, and examining one costs a thousand times more than reading its rows. A handoff
is plainly healthy when each of its rows is of a kind that healthy handoffs have, its coordinator completed, and what
its annotations opened they closed. The screen may suspect a healthy handoff, which only costs time; it must never pass
one in which a rule would find something.
"""

from collections.abc import Iterable

from attrs import Factory, define

from handoff.journal.event import Event
from handoff.journal.terms import EndState, Kind
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, Verdict

_OPENED, _COMPLETE, _SUSPECT = 1, 2, 4
_SOURCE, _DESTINATION = 8, 16

_ALARMING_KINDS = frozenset(
    kind.value
    for kind in (
        Kind.COORDINATOR_ERROR, Kind.DEADLINE_FIRED, Kind.CANCEL_REQUESTED, Kind.SHUTDOWN_REQUESTED, Kind.PEER_CLOSED,
        Kind.TRANSPORT_ERROR, Kind.WIRE_FAILED, Kind.LIFECYCLE_ENDED, Kind.OUTBOX_FULL, Kind.TORN_DOWN,
        Kind.JOURNAL_LOST, Kind.NOT_CARRIED_OUT, Kind.REJECTED, Kind.PERMIT_REFUSED, Kind.RETIRED, Kind.QUEUE_FULL,
        Kind.CLEANUP_STARTED, Kind.CLEANUP_TIMED_OUT, Kind.FACT_OBSERVED, Kind.CONTROL_REPLIED, Kind.HANDOFF_JOINED,
    )
)  # fmt: skip
"""Kinds that are no healthy handoff's; the two that healthy sessions have too are looked at closer."""

_HEALTHY_VERDICTS = frozenset({None, Verdict.APPLIED.value, Verdict.KEPT.value})
_ALARMING_FACTS = frozenset({FactName.FAILED.value, FactName.TIMED_OUT.value, FactName.CANCELED.value})
_CANCELS = frozenset({ActionName.CANCEL_SOURCE.value, ActionName.CANCEL_DESTINATION.value})
_OPENS = {"source_held": _SOURCE, "destination_blocks": _DESTINATION}
_CLOSES = {"source_freed": _SOURCE, "destination_finished": _DESTINATION}


@define
class Screen:
    """Collects what is suspicious; `take` each row in order.

    Attributes:
        state: by handoff number, what was seen of it so far; settled healthy ones are dropped.
    """

    state: dict[int, int] = Factory(dict)

    def take_all(self, events: Iterable[Event]) -> None:
        """Take all rows of a journal."""
        state = self.state
        for event in events:
            number = event.handoff
            if number is None:
                continue
            known = state.get(number, 0)
            if known & _SUSPECT:
                continue
            state[number] = self._after(known, event)

    def suspects(self) -> list[int]:
        """The numbers of the handoffs that are not plainly healthy, in order."""
        return sorted(number for number, known in self.state.items() if known not in (_OPENED | _COMPLETE, _COMPLETE))

    def _after(self, known: int, event: Event) -> int:
        kind = event.kind
        if event.verdict not in _HEALTHY_VERDICTS:
            return known | _SUSPECT
        if kind == "action_issued":
            if event.name in _CANCELS or known & _COMPLETE:
                return known | _SUSPECT
            return known | _COMPLETE if event.name == "complete" else known
        if kind == "resource":
            return self._annotated(known, event)
        if kind == "outcome_applied":
            late = known & _COMPLETE or event.outcome in (OutcomeName.FAILED, OutcomeName.NOOP)
            return known | _SUSPECT if late else known
        if kind == "fact_applied":
            told_more = event.name in _ALARMING_FACTS or event.rank is not None or event.generation is not None
            return known | _SUSPECT if told_more or '"extra"' in (event.payload_json or "") else known
        if kind in _ALARMING_KINDS:
            return self._closer(known, event)
        if kind == "session_ended":
            return known if event.verdict is not None or event.name == EndState.SUCCESS else known | _SUSPECT
        if kind == "handoff_opened":
            return known | (_SUSPECT if '"extra"' in (event.payload_json or "") else _OPENED)
        return known

    def _annotated(self, known: int, event: Event) -> int:
        payload = event.payload
        name = payload.get("resource")
        if payload.keys() & {"extra", "lease_deadline_ms", "rank_count", "generation"} or event.rank is not None:
            return known | _SUSPECT
        opened = _OPENS.get(str(name))
        if opened is not None:
            return known | _SUSPECT if known & opened else known | opened
        closed = _CLOSES.get(str(name))
        return known & ~closed if closed is not None and known & closed else known | _SUSPECT

    def _closer(self, known: int, event: Event) -> int:
        """Facts and replies that sessions see are alarming only when a witness told them, or when they failed."""
        if event.kind == Kind.CONTROL_REPLIED and event.verdict is not None:
            bad = {event.outcome, event.payload.get("raw")} & {OutcomeName.FAILED.value, OutcomeName.NOOP.value}
            return known | _SUSPECT if bad else known
        if event.kind == Kind.FACT_OBSERVED and event.verdict is not None:
            return known
        return known | _SUSPECT
