"""Rows found in a file's raw pages, where SQLite cannot or will not reach them.

SQLite finds a row by walking a tree from a page that the schema names. One damaged byte in the schema or in an inner
page hides every row below it; one in the write-ahead log hides everything after it. The rows' own pages are mostly
still there. This module reads every page of the database file and every frame of its log by itself, and gives whatever
looks like a row of ``row`` or a line of ``chain``. It judges nothing: a row may come several times, older or damaged;
the digest chain decides.

The format is that of sqlite.org/fileformat2.html: table leaf pages (2.1), the record format (2.1), overflow pages
(1.6), and the write-ahead log (4.1).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field

from handoff.journal.chain import DIGEST_BYTES
from handoff.journal.event import COLUMNS
from handoff.journal.port import Row

_FILE_HEADER_BYTES = 100
_WAL_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_LEAF = 0x0D
_LEAF_HEADER_BYTES = 8
_PAGE_SIZES = tuple(1 << exponent for exponent in range(9, 17))
_REAL_COLUMNS = frozenset(index for index, name in enumerate(COLUMNS) if name.startswith("at_"))


@define
class PageScan:
    """Everything that looks like a row or a digest in the pages of a file and its log.

    Attributes:
        database: content of the database file.
        log: content of its write-ahead log, empty when there is none.
        page_bytes: the page size.
    """

    database: bytes
    log: bytes
    page_bytes: int
    _latest: dict[int, bytes] = field(init=False, factory=dict)

    @classmethod
    def read(cls, path: Path) -> "PageScan":
        """Read a file and its log into memory."""
        database = path.read_bytes()
        log_path = path.with_name(path.name + "-wal")
        log = log_path.read_bytes() if log_path.exists() else b""
        scans = (cls(database, log, size) for size in _page_sizes(database, log))
        return next((scan for scan in scans if any(scan.rows())), cls(database, log, _PAGE_SIZES[0]))

    def rows(self) -> Iterator[Row]:
        """Whatever looks like a row of ``row``, in the order of the pages."""
        for rowid, values in self._records():
            if len(values) == len(COLUMNS) and values[0] is None and isinstance(values[9], int):
                row = [rowid, *values[1:]]
                for index in _REAL_COLUMNS:
                    if isinstance(row[index], int):  # SQLite stores a whole REAL as an integer
                        row[index] = float(row[index])
                yield tuple(row)

    def digests(self) -> Iterator[tuple[int, bytes]]:
        """Whatever looks like a line of ``chain``."""
        for rowid, values in self._records():
            if len(values) == 2 and isinstance(values[1], bytes) and len(values[1]) == DIGEST_BYTES:
                yield rowid, values[1]

    def _pages(self) -> Iterator[tuple[int, bytes]]:
        size = self.page_bytes
        for start in range(0, len(self.database), size):
            yield start // size + 1, self.database[start : start + size]
        for start in range(_WAL_HEADER_BYTES, len(self.log), size + _FRAME_HEADER_BYTES):
            number = int.from_bytes(self.log[start : start + 4], "big")
            yield number, self.log[start + _FRAME_HEADER_BYTES : start + _FRAME_HEADER_BYTES + size]

    def _records(self) -> Iterator[tuple[int, list[Any]]]:
        self._latest = dict(self._pages())
        for number, page in self._pages():
            start = _FILE_HEADER_BYTES if number == 1 else 0
            if len(page) != self.page_bytes or page[start] != _LEAF:
                continue
            cells = int.from_bytes(page[start + 3 : start + 5], "big")
            for index in range(min(cells, self.page_bytes // 4)):
                at = start + _LEAF_HEADER_BYTES + 2 * index
                record = self._cell(page, int.from_bytes(page[at : at + 2], "big"))
                if record is not None:
                    yield record

    def _cell(self, page: bytes, at: int) -> tuple[int, list[Any]] | None:
        try:
            size, at = _varint(page, at)
            rowid, at = _varint(page, at)
            return _signed(rowid), _values(self._payload(page, at, size))
        except (IndexError, ValueError, KeyError, struct.error):  # no cell, or a damaged one
            return None

    def _payload(self, page: bytes, at: int, size: int) -> bytes:
        usable = self.page_bytes
        if size > usable * len(self._latest):
            raise ValueError("longer than the file")
        if size <= usable - 35:
            return page[at : at + size]
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        if local > usable - 35:
            local = least
        parts = [page[at : at + local]]
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        left = size - local
        while left > 0:
            overflow = self._latest[following]
            parts.append(overflow[4 : 4 + min(left, usable - 4)])
            following = int.from_bytes(overflow[:4], "big")
            left -= usable - 4
        return b"".join(parts)


def _page_sizes(database: bytes, log: bytes) -> Iterator[int]:
    """The page sizes that may be right: the file header's, the log's and, since both may be damaged, all others."""
    said = int.from_bytes(database[16:18], "big")
    likely = (65536 if said == 1 else said, int.from_bytes(log[8:12], "big"))
    yield from dict.fromkeys(size for size in (*likely, *_PAGE_SIZES) if size in _PAGE_SIZES)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def _values(payload: bytes) -> list[Any]:
    """The values of a record.

    Raises:
        ValueError, IndexError, struct.error: it is none.
    """
    header_bytes, at = _varint(payload, 0)
    body = header_bytes
    values: list[Any] = []
    while at < header_bytes:
        code, at = _varint(payload, at)
        value, body = _value(code, payload, body)
        values.append(value)
    if body != len(payload) or at != header_bytes:
        raise ValueError("no record")
    return values


def _value(code: int, payload: bytes, at: int) -> tuple[Any, int]:
    if code == 0:
        return None, at
    if code in (8, 9):
        return code - 8, at
    if code == 7:
        return struct.unpack(">d", payload[at : at + 8])[0], at + 8
    size = _INTEGER_BYTES[code] if code in _INTEGER_BYTES else (code - 12) // 2
    data = payload[at : at + size]
    if code in (10, 11) or len(data) != size:
        raise ValueError("no value")
    if code in _INTEGER_BYTES:
        return int.from_bytes(data, "big", signed=True), at + size
    return (data.decode() if code % 2 else data), at + size
