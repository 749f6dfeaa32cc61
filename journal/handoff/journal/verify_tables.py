"""Whether the derived tables and the ends of runs follow from the rows.

Both are compared while the rows stream by, in the order of their declaration, so that memory stays bounded.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

from attrs import define, field

from handoff.journal.event import payload_from_json
from handoff.journal.port import Row
from handoff.journal.schema import DERIVED, derived_lines
from handoff.journal.terms import TERM_CODE, Kind

_RUN_STARTED = TERM_CODE[Kind.RUN_STARTED]
_RUN_ENDED = TERM_CODE[Kind.RUN_ENDED]
_OPENED = TERM_CODE[Kind.HANDOFF_OPENED]
GAP = TERM_CODE[Kind.GAP]


@define
class RunEnds:
    """Follows the runs: each must end, and count its rows and handoffs rightly (unless rows of it are lost)."""

    count: int = 0
    handoffs: int = 0
    _open: dict[int, tuple[int, int]] = field(factory=dict)
    _wrong: list[str] = field(factory=list)
    _with_gaps: set[int] = field(factory=set)

    def see(self, row: Row) -> None:
        """Take a declaring row, or a gap."""
        seq, run, kind = row[0], row[2], row[9]
        if kind == _RUN_STARTED:
            self.count += 1
            self._open[run] = (seq, self.handoffs)
        elif kind == _OPENED:
            self.handoffs += 1
        elif kind == GAP:
            self._with_gaps.add(run)
        elif kind == _RUN_ENDED:
            first, before = self._open.pop(run, (seq, self.handoffs))
            said = payload_from_json(row[18])
            if run in self._with_gaps:
                return
            counted = {"rows": seq - first + 1, "handoffs": self.handoffs - before}
            for what, number in counted.items():
                if said[what] != number:
                    self._wrong.append(f"the end of run {run} counts {said[what]} {what}, and there are {number}")

    def problems(self) -> Iterator[str]:
        """What is wrong with the ends."""
        yield from self._wrong
        for run in self._open:
            yield f"run {run} has no end: its program was killed, or is still recording"


class DerivedTables:
    """Compares the lines of the derived tables with the rows, both in order."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._lines = {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608 our own names
            for table in DERIVED
        }

    def difference(self, row: Row) -> str | None:
        """The table whose next line is not what the row says, or None."""
        for table, lines in derived_lines([row]).items():
            found: Any = self._lines[table].fetchone()
            if [found] != lines:
                return table
        return None

    def left_over(self) -> list[str]:
        """The tables that have more lines."""
        return [table for table, lines in self._lines.items() if lines.fetchone() is not None]
