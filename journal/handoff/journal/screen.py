"""Which handoffs deserve a second look: a cheap pass over all rows that passes the plainly healthy ones.

Of a million handoffs a handful failed, and examining one costs a thousand times more than reading its rows. A handoff
is plainly healthy when each of its rows is of a kind that healthy handoffs have, its coordinator completed, and what
its annotations opened they closed. The screen may suspect a healthy handoff, which only costs time; it must never pass
one in which a rule would find something.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import Factory, define

from handoff.journal.case import is_rounded_up
from handoff.journal.event import Event, payload_from_json
from handoff.journal.event_source import EventSource
from handoff.journal.terms import TERMS, EndState, Kind
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, Verdict

_OPENED, _COMPLETE, _SUSPECT = 1, 2, 4
_SOURCE, _DESTINATION, _RELEASED = 8, 16, 32
_SESSION = 64
"""Above the bits stands how many sessions are under way."""


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

_ALARMING_OUTCOMES = frozenset({OutcomeName.FAILED.value, OutcomeName.NOOP.value})
_TELLING_MORE = frozenset({"extra", "lease_deadline_ms", "rank_count", "generation"})
_HEALTHY_VERDICTS = frozenset({None, Verdict.APPLIED.value, Verdict.KEPT.value})
_ALARMING_FACTS = frozenset({FactName.FAILED.value, FactName.TIMED_OUT.value, FactName.CANCELED.value})
_CANCELS = frozenset({ActionName.CANCEL_SOURCE.value, ActionName.CANCEL_DESTINATION.value})
_MARKS = {ActionName.COMPLETE.value: _COMPLETE, ActionName.RELEASE_SOURCE.value: _RELEASED}
_OPENS = {"source_held": _SOURCE, "destination_blocks": _DESTINATION}
_CLOSES = {"source_freed": _SOURCE, "destination_finished": _DESTINATION}


@define
class Screen:
    """Collects what is suspicious.

    Attributes:
        state: by handoff number, what was seen of it so far; settled healthy ones are dropped.
    """

    state: dict[int, int] = Factory(dict)
    _tokens: dict[int, tuple[int | None, int | None]] = Factory(dict)

    def take_all(self, source: EventSource, on_row: Callable[[int], None] | None = None) -> None:
        """Take all rows of a journal; a file's rows as they are stored, which costs half of making events of them."""
        rows = getattr(source, "rows", None)
        stored = rows() if callable(rows) else map(_stored, source.events())
        state, words = self.state, _WORDS
        for row in stored:
            if on_row is not None and row[0] % 4096 == 0:
                on_row(row[0])
            number = row[3]
            if number is None:
                continue
            known = state.get(number, 0)
            if not known & _SUSPECT:
                kind, name, outcome, verdict = words[row[9]], words[row[10]], words[row[12]], words[row[13]]
                ranked = row[15] is not None or row[16] is not None
                if name in _COUNTED and row[18] is not None and not self._agrees(number, row[18]):
                    ranked = True
                state[number] = _after(known, kind, name, outcome, verdict, ranked=ranked, payload_json=row[18])

    def _agrees(self, number: int, payload_json: str) -> bool:
        """Whether the destination asks for no more tokens than the source's prompt has, as far as both are told."""
        told = _PROMPT.search(payload_json)
        asked = _ASKED.search(payload_json) if told is None else None
        prompt, missing = self._tokens.pop(number, (None, None))
        prompt = prompt if told is None else int(told[1])
        missing = missing if asked is None else int(asked[1])
        if prompt is None or missing is None:
            self._tokens[number] = (prompt, missing)
            return True
        return is_rounded_up(missing, prompt)

    def suspects(self) -> list[int]:
        """The numbers of the handoffs that are not plainly healthy, in order."""
        return sorted(number for number, known in self.state.items() if known & ~_RELEASED not in _HEALTHY)


_COUNTED = frozenset({FactName.SOURCE_HELD.value, FactName.DESTINATION_RESERVED.value})
_PROMPT = re.compile(r'"full_prompt_tokens":(\d+)')
_ASKED = re.compile(r'"transferable_prompt_tokens":(\d+)')
_WORDS: Mapping[int | str | None, str | None] = {
    None: None,
    **dict(enumerate(TERMS, start=1)),
    **{word: word for word in TERMS},
}
_HEALTHY = (_OPENED | _COMPLETE, _COMPLETE)


def _stored(event: Event) -> tuple[Any, ...]:
    """An event as the screen takes it, words left as they are."""
    return (
        event.seq, None, None, event.handoff, None, None, None, None, None, event.kind, event.name, None,
        event.outcome, event.verdict, None, event.rank, event.generation, None, event.payload_json,
    )  # fmt: skip


def _after(
    known: int,
    kind: str | None,
    name: str | None,
    outcome: str | None,
    verdict: str | None,
    *,
    ranked: bool,
    payload_json: str | None,
) -> int:
    """What is known of a handoff after one more row of it."""
    if verdict not in _HEALTHY_VERDICTS:
        return known | _SUSPECT
    if kind == "action_issued":
        if name in _CANCELS or known & _COMPLETE:
            return known | _SUSPECT
        return known | _MARKS.get(name or "", 0)
    if kind == "resource":
        return _annotated(known, payload_json or "{}", ranked=ranked)
    if kind == "outcome_applied":
        alarming = known & _COMPLETE or outcome in _ALARMING_OUTCOMES or '"extra"' in (payload_json or "")
        return known | _SUSPECT if alarming else known
    if kind == "fact_applied":
        alarming = name in _ALARMING_FACTS or ranked or '"extra"' in (payload_json or "")
        return known | _SUSPECT if alarming else known
    if kind in _ALARMING_KINDS:
        return known if verdict is not None and _is_a_session_s(kind, outcome, payload_json) else known | _SUSPECT
    if kind == "session_started":
        return known + _SESSION
    if kind == "session_ended" and verdict is None:
        return known - _SESSION if name == EndState.SUCCESS and known >= _SESSION else known | _SUSPECT
    if kind == "handoff_opened":
        return known | (_SUSPECT if '"extra"' in (payload_json or "") else _OPENED)
    return known


def _is_a_session_s(kind: str, outcome: str | None, payload_json: str | None) -> bool:
    """Whether a reply or fact, which a witness has too, is an ordinary one of a session."""
    if kind == Kind.CONTROL_REPLIED:
        raw = payload_from_json(payload_json).get("raw") if '"raw"' in (payload_json or "") and payload_json else None
        return outcome not in _ALARMING_OUTCOMES and raw not in _ALARMING_OUTCOMES
    return kind == Kind.FACT_OBSERVED


def _annotated(known: int, payload_json: str, *, ranked: bool) -> int:
    payload = payload_from_json(payload_json)
    if ranked or payload.keys() & _TELLING_MORE:
        return known | _SUSPECT
    name = str(payload.get("resource"))
    opened, closed = _OPENS.get(name), _CLOSES.get(name)
    if opened is not None:
        return known | _SUSPECT if known & opened else known | opened
    ordered = closed != _SOURCE or known & _RELEASED
    return known & ~closed if closed is not None and known & closed and ordered else known | _SUSPECT
