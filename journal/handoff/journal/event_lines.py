"""The text form of a journal: one JSON object a line, for other languages, for fixtures and for a second look.

Two kinds of lines exist, and one form serves both.

A **native** line is a row of ours. It says ``seq`` and ``kind`` and every column, names are words, the handoff and
the source go by their names, and the payload's fields stand beside the columns. Reading it gives the very same row, so
that a journal exported and imported again has the same digest chain. Columns that say nothing are left out: ``grp``
when the row is the first of its group, ``run`` when it is that of the row before, ``handoff_number`` when the handoff
is the one opened last under its name.

A **foreign** line is what another system, or a person, writes. The first of `SUBJECTS` that it has says what it is (a
fault may name the ``action`` it struck, an outcome the one it answers); with none of them, a line with a ``source``
and no time declares a source, and any other becomes a `Foreign` row. It has no number. Fields that are not ours are
kept under ``extra`` of the value that the line becomes.

The words of both are the same: a native action also says ``action`` and ``id``, an outcome ``outcome`` and ``id``.
What was rejected: a second, nested form for native rows (people would have to learn two), and writing friendly words
beside the columns they repeat (an edited line could then contradict itself).
"""

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from handoff.journal.event import Event, payload_to_json
from handoff.journal.terms import TERM_CODE, Kind

SUBJECTS = ("open", "fault", "error", "resource", "fact", "outcome", "action")
"""The keys that say what a foreign line is, the first one first."""

_ACTION = {"name": "action", "action_id": "id"}
_OUTCOME = {"name": "of", "action_id": "id"}
_FACT = {"name": "fact"}
_NAMES: dict[str, dict[str, str]] = {
    Kind.ACTION_ISSUED.value: _ACTION,
    **{
        kind.value: _OUTCOME
        for kind in (
            Kind.OUTCOME_APPLIED, Kind.OUTCOME_DUPLICATE, Kind.OUTCOME_CONFLICT, Kind.OUTCOME_INVALID,
            Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_LATE,
        )
    },
    **{kind.value: _FACT for kind in (Kind.FACT_OBSERVED, Kind.FACT_KEPT, Kind.FACT_APPLIED, Kind.FACT_IGNORED)},
}  # fmt: skip
"""Which word of a line stands for which column, where it is not the column's own name."""

_NO_NAMES: dict[str, str] = {}
_FAULT = {"do": "fault"}

_COLUMNS = (
    "seq", "grp", "run", "handoff", "handoff_number", "actor", "source", "source_number", "at_ms", "at_min_ms",
    "at_max_ms", "kind", "name", "action_id", "outcome", "verdict", "cause", "rank", "generation", "attempt",
)  # fmt: skip
_RESERVED = frozenset({*_COLUMNS, "action", "id", "of", "fact", "open", "payload", "payload_text"})
_SPLICED_SOURCE = _RESERVED - {"source"}

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_read = json.JSONDecoder().decode


class LineRefused(ValueError):
    """A line that cannot be read as a row.

    Attributes:
        reason: what is wrong with it, and what would be right.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def is_native(fields: Mapping[str, Any]) -> bool:
    """Whether a line is a row of ours, and not another system's."""
    return "seq" in fields and "kind" in fields


def subject_of(fields: Mapping[str, Any]) -> str | None:
    """Which of `SUBJECTS` a foreign line is about."""
    for key in SUBJECTS:
        if key in fields:
            return key
    return None


