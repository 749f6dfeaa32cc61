"""The digest chain over the rows.

Rows are cut into blocks of 64 by their numbers: rows 1 to 64, 65 to 128, and so on. The digest of a block is SHA-256
over the digest before it and the block's canonical bytes; before the first block stand 32 zero bytes. Since blocks are
cut by number, the same rows have the same chain however their commits were grouped, and a hash costs a row a
hundredth of a microsecond instead of one.

The *running* digest covers all rows so far: that of the last whole block, or the digest that the begun block would
have if it ended here. It goes into the receipt after each commit and into the table ``chain`` at a clean close.

SHA-256 was chosen over faster digests because every language has it; the rows' bytes cost ten times the hash.
"""

from collections.abc import Sequence
from hashlib import sha256

from attrs import Factory, define

from handoff.journal.canonical import canonical_bytes
from handoff.journal.port import Row

BLOCK_ROWS = 64
DIGEST_BYTES = 32
GENESIS = bytes(DIGEST_BYTES)
"""What stands before the first block."""


def block_digest(before: bytes, rows: Sequence[Row]) -> bytes:
    """The digest of a block (or of its begun part) after the digest of the block before it."""
    return sha256(before + canonical_bytes(rows)).digest()


@define
class Chain:
    """Follows the rows of a journal and gives the digests.

    Attributes:
        head: digest of the last whole block.
        begun: the rows since then, fewer than `BLOCK_ROWS`.
    """

    head: bytes = GENESIS
    begun: list[Row] = Factory(list)

    def extend(self, rows: Sequence[Row]) -> list[tuple[int, bytes]]:
        """Take the next rows; gives number and digest of the last row of each block that they complete."""
        entries: list[tuple[int, bytes]] = []
        begun = self.begun
        start = BLOCK_ROWS - len(begun)
        if len(rows) < start:
            begun.extend(rows)
            return entries
        block: Sequence[Row] = (*begun, *rows[:start])
        while len(block) == BLOCK_ROWS:
            self.head = block_digest(self.head, block)
            entries.append((block[-1][0], self.head))
            block = rows[start : start + BLOCK_ROWS]
            start += BLOCK_ROWS
        self.begun = list(block)
        return entries

    def running(self) -> bytes:
        """The digest over all rows so far."""
        return block_digest(self.head, self.begun) if self.begun else self.head
