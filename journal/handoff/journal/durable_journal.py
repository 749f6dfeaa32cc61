"""The journal that live drivers write to: appends at once, commits on a thread, and lets Trio tasks wait.

`append` and its like number the rows and hand them to the writer's thread. `durable` waits until a row is committed.
After each commit the thread wakes the event loop once, however many tasks wait; the loop then wakes those whose rows
are on disk. A wait can be canceled at any time: it only stops waiting, the rows commit all the same.

Back-pressure sits in `room` alone. Whoever is about to take on new root work waits there while too many rows are
pending; steps in progress and cleanup append without asking, so that a slow disk never holds up the giving back of
what somebody owns.

The first failed commit is final. All waiters get `JournalFailed`, later waits raise it at once, and later rows are
dropped: the journal's last durable row stays what the error said.

A clock that jumps when all tasks wait (Trio's autojump) jumps while the thread syncs; under such a clock use
`sync_journal.SyncJournal`, which commits before `durable` returns.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import trio
from attrs import define, field

from handoff.journal.committer import Committer
from handoff.journal.port import JournalFailed, Row, RowStream
from handoff.journal.receipt import Durability
from handoff.journal.terms import EndState
from handoff.journal.vocabulary import Seq
from handoff.journal.writer import JournalFile

DEFAULT_MAX_PENDING_ROWS = 65_536


@define(eq=False)
class Journal(RowStream):
    """A journal file that live drivers append to; make one with `create`.

    Used as an asynchronous context manager it ends a run that is still open (``interrupted`` when it is left by
    cancellation or Ctrl-C, ``error`` for another exception) and closes the file.

    Attributes:
        path: the file.
        max_pending_rows: how many rows may wait for their commit before `room` makes new work wait.
    """

    _file: JournalFile = field(kw_only=True)
    max_pending_rows: int = field(default=DEFAULT_MAX_PENDING_ROWS, kw_only=True)
    _committer: Committer = field(init=False)
    _waiting: dict[trio.lowlevel.Task, int] = field(init=False, factory=dict)
    _token: trio.lowlevel.TrioToken | None = field(init=False, default=None)
    _closed: bool = field(init=False, default=False)

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        durability: Durability = Durability.FULL,
        max_pending_rows: int = DEFAULT_MAX_PENDING_ROWS,
    ) -> Self:
        """Create a journal, or open one to append runs to it. Takes a few ms, for the disk.

        Raises:
            JournalBusy: another writer has it.
            JournalUnreadable: the file is no journal, or not one that can be continued.
            OSError: the folder cannot be written.
        """
        file = JournalFile(path, durability=durability)
        return cls(**attrs.asdict(file.numbers(), recurse=False), file=file, max_pending_rows=max_pending_rows)

    def __attrs_post_init__(self) -> None:
        self._committer = Committer(self._file)

    @property
    def path(self) -> Path:
        """The journal's file, free of symbolic links."""
        return self._file.path

    @property
    def durable_seq(self) -> int:
        """The last row that is durable."""
        return self._committer.durable_seq

    @property
    def failure(self) -> JournalFailed | None:
        """The failure that ended the journal, or None."""
        cause = self._committer.failure
        return None if cause is None else JournalFailed(self._committer.durable_seq, cause)

    def report_durable(self, descriptor: int) -> None:
        """Write the number of the last durable row to a file descriptor after each commit, a line each."""
        self._committer.report_durable(descriptor)

    def _take(self, rows: list[Row]) -> None:
        assert not self._closed, "the journal is closed"
        self._committer.put(rows)

    async def durable(self, seq: Seq) -> None:
        """See `JournalPort`."""
        assert seq <= self.last_seq, f"row {seq} was never appended"
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._committer.durable_seq < seq and self._committer.failure is None:
            await self._committed(seq)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        if self._committer.durable_seq < seq:
            raise JournalFailed(self._committer.durable_seq, self._committer.failure)

    async def room(self) -> None:
        """See `JournalPort`."""
        await trio.lowlevel.checkpoint()
        while self._committer.failure is None:
            wanted = self.last_seq - self.max_pending_rows + 1
            if self._committer.durable_seq >= wanted:
                return
            await self._committed(wanted)
        raise JournalFailed(self._committer.durable_seq, self._committer.failure)

    async def _committed(self, seq: int) -> None:
        """Wait until a commit reached `seq`, or failed."""
        task = trio.lowlevel.current_task()
        self._listen()
        self._waiting[task] = seq
        if self._committer.durable_seq >= seq or self._committer.failure is not None:  # between our caller and here
            del self._waiting[task]
            await trio.lowlevel.cancel_shielded_checkpoint()
            return

        def stop_waiting(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(stop_waiting)

    def _listen(self) -> None:
        """Have the thread wake this event loop from now on."""
        token = trio.lowlevel.current_trio_token()
        if token is self._token:
            return
        self._token = token

        def wake_loop() -> None:
            if self._waiting:
                try:
                    token.run_sync_soon(self._wake, idempotent=True)
                except trio.RunFinishedError:
                    self._waiting.clear()

        self._committer.told = wake_loop

    def _wake(self) -> None:
        reached = self.last_seq if self._committer.failure is not None else self._committer.durable_seq
        for task, seq in list(self._waiting.items()):
            if seq <= reached:
                del self._waiting[task]
                trio.lowlevel.reschedule(task)

    def close(self) -> None:
        """Commit what is pending and close the file cleanly; waits for the disk.

        Raises:
            JournalFailed: a commit failed, now or earlier.
        """
        if self._closed or self._file.lock.inherited:
            return
        self._closed = True
        self._committer.finish()
        if self._committer.failure is not None:
            raise JournalFailed(self._committer.durable_seq, self._committer.failure)
        try:
            self._file.close()
        except Exception as error:
            self._file.fail()
            raise JournalFailed(self._committer.durable_seq, error) from error

    async def aclose(self) -> None:
        """`close` without holding up the event loop; not interrupted by cancellation."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.run_open and not self._closed:
            self.end_run(*end_of_run(error, self.last_at_ms))
        try:
            await self.aclose()
        except JournalFailed:
            if error is None:
                raise


def end_of_run(error: BaseException | None, at_ms: float) -> tuple[EndState, float, str | None]:
    """How a run ended whose block was left with this error: the arguments of `end_run`."""
    if error is None:
        return EndState.FINISHED, at_ms, None
    causes = (
        error.split((trio.Cancelled, KeyboardInterrupt)) if isinstance(error, BaseExceptionGroup) else (None, error)
    )
    stopped = causes[1] is None or isinstance(causes[1], trio.Cancelled | KeyboardInterrupt)
    return (EndState.INTERRUPTED if stopped else EndState.ERROR), at_ms, f"{type(error).__name__}: {error}"
