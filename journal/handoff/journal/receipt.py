"""The receipt: a small file beside the journal that says how far the journal had come.

SQLite cannot know that its last commits are gone: a database without its write-ahead log, or with one flipped byte in
it, is a sound older database. So after each commit returned, the writer notes the last row and the running digest in
``FILE-receipt``. The receipt is written without a sync; it may lag behind the journal, it never leads it (at
durability `full`). Two slots are written in turn, so that a torn write leaves the other. At a clean close it also takes
size and SHA-256 of the whole database file.

Slot g mod 2 begins at byte 4096 * (g mod 2) and holds, little-endian: magic (8 bytes), version (uint32), state
(uint32), generation g (uint64), last row (uint64), durability (uint32), zero (uint32), running digest (32 bytes), file
size (uint64), file digest (32 bytes), and SHA-256 over all that (32 bytes). Readers take the valid slot of the higher
generation.
"""

import errno
import os
import struct
from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from pathlib import Path

from attrs import frozen

from handoff.journal.chain import DIGEST_BYTES, GENESIS
from handoff.journal.errors import JournalUnreadable

_MAGIC = b"HNDFRCPT"
_VERSION = 1
_FIELDS = struct.Struct("<8sIIQQII32sQ32s")
_SLOT_BYTES = 4096
_READ_BYTES = 1 << 20


class Durability(Enum):
    """When a commit counts as durable.

    ``full``: it survives a power cut (the log is synced at each commit). ``normal``: it survives the end of the
    process, and a power cut may take the last commits. ``off``: nothing is ever synced.
    """

    OFF = "off"
    NORMAL = "normal"
    FULL = "full"


class ReceiptState(Enum):
    """What the writer was doing when it wrote the receipt."""

    RECORDING = 1
    CLOSED = 2
    FAILED = 3
    """A commit failed; nothing was written after it."""


_DURABILITY_CODE = {Durability.OFF: 0, Durability.NORMAL: 1, Durability.FULL: 2}
_CODE_DURABILITY: Mapping[int, Durability] = {code: level for level, code in _DURABILITY_CODE.items()}


@frozen
class Receipt:
    """How far a journal had come.

    Attributes:
        state: what the writer was doing.
        last_seq: the last committed row.
        digest: the running digest at that row.
        durability: the level that commits had.
        file_bytes: size of the database file after a clean close, else 0.
        file_digest: SHA-256 of the database file after a clean close, else zeros.
        generation: how many receipts were written before, over all runs.
    """

    state: ReceiptState
    last_seq: int
    digest: bytes
    durability: Durability
    file_bytes: int = 0
    file_digest: bytes = GENESIS
    generation: int = 0


def pack_receipt(receipt: Receipt) -> bytes:
    """The bytes of a slot."""
    content = _FIELDS.pack(
        _MAGIC, _VERSION, receipt.state.value, receipt.generation, receipt.last_seq,
        _DURABILITY_CODE[receipt.durability], 0, receipt.digest, receipt.file_bytes, receipt.file_digest,
    )  # fmt: skip
    return content + sha256(content).digest()


def unpack_receipt(slot: bytes) -> Receipt | None:
    """The receipt in a slot, or None when the slot is empty, torn or of another version."""
    content, checksum = slot[: _FIELDS.size], slot[_FIELDS.size : _FIELDS.size + DIGEST_BYTES]
    if len(content) < _FIELDS.size or sha256(content).digest() != checksum:
        return None
    magic, version, state, generation, last_seq, durability, _, digest, size, file_digest = _FIELDS.unpack(content)
    if magic != _MAGIC or version != _VERSION:
        return None
    return Receipt(
        ReceiptState(state), last_seq, digest, _CODE_DURABILITY[durability], size, file_digest, generation
    )  # fmt: skip


def receipt_path(journal: Path) -> Path:
    """Where a journal's receipt lies."""
    return journal.with_name(journal.name + "-receipt")


def read_receipt(journal: Path) -> Receipt | None:
    """The newest valid receipt of a journal, or None.

    Raises:
        OSError: the file is there but cannot be read.
    """
    path = receipt_path(journal)
    if path.exists() and not path.is_file():  # reading a pipe would wait for its other end
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = (unpack_receipt(content[start : start + _SLOT_BYTES]) for start in (0, _SLOT_BYTES))
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot.generation, default=None)


def receipt_as_evidence(journal: Path) -> Receipt | None:
    """The newest valid receipt of a journal that is examined, or None.

    Raises:
        JournalUnreadable: the receipt is there but cannot be read.
    """
    try:
        return read_receipt(Path(os.path.realpath(journal)))
    except OSError as error:
        reason = f"its receipt cannot be read ({error.strerror})"
        raise JournalUnreadable(journal, reason, "allow reading it") from error


def file_digest(path: Path) -> tuple[int, bytes]:
    """Size and SHA-256 of a file. Not for a database that this process has open: closing it drops SQLite's locks."""
    digest = sha256()
    size = 0
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
            size += len(part)
    return size, digest.digest()


class ReceiptFile:
    """Writes the receipts of one journal.

    Both slots are filled when it is opened, so later writes need no new space on the disk.
    """

    def __init__(self, journal: Path) -> None:
        self.path = receipt_path(journal)
        before = read_receipt(journal)
        self._generation = 0 if before is None else before.generation + 1
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def begin(self, receipt: Receipt, *, sync: bool) -> None:
        """Fill both slots before the first change of the database.

        Synced first, so that a power cut cannot leave the receipt of an earlier clean close beside a changed file.
        """
        self.write(receipt)
        self.write(receipt)
        if sync:
            os.fsync(self._file)

    def write(self, receipt: Receipt) -> None:
        """Write the next receipt (its generation is set here)."""
        generation = self._generation
        slot = pack_receipt(
            Receipt(
                receipt.state, receipt.last_seq, receipt.digest, receipt.durability,
                receipt.file_bytes, receipt.file_digest, generation,
            )
        )  # fmt: skip
        os.pwrite(self._file, slot, _SLOT_BYTES * (generation % 2))
        self._generation = generation + 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
