"""A row of the log, as it is stored and as it is read.

A row belongs to one actor and is an input of that actor (it has a verdict) or an effect of it (it has none); rows
without an actor are the journal's own declarations and notes for people. The rows of one step of a machine form a
group: consecutive numbers, all naming the first of them in ``grp``, committed together or not at all.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from attrs import frozen

from handoff.journal.terms import TERMS
from handoff.journal.vocabulary import ActionId, ActorId, RunId, Seq, SourceId


class StoredRow(NamedTuple):
    """One row in the order of the table's columns, words as their numbers in `TERMS`.

    Times are ms since the run's start. ``at_min_ms`` and ``at_max_ms`` are None unless the time is only known to
    lie between them. ``handoff``, ``actor`` and ``source`` are the numbers that the declaring rows gave.
    """

    seq: int
    grp: int
    run: int
    handoff: int | None
    actor: int | None
    source: int | None
    at_ms: float
    at_min_ms: float | None
    at_max_ms: float | None
    kind: int
    name: int | None
    action_id: int | None
    outcome: int | None
    verdict: int | None
    cause: int | None
    rank: int | None
    generation: int | None
    attempt: int | None
    payload: str | None


COLUMNS = StoredRow._fields


class RowFields(NamedTuple):
    """What a value contributes to its row; the writer adds number, group, actor and time."""

    kind: int
    name: int | None
    action_id: int | None
    outcome: int | None
    verdict: int | None
    cause: int | None
    rank: int | None
    generation: int | None
    attempt: int | None
    payload: str | None


@frozen
class Event:
    """One row as readers see it: words as text, the payload still as JSON text.

    Attributes:
        seq: number in the journal, from 1, without gaps.
        grp: number of the first row of its group.
        handoff: the handoff's number in this journal (`handoff_opened` rows give its name), or None.
        at_ms: ms since the run's start.
        payload_json: the rest of the row as JSON, or None; `payload` parses it.
    """

    seq: Seq
    grp: Seq
    run: RunId
    handoff: int | None
    actor: ActorId | None
    source: SourceId | None
    at_ms: float
    at_min_ms: float | None
    at_max_ms: float | None
    kind: str
    name: str | None
    action_id: ActionId | None
    outcome: str | None
    verdict: str | None
    cause: Seq | None
    rank: int | None
    generation: int | None
    attempt: int | None
    payload_json: str | None

    @property
    def payload(self) -> Mapping[str, Any]:
        """The payload as a mapping, empty when there is none."""
        return {} if self.payload_json is None else payload_from_json(self.payload_json)

    @property
    def is_input(self) -> bool:
        """Whether the row is an input of its actor."""
        return self.verdict is not None

    @property
    def is_head(self) -> bool:
        """Whether the row is the first of its group."""
        return self.seq == self.grp


_WORDS: tuple[str | None, ...] = (None, *TERMS)


def event_from_row(row: tuple[Any, ...]) -> Event:
    """The event of one stored row (columns in the order of `COLUMNS`).

    Raises:
        IndexError: a word's number is not in the dictionary of this version.
    """
    words = _WORDS
    name, outcome, verdict = row[10], row[12], row[13]
    return Event(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8],
        TERMS[row[9] - 1],
        None if name is None else words[name],
        row[11],
        None if outcome is None else words[outcome],
        None if verdict is None else words[verdict],
        row[14], row[15], row[16], row[17], row[18],
    )  # fmt: skip


_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0.0": -0.0}
_FLOAT_TAG = "$float"
_OBJECT_TAG = "$object"
"""Wraps an object that would otherwise look like one of our tags."""


def _tagged(value: Any) -> Any:
    """`value` with every number that JSON readers would lose written as text or a tag."""
    if isinstance(value, float):
        if math.isfinite(value) and not (value == 0.0 and math.copysign(1.0, value) < 0.0):
            return value
        return {_FLOAT_TAG: "nan" if math.isnan(value) else repr(value)}
    if isinstance(value, dict):
        tagged = {key: _tagged(item) for key, item in value.items()}
        looks_like_a_tag = len(tagged) == 1 and not tagged.keys().isdisjoint((_FLOAT_TAG, _OBJECT_TAG))
        return {_OBJECT_TAG: list(tagged.items())} if looks_like_a_tag else tagged
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    return value


def _untagged(read: dict[str, Any]) -> Any:
    if len(read) == 1:
        if _FLOAT_TAG in read:
            return _SPECIAL_FLOATS[read[_FLOAT_TAG]]
        if _OBJECT_TAG in read:
            return dict(read[_OBJECT_TAG])
    return read


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def payload_to_json(payload: Mapping[str, Any]) -> str:
    """The payload as compact JSON, keys in the order given; NaN, infinities and -0.0 as ``{"$float": ...}``."""
    tagged = _tagged(dict(payload))
    text = _encoder.encode(tagged)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, as JSON from elsewhere may hold, has no UTF-8
            return _ascii_encoder.encode(tagged)
    return text


_plain_decoder = json.JSONDecoder().decode
_tagged_decoder = json.JSONDecoder(object_hook=_untagged).decode


def payload_from_json(text: str) -> dict[str, Any]:
    """The inverse of `payload_to_json`.

    Raises:
        ValueError: the text is not a JSON object.
    """
    payload = (_tagged_decoder if '{"$' in text else _plain_decoder)(text)
    if not isinstance(payload, dict):
        raise ValueError(f"a row's payload must be a JSON object, not {type(payload).__name__}")
    return payload
