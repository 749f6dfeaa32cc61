"""Opening a journal's file without changing it.

The file is opened ``mode=ro``: opening to write would, on closing, delete the log of a killed journal, and
``immutable`` would not see that log. Where SQLite cannot read without writing (a killed journal in a folder that cannot
be written), the files are copied aside and the copy is read. Nothing in a file is executed: the schema is not trusted,
and every statement is ours.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path

from handoff.journal.errors import JournalUnreadable
from handoff.journal.file_lock import is_held_here

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file makes of a statement; the latter when SQLite's message quotes bytes that are no UTF-8."""

_BUSY_S = 5.0
_COPY_TRIES = 20
_SIDE_FILES = ("", "-wal", "-journal")
_MAGIC = b"SQLite format 3\0"


class ReadOnlyFile:
    """A database file open for reading.

    Attributes:
        path: the file that was asked for.
        real: the same, free of symbolic links.
        connection: what reads it; of the copy when `copied`.
        copied: whether a copy is read, since SQLite could not read the file where it lies.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the file.

        Raises:
            JournalUnreadable: there is no such file, or it is no database.
        """
        self.path = Path(path)
        self.real = Path(os.path.realpath(path))
        self.copied = False
        self._aside: tempfile.TemporaryDirectory[str] | None = None
        _check_magic(self.path, self.real)
        self.connection = _connect(self.real)
        try:
            self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            self.connection.close()
            if is_held_here(self.real):
                raise self.unreadable(error) from error
            self._read_copy()
        except SQLITE_ERRORS as error:
            self.connection.close()
            raise self.unreadable(error) from error

    def _read_copy(self) -> None:
        self._aside = tempfile.TemporaryDirectory(prefix="handoff-")
        self.copied = True
        try:
            self.connection = _connect(_copy_aside(self.path, self.real, Path(self._aside.name)), mode="rw")
            self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except SQLITE_ERRORS as error:
            self.close()
            raise self.unreadable(error) from error
        except BaseException:
            self.close()
            raise

    def unreadable(self, error: Exception, after: int | None = None) -> JournalUnreadable:
        """The error for a failed statement, after the row that was read last."""
        place = "" if after is None else f" after row {after}"
        remedy = "use `handoff verify`, or `handoff salvage` for what is left"
        return JournalUnreadable(self.path, f"it cannot be read{place} ({error})", remedy)

    def close(self) -> None:
        """Close the file, and remove the copy if there is one."""
        self.connection.close()
        if self._aside is not None:
            self._aside.cleanup()


def check_is_file(path: Path, real: Path) -> None:
    """Refuse what no journal can be: a folder, or what is opened or read without end, such as a pipe or a device.

    Raises:
        JournalUnreadable: there is no such file, or it is no ordinary one.
    """
    try:
        mode = real.stat().st_mode
    except OSError as error:
        raise JournalUnreadable(path, error.strerror or str(error), "name a journal that exists") from error
    if stat.S_ISDIR(mode):
        raise JournalUnreadable(path, os.strerror(errno.EISDIR), "name a journal that exists")
    if not stat.S_ISREG(mode):
        raise JournalUnreadable(path, "it is a pipe or a device", "name a file")


def _check_magic(path: Path, real: Path) -> None:
    """Refuse what is no SQLite database, in words that SQLite would not find."""
    if is_held_here(real):
        return
    check_is_file(path, real)
    try:
        with real.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise JournalUnreadable(path, error.strerror or str(error), "name a journal that exists") from error
    if not magic:
        raise JournalUnreadable(path, "it is empty", "nothing was recorded: remove it")
    if magic != _MAGIC:
        raise JournalUnreadable(
            path, "it is no SQLite database", "name a journal, or use `handoff salvage` if it was one"
        )


def _connect(real: Path, mode: str = "ro") -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{real.as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=_BUSY_S, check_same_thread=False
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _copy_aside(path: Path, real: Path, folder: Path) -> Path:
    """Copy a database and its logs; again when a writer changed them meanwhile."""
    copy = folder / "journal"
    for _ in range(_COPY_TRIES):
        before = _state(real)
        for side in _SIDE_FILES:
            target = folder / ("journal" + side)
            target.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(real.with_name(real.name + side), target)
        if _state(real) == before:
            return copy
    raise JournalUnreadable(
        path, "it changes faster than it can be copied", "read it from a folder that can be written"
    )


def _state(real: Path) -> list[tuple[int, int] | None]:
    states: list[tuple[int, int] | None] = []
    for side in _SIDE_FILES:
        try:
            found = real.with_name(real.name + side).stat()
        except FileNotFoundError:
            states.append(None)
        else:
            states.append((found.st_size, found.st_mtime_ns))
    return states
