"""One writer at a time: a lock on ``FILE-lock``, and what a fork does to it.

SQLite has locks of its own, but they protect single transactions; two recorders would take turns in one file. The lock
is a `flock` on a file beside the journal, since opening and closing the database file itself would drop SQLite's POSIX
locks: they belong to the process, and closing any descriptor of the file gives them up. For the same reason nobody may
open a journal by itself in a process that writes it; `is_held_here` says when that is so.

A child process inherits descriptors and objects, but neither the writer's thread nor the right to use its connection.
After a fork the child's copy of the lock is closed and marked, and the journal refuses to be used there.
"""

import fcntl
import os
from pathlib import Path
from weakref import WeakSet

_held: "WeakSet[FileLock]" = WeakSet()


class JournalBusy(Exception):
    """Another writer has the journal.

    Attributes:
        path: the journal.
        owner: process id of the other writer, if it is known.
    """

    def __init__(self, path: Path, owner: int | None) -> None:
        self.path = path
        self.owner = owner
        who = "another process" if owner is None else f"process {owner}"
        super().__init__(f"{path}: {who} is writing this journal; wait until it has ended, or record into another file")


class ForkedWriter(Exception):
    """A forked child tried to write a journal that belongs to its parent.

    Attributes:
        path: the journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path}: this journal belongs to the parent process; a forked child must open its own")


class FileLock:
    """The right to write a journal.

    Attributes:
        path: the journal's path, free of symbolic links.
        inherited: whether this is a forked child's copy, which has no rights.
    """

    def __init__(self, journal: Path) -> None:
        """Take the lock.

        Raises:
            JournalBusy: another writer has it.
            OSError: the folder does not exist or cannot be written.
        """
        self.path = journal
        self.inherited = False
        self._lock_path = journal.with_name(journal.name + "-lock")
        self._file = self._take()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def _take(self) -> int:
        while True:
            try:
                file = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:  # about the folder; nobody has heard of the lock file
                raise OSError(error.errno, error.strerror, str(self.path.parent)) from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file), os.stat(self._lock_path)):
                    return file
            except FileNotFoundError:
                pass
            except BlockingIOError:
                owner = os.pread(file, 20, 0).decode("ascii", "replace").strip()
                os.close(file)
                raise JournalBusy(self.path, int(owner) if owner.isdigit() else None) from None
            os.close(file)  # its last owner removed this file while we opened it

    def release(self) -> None:
        """Give the lock up and remove its file (`_take` makes sure that it locks the file that has the name)."""
        _held.discard(self)
        if not self.inherited:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._file)

    def leave_to_parent(self) -> None:
        """Mark a forked child's copy. Closing it does not unlock the parent's."""
        self.inherited = True
        os.close(self._file)


def is_held_here(journal: Path) -> bool:
    """Whether this process writes the journal, so that nobody here may open its file by itself."""
    return any(lock.path == journal for lock in _held)


def _after_fork() -> None:
    for lock in list(_held):
        lock.leave_to_parent()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
