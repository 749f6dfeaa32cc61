"""A divergence: a row that re-execution would not have written, and everything needed to see why.

A machine was given the recorded input and answered with other rows than the journal holds. That has few shapes, and
each asks for another look: a row too few or too many, two rows in the other order, the same row with another
content, the same row at another time, or rows that do not even form steps. `classify` finds the first difference
between the rows of one step and names its shape.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from itertools import islice
from typing import Any

import attrs
from attrs import frozen

from handoff.journal.event import Event
from handoff.journal.vocabulary import ActorId, Seq


class DivergenceClass(StrEnum):
    """The shape of a divergence."""

    MISSING = "missing"
    """Re-execution gives a row that the journal lacks."""
    EXTRA = "extra"
    """The journal holds a row that re-execution does not give."""
    REORDERED = "reordered"
    """Both have the row, at different places."""
    PAYLOAD = "payload"
    """Both have a row there, and they say different things."""
    TIMING_ONLY = "timing_only"
    """Both have the row there, and only times and durations differ."""
    STRUCTURE = "structure"
    """The rows do not form steps of declared actors, so there is nothing to re-execute."""


@frozen
class FieldDifference:
    """One column or payload key that differs; None stands for its absence."""

    field: str
    expected: Any
    actual: Any


@frozen
class Divergence:
    """The first row at which an actor's journal and its re-execution part.

    Attributes:
        kind: its shape.
        seq: the row where it shows; for a missing row, the row before which it should have been.
        actor: the actor, and what it is, for people; None for rows without one.
        handoff: the handoff's number, or None.
        sentence: what differs, in words.
        differences: field by field.
        expected: the row that re-execution gives, or None.
        actual: the row that the journal holds, or None.
        last_common: the last row before it that re-execution confirmed, or None.
        caused_by: the rows that led to it, the nearest first, back to an input from the world.
        state: the machine as re-execution left it.
    """

    kind: DivergenceClass
    seq: Seq
    sentence: str
    actor: ActorId | None = None
    actor_name: str | None = None
    handoff: int | None = None
    differences: tuple[FieldDifference, ...] = ()
    expected: Event | None = None
    actual: Event | None = None
    last_common: Seq | None = None
    caused_by: tuple[Seq, ...] = ()
    state: Mapping[str, Any] | None = None


@frozen
class Difference:
    """What `classify` found in one step: the shape, and the two rows that stand against each other."""

    kind: DivergenceClass
    expected: Event | None
    actual: Event | None


_COMPARED = tuple(field.name for field in attrs.fields(Event) if field.name not in ("seq", "grp", "payload_json"))
_TIMES = frozenset({"at_ms", "at_min_ms", "at_max_ms"})


def differences_between(expected: Event, actual: Event) -> tuple[FieldDifference, ...]:
    """Every column and payload key in which two rows differ, in the order of the columns."""
    found = [
        FieldDifference(name, getattr(expected, name), getattr(actual, name))
        for name in _COMPARED
        if not _same(getattr(expected, name), getattr(actual, name))
    ]
    if expected.payload_json != actual.payload_json:
        found.extend(_payload_differences(expected, actual))
    return tuple(found)


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and repr(left) == repr(right)


def _payload_differences(expected: Event, actual: Event) -> list[FieldDifference]:
    try:
        left, right = expected.payload, actual.payload
    except (ValueError, KeyError):
        return [FieldDifference("payload", expected.payload_json, actual.payload_json)]
    found = [
        FieldDifference(f"payload.{name}", left.get(name), right.get(name))
        for name in dict.fromkeys((*left, *right))
        if not _same(left.get(name), right.get(name)) or (name in left) is not (name in right)
    ]
    return found or [FieldDifference("payload", expected.payload_json, actual.payload_json)]


def _is_a_time(name: str) -> bool:
    return name in _TIMES or name.endswith("_ms")


def shape_of(differences: Sequence[FieldDifference]) -> DivergenceClass:
    """`timing_only` if nothing but times differs, else `payload`."""
    timing = differences and all(_is_a_time(difference.field) for difference in differences)
    return DivergenceClass.TIMING_ONLY if timing else DivergenceClass.PAYLOAD


def _content(row: Event) -> tuple[Any, ...]:
    """What a row says, wherever and whenever it stands."""
    return (
        row.actor, row.kind, row.name, row.action_id, row.outcome, row.verdict, row.rank, row.generation,
        row.attempt, row.payload_json,
    )  # fmt: skip


def classify(expected: Sequence[Event], actual: Sequence[Event]) -> Difference | None:
    """The first difference between the rows of one step, or None when there is none.

    Args:
        expected: the rows that re-execution gives, numbered as if they were recorded there.
        actual: the rows that the journal holds, in order.
    """
    pairs = enumerate(zip(expected, actual, strict=False))
    place = next((index for index, (left, right) in pairs if left != right), min(len(expected), len(actual)))
    if place == len(actual):
        return Difference(DivergenceClass.MISSING, expected[place], None) if place < len(expected) else None
    if place == len(expected):
        return Difference(DivergenceClass.EXTRA, None, actual[place])
    left, right = expected[place], actual[place]
    left_comes = _content(left) in [_content(row) for row in actual[place + 1 :]]
    right_comes = _content(right) in [_content(row) for row in expected[place + 1 :]]
    if left_comes and right_comes:
        return Difference(DivergenceClass.REORDERED, left, right)
    if left_comes:
        return Difference(DivergenceClass.EXTRA, None, right)
    if right_comes:
        return Difference(DivergenceClass.MISSING, left, None)
    return Difference(shape_of(differences_between(left, right)), left, right)


def describe(event: Event) -> str:
    """A row in a few words, such as ``action_issued activate_destination (action 3)``."""
    words = [event.kind]
    if event.name is not None:
        words.append(event.name)
    if event.outcome is not None:
        words.append(event.outcome)
    if event.verdict is not None:
        words.append(f"[{event.verdict}]")
    if event.action_id is not None:
        words.append(f"(action {event.action_id})")
    return " ".join(words)


_LIMIT = 40
_DEPTH = 8


def readable(value: Any, depth: int = _DEPTH) -> Any:
    """A machine's state as plain data for people.

    Attrs classes become mappings of the fields that their `repr` shows; long collections are cut, with a mark.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if depth == 0 or callable(value):
        return f"<{type(value).__name__}>"
    if attrs.has(type(value)):
        shown_fields = [field for field in attrs.fields(type(value)) if field.repr]
        return {field.name.lstrip("_"): readable(getattr(value, field.name), depth - 1) for field in shown_fields}
    if isinstance(value, Mapping):
        items = list(value.items())
        shown = {_key(key): readable(item, depth - 1) for key, item in items[:_LIMIT]}
        return shown if len(items) <= _LIMIT else {**shown, "...": f"{len(items) - _LIMIT} more"}
    if isinstance(value, set | frozenset):
        return readable(sorted(value, key=repr), depth)
    if isinstance(value, Sequence):
        shown_items = [readable(item, depth - 1) for item in islice(value, _LIMIT)]
        return shown_items if len(value) <= _LIMIT else [*shown_items, f"... {len(value) - _LIMIT} more"]
    if hasattr(value, "__dict__"):
        return {name: readable(item, depth - 1) for name, item in vars(value).items()}
    return f"<{type(value).__name__}>"


def _key(key: Any) -> str:
    return str(key.value) if isinstance(key, Enum) else str(key)
