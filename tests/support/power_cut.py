"""Disks as a power cut leaves them, rebuilt from the system calls of a writer.

The model is the pessimistic reading of POSIX. What was written to a file before its last sync is on the disk. Of what
was written later, any pieces of 4 KiB may be there, and each of them may be torn at a sector. Names (of created,
renamed and removed files) are on the disk once their folder was synced; of later changes any first part may be.
"""

import random
from collections.abc import Iterable
from pathlib import Path

from attrs import Factory, define
from system_calls import Call

_PIECE_BYTES = 4096
_SECTOR_BYTES = 512


@define(eq=False)
class _File:
    """What a file holds on the disk, and the writes that are on their way: offset and data, or a size to cut to."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = Factory(list)
    size: int = 0

    def write(self, offset: int, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            self.pending.append((offset + start, data[start : start + _PIECE_BYTES]))
        self.size = max(self.size, offset + len(data))

    def cut_to(self, size: int) -> None:
        self.pending.append((size, None))
        self.size = size

    def sync(self) -> None:
        self.durable = _applied(self.durable, self.pending)
        self.pending = []

    def after_power_cut(self, draw: random.Random) -> bytes:
        """The file with some of the pending pieces, some of them torn."""
        share = draw.choice((0.0, 0.5, 0.9, 1.0))
        kept: list[tuple[int, bytes | None]] = []
        for offset, data in self.pending:
            if draw.random() >= share:
                continue
            torn = data is not None and len(data) > _SECTOR_BYTES and draw.random() < 0.2
            kept.append((offset, data[: draw.randrange(0, len(data), _SECTOR_BYTES)] if torn and data else data))
        return _applied(self.durable, kept)


def _applied(content: bytes, writes: Iterable[tuple[int, bytes | None]]) -> bytes:
    image = bytearray(content)
    for offset, data in writes:
        if data is None:
            del image[offset:]
            image.extend(bytes(offset - len(image)))
            continue
        image.extend(bytes(max(0, offset + len(data) - len(image))))
        image[offset : offset + len(data)] = data
    return bytes(image)


Names = dict[Path, _File]


@define
class Disk:
    """A folder under a writer's calls.

    Attributes:
        folder: where the writer's files are.
    """

    folder: Path
    _names: Names = Factory(dict)
    _durable_names: Names = Factory(dict)
    _pending_names: list[Names] = Factory(list)

    def take(self, call: Call) -> None:
        """Carry out one call."""
        match call.name:
            case "create":
                if call.path not in self._names:
                    self._rename({**self._names, call.path: _File()})
            case "unlink":
                self._rename({path: file for path, file in self._names.items() if path != call.path})
            case "rename":
                assert call.target is not None
                moved = {path: file for path, file in self._names.items() if path != call.path}
                self._rename({**moved, call.target: self._names[call.path]})
            case "pwrite64":
                assert call.offset is not None
                self._names[call.path].write(call.offset, call.data)
            case "write":
                self._names[call.path].write(self._names[call.path].size, call.data)
            case "ftruncate":
                self._names[call.path].cut_to(call.size)
            case "fsync" | "fdatasync" if call.path == self.folder:
                self._durable_names = self._names
                self._pending_names = []
            case "fsync" | "fdatasync":
                self._names[call.path].sync()
            case name:
                raise AssertionError(f"a call that the model does not know: {name}")

    def _rename(self, names: Names) -> None:
        self._names = names
        self._pending_names.append(names)

    def after_power_cut(self, draw: random.Random) -> dict[str, bytes]:
        """The files, by name, that may be on the disk if the power is cut now."""
        names = draw.choice([self._durable_names, *self._pending_names])
        return {path.name: file.after_power_cut(draw) for path, file in sorted(names.items())}
