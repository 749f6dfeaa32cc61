"""Reads Mooncake traces: one JSON object a line, sessions of turns, prompts as block ids.

Rows with the same ``session_id`` are one session's turns; a row without one is a session of its own, named
``request_<line>``. Times are normalised so that the first session arrives at 0. A later turn's delay is what the row
says, else the distance between its timestamp and that of the session's last row that had one, else 0.

The whole file is parsed as one JSON array, which takes a third of the time of parsing lines; only if that fails are
the lines parsed one by one, to name the wrong one.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handoff.engines.trace_error import TraceError
from handoff.engines.workload import Session, Turn

_ALIASES = {
    "timestamp": "created_time",
    "input_length": "input_tokens",
    "output_length": "output_tokens",
    "delay": "delay_ms",
}
_U64 = 1 << 64
_WHOLE = frozenset({int})


def load_mooncake(path: Path, block_size: int, *, limit: int | None = None, by_time: bool = True) -> list[Session]:
    """Read a trace.

    Args:
        path: the file.
        block_size: tokens that one block id stands for.
        limit: the first rows only.
        by_time: whether sessions run at their own times, so that each needs one.

    Returns:
        Sessions in order of arrival (by time) or of the file.

    Raises:
        TraceError: the file cannot be read or used.
    """
    lines = _lines(path)
    if limit is not None:
        lines = lines[:limit]
    if not lines:
        raise TraceError(str(path), None, "", None, "the trace has no rows")
    rows = _parse(path, lines)
    sessions: dict[str, _SessionRows] = {}
    ids: dict[int, int] = {}
    for (number, _), row in zip(lines, rows, strict=True):
        reader = _Row(str(path), number, row)
        name = row.get("session_id")
        key = f"request_{number}" if name is None else str(name)
        session = sessions.get(key)
        if session is None:
            session = sessions[key] = _SessionRows(key, len(sessions), number, is_named=name is not None)
        session.add(reader, block_size, ids)
    return _normalized(path, list(sessions.values()), by_time=by_time)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(str(path), None, "", None, f"the trace cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(str(path), None, "", None, f"the trace is not UTF-8 text: {error.reason}") from error
    return [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _parse(path: Path, lines: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    try:
        rows: list[Any] = json.loads("[" + ",".join([line for _, line in lines]) + "]")
    except ValueError:
        rows = []
    if len(rows) != len(lines):
        rows = [_parse_line(path, number, line) for number, line in lines]
    for (number, _), row in zip(lines, rows, strict=True):
        if type(row) is not dict:
            raise TraceError(str(path), number, "", None, "the line is not a JSON object")
    return rows


def _parse_line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise TraceError(str(path), number, "", None, f"the line is not JSON: {error}") from error


class _Row:
    """One row, with what is wrong about it."""

    __slots__ = ("file", "line", "row")

    def __init__(self, file: str, line: int, row: dict[str, Any]) -> None:
        self.file = file
        self.line = line
        self.row = row

    def error(self, key: str, value: object, expected: str) -> TraceError:
        """An error about a key of this row."""
        return TraceError(self.file, self.line, key, value, expected)

    def get(self, key: str) -> Any:
        """A value by its name or its other name; both at once are an error."""
        row = self.row
        alias = _ALIASES[key]
        if alias not in row:
            return row.get(key)
        if key in row:
            raise self.error(alias, row[alias], f"only one of {key} and {alias}")
        return row[alias]

    def whole(self, key: str, value: Any, minimum: int) -> int:
        """A whole number of at least `minimum`."""
        if type(value) is not int or value < minimum:
            if type(value) is float and value.is_integer() and value >= minimum:
                return int(value)
            raise self.error(key, value, f"a whole number of at least {minimum}")
        return value

    def finite(self, key: str, value: Any) -> float:
        """A finite number."""
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.error(key, value, "a finite number")
        return float(value)

    def turn(self, block_size: int, delay_ms: float, ids: dict[int, int]) -> Turn:
        """The row as a turn; `ids` gathers block ids."""
        row = self.row
        blocks = row.get("hash_ids")
        if not blocks or type(blocks) is not list:
            raise self.error("hash_ids", blocks, "a list of at least one block id")
        capacity = len(blocks) * block_size
        input_length = self.get("input_length")
        prompt_tokens = capacity if input_length is None else self.whole("input_length", input_length, 1)
        if prompt_tokens > capacity:
            expected = f"at most the hash_ids capacity of {capacity} tokens ({len(blocks)} blocks of {block_size})"
            raise self.error("input_length", prompt_tokens, expected)
        if not _WHOLE.issuperset(map(type, blocks)) or min(blocks) < 0 or max(blocks) >= _U64:
            raise self.error("hash_ids", blocks, "unsigned 64-bit whole numbers")
        # Equal ids become one object: comparing them is then a comparison of addresses, everywhere.
        blocks = list(map(ids.setdefault, blocks, blocks))
        needed = -(-prompt_tokens // block_size)
        output_length = self.get("output_length")
        output_tokens = self.whole("output_length", output_length, 0)
        planned = row.get("output_token_ids")
        if planned is not None and len(planned) != output_tokens:
            raise self.error("output_token_ids", f"{len(planned)} tokens", f"output_length = {output_tokens} tokens")
        return Turn(
            prompt_tokens,
            output_tokens,
            blocks if len(blocks) == needed else blocks[:needed],
            delay_ms,
            priority=int(row.get("priority") or 0),
            strict_priority=self.whole("strict_priority", row.get("strict_priority") or 0, 0),
            policy_class=row.get("policy_class"),
            request_id=row.get("request_id"),
        )


class _SessionRows:
    """A session while its rows are read."""

    __slots__ = ("first_line", "first_ms", "is_named", "last_ms", "name", "number", "turns")

    def __init__(self, name: str, number: int, first_line: int, *, is_named: bool) -> None:
        self.name = name
        self.number = number
        self.first_line = first_line
        self.is_named = is_named
        self.first_ms: float | None = None
        self.last_ms: float | None = None
        self.turns: list[Turn] = []

    def add(self, row: _Row, block_size: int, ids: dict[int, int]) -> None:
        """The session's next row; `ids` gathers block ids."""
        given = row.get("timestamp")
        at_ms = None if given is None else row.finite("timestamp", given)
        delay_ms = self._delay(row, at_ms)
        if not self.turns:
            self.first_ms = at_ms
        if at_ms is not None:
            self.last_ms = at_ms
        self.turns.append(row.turn(block_size, delay_ms, ids))

    def _delay(self, row: _Row, at_ms: float | None) -> float:
        given = row.get("delay")
        if given is not None:
            delay_ms = row.finite("delay", given)
            if delay_ms < 0.0:
                raise row.error("delay", given, "at least 0")
            if not self.turns and delay_ms > 0.0:
                raise row.error("delay", given, "no delay on the first turn of a session: give it a timestamp")
            return delay_ms
        if self.turns and at_ms is not None and self.last_ms is not None:
            return max(0.0, at_ms - self.last_ms)
        return 0.0


def _normalized(path: Path, sessions: Sequence[_SessionRows], *, by_time: bool) -> list[Session]:
    """Sessions with times from 0, in order of arrival if they run by time."""
    if by_time:
        for session in sessions:
            if session.first_ms is None:
                raise TraceError(
                    str(path), session.first_line, "timestamp", None, f"the arrival of session {session.name}, in ms"
                )
    start_ms = min((session.first_ms for session in sessions if session.first_ms is not None), default=0.0)
    result = [
        Session(
            session.name,
            None if session.first_ms is None else session.first_ms - start_ms,
            session.turns,
            session.number,
            is_named=session.is_named,
        )
        for session in sessions
    ]
    if by_time:
        result.sort(key=lambda session: session.first_arrival_ms or 0.0)
    return result
