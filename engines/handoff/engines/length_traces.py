"""Reads traces that have lengths and times but no Mooncake form: CSV of arrivals, and the Bailian conversation form.

A CSV row is a request of its own whose blocks nobody shares; ids are made up, one after the other. Two headers are
known: ``arrived_at, num_prefill_tokens, num_decode_tokens`` (seconds; as processed for Vidur) and ``TIMESTAMP,
ContextTokens, GeneratedTokens`` (calendar times; as Azure publishes them).

A Bailian row is JSON with ``chat_id``, ``parent_chat_id`` (-1 for none), ``timestamp`` in seconds, lengths and
``hash_ids``. Chats that descend from one root are one session, in order of the file.
"""

import csv
import json
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from handoff.engines.trace_error import TraceError
from handoff.engines.workload import Session, Turn

_VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def load_csv(path: Path, block_size: int, *, limit: int | None = None) -> list[Session]:
    """Read a CSV of arrivals and lengths.

    Args:
        path: the file.
        block_size: tokens of a made-up block.
        limit: the first rows only.

    Returns:
        Sessions of one turn, in order of arrival, the first at 0.

    Raises:
        TraceError: the file cannot be read or used.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns = _columns(path, reader.fieldnames or ())
            for row in reader:
                if limit is not None and len(rows) == limit:
                    break
                rows.append((reader.line_num, row))
    except OSError as error:
        raise TraceError(str(path), None, "", None, f"the trace cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(str(path), None, "", None, f"the trace is not UTF-8 text: {error.reason}") from error
    if not rows:
        raise TraceError(str(path), None, "", None, "the trace has no rows")
    sessions, next_block = [], 0
    for number, (line, row) in enumerate(rows):
        at_ms = _time_ms(path, line, columns[0], row)
        prompt_tokens = _length(path, line, columns[1], row, 1)
        output_tokens = _length(path, line, columns[2], row, 0)
        blocks = -(-prompt_tokens // block_size)
        turn = Turn(prompt_tokens, output_tokens, range(next_block, next_block + blocks))
        next_block += blocks
        sessions.append((at_ms, Session(f"request_{number + 1}", at_ms, (turn,), number, is_named=False)))
    return _from_zero(sessions)


def load_bailian(path: Path, block_size: int, *, limit: int | None = None) -> list[Session]:
    """Read a Bailian trace.

    Args:
        path: the file.
        block_size: tokens that one block id stands for (16 in the published ones).
        limit: the first rows only.

    Raises:
        TraceError: the file cannot be read or used.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(str(path), None, "", None, f"the trace cannot be read: {error.strerror}") from error
    roots: dict[object, object] = {}
    turns: dict[object, list[Turn]] = {}
    starts: dict[object, float] = {}
    last: dict[object, float] = {}
    for line, text in [(line, text) for line, text in enumerate(lines, start=1) if text.strip()][:limit]:
        row = _json_row(path, line, text)
        chat, parent = row.get("chat_id"), row.get("parent_chat_id")
        root = roots.get(parent, chat)
        roots[chat] = root
        at_ms = _number(path, line, "timestamp", row.get("timestamp")) * 1000.0
        blocks = row.get("hash_ids")
        if not isinstance(blocks, list) or not blocks:
            raise TraceError(str(path), line, "hash_ids", blocks, "a list of at least one block id")
        prompt_tokens = _length(path, line, "input_length", row, 1)
        if prompt_tokens > len(blocks) * block_size:
            expected = f"at most the hash_ids capacity of {len(blocks) * block_size} tokens"
            raise TraceError(str(path), line, "input_length", prompt_tokens, expected)
        delay_ms = max(0.0, at_ms - last[root]) if root in last else 0.0
        starts.setdefault(root, at_ms)
        last[root] = at_ms
        output_tokens = _length(path, line, "output_length", row, 0)
        turns.setdefault(root, []).append(
            Turn(prompt_tokens, output_tokens, blocks[: -(-prompt_tokens // block_size)], delay_ms)
        )
    if not turns:
        raise TraceError(str(path), None, "", None, "the trace has no rows")
    return _from_zero(
        [
            (starts[root], Session(f"chat_{root}", starts[root], own, number))
            for number, (root, own) in enumerate(turns.items())
        ]
    )


def _from_zero(sessions: list[tuple[float, Session]]) -> list[Session]:
    start_ms = min(at_ms for at_ms, _ in sessions)
    ordered = sorted(sessions, key=lambda entry: entry[0])
    return [
        Session(session.session_id, at_ms - start_ms, session.turns, session.number, is_named=session.is_named)
        for at_ms, session in ordered
    ]


def _columns(path: Path, header: Any) -> tuple[str, str, str]:
    for columns in (_VIDUR, _AZURE):
        if set(columns) <= set(header):
            return columns
    expected = f"a header with {', '.join(_VIDUR)} or {', '.join(_AZURE)}"
    raise TraceError(str(path), 1, "header", ",".join(header) or None, expected)


def _json_row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise TraceError(str(path), line, "", None, f"the line is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise TraceError(str(path), line, "", None, "the line is not a JSON object")
    return row


def _time_ms(path: Path, line: int, column: str, row: Mapping[str, Any]) -> float:
    if column != "TIMESTAMP":
        return _number(path, line, column, row[column]) * 1000.0
    try:
        # Azure writes seven digits of a second's fraction; the calendar type takes six.
        moment = datetime.fromisoformat(row[column][:26])
    except (TypeError, ValueError) as error:
        raise TraceError(str(path), line, column, row[column], "a time such as 2023-11-16 18:15:46.6805900") from error
    return (moment - datetime(2000, 1, 1, tzinfo=moment.tzinfo)).total_seconds() * 1000.0


def _number(path: Path, line: int, column: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise TraceError(str(path), line, column, value, "a finite number")
    return number


def _length(path: Path, line: int, column: str, row: Mapping[str, Any], minimum: int) -> int:
    number = _number(path, line, column, row.get(column))
    if number < minimum or not number.is_integer():
        raise TraceError(str(path), line, column, row.get(column), f"a whole number of at least {minimum}")
    return int(number)
