"""Whether a journal is what was written: ``verify``.

The evidence, from the strongest to the weakest:

* the receipt of a clean close: size and digest of the whole file;
* the digest chain: which rows are those that were written, block by block;
* the receipt: how far the journal had come, so that a lost tail shows;
* the rows themselves: the derived tables must follow from them, and each run must say how it ended;
* SQLite's own check of its pages, and the text of the schema.

Each finding is a `Problem`. The state is the worst that they amount to: ``damaged`` (something differs from what was
written), ``tail_lost`` (rows after the last one were written and are gone), ``open`` (nothing is wrong, but the journal
was never closed, or its receipt is missing, so later rows may be missing), ``sound``. The model is accidents, not
forgers: whoever can write the file can write its digests.
"""

import contextlib
import sqlite3
from collections.abc import Callable
from enum import StrEnum
from itertools import count
from pathlib import Path

from attrs import define, field, frozen

from handoff.journal.blocks import Block, Proof, last_plausible_seq, read_blocks
from handoff.journal.errors import JournalUnreadable
from handoff.journal.file_lock import is_held_here
from handoff.journal.port import Row
from handoff.journal.read_only import SQLITE_ERRORS, ReadOnlyFile
from handoff.journal.receipt import Receipt, ReceiptState, file_digest, receipt_as_evidence
from handoff.journal.schema import APPLICATION_ID, DECLARING, FORMAT_VERSION, schema_differences
from handoff.journal.terms import TERMS
from handoff.journal.verify_tables import GAP, DerivedTables, RunEnds


class VerifyState(StrEnum):
    """What the findings amount to, from the best to the worst."""

    SOUND = "sound"
    OPEN = "open"
    TAIL_LOST = "tail_lost"
    DAMAGED = "damaged"


_WORST_LAST = tuple(VerifyState)


@frozen
class Problem:
    """One finding.

    Attributes:
        code: a stable name, such as ``rows_damaged``.
        state: what it makes of the journal at least.
        text: a sentence for people.
        first_seq: the first row concerned, where there is one.
        last_seq: the last row concerned.
    """

    code: str
    state: VerifyState
    text: str
    first_seq: int | None = None
    last_seq: int | None = None


@frozen
class VerifyReport:
    """What ``verify`` found.

    Attributes:
        path: the journal.
        state: sound, open, tail_lost or damaged.
        last_seq: the last row in the file, 0 when none can be read.
        last_trustworthy_seq: every row up to this one is proved to be what was written.
        problems: the findings, in the order in which they were made.
        chain_head: the running digest at the last row, in hex; None when rows are damaged.
        receipt: what the receipt says, or None.
        runs: number of runs.
        handoffs: number of handoffs.
    """

    path: Path
    state: VerifyState
    last_seq: int
    last_trustworthy_seq: int
    problems: tuple[Problem, ...]
    chain_head: str | None
    receipt: Receipt | None
    runs: int = 0
    handoffs: int = 0

    @property
    def sound(self) -> bool:
        """Whether every row that was written is there, unchanged."""
        return self.state is VerifyState.SOUND

    @property
    def faulty(self) -> bool:
        """Whether something is wrong or lost; a journal that merely was never closed is not faulty.

        A missing receipt is a fault: it was there, and without it nobody knows how far the journal had come.
        """
        lost = self.state in (VerifyState.TAIL_LOST, VerifyState.DAMAGED)
        return lost or any(problem.code == "no_receipt" for problem in self.problems)

    @property
    def damaged_rows(self) -> tuple[tuple[int, int], ...]:
        """First and last row of each damaged part."""
        return tuple((p.first_seq, p.last_seq) for p in self.problems if p.first_seq is not None and p.last_seq)


def verify_journal(path: Path | str) -> VerifyReport:
    """Examine a journal and its receipt, without changing them.

    Reads every row once, in bounded memory. The receipt is read before the rows, so a live journal can be verified.

    Raises:
        JournalUnreadable: there is no such file, or nothing says that it was a journal.
    """
    path = Path(path)
    receipt = receipt_as_evidence(path)
    examination = _Examination(path, receipt)
    try:
        file = ReadOnlyFile(path)
    except JournalUnreadable as error:
        if receipt is None or not path.exists():
            raise
        examination.add("file_unreadable", VerifyState.DAMAGED, error.reason)
        return examination.report()
    with contextlib.closing(file):
        examination.examine(file)
    return examination.report()


