"""An exported journal, written again row by row.

If nothing is missing, each row is what it was, number and all. If lines were lost or garbled, the others are numbered
anew: a `gap` row stands where some are missing, causes follow their rows to the new numbers, and a row whose actor,
handoff or source was declared in a lost line is kept whole as a `foreign` row, since nobody could say whose it is.
"""

from collections.abc import Callable
from typing import Any

from attrs import define, field

from handoff.journal.declarations import Foreign, Gap
from handoff.journal.event import payload_from_json, payload_to_json
from handoff.journal.event_lines import LineRefused, NativeReader, is_native
from handoff.journal.line_files import Line, Unplaced, read_lines
from handoff.journal.port import RowStream
from handoff.journal.row_codec import encode
from handoff.journal.terms import TERM_CODE, ActorKind, Kind

_BATCH = 4096
_ACTOR_STARTED = TERM_CODE[Kind.ACTOR_STARTED]
_HANDOFF_OPENED = TERM_CODE[Kind.HANDOFF_OPENED]
_SOURCE_DECLARED = TERM_CODE[Kind.SOURCE_DECLARED]
_COORDINATOR = f'"kind":"{ActorKind.COORDINATOR.value}"'


class NativeRefused(Exception):
    """An exported journal that cannot be written here.

    Attributes:
        reason: why, and what to do instead.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@define
class _Numbers:
    """New numbers of the things that rows refer to, from 1 in the order of their declaration."""

    known: dict[int, int] = field(factory=dict)

    def declare(self, old: int) -> int:
        self.known[old] = len(self.known) + 1
        return self.known[old]


@define
class NativeImport:
    """Writes one exported journal into an empty one; the counts are what became of it."""

    journal: RowStream
    paths: list[str]
    rows: int = field(default=0, init=False)
    lines: int = field(default=0, init=False)
    coordinators: int = field(default=0, init=False)
    unplaced: list[Unplaced] = field(factory=list, init=False)
    _batch: list[tuple[Any, ...]] = field(factory=list, init=False)
    _last_old: int = field(default=0, init=False)
    _moved: dict[int, int] = field(factory=dict, init=False)
    _shifted: bool = field(default=False, init=False)
    _actors: _Numbers = field(factory=_Numbers, init=False)
    _handoffs: _Numbers = field(factory=_Numbers, init=False)
    _sources: _Numbers = field(factory=_Numbers, init=False)
    _at_ms: float = field(default=0.0, init=False)
    _run: int = field(default=1, init=False)

    @property
    def handoffs(self) -> int:
        """Handoffs opened."""
        return len(self._handoffs.known)

    def run(self, on_line: Callable[[int], None] | None = None) -> "NativeImport":
        """Write all rows.

        Raises:
            NativeRefused: there are other files, or the journal is not empty.
        """
        if len(self.paths) > 1:
            raise NativeRefused("an exported journal is imported alone; use `handoff merge` for several journals")
        if self.journal.last_seq:
            raise NativeRefused("an exported journal needs an empty journal, since its rows keep their numbers")
        reader = NativeReader()
        for line in read_lines(self.paths[0]):
            if isinstance(line, Unplaced):
                self.unplaced.append(line)
                continue
            self.lines += 1
            self._take(reader, line)
            if on_line is not None and self.lines % _BATCH == 0:
                on_line(self.lines)
        self._flush()
        return self

    def _take(self, reader: NativeReader, line: Line) -> None:
        try:
            if not is_native(line.fields):
                raise LineRefused("it has no seq and kind, as the other lines have")
            row = reader.row(line.fields)
            if row[0] <= self._last_old:
                raise LineRefused(f"row {row[0]} stands after row {self._last_old}")
        except LineRefused as refused:
            self.unplaced.append(Unplaced(line.file, line.number, refused.reason, str(dict(line.fields))[:120]))
            return
        self._run, self._at_ms = row[2], row[6]
        lost = row[0] - self._last_old - 1
        self._last_old = row[0]
        if lost:
            self._shifted = True
            self._add((*self._head(row), *encode(Gap(lost, f"row {row[0]} is the next one in the file"), None, None)))
        self._write(row, line)

    def _write(self, row: tuple[Any, ...], line: Line) -> None:
        new = self.rows + 1
        self._declare(row)
        if self._shifted:
            try:
                row = self._renumbered(row, new)
            except KeyError:
                row = (*self._head(row), *encode(Foreign(dict(line.fields)), None, None))
        elif row[3] is not None and row[3] not in self._handoffs.known:
            self._handoffs.declare(row[3])
        if self._shifted or len(self._moved) < 1 << 22:
            self._moved[line.fields["seq"]] = new
        self._add(row)

    def _declare(self, row: tuple[Any, ...]) -> None:
        if row[9] == _ACTOR_STARTED and row[18] is not None:
            self._actors.declare(payload_from_json(row[18]).get("actor", 0))
            self.coordinators += _COORDINATOR in row[18]
        elif row[9] == _HANDOFF_OPENED and row[3] is not None:
            self._handoffs.declare(row[3])
        elif row[9] == _SOURCE_DECLARED and row[5] is not None:
            self._sources.declare(row[5])

    def _renumbered(self, row: tuple[Any, ...], new: int) -> tuple[Any, ...]:
        payload = row[18]
        if row[9] == _ACTOR_STARTED and payload is not None:
            started = payload_from_json(payload)
            started["actor"] = self._actors.known[started["actor"]]
            if "parent" in started:
                started["parent"] = self._actors.known[started["parent"]]
            payload = payload_to_json(started)
        return (
            new,
            new if row[1] == row[0] else self._moved.get(row[1], new),
            row[2],
            None if row[3] is None else self._handoffs.known[row[3]],
            None if row[4] is None else self._actors.known[row[4]],
            None if row[5] is None else self._sources.known[row[5]],
            *row[6:14],
            None if row[14] is None else self._moved.get(row[14]),
            *row[15:18],
            payload,
        )

    def _head(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        seq = self.rows + 1
        return (seq, seq, row[2], None, None, None, row[6], None, None)

    def _add(self, row: tuple[Any, ...]) -> None:
        self.rows += 1
        if len(self._batch) >= _BATCH and row[0] == row[1]:
            self._flush()
        self._batch.append(row)

    def _flush(self) -> None:
        if self._batch:
            self.journal.append_rows(self._batch)
            self._batch = []
