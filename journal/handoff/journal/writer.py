"""The file that is written: one connection, one transaction a commit, and the evidence beside it.

A `JournalFile` knows nothing of threads, Trio or machines; whoever owns it calls it from one thread at a time. A commit
stores rows, the lines of derived tables and the chain entries that follow from them in one transaction, and writes the
receipt once SQLite has returned. The first failed commit is the last one: after a failed sync the kernel may have
thrown away what it could not write, so a second try would only seem to work.

How it is fast: rows go in by statements of up to 64 rows. Each statement gives up the interpreter lock once instead of
once a row, which matters beside a busy event loop; and a small commit is one statement in its own transaction.

A new journal is built under another name and renamed, so a file of that name always has its schema. On a clean close
the file leaves WAL mode: it then opens on read-only media and has no side files but the receipt.
"""

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

from attrs import evolve

from handoff.journal.chain import BLOCK_ROWS, GENESIS, Chain
from handoff.journal.errors import JournalUnreadable
from handoff.journal.event import COLUMNS
from handoff.journal.file_lock import FileLock, ForkedWriter
from handoff.journal.port import JournalFailed, Row, RowStream
from handoff.journal.read_only import check_is_file
from handoff.journal.receipt import Durability, Receipt, ReceiptFile, ReceiptState, file_digest, read_receipt
from handoff.journal.schema import (
    APPLICATION_ID,
    DERIVED,
    FORMAT_VERSION,
    add_terms,
    create_schema,
    derived_lines,
    insert_statement,
    schema_differences,
)
from handoff.journal.terms import TERMS

MINIMUM_SQLITE = (3, 37, 0)
"""STRICT tables came with it."""

_STATEMENT_ROWS = 64
_BUSY_S = 5.0
_SYNCHRONOUS = {Durability.OFF: "OFF", Durability.NORMAL: "NORMAL", Durability.FULL: "FULL"}


class JournalFile:
    """A journal file open for appending, held by its lock.

    Attributes:
        path: the file, free of symbolic links.
        durability: what a commit means.
        last_seq: the last committed row.
    """

    def __init__(self, path: Path | str, *, durability: Durability = Durability.FULL, page_bytes: int = 4096) -> None:
        """Create the file, or open it to append.

        Args:
            path: the journal's path; its folder must exist.
            durability: what a commit means.
            page_bytes: SQLite's page size for a new file, a power of two from 512 to 65536.

        Raises:
            JournalBusy: another writer has it.
            JournalUnreadable: the file is no journal, or not one that can be continued.
            JournalFailed: SQLite could not begin to write, as on a full disk.
            OSError: the folder cannot be written.
        """
        if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
            need = ".".join(map(str, MINIMUM_SQLITE))
            raise RuntimeError(f"handoff needs SQLite {need} or later; this Python has {sqlite3.sqlite_version}")
        self.path = Path(os.path.realpath(path))
        self.durability = durability
        self.last_seq = 0
        if self.path.exists():  # an empty file is replaced, and a pipe or a device would look empty
            check_is_file(Path(path), self.path)
        self.lock = FileLock(self.path)
        try:
            if not self.path.exists() or self.path.stat().st_size == 0:
                _create(self.path, page_bytes)
            self._open()
        except sqlite3.Error as error:
            self.lock.release()
            raise JournalFailed(self.last_seq, error) from error
        except BaseException:
            self.lock.release()
            raise

    def _open(self) -> None:
        self._connection = _connect(self.path)
        self._receipts: ReceiptFile | None = None
        try:
            known = _check_version(self._connection, self.path)
            self._chain = _continued_chain(self._connection, self.path)
            self.last_seq = self.numbers().last_seq
            self._receipts = ReceiptFile(self.path)
            self._receipt = Receipt(ReceiptState.RECORDING, self.last_seq, self._chain.running(), self.durability)
            self._receipts.begin(self._receipt, sync=self.durability is not Durability.OFF)
            _sync_folder(self.path)
            self._connection.execute("PRAGMA journal_mode = WAL")
            for pragma in ("synchronous = " + _SYNCHRONOUS[self.durability], "fullfsync = ON"):
                self._connection.execute("PRAGMA " + pragma)
            add_terms(self._connection, known)
        except BaseException:
            if self._receipts is not None:
                self._receipts.close()
            self._connection.close()
            raise

    def numbers(self) -> RowStream:
        """Where the numbers of rows, runs, handoffs, actors and sources go on after the last commit."""
        return _numbers(self._connection)

    def commit(self, rows: Sequence[Row]) -> None:
        """Store rows of whole groups in one transaction, numbered on from `last_seq`.

        Raises:
            sqlite3.Error, OverflowError, struct.error: it failed, and so will every later commit; call `fail`.
            ForkedWriter: this is a forked child's copy.
        """
        if self.lock.inherited:
            raise ForkedWriter(self.path)
        assert rows[0][0] == self.last_seq + 1
        entries = self._chain.extend(rows)
        derived = derived_lines(rows)
        execute = self._connection.execute
        alone = len(rows) <= _STATEMENT_ROWS and not entries and not derived
        if not alone:
            execute("BEGIN IMMEDIATE")
        for start in range(0, len(rows), _STATEMENT_ROWS):
            part = rows[start : start + _STATEMENT_ROWS]
            execute(_insert_rows(len(part)), list(chain.from_iterable(part)))
        for table, lines in derived.items():
            self._connection.executemany(insert_statement(table, DERIVED[table]), lines)
        if entries:
            self._connection.executemany(insert_statement("chain", 2), entries)
        if not alone:
            execute("COMMIT")
        self.last_seq = rows[-1][0]
        self._note(evolve(self._receipt, last_seq=self.last_seq, digest=self._chain.running()))

    def _note(self, receipt: Receipt) -> None:
        assert self._receipts is not None
        self._receipt = receipt
        with contextlib.suppress(OSError):  # a receipt may lag
            self._receipts.write(receipt)

    def fail(self) -> None:
        """Note that a commit failed and give the file up; what was committed before stays readable."""
        if self.lock.inherited:
            return
        self._note(evolve(self._receipt, state=ReceiptState.FAILED))
        with contextlib.suppress(sqlite3.Error):
            self._connection.rollback()
        self._release()

    def close(self) -> None:
        """Close the file cleanly: tail digest, out of WAL mode, receipt with the digest of the whole file.

        A reader in another process can keep SQLite from leaving WAL mode; the file is then closed in it. A forked
        child's copy closes nothing.
        """
        if self.lock.inherited:
            return
        connection = self._connection
        running = self._chain.running()
        if self._chain.begun:
            connection.execute("INSERT OR IGNORE INTO chain VALUES (?, ?)", (self.last_seq, running))
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                self._release()
                return
        connection.close()
        size, digest = file_digest(self.path)
        self._note(evolve(self._receipt, state=ReceiptState.CLOSED, file_bytes=size, file_digest=digest))
        self._release()

    def _release(self) -> None:
        assert self._receipts is not None
        self._connection.close()
        self._receipts.close()
        self.lock.release()


