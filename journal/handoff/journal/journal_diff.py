"""What differs between two journals, or two handoffs, by meaning instead of by position.

Handoffs are paired by their request and attempt, by their name, or by the order of their opening. Within a pair each
row that tells something (not notes, nor what an engine counted) is reduced to its meaning: whose it is, its kind, name,
action, outcome and verdict, and its payload without times and numbers that only count. The two sequences are aligned;
the first row that has no partner, or whose partner says something else, is named, with all rows that follow from it.
"""

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

from attrs import evolve, frozen

from handoff.journal.chronicle import Chronicle, chronicle_of
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource, HandoffDeclaration
from handoff.journal.terms import Kind

_SILENT = frozenset(
    kind.value
    for kind in (
        Kind.HANDOFF_OPENED, Kind.ACTOR_STARTED, Kind.FAULT, Kind.LAG, Kind.NOTE, Kind.ENGINE_TOKENS,
        Kind.ENGINE_ADVANCED, Kind.ENGINE_ADMITTED, Kind.WIRE_FLUSHED, Kind.TIMER_SET, Kind.TIMER_CANCELED,
        Kind.DEADLINE_SET, Kind.DEADLINE_MOVED,
    )
)  # fmt: skip
_COUNTING = ("request", "until_ms", "expires_ms", "model_ms", "generation", "room", "first_token_ms", "second_token_ms")

Meaning = tuple[str, str, str | None, int | None, str | None, str | None]


class DifferenceKind(StrEnum):
    """How two sequences of rows part."""

    ONLY_IN_A = "only_in_a"
    ONLY_IN_B = "only_in_b"
    CHANGED = "changed"


@frozen
class RowDifference:
    """The first row of a handoff that differs.

    Attributes:
        kind: whether one of the two lacks it or they say different things.
        a, b: the row in each journal, where it is there.
        fields: for a changed row, what each says, by field.
        dependents_a, dependents_b: numbers of the rows that follow from it in each journal.
    """

    kind: DifferenceKind
    a: Event | None
    b: Event | None
    fields: Mapping[str, tuple[Any, Any]]
    dependents_a: tuple[int, ...] = ()
    dependents_b: tuple[int, ...] = ()


@frozen
class HandoffDiff:
    """Two handoffs that mean different things: their names, and where they part."""

    name_a: str
    name_b: str
    first: RowDifference
    completion_a: str | None
    completion_b: str | None


@frozen
class JournalDiff:
    """What differs between two journals.

    Attributes:
        paired: pairs of handoffs compared.
        differing: the pairs that differ, in the order of A.
        only_a, only_b: names of handoffs without a partner.
    """

    paired: int
    differing: tuple[HandoffDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.differing or self.only_a or self.only_b)


def diff_journals(a: EventSource, b: EventSource) -> JournalDiff:
    """Compare two journals handoff by handoff; one pair is in memory at a time."""
    pairs, only_a, only_b = _paired(list(a.handoffs()), list(b.handoffs()))
    differing = []
    for one, other in pairs:
        found = diff_handoffs(chronicle_of(a, one), chronicle_of(b, other))
        if found is not None:
            differing.append(found)
    return JournalDiff(len(pairs), tuple(differing), tuple(only_a), tuple(only_b))


def diff_handoffs(a: Chronicle, b: Chronicle) -> HandoffDiff | None:
    """Where two handoffs part, or None if they mean the same."""
    first = _first_difference(a, b)
    if first is None:
        return None
    return HandoffDiff(a.handoff_id, b.handoff_id, first, a.completion, b.completion)


def _paired(
    a: list[HandoffDeclaration], b: list[HandoffDeclaration]
) -> tuple[list[tuple[HandoffDeclaration, HandoffDeclaration]], list[str], list[str]]:
    for key in (_request_of, _name_of):
        by_key = {key(each): each for each in b}
        shared = [each for each in a if key(each) is not None and key(each) in by_key]
        if shared and None not in by_key and len(by_key) == len(b):
            pairs = [(each, by_key[key(each)]) for each in shared]
            taken = {other.number for _, other in pairs}
            only_a = [each.handoff_id for each in a if key(each) not in by_key]
            return pairs, only_a, [each.handoff_id for each in b if each.number not in taken]
    count = min(len(a), len(b))
    rest_a, rest_b = a[count:], b[count:]
    pairs = list(zip(a[:count], b[:count], strict=True))
    return pairs, [each.handoff_id for each in rest_a], [each.handoff_id for each in rest_b]


