"""A verifier written from docs/journal-format.md alone, by somebody who has never seen the code.

It uses sqlite3 and hashlib, goes value by value where the journal packs whole columns, and imports nothing
of ours.
"""

import hashlib
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    "seq", "grp", "run", "handoff", "actor", "source", "at_ms", "at_min_ms", "at_max_ms", "kind", "name", "action_id",
    "outcome", "verdict", "cause", "rank", "generation", "attempt", "payload",
)  # fmt: skip
BINARY64 = {"at_ms", "at_min_ms", "at_max_ms"}


def canonical(rows: Sequence[Sequence[Any]]) -> bytes:
    """The bytes of a block."""
    out = struct.pack("<I", len(rows))
    for index, column in enumerate(COLUMNS):
        values = [row[index] for row in rows]
        present = [value for value in values if value is not None]
        if not present:
            out += b"\x00"
            continue
        if len(present) == len(values):
            out += b"\x01"
        else:
            out += b"\x02"
            for value in values:
                out += b"\x00" if value is None else b"\x01"
        if column == "payload":
            for text in present:
                out += struct.pack("<q", len(text.encode("utf-8")))
            for text in present:
                out += text.encode("utf-8")
        else:
            for value in present:
                out += struct.pack("<d" if column in BINARY64 else "<q", value)
    return out


def chain_of(rows: Sequence[Sequence[Any]]) -> dict[int, bytes]:
    """The digest after each whole block, and after the last row."""
    digests = {}
    before = bytes(32)
    for start in range(0, len(rows), 64):
        block = rows[start : start + 64]
        before = hashlib.sha256(before + canonical(block)).digest()
        digests[block[-1][0]] = before
    return digests


def receipts_of(path: Path) -> list[dict[str, Any]]:
    """The valid slots of a receipt, the newest last."""
    content = path.with_name(path.name + "-receipt").read_bytes()
    found = []
    for start in (0, 4096):
        slot = content[start : start + 144]
        said, checksum = slot[:112], slot[112:]
        if hashlib.sha256(said).digest() != checksum:
            continue
        magic, version, state, generation, last, durability, zero = struct.unpack("<8sIIQQII", said[:40])
        assert magic == b"HNDFRCPT"
        assert (version, zero) == (1, 0)
        found.append(
            {
                "state": {1: "recording", 2: "closed", 3: "failed"}[state],
                "generation": generation,
                "last_seq": last,
                "durability": ("off", "normal", "full")[durability],
                "digest": said[40:72],
                "file_bytes": struct.unpack("<Q", said[72:80])[0],
                "file_digest": said[80:112],
            }
        )
    return sorted(found, key=lambda slot: slot["generation"])


def verify(path: Path) -> str:
    """``sound``, or what is wrong first."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT * FROM row ORDER BY seq").fetchall()
        stored = dict(connection.execute("SELECT seq, digest FROM chain").fetchall())
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.close()
    if (application, version) != (0x484E4446, 1):
        return "no journal of version 1"
    if [row[0] for row in rows] != list(range(1, len(rows) + 1)):
        return "rows are missing"
    digests = chain_of(rows)
    for seq, digest in digests.items():
        if seq % 64 == 0 and stored.get(seq) != digest:
            return f"rows {seq - 63} to {seq} differ"
    receipt = receipts_of(path)[-1]
    if receipt["last_seq"] != len(rows) or receipt["digest"] != digests[len(rows)]:
        return "the receipt differs"
    content = path.read_bytes()
    if receipt["state"] != "closed":
        return "it was not closed"
    if (len(content), hashlib.sha256(content).digest()) != (receipt["file_bytes"], receipt["file_digest"]):
        return "the file differs"
    return "sound"
