"""The rows of a file block by block, each with what the digest chain says about it.

The chain does not only say that something changed, it says where. A block's digest follows from the digest stored for
the block before it, so a damaged block does not take the later ones with it. When a stored digest itself is damaged,
the next block matches the digest that was *computed* here; then the rows are proved and only the entry is wrong. That
is why a block is given out only after the next one was read.

``verify`` and ``salvage`` read a file this way; what they do with the answer differs.
"""

import sqlite3
import struct
from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum

from attrs import evolve, frozen

from handoff.journal.chain import BLOCK_ROWS, GENESIS, block_digest
from handoff.journal.port import Row
from handoff.journal.read_only import SQLITE_ERRORS

_PIECE_ROWS = 64 * BLOCK_ROWS


class Proof(Enum):
    """What the chain says about a block."""

    PROVED = "proved"
    ENTRY_DAMAGED = "entry_damaged"
    """The rows are proved by the block after; their own digest in the file is missing or wrong."""
    UNPROVED = "unproved"
    """The last block, not yet whole: the chain says nothing, perhaps the receipt does."""
    DAMAGED = "damaged"


@frozen
class Block:
    """Up to 64 rows.

    Attributes:
        first: number of its first row.
        last: number of its last row: a multiple of 64, or the last row of the file.
        rows: what could be read.
        error: why rows could not be read, or None.
        before: the digest of the block before.
        stored: the digest in the file, or None.
        proof: what the chain says.
    """

    first: int
    last: int
    rows: list[Row]
    error: str | None
    before: bytes
    stored: bytes | None
    proof: Proof

    def digest_at(self, seq: int) -> bytes | None:
        """The running digest at one of its rows; None when rows up to it are missing or of a wrong type."""
        return digest_or_none(self.before, self.rows[: seq - self.first + 1], self.first, seq)


def digest_or_none(before: bytes, rows: list[Row], first: int, last: int) -> bytes | None:
    """The digest of the rows `first` to `last`; None when they are not these, or a value has a wrong type."""
    if len(rows) != last - first + 1 or [row[0] for row in rows] != list(range(first, last + 1)):
        return None
    try:
        return block_digest(before, rows)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError):
        return None


def last_plausible_seq(connection: sqlite3.Connection) -> int:
    """The last row's number; a damaged one is not taken for more rows than the file has bytes."""
    (last_seq,) = connection.execute("SELECT coalesce(max(seq), 0) FROM row").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    return max(0, min(int(last_seq), int(pages * page_bytes)))


def read_blocks(connection: sqlite3.Connection, last_seq: int) -> Iterator[Block]:
    """The blocks of a file up to the row that should be its last, in bounded memory."""
    befores = [GENESIS]
    pending: Block | None = None
    for first, last, rows, error, stored in _raw_blocks(connection, last_seq):
        digests = [digest_or_none(before, rows, first, last) for before in befores]
        if stored is not None and stored in digests:
            proof, at = Proof.PROVED, digests.index(stored)
        else:
            begun = stored is None and last % BLOCK_ROWS and error is None and digests[0] is not None
            proof, at = (Proof.UNPROVED if begun else Proof.DAMAGED), 0
        if pending is not None:
            if at == 1:
                pending = evolve(pending, proof=Proof.ENTRY_DAMAGED)
            yield pending
        pending = Block(first, last, rows, error, befores[at], stored, proof)
        befores = [digest for digest in dict.fromkeys((stored, digests[at])) if digest is not None] or [GENESIS]
    if pending is not None:
        yield pending


_RawBlock = tuple[int, int, list[Row], str | None, bytes | None]


def _raw_blocks(connection: sqlite3.Connection, last_seq: int) -> Iterator[_RawBlock]:
    """First and last number, rows, error and stored digest of each block; rows are read by many blocks at once."""
    start = 1
    while start <= last_seq:
        end = min(start + _PIECE_ROWS - 1, last_seq)
        digests = _digests(connection, start, end)
        piece, error = _rows(connection, start, end)
        if error is not None:
            for first in range(start, end + 1, BLOCK_ROWS):
                last = min(first + BLOCK_ROWS - 1, end)
                yield first, last, *_rows(connection, first, last), digests.get(last)
        elif piece or digests:
            for first in range(start, end + 1, BLOCK_ROWS):
                last = min(first + BLOCK_ROWS - 1, end)
                at, upto = (bisect_left(piece, (seq,)) for seq in (first, last + 1))
                yield first, last, piece[at:upto], None, digests.get(last)
        else:
            end = _end_of_gap(connection, end, last_seq)
            yield start, end, [], None, None
        start = end + 1


def _end_of_gap(connection: sqlite3.Connection, after: int, last_seq: int) -> int:
    """The last row of the whole blocks that are missing: a damaged number may lie billions ahead."""
    (found,) = connection.execute("SELECT min(seq) FROM row WHERE seq > ?", (after,)).fetchone()
    return last_seq if found is None else (found - 1) // BLOCK_ROWS * BLOCK_ROWS


def _rows(connection: sqlite3.Connection, first: int, last: int) -> tuple[list[Row], str | None]:
    query = "SELECT * FROM row WHERE seq BETWEEN ? AND ? ORDER BY seq"
    try:
        return connection.execute(query, (first, last)).fetchall(), None
    except SQLITE_ERRORS as error:
        return [], str(error)


def _digests(connection: sqlite3.Connection, first: int, last: int) -> dict[int, bytes]:
    query = "SELECT seq, digest FROM chain WHERE seq BETWEEN ? AND ?"
    try:
        found = connection.execute(query, (first, last)).fetchall()
    except SQLITE_ERRORS:
        return {}
    return {seq: digest for seq, digest in found if isinstance(digest, bytes)}
