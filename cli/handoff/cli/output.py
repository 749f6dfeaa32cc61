"""How commands speak: Rich to people, plain text where no terminal is, one JSON document to programs."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from handoff.journal.event import payload_to_json

SHOW_PROGRESS_AFTER_S = 1.0
PLAIN_WIDTH = 160
_BLANKS_AT_THE_END = re.compile(r"[ ]+$", re.MULTILINE)


class _Unpadded:
    """A text stream without the blanks with which Rich fills up lines; for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_BLANKS_AT_THE_END.sub("", text))

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console() -> Console:
    """Standard output for people: colours and tables in a terminal, plain text of a fixed width elsewhere."""
    terminal = sys.stdout.isatty()
    file = sys.stdout if terminal else cast("IO[str]", _Unpadded(sys.stdout))
    return Console(file=file, width=None if terminal else PLAIN_WIDTH, highlight=False, emoji=False, soft_wrap=False)


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as ``1 run`` or ``2,000 rows``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def print_document(document: Mapping[str, Any]) -> None:
    """Print one JSON document; NaN and infinities, which JSON lacks, as ``{"$float": ...}``."""
    sys.stdout.write(payload_to_json(document) + "\n")


@contextmanager
def progress(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on standard error that appears after a second; None without a terminal or when `quiet`.

    Args:
        what: what is going on, in a word or two.
        total: the number at which it is done.
        quiet: whether a program reads the output.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return

    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bar.add_task(what, total=total)
    begun, shown = perf_counter(), False

    def advance(done: int) -> None:
        nonlocal shown
        if not shown and perf_counter() - begun > SHOW_PROGRESS_AFTER_S:
            bar.start()
            shown = True
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def watching(what: str, *, quiet: bool) -> Iterator[Callable[[str], None] | None]:
    """A line on standard error that says how far something of unknown length has come; None where `progress` is None.

    Args:
        what: what is going on, in a word or two.
        quiet: whether a program reads the output.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    status = Console(file=sys.stderr).status(what)
    begun, shown = perf_counter(), False

    def tell(text: str) -> None:
        nonlocal shown
        status.update(f"{what}: {text}")
        if not shown and perf_counter() - begun > SHOW_PROGRESS_AFTER_S:
            status.start()
            shown = True

    try:
        yield tell
    finally:
        status.stop()
