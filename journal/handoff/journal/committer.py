"""The writer's thread: takes what has been appended and commits it as one group.

Whatever arrives while a commit runs becomes the next one, so the groups grow with the load and no timer is needed. The
thread owns the file from the first append to the close. Appending means adding to a list under a lock that is only
ever held for a list operation; it waits for no disk.

Both ends of a hand-over are safe by order alone: rows are numbered before they are added, and `durable_seq` is set
before anybody is told.
"""

import contextlib
import os
import threading
from collections.abc import Callable

from handoff.journal.port import Row
from handoff.journal.writer import JournalFile


def _tell_nobody() -> None:
    """What is called after a commit until somebody waits."""


class Committer:
    """Commits appended rows on a thread of its own.

    Attributes:
        durable_seq: the last row whose commit returned.
        failure: what the one failed commit failed with; nothing is committed after it.
        told: called on the thread after each commit and after the failure.
    """

    def __init__(self, file: JournalFile) -> None:
        self.durable_seq = file.last_seq
        self.failure: BaseException | None = None
        self.told: Callable[[], None] = _tell_nobody
        self._file = file
        self._pending: list[Row] = []
        self._lock = threading.Lock()
        self._work = threading.Lock()  # held while the thread has nothing to do
        self._work.acquire()
        self._idle = False
        self._closing = False
        self._report_fd: int | None = None
        self._thread = threading.Thread(target=self._run, name=f"journal {file.path.name}", daemon=True)
        self._thread.start()

    def put(self, rows: list[Row]) -> None:
        """Hand over the rows of a group. After a failure, or in a forked child, they are dropped."""
        if self.failure is not None or self._file.lock.inherited:
            return
        with self._lock:
            self._pending += rows
            if self._idle:
                self._idle = False
                self._work.release()

    def report_durable(self, descriptor: int) -> None:
        """Write the number of the last durable row to a descriptor after each commit, a line each."""
        self._report_fd = descriptor

    def finish(self) -> None:
        """Commit what is pending and end the thread; the file stays open unless a commit failed."""
        with self._lock:
            self._closing = True
            if self._idle:
                self._idle = False
                self._work.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                rows, self._pending = self._pending, []
                if not rows and self._closing:
                    return
                self._idle = not rows
            if not rows:
                self._work.acquire()
                continue
            try:
                self._file.commit(rows)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is the end of the journal
                self.failure = error
                with contextlib.suppress(
                    Exception
                ):  # a file that cannot even be given up: its waiters are told all the same
                    self._file.fail()
                with self._lock:
                    self._pending = []
                self.told()
                return
            self.durable_seq = self._file.last_seq
            if self._report_fd is not None:
                self._report(self._report_fd)
            self.told()

    def _report(self, descriptor: int) -> None:
        try:
            os.write(descriptor, f"{self.durable_seq}\n".encode())
        except OSError:  # nobody listens any more
            self._report_fd = None
            with contextlib.suppress(OSError):
                os.close(descriptor)
