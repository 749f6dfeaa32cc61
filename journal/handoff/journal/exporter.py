"""A journal as event lines, row by row, in bounded memory."""

from collections.abc import Callable, Iterator
from typing import TextIO

from handoff.journal.event_lines import LineWriter
from handoff.journal.event_source import EventSource


def exported_lines(source: EventSource) -> Iterator[str]:
    """Every row as a native line, without line ends; importing them gives the same rows and digest chain."""
    writer = LineWriter()
    for event in source.events():
        yield writer.line(event)


def export_lines(source: EventSource, to: TextIO, *, on_row: Callable[[int], None] | None = None) -> int:
    """Write a journal's lines to a text stream and give their number.

    Args:
        source: the journal.
        to: where to; its encoding must be UTF-8 and its line end a bare newline, for the same bytes everywhere.
        on_row: told the number of rows written now and then, for a progress bar.
    """
    count = 0
    for count, line in enumerate(exported_lines(source), start=1):
        to.write(line + "\n")
        if on_row is not None and count % 4096 == 0:
            on_row(count)
    return count