@define
class _Examination:
    """The findings so far, and what is carried from block to block."""

    path: Path
    receipt: Receipt | None
    problems: list[Problem] = field(init=False, factory=list)
    last_seq: int = field(init=False, default=0)
    proved_seq: int = field(init=False, default=0)
    head: bytes | None = field(init=False, default=None)
    runs: RunEnds = field(init=False, factory=RunEnds)
    closings: dict[int, bytes] = field(init=False, factory=dict)

    def add(
        self, code: str, state: VerifyState, text: str, first_seq: int | None = None, last_seq: int | None = None
    ) -> None:
        """Note a finding."""
        self.problems.append(Problem(code, state, text, first_seq, last_seq))

    def report(self) -> VerifyReport:
        """What all findings amount to."""
        state = max((p.state for p in self.problems), key=_WORST_LAST.index, default=VerifyState.SOUND)
        damaged = [p.first_seq for p in self.problems if p.first_seq is not None]
        return VerifyReport(
            path=self.path,
            state=state,
            last_seq=self.last_seq,
            last_trustworthy_seq=min([self.proved_seq, *(first - 1 for first in damaged)]),
            problems=tuple(self.problems),
            chain_head=None if damaged or self.head is None else self.head.hex(),
            receipt=self.receipt,
            runs=self.runs.count,
            handoffs=self.runs.handoffs,
        )

    def examine(self, file: ReadOnlyFile) -> None:
        """Look at everything that is in the file."""
        connection = file.connection
        checks: tuple[Callable[[sqlite3.Connection], None], ...] = (
            self._identity, self._pages, self._rows_and_tables,
        )  # fmt: skip
        self._whole_file(file)
        for check in checks:
            try:
                check(connection)
            except SQLITE_ERRORS as error:
                self.add("file_damaged", VerifyState.DAMAGED, f"SQLite cannot read the file: {error}")
        self._ends()

    def _whole_file(self, file: ReadOnlyFile) -> None:
        receipt = self.receipt
        if receipt is None or receipt.state is not ReceiptState.CLOSED or is_held_here(file.real):
            return
        size, digest = file_digest(file.real)
        if (size, digest) != (receipt.file_bytes, receipt.file_digest):
            text = "the file is not the one that was closed"
            if size != receipt.file_bytes:
                text += f": it has {size} bytes, and had {receipt.file_bytes}"
            self.add("file_changed", VerifyState.DAMAGED, text)

    def _identity(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if self.receipt is None and application != APPLICATION_ID:
            raise JournalUnreadable(self.path, "it is a SQLite database, but no journal of handoff", "name a journal")
        if application != APPLICATION_ID:
            self.add("header_damaged", VerifyState.DAMAGED, f"its application id is {application}")
        if version != FORMAT_VERSION:
            self.add("header_damaged", VerifyState.DAMAGED, f"its format version is {version}, not {FORMAT_VERSION}")
        for name in schema_differences(connection):
            self.add("schema_damaged", VerifyState.DAMAGED, f"the schema's {name} is not that of this version")
        words = connection.execute("SELECT code, word FROM term ORDER BY code").fetchall()
        if not words or words != list(enumerate(TERMS[: len(words)], start=1)):
            self.add("terms_damaged", VerifyState.DAMAGED, "the dictionary of words is not that of this version")

    def _pages(self, connection: sqlite3.Connection) -> None:
        for (text,) in connection.execute("PRAGMA integrity_check(10)"):
            if text != "ok":
                self.add("pages_damaged", VerifyState.DAMAGED, f"SQLite's check says: {text}")

    def _rows_and_tables(self, connection: sqlite3.Connection) -> None:
        self.last_seq = last_plausible_seq(connection)
        self.closings = dict(connection.execute("SELECT seq, digest FROM chain WHERE seq % 64 <> 0"))
        (last_entry,) = connection.execute("SELECT coalesce(max(seq), 0) FROM chain").fetchone()
        tables = DerivedTables(connection)
        if self.receipt is not None:  # a damaged page may hide the newest rows; the chain knows how many there were
            self.last_seq = max(self.last_seq, min(last_entry, self.receipt.last_seq))
        for block in read_blocks(connection, self.last_seq):
            self._block(block)
            self._receipt_in(block)
            self._declarations(block.rows, tables)
        for table in tables.left_over():
            self.add("table_damaged", VerifyState.DAMAGED, f"table {table} has lines that no row declares")

    def _block(self, block: Block) -> None:
        closing = self.closings.get(block.last)
        self.head = block.digest_at(block.last)
        match block.proof:
            case Proof.PROVED:
                self._prove(block, block.last)
            case Proof.ENTRY_DAMAGED:
                self._prove(block, block.last)
                self.add("digest_damaged", VerifyState.DAMAGED, f"the digest of rows {block.first} to {block.last} is")
            case Proof.UNPROVED:
                if closing is not None:  # there, but no digest
                    self._damaged(block)
            case Proof.DAMAGED:
                self._damaged(block)
        for seq in [seq for seq in self.closings if block.first <= seq < block.last]:
            if block.digest_at(seq) == self.closings[seq]:
                self._prove(block, seq)
            elif block.proof is Proof.PROVED:
                self.add("digest_damaged", VerifyState.DAMAGED, f"the digest at the close after row {seq} is wrong")
            elif block.proof is Proof.UNPROVED:
                self._damaged(block)

    def _prove(self, block: Block, seq: int) -> None:
        if self.proved_seq >= block.first - 1:
            self.proved_seq = max(self.proved_seq, seq)

    def _damaged(self, block: Block) -> None:
        found = {row[0] for row in block.rows}
        absent = block.last - block.first + 1 - len(found)
        if block.error is not None:
            text = f"rows {block.first} to {block.last} cannot be read ({block.error})"
        elif absent:
            first = next(seq for seq in count(block.first) if seq not in found)
            text = f"{absent} of the rows {block.first} to {block.last} are missing, row {first} first"
            self.add("rows_missing", VerifyState.DAMAGED, text, block.first, block.last)
            return
        else:
            text = f"one or more of the rows {block.first} to {block.last} are not those that were written"
        self.add("rows_damaged", VerifyState.DAMAGED, text, block.first, block.last)

    def _receipt_in(self, block: Block) -> None:
        """Compare the receipt with the block in which its row is."""
        receipt = self.receipt
        if receipt is None or not block.first <= receipt.last_seq <= block.last:
            return
        if block.digest_at(receipt.last_seq) == receipt.digest:
            self._prove(block, receipt.last_seq)
        elif block.proof is Proof.UNPROVED:
            text = f"one or more of the rows {block.first} to {receipt.last_seq} are not those that were written"
            self.add("rows_damaged", VerifyState.DAMAGED, text, block.first, receipt.last_seq)
        elif block.proof is not Proof.DAMAGED:
            self.add("receipt_differs", VerifyState.DAMAGED, f"the receipt knows another row {receipt.last_seq}")

    def _declarations(self, rows: list[Row], tables: DerivedTables) -> None:
        for row in rows:
            if row[9] not in DECLARING and row[9] != GAP:
                continue
            try:
                self.runs.see(row)
                table = tables.difference(row)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError):
                table = "row"
            if table is not None and not any(p.code == "table_damaged" and table in p.text for p in self.problems):
                text = f"table {table} does not say what row {row[0]} says"
                self.add("table_damaged", VerifyState.DAMAGED, text)

    def _ends(self) -> None:
        receipt, last = self.receipt, self.last_seq
        if receipt is not None and receipt.last_seq > last:
            text = f"rows {last + 1} to {receipt.last_seq} were written and are gone"
            self.add("tail_lost", VerifyState.TAIL_LOST, text)
        if any(problem.state is VerifyState.DAMAGED for problem in self.problems):
            return
        if receipt is None:
            self.add("no_receipt", VerifyState.OPEN, f"the receipt is missing: rows after {last} may be missing")
        elif receipt.state is ReceiptState.FAILED:
            self.add("writer_failed", VerifyState.OPEN, f"a commit failed after row {receipt.last_seq}")
        elif receipt.state is ReceiptState.RECORDING:
            text = f"it is being written, or its writer was killed: rows after {last} may be missing"
            self.add("not_closed", VerifyState.OPEN, text)
        for text in self.runs.problems():
            self.add("run_without_end", VerifyState.OPEN, text)