@define
class LineWriter:
    """Writes rows, in their order, as native lines."""

    _run: int | None = field(default=None, init=False)
    _opened: int = field(default=0, init=False)
    _handoffs: dict[int, str] = field(factory=dict, init=False)
    _latest: dict[str, int] = field(factory=dict, init=False)
    _sources: dict[int, str] = field(factory=dict, init=False)

    def line(self, event: Event) -> str:
        """The row as a line, without its line end."""
        payload_text = event.payload_json
        opening: Mapping[str, Any] | None = None
        if event.kind == Kind.HANDOFF_OPENED:
            self._opened += 1
            opening = self._opening(event)
        elif event.kind == Kind.SOURCE_DECLARED and event.source is not None:
            self._sources[event.source] = event.payload.get("source", "")
        head = payload_to_json(self._columns(event))[:-1]
        if opening is not None:
            return f'{head},"open":{_compact(opening)}}}'
        if payload_text is None:
            return head + "}"
        if _can_stand_beside(event.kind, payload_text):
            if event.kind == Kind.FAULT:
                payload_text = _compact({_FAULT.get(key, key): item for key, item in _read(payload_text).items()})
            return f"{head},{payload_text[1:]}"
        return f'{head},"payload_text":{_compact(payload_text)}}}'

    def _columns(self, event: Event) -> dict[str, Any]:
        columns: dict[str, Any] = {"seq": event.seq}
        if event.grp != event.seq:
            columns["grp"] = event.grp
        if event.run != self._run:
            self._run = event.run
            columns["run"] = event.run
        columns["at_ms"] = event.at_ms
        if event.at_min_ms is not None:
            columns["at_min_ms"] = event.at_min_ms
        if event.at_max_ms is not None:
            columns["at_max_ms"] = event.at_max_ms
        columns["kind"] = event.kind
        if event.handoff is not None:
            self._name_handoff(event.handoff, columns)
        elif event.kind == Kind.HANDOFF_OPENED:
            columns["handoff_number"] = None  # nobody's opening, which only a damaged journal has
        if event.actor is not None:
            columns["actor"] = event.actor
        if event.source is not None:
            if event.kind == Kind.SOURCE_DECLARED or event.source not in self._sources:
                columns["source_number"] = event.source
            else:
                columns["source"] = self._sources[event.source]
        names = _NAMES.get(event.kind, _NO_NAMES)
        for column, item in (
            ("name", event.name), ("action_id", event.action_id), ("outcome", event.outcome),
            ("verdict", event.verdict), ("cause", event.cause), ("rank", event.rank),
            ("generation", event.generation), ("attempt", event.attempt),
        ):  # fmt: skip
            if item is not None:
                columns[names.get(column, column)] = item
        return columns

    def _name_handoff(self, number: int, columns: dict[str, Any]) -> None:
        name = self._handoffs.get(number)
        if name is not None:
            columns["handoff"] = name
        opens = columns["kind"] == Kind.HANDOFF_OPENED
        if name is None or self._latest[name] != number or (opens and number != self._opened):
            columns["handoff_number"] = number

    def _opening(self, event: Event) -> dict[str, Any] | None:
        """The payload of an opening without its handoff's name, or None when it is not the usual one."""
        if event.handoff is None or event.payload_json is None:
            return None
        payload: dict[str, Any] = _read(event.payload_json)
        keys = list(payload)
        if keys[:1] != ["handoff_id"] or "attempt" in payload or _compact(payload) != event.payload_json:
            return None
        name = payload.pop("handoff_id")
        if not isinstance(name, str):
            return None
        self._handoffs[event.handoff] = name
        self._latest[name] = event.handoff
        return payload


def _can_stand_beside(kind: str, payload_text: str) -> bool:
    """Whether a payload's fields can stand among the columns and be found again, to the letter."""
    try:
        payload = _read(payload_text)
    except ValueError:
        return False
    reserved = _SPLICED_SOURCE if kind == Kind.SOURCE_DECLARED else _RESERVED
    return (
        isinstance(payload, dict)
        and bool(payload)
        and reserved.isdisjoint(payload)
        and _compact(payload) == payload_text
        and not (kind == Kind.FAULT and "fault" in payload)
    )