def _request_of(declared: HandoffDeclaration) -> tuple[str, int | None] | None:
    request = declared.opened.request
    return None if request is None else (request, declared.opened.attempt)


def _name_of(declared: HandoffDeclaration) -> str:
    return declared.handoff_id


def _first_difference(a: Chronicle, b: Chronicle) -> RowDifference | None:
    rows_a, rows_b = _telling(a), _telling(b)
    meanings_a, meanings_b = [_meaning(a, e) for e in rows_a], [_meaning(b, e) for e in rows_b]
    matcher = SequenceMatcher(None, meanings_a, meanings_b, autojunk=False)
    for tag, start_a, end_a, start_b, end_b in matcher.get_opcodes():
        if tag == "equal":
            for one, other in zip(rows_a[start_a:end_a], rows_b[start_b:end_b], strict=True):
                fields = _changed(one, other)
                if fields:
                    return _with_dependents(RowDifference(DifferenceKind.CHANGED, one, other, fields), a, b)
        elif tag == "delete":
            return _with_dependents(RowDifference(DifferenceKind.ONLY_IN_A, rows_a[start_a], None, {}), a, b)
        elif tag == "insert":
            return _with_dependents(RowDifference(DifferenceKind.ONLY_IN_B, None, rows_b[start_b], {}), a, b)
        else:
            one, other = rows_a[start_a], rows_b[start_b]
            words = ("kind", "name", "action_id", "outcome", "verdict")
            fields = {w: (getattr(one, w), getattr(other, w)) for w in words if getattr(one, w) != getattr(other, w)}
            return _with_dependents(RowDifference(DifferenceKind.CHANGED, one, other, fields), a, b)
    return None


def _with_dependents(difference: RowDifference, a: Chronicle, b: Chronicle) -> RowDifference:
    return evolve(
        difference,
        dependents_a=tuple(_dependents(a, difference.a)),
        dependents_b=tuple(_dependents(b, difference.b)),
    )


def _telling(chronicle: Chronicle) -> list[Event]:
    return [event for event in chronicle.events if event.kind not in _SILENT]


def _meaning(chronicle: Chronicle, event: Event) -> Meaning:
    name = event.name
    if event.kind == Kind.RESOURCE:
        name = event.payload.get("resource")
    return chronicle.role(event).value, event.kind, name, event.action_id, event.outcome, event.verdict


def _changed(one: Event, other: Event) -> dict[str, tuple[Any, Any]]:
    a, b = _said(one), _said(other)
    return {key: (a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}


def _said(event: Event) -> dict[str, Any]:
    return {key: item for key, item in event.payload.items() if key not in _COUNTING}


def _dependents(chronicle: Chronicle, event: Event | None) -> Iterator[int]:
    """The rows of the handoff that a row brought about, itself left out."""
    if event is None:
        return
    reached = {event.seq}
    for later in chronicle.events:
        if later.seq > event.seq and _causes(later) & reached:
            reached.add(later.seq)
            yield later.seq


def _causes(event: Event) -> set[int]:
    return {cause for cause in (event.cause, event.grp if event.grp != event.seq else None) if cause is not None}


def diff_document(diff: JournalDiff) -> dict[str, Any]:
    """A diff as the content of a JSON document (docs/schemas/diff.schema.json)."""
    return {
        "same": diff.same,
        "paired": diff.paired,
        "only_a": list(diff.only_a),
        "only_b": list(diff.only_b),
        "differing": [
            {
                "a": each.name_a,
                "b": each.name_b,
                "completion": [each.completion_a, each.completion_b],
                "kind": each.first.kind.value,
                "row_a": None if each.first.a is None else each.first.a.seq,
                "row_b": None if each.first.b is None else each.first.b.seq,
                "fields": {name: list(pair) for name, pair in each.first.fields.items()},
                "dependents_a": list(each.first.dependents_a),
                "dependents_b": list(each.first.dependents_b),
            }
            for each in diff.differing
        ],
    }
