"""The bytes that stand for a block of rows, and nothing else could.

A digest needs bytes that do not depend on Python, SQLite's encoding, JSON libraries or the order of commits. They are
written column by column, since a column can be packed by one call:

    block   = count (uint32), then each column of `COLUMNS` in order
    column  = form (1 byte), presence, values
    form    = 0: no row has a value; 1: all have; 2: some have, and `count` bytes 0 or 1 follow, row by row
    values  = of the rows that have one, in order: int64, or binary64, or for text the lengths in bytes (int64 each)
              and then the UTF-8 of all

Everything is little-endian. Columns that hold times are binary64, the payload is text, all others are int64.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, repeat
from operator import is_not
from typing import Any

from handoff.journal.event import COLUMNS
from handoff.journal.port import Row

_TEXT = "t"
_CODES = tuple("d" if name.startswith("at_") else _TEXT if name == "payload" else "q" for name in COLUMNS)
_NONE, _ALL, _SOME = b"\0", b"\1", b"\2"


@lru_cache(maxsize=256)
def _packer(code: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{code}")


def canonical_bytes(rows: Sequence[Row]) -> bytes:
    """The bytes of a block of rows.

    Args:
        rows: stored rows, at least one, all columns in the order of `COLUMNS`.

    Raises:
        struct.error, AttributeError, UnicodeEncodeError: a value has not the type of its column.
    """
    count = len(rows)
    parts = [count.to_bytes(4, "little")]
    for code, column in zip(_CODES, zip(*rows, strict=True), strict=True):
        parts.extend(_column(code, column, count))
    return b"".join(parts)


def _column(code: str, column: tuple[Any, ...], count: int) -> Sequence[bytes]:
    missing = column.count(None)
    if missing == count:
        return (_NONE,)
    form: tuple[bytes, ...] = (_ALL,)
    if missing:
        presence = bytes(map(is_not, column, repeat(None)))
        form = (_SOME, presence)
        column = tuple(compress(column, presence))
    if code is _TEXT:
        texts = [text.encode() for text in column]
        return (*form, _packer("q", len(texts)).pack(*map(len, texts)), *texts)
    return (*form, _packer(code, len(column)).pack(*column))