@define
class NativeReader:
    """Reads native lines, in their order, as the rows they were.

    Example:
        >>> reader = NativeReader()
        >>> reader.row({"seq": 1, "run": 1, "at_ms": 0.0, "kind": "note", "text": "hello"})[0]
        1
    """

    _run: int = field(default=1, init=False)
    _opened: int = field(default=0, init=False)
    _latest: dict[str, int] = field(factory=dict, init=False)
    _sources: dict[str, int] = field(factory=dict, init=False)

    def row(self, fields: Mapping[str, Any]) -> tuple[Any, ...]:
        """The stored row, in the order of `event.COLUMNS`.

        Raises:
            LineRefused: a field is missing, has the wrong type, or is a word that this version does not know.
        """
        kind = fields["kind"]
        names = _NAMES.get(kind, _NO_NAMES)
        seq = _integer(fields, "seq")
        self._run = _integer(fields, "run", self._run)
        handoff = self._handoff(fields)
        if kind == Kind.SOURCE_DECLARED:
            source = _integer(fields, "source_number", None)
            self._sources[fields.get("source", "")] = source
        elif "source_number" in fields:
            source = _integer(fields, "source_number")
        else:
            source = self._named_source(fields.get("source"))
        payload_text = self._payload(kind, fields)
        return (
            seq, _integer(fields, "grp", seq), self._run, handoff, _integer(fields, "actor", None), source,
            _time(fields, "at_ms"), _time(fields, "at_min_ms"), _time(fields, "at_max_ms"), _word(fields, "kind"),
            _word(fields, names.get("name", "name")), _integer(fields, names.get("action_id", "action_id"), None),
            _word(fields, "outcome"), _word(fields, "verdict"), _integer(fields, "cause", None),
            _integer(fields, "rank", None), _integer(fields, "generation", None), _integer(fields, "attempt", None),
            payload_text,
        )  # fmt: skip

    def _handoff(self, fields: Mapping[str, Any]) -> int | None:
        name = fields.get("handoff")
        if fields["kind"] == Kind.HANDOFF_OPENED:
            self._opened += 1
            number: int | None = fields.get("handoff_number", self._opened)
            if number is None:
                return None
            number = _integer({"handoff_number": number}, "handoff_number")
            if name is not None:
                self._latest[name] = number
            return number
        if "handoff_number" in fields:
            given: int = _integer(fields, "handoff_number")
            return given
        if name is None:
            return None
        if name not in self._latest:
            raise LineRefused(f"no line before opens handoff {name!r}")
        return self._latest[name]

    def _named_source(self, name: str | None) -> int | None:
        if name is None:
            return None
        if name not in self._sources:
            raise LineRefused(f"no line before declares source {name!r}")
        return self._sources[name]

    def _payload(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        if "payload_text" in fields:
            text = fields["payload_text"]
            if not isinstance(text, str):
                raise LineRefused(f"payload_text must be text, not {text!r}")
            return text
        if kind == Kind.HANDOFF_OPENED and "open" in fields:
            return _compact({"handoff_id": fields.get("handoff"), **fields["open"]})
        reserved = _SPLICED_SOURCE if kind == Kind.SOURCE_DECLARED else _RESERVED
        payload = {key: item for key, item in fields.items() if key not in reserved}
        if kind == Kind.FAULT:
            payload = {"do" if key == "fault" else key: item for key, item in payload.items()}
        return _compact(payload) if payload else None


def _integer(fields: Mapping[str, Any], name: str, *default: Any) -> Any:
    if default and name not in fields:
        return default[0]
    item = fields.get(name)
    if type(item) is not int:
        raise LineRefused(f"{name} must be a whole number, not {item!r}")
    return item


def _time(fields: Mapping[str, Any], name: str) -> float | None:
    item = fields.get(name)
    if item is None:
        return None
    if isinstance(item, dict) and set(item) == {"$float"}:
        return float(item["$float"])
    if type(item) not in (int, float):
        raise LineRefused(f"{name} must be a number of ms, not {item!r}")
    return float(item)


def _word(fields: Mapping[str, Any], name: str) -> int | None:
    word = fields.get(name)
    if word is None:
        return None
    code = TERM_CODE.get(word) if isinstance(word, str) else None
    if code is None:
        raise LineRefused(f"{name} {word!r} is no word of this version")
    return code
