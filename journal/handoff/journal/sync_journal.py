"""Journals without a thread: one that commits on the calling thread, and one that keeps nothing.

A simulated run has nobody to answer in the meantime, so its rows are committed 4,096 at a time by whoever appends
them; that is faster than a thread and repeatable. `durable` commits at once. `DiscardingJournal` does all the work of
numbering and encoding and then forgets the rows: the difference to it is what storing costs.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import trio
from attrs import define, field

from handoff.journal.durable_journal import end_of_run
from handoff.journal.port import JournalFailed, Row, RowStream
from handoff.journal.receipt import Durability
from handoff.journal.vocabulary import Seq
from handoff.journal.writer import JournalFile

COMMIT_ROWS = 4096


@define(eq=False)
class SyncJournal(RowStream):
    """A journal file written on the calling thread; make one with `create`.

    A context manager, for ``with`` and for ``async with``; it ends a run that is still open as `Journal` does. Since
    nobody waits for single rows, appending raises `JournalFailed` itself when a commit fails.

    Attributes:
        path: the file.
    """

    _file: JournalFile = field(kw_only=True)
    _pending: list[Row] = field(init=False, factory=list)
    _failure: JournalFailed | None = field(init=False, default=None)
    _closed: bool = field(init=False, default=False)

    @classmethod
    def create(cls, path: Path | str, *, durability: Durability = Durability.NORMAL) -> Self:
        """Create a journal, or open one to append runs to it. See `Journal.create` for errors."""
        file = JournalFile(path, durability=durability)
        return cls(**attrs.asdict(file.numbers(), recurse=False), file=file)

    @property
    def path(self) -> Path:
        """The journal's file, free of symbolic links."""
        return self._file.path

    @property
    def durable_seq(self) -> int:
        """The last row that is committed."""
        return self._file.last_seq

    def _take(self, rows: list[Row]) -> None:
        self._pending += rows
        if len(self._pending) >= COMMIT_ROWS:
            self.commit()

    def commit(self) -> None:
        """Commit what is pending.

        Raises:
            JournalFailed: it failed, now or earlier.
        """
        if self._failure is not None:
            raise self._failure
        if not self._pending:
            return
        rows, self._pending = self._pending, []
        try:
            self._file.commit(rows)
        except Exception as error:
            self._failure = JournalFailed(self._file.last_seq, error)
            self._file.fail()
            raise self._failure from error

    def renumber(self) -> None:
        """Commit, and go on from what the file then declares, after rows that brought declarations of their own.

        Raises:
            JournalFailed: the commit failed.
        """
        self.commit()
        for name, number in attrs.asdict(self._file.numbers(), recurse=False).items():
            setattr(self, name, number)

    async def durable(self, seq: Seq) -> None:
        """See `JournalPort`; commits now."""
        await trio.lowlevel.checkpoint()
        if seq > self._file.last_seq:
            self.commit()

    async def room(self) -> None:
        """See `JournalPort`; there always is."""
        await trio.lowlevel.checkpoint()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Commit what is pending and close the file cleanly.

        Raises:
            JournalFailed: a commit failed, now or earlier.
        """
        if self._closed:
            return
        self._closed = True
        self.commit()
        try:
            self._file.close()
        except Exception as error:
            self._file.fail()
            raise JournalFailed(self._file.last_seq, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self.run_open and not self._closed:
                self.end_run(*end_of_run(error, self.last_at_ms))
            self.close()
        except JournalFailed:
            if error is None:
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


@define(eq=False)
class DiscardingJournal(RowStream):
    """A journal that numbers and encodes its rows and keeps none."""

    def _take(self, rows: list[Row]) -> None:
        del rows

    async def durable(self, seq: Seq) -> None:
        """See `JournalPort`."""
        del seq
        await trio.lowlevel.checkpoint()

    async def room(self) -> None:
        """See `JournalPort`."""
        await trio.lowlevel.checkpoint()
