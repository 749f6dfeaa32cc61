"""What is left of a damaged journal, as a new one: ``salvage``.

A row is kept when it is proved to be what was written: by the digest chain, or for the last rows by the receipt. Blocks
that SQLite cannot read, or reads wrongly, are looked for in the raw pages (`page_scan`); the chain tells whether what
was found there is right. Rows after the last proof are kept while they are whole and in order, and counted.

Rows keep their numbers, since causes and groups name them. Each lost row becomes a `gap` row; if the beginning of a run
is lost, a beginning that says so stands in its place. A run that has no end gets one: ``interrupted``.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from attrs import define, evolve, field, frozen

from handoff.journal.blocks import Block, Proof, digest_or_none, last_plausible_seq, read_blocks
from handoff.journal.chain import BLOCK_ROWS, GENESIS
from handoff.journal.declarations import Gap, RunStarted
from handoff.journal.errors import JournalUnreadable
from handoff.journal.event import event_from_row
from handoff.journal.page_scan import PageScan
from handoff.journal.port import Row
from handoff.journal.read_only import SQLITE_ERRORS, ReadOnlyFile, check_is_file
from handoff.journal.receipt import Receipt, receipt_as_evidence
from handoff.journal.row_codec import encode
from handoff.journal.sync_journal import COMMIT_ROWS, SyncJournal
from handoff.journal.terms import TERM_CODE, EndState, Kind

_RUN_STARTED = TERM_CODE[Kind.RUN_STARTED]
_GAP = TERM_CODE[Kind.GAP]
_TRIED_VERSIONS = 256
_LOST = "it was damaged and could not be recovered"


@frozen
class SalvageReport:
    """What ``salvage`` kept.

    Attributes:
        path: the damaged journal.
        new_path: the new one.
        kept: rows kept.
        recovered: how many of them were found in raw pages only.
        unproved: how many of them come after the last proof.
        lost: first and last row of each part that is lost.
        last_seq: the last row that the damaged journal is known to have had.
    """

    path: Path
    new_path: Path
    kept: int
    recovered: int
    unproved: int
    lost: tuple[tuple[int, int], ...]
    last_seq: int

    @property
    def lost_rows(self) -> int:
        """How many rows are lost."""
        return sum(last - first + 1 for first, last in self.lost)


def salvage_journal(path: Path | str, new_path: Path | str) -> SalvageReport:
    """Write what can be proved of a journal into a new one. The damaged one is not changed.

    Raises:
        JournalUnreadable: there is no such file, or nothing of a journal is in it; or the new file exists already.
    """
    path, new_path = Path(path), Path(new_path)
    if new_path.exists():
        raise JournalUnreadable(new_path, "it exists already", "name a file that does not exist")
    wreck = _Wreck(path)
    try:
        if wreck.last_seq == 0:
            raise JournalUnreadable(path, "no row of a journal is in it", "there is nothing to salvage")
        with SyncJournal.create(new_path) as journal:
            rebuilding = _Rebuilding(journal)
            for rows, first, last in wreck.parts():
                rebuilding.add(rows, first, last)
            rebuilding.finish()
        return SalvageReport(
            path, new_path, rebuilding.kept, wreck.recovered, wreck.unproved, tuple(rebuilding.lost), wreck.last_seq
        )
    finally:
        wreck.close()


@define
class _Wreck:
    """The damaged journal: what SQLite reads of it, and what its pages hold."""

    path: Path
    recovered: int = field(init=False, default=0)
    unproved: int = field(init=False, default=0)
    last_seq: int = field(init=False, default=0)
    _receipt: Receipt | None = field(init=False, default=None)
    _file: ReadOnlyFile | None = field(init=False, default=None)
    _scan: PageScan | None = field(init=False, default=None)
    _found: dict[int, list[Row]] = field(init=False, factory=lambda: defaultdict(list))
    _digests: dict[int, list[bytes]] = field(init=False, factory=lambda: defaultdict(list))

    def __attrs_post_init__(self) -> None:
        check_is_file(self.path, Path(os.path.realpath(self.path)))
        self._receipt = receipt_as_evidence(self.path)
        readable = 0
        try:
            self._file = ReadOnlyFile(self.path)
            readable = last_plausible_seq(self._file.connection)
        except (JournalUnreadable, *SQLITE_ERRORS):
            self.close()
            self._file = None
        written = 0 if self._receipt is None else self._receipt.last_seq
        self.last_seq = max(readable, written)
        if self._file is None or written > readable:
            self._read_pages()
            self.last_seq = max(self.last_seq, self._last_found())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read_pages(self) -> None:
        if self._scan is not None:
            return
        self._scan = PageScan.read(self.path.resolve())
        for row in self._scan.rows():
            versions = self._found[row[0]]
            if row not in versions:
                versions.append(row)
        for seq, digest in self._scan.digests():
            self._digests[seq].append(digest)

    def _last_found(self) -> int:
        """The last row of those found that follow each other, or nearly: a damaged number may lie anywhere."""
        last = 0
        for seq in sorted(self._found):
            if seq > last + BLOCK_ROWS * BLOCK_ROWS:
                break
            last = max(last, seq)
        return last

    def parts(self) -> Iterator[tuple[list[Row], int, int]]:
        """The rows that are kept of each block, and which numbers it has; rows that are not given are lost."""
        before: list[bytes] = [GENESIS]
        for block in self._blocks():
            if block.proof in (Proof.PROVED, Proof.ENTRY_DAMAGED):
                rows = block.rows
                before = [block.digest_at(block.last) or GENESIS]
            else:
                self._read_pages()
                rows, before = self._proved(block, before)
                if block.last == self.last_seq:
                    rows = rows + self._unproved(block, after=rows[-1][0] if rows else block.first - 1)
            yield rows, block.first, block.last

    def _blocks(self) -> Iterator[Block]:
        """The blocks as SQLite reads them; where it reads nothing for long, empty ones."""
        missing = Block(1, self.last_seq, [], None, GENESIS, None, Proof.DAMAGED)
        for block in [missing] if self._file is None else read_blocks(self._file.connection, self.last_seq):
            if block.last - block.first < BLOCK_ROWS:
                yield block
                continue
            for first in range(block.first, block.last + 1, BLOCK_ROWS):
                yield evolve(missing, first=first, last=min(first + BLOCK_ROWS - 1, block.last))

    def _proved(self, block: Block, before: list[bytes]) -> tuple[list[Row], list[bytes]]:
        """The block's first rows that a digest proves, and the digests that may stand before the next block.

        Every version of a row that was found is tried, within bounds.
        """
        befores = list(dict.fromkeys([*before, block.before, *self._digests.get(block.first - 1, [])]))
        known = self._known_digests(block)
        for last in sorted(known, reverse=True):
            versions = [self._versions(block, seq) for seq in range(block.first, last + 1)]
            for choice in itertools.islice(itertools.product(*versions), _TRIED_VERSIONS):
                rows = list(choice)
                for start in befores:
                    digest = digest_or_none(start, rows, block.first, last)
                    if digest is not None and digest in known[last]:
                        self.recovered += sum(row not in block.rows for row in rows)
                        return rows, [digest]
        return [], known.get(block.last) or [GENESIS]

    def _known_digests(self, block: Block) -> dict[int, list[bytes]]:
        """What the chain and the receipt say about rows of the block, by the last row that they cover."""
        known = {seq: list(self._digests[seq]) for seq in range(block.first, block.last + 1) if seq in self._digests}
        if block.stored is not None:
            known.setdefault(block.last, []).append(block.stored)
        if self._receipt is not None and block.first <= self._receipt.last_seq <= block.last:
            known.setdefault(self._receipt.last_seq, []).append(self._receipt.digest)
        return known

    def _versions(self, block: Block, seq: int) -> list[Row]:
        read = [row for row in block.rows if row[0] == seq]
        return read + [row for row in self._found.get(seq, []) if row not in read]

    def _unproved(self, block: Block, after: int) -> list[Row]:
        """The rows after the last proof that are whole and in order, and of which nothing says what they must be."""
        if any(seq > after for seq in self._known_digests(block)):
            return []
        rows: list[Row] = []
        for seq in range(after + 1, block.last + 1):
            versions = self._versions(block, seq)
            if not versions or not _is_readable(versions[0]):
                break
            rows.append(versions[0])
        self.unproved += len(rows)
        return rows


def _is_readable(row: Row) -> bool:
    try:
        event_from_row(row)
    except (IndexError, TypeError):
        return False
    return digest_or_none(GENESIS, [row], row[0], row[0]) is not None


@define
class _Rebuilding:
    """Writes kept rows, and a gap row for each that is lost."""

    journal: SyncJournal
    kept: int = field(init=False, default=0)
    lost: list[tuple[int, int]] = field(init=False, factory=list)
    _rows: list[Row] = field(init=False, factory=list)
    _run: int = field(init=False, default=1)
    _at_ms: float = field(init=False, default=0.0)
    _started: set[int] = field(init=False, factory=set)

    def add(self, rows: list[Row], first: int, last: int) -> None:
        """Take the kept rows of the numbers `first` to `last`."""
        self.kept += len(rows)
        by_seq = {row[0]: row for row in rows}
        for seq in range(first, last + 1):
            row = by_seq.get(seq)
            if row is None:
                self._lose(seq)
            else:
                self._keep(row)
        if len(self._rows) >= COMMIT_ROWS:
            self._write(keep_last=True)

    def _keep(self, row: Row) -> None:
        run = row[2]
        if row[9] != _RUN_STARTED and run not in self._started and self._rows and self._rows[-1][9] == _GAP:
            seq = self._rows[-1][0]
            begun = encode(RunStarted(run, f"unknown: {_LOST}", 0), None, None)
            self._rows[-1] = (seq, seq, run, None, None, None, 0.0, None, None, *begun)
        self._started.add(run)
        self._run, self._at_ms = run, row[6]
        self._rows.append(row)

    def _lose(self, seq: int) -> None:
        if self.lost and self.lost[-1][1] == seq - 1:
            self.lost[-1] = (self.lost[-1][0], seq)
        else:
            self.lost.append((seq, seq))
        gap = encode(Gap(1, _LOST), None, None)
        self._rows.append((seq, seq, self._run, None, None, None, self._at_ms, None, None, *gap))

    def _write(self, *, keep_last: bool) -> None:
        """Hand the rows on; the last stays, since the next may have to turn it into the beginning of its run."""
        rows, self._rows = (self._rows[:-1], self._rows[-1:]) if keep_last else (self._rows, [])
        self.journal.append_rows(rows)

    def finish(self) -> None:
        """Write the rest, and an end for a run that has none."""
        self._write(keep_last=False)
        self.journal.renumber()
        if self.journal.run_open:
            reason = "salvaged from a damaged journal"
            self.journal.end_run(EndState.INTERRUPTED, self.journal.last_at_ms, reason)