@lru_cache(maxsize=_STATEMENT_ROWS)
def _insert_rows(count: int) -> str:
    one = f"({', '.join('?' * len(COLUMNS))})"
    return f"INSERT INTO row VALUES {', '.join([one] * count)}"  # noqa: S608 no text from outside


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False,
        cached_statements=2 * _STATEMENT_ROWS, timeout=_BUSY_S,
    )  # fmt: skip
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _create(path: Path, page_bytes: int) -> None:
    for leftover in ("-new", "-wal", "-shm", "-journal", "-receipt"):  # of a journal that was removed without them
        path.with_name(path.name + leftover).unlink(missing_ok=True)
    new = path.with_name(path.name + "-new")
    new.touch()
    connection = _connect(new)
    try:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        create_schema(connection)
    except sqlite3.Error:
        new.unlink()
        raise
    finally:
        connection.close()
    new.rename(path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Refuse what is not a journal of this version; gives the number of words that it knows."""
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        other = application != APPLICATION_ID
        words = [] if other else [word for (word,) in connection.execute("SELECT word FROM term ORDER BY code")]
        differences = [] if other else schema_differences(connection)
    except sqlite3.DatabaseError as error:
        remedy = "record into another file, or use `handoff verify` if this was a journal"
        raise JournalUnreadable(path, f"it cannot be opened ({error})", remedy) from error
    if other:
        raise JournalUnreadable(path, "it is a SQLite database of another program", "record into another file")
    if version != FORMAT_VERSION:
        reason = f"its format is version {version}, and this handoff appends to version {FORMAT_VERSION} only"
        raise JournalUnreadable(path, reason, "record into another file")
    if differences or tuple(words) != TERMS[: len(words)]:
        what = ", ".join(differences) or "term"
        raise JournalUnreadable(path, f"its schema is not that of version {version} ({what})", "use `handoff verify`")
    return len(words)


def _continued_chain(connection: sqlite3.Connection, path: Path) -> Chain:
    """The chain at the last row, after checking the file's tail against the receipt."""
    (last_seq,) = connection.execute("SELECT coalesce(max(seq), 0) FROM row").fetchone()
    whole = last_seq - last_seq % BLOCK_ROWS
    begun = connection.execute("SELECT * FROM row WHERE seq > ? ORDER BY seq", (whole,)).fetchall()
    found = connection.execute("SELECT digest FROM chain WHERE seq = ?", (whole,)).fetchone()
    receipt = read_receipt(path)
    remedy = "use `handoff verify`, then `handoff salvage`"
    if receipt is not None and receipt.last_seq > last_seq:
        reason = f"it ends with row {last_seq}, but its receipt says that row {receipt.last_seq} was written"
        raise JournalUnreadable(path, reason, remedy)
    if whole and found is None:
        raise JournalUnreadable(path, f"the digest of rows up to {whole} is missing", remedy)
    sequence = Chain(found[0] if found else GENESIS, [])
    for row in begun:
        sequence.extend([row])
        if receipt is not None and receipt.last_seq == row[0] and receipt.digest != sequence.running():
            raise JournalUnreadable(path, f"rows {whole + 1} to {row[0]} are not those that were written", remedy)
    return sequence


def _numbers(connection: sqlite3.Connection) -> RowStream:
    """Where the numbers of rows, runs, handoffs, actors and sources go on."""

    def one(query: str, *arguments: int) -> int:
        (value,) = connection.execute(query, arguments).fetchone()
        return int(value)

    run = one("SELECT coalesce(max(run), 0) FROM run")
    ended = one("SELECT count(*) FROM run WHERE run = ? AND mark = 'ended'", run)
    last = connection.execute("SELECT seq, at_ms FROM row ORDER BY seq DESC LIMIT 1").fetchone() or (0, 0.0)
    return RowStream(
        last_seq=last[0],
        last_at_ms=last[1],
        run=run,
        run_open=run > 0 and not ended,
        run_first_seq=one("SELECT coalesce(min(seq), 1) FROM run WHERE run = ?", run),
        handoffs=one("SELECT coalesce(max(handoff), 0) FROM handoff"),
        handoffs_before_run=one("SELECT coalesce(max(handoff), 0) FROM handoff WHERE run < ?", run),
        actors=one("SELECT coalesce(max(actor), 0) FROM actor"),
        sources=one("SELECT coalesce(max(source), 0) FROM source"),
    )
