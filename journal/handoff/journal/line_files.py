"""Files of event lines, read for what they are worth: plain or gzip, whole or torn.

A file that was cut off, two writers' lines that ran together, bytes that are no text: each line is read for the objects
that it holds, and whatever is left over is reported with its file and line instead of ending the reading. A file may
also be one JSON object with its lines under ``events`` (a fixture).
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

_decoder = json.JSONDecoder()
_GZIP = b"\x1f\x8b"
_TELLING = ("at_ms", "at_min_ms", "source")
"""An object found in a torn line is an event line if it has one of these; else it is a piece of one."""
_SHOWN = 120
_LONGEST_WHOLE = 64 * 1024 * 1024


@frozen
class Line:
    """One event line as it stands in its file.

    Attributes:
        file: the file's name as it was given.
        number: its line, from 1 (of a fixture: its place among the events).
    """

    file: str
    number: int
    fields: Mapping[str, Any]


@frozen
class Unplaced:
    """Something in a file that could not become a row.

    Attributes:
        reason: what is wrong with it.
        text: how it begins.
    """

    file: str
    number: int
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.reason}: {self.text}"


class LinesUnreadable(Exception):
    """A file of event lines that cannot be opened.

    Attributes:
        path: which.
        reason: what the system says.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


def read_lines(path: str | Path) -> Iterator[Line | Unplaced]:
    """The objects of a file in order, with what could not be read in between.

    Raises:
        LinesUnreadable: the file cannot be opened or read.
    """
    name = str(path)
    try:
        with Path(path).open("rb") as probe:
            packed = probe.read(2) == _GZIP
        if not packed:
            events = _events_of_fixture(Path(path))
            if events is not None:
                yield from (_checked(name, number, item) for number, item in enumerate(events, start=1))
                return
        with gzip.open(path, "rb") if packed else Path(path).open("rb") as stream:
            yield from _lines(name, iter(stream))
    except OSError as error:
        raise LinesUnreadable(name, error.strerror or str(error)) from error


def _lines(name: str, stream: Iterator[bytes]) -> Iterator[Line | Unplaced]:
    number = 0
    while True:
        number += 1
        try:
            raw = next(stream)
        except StopIteration:
            return
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield Unplaced(name, number, "the compressed file ends too early or is damaged", str(error))
            return
        try:
            item = _decoder.decode(raw.decode())
        except ValueError:
            yield from _torn(name, number, raw)
            continue
        yield _checked(name, number, item)


def _checked(name: str, number: int, item: Any) -> Line | Unplaced:
    if isinstance(item, dict):
        return Line(name, number, item)
    return Unplaced(name, number, "it is JSON, but not an object", _shown(json.dumps(item)))


def _torn(name: str, number: int, raw: bytes) -> Iterator[Line | Unplaced]:
    """Every whole object in a line that is not one object, and one report for the rest."""
    text = raw.decode("utf-8", errors="replace").strip("\r\n\0 \t\ufeff")
    if not text:
        return
    left = []
    position = 0
    while position < len(text):
        brace = text.find("{", position)
        if brace < 0:
            left.append(text[position:])
            break
        try:
            item, end = _decoder.raw_decode(text, brace)
        except ValueError:
            following = text.find('{"', brace + 1)
            end = len(text) if following < 0 else following
            left.append(text[position:end])
        else:
            left.append(text[position:brace])
            if any(key in item for key in _TELLING):
                yield Line(name, number, item)
            else:
                left.append(text[brace:end])
        position = end
    remainder = " ".join(part.strip() for part in left if part.strip(" ,\t"))
    if remainder:
        yield Unplaced(name, number, "it is not a JSON object", _shown(remainder))


def _events_of_fixture(path: Path) -> list[Any] | None:
    """The events of a file that is one JSON object with a list of them, or None."""
    with path.open("rb") as stream:
        first = stream.readline(_LONGEST_WHOLE)
    start = first.strip()
    if not start.startswith(b"{") or (start.endswith(b"}") and b'"events"' not in start):
        return None
    if path.stat().st_size > _LONGEST_WHOLE:
        return None
    try:
        whole = json.loads(path.read_bytes())
    except ValueError:
        return None
    events = whole.get("events") if isinstance(whole, dict) else None
    return events if isinstance(events, list) else None


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
