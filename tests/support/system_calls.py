"""The writes, syncs and names of a child's files, as strace saw them."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from attrs import frozen

CALLS = "openat,pwrite64,write,ftruncate,fsync,fdatasync,unlink,rename"

_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)(?:<.*>)?$")
_FD = re.compile(r"^\d+<([^>]*)>")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@frozen
class Call:
    """One system call that succeeded.

    Attributes:
        name: of the call.
        path: the file.
        data: what was written.
        offset: where; None for an append.
        size: of a truncation.
        target: the new name of a renamed file.
    """

    name: str
    path: Path
    data: bytes = b""
    offset: int | None = None
    size: int = 0
    target: Path | None = None


def traced(code: str, *arguments: object, folder: Path, only: str = CALLS) -> list[Call]:
    """Run Python code under strace and give its calls on files in a folder, in order."""
    strace = shutil.which("strace")
    assert strace, "this test needs strace: apt-get install strace"
    trace = folder / "trace"
    subprocess.run(
        [strace, "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={only}", "-e", "signal=none", "-o", trace,
         sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        check=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    calls = (_parsed(line) for line in _whole_lines(trace.read_text().splitlines()))
    return [
        call for call in calls if call is not None and folder in (call.path, *call.path.parents) and call.path != trace
    ]


def _whole_lines(lines: list[str]) -> list[str]:
    """Put calls that another thread interrupted together again, at the place where they returned."""
    begun: dict[str, str] = {}
    whole = []
    for line in lines:
        thread = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>")
        elif "resumed>" in line:
            whole.append(begun.pop(thread) + line.split("resumed>", 1)[1])
        else:
            whole.append(line)
    return whole


def _unescaped(text: str) -> bytes:
    return bytes.fromhex("".join(_ESCAPE.findall(text)))


def _parsed(line: str) -> Call | None:
    match = _CALL.match(line.strip())
    if match is None or int(match[3]) < 0:
        return None
    name, arguments = match[1], match[2]
    if name in ("openat", "unlink", "rename"):
        paths = [Path(_unescaped(quoted).decode()) for quoted in re.findall(r'"([^"]*)"', arguments)]
        if name == "openat":
            return Call("create", paths[0]) if "O_CREAT" in arguments else None
        return Call(name, paths[0], target=paths[1] if name == "rename" else None)
    described = _FD.match(arguments)
    if described is None:
        return None
    shown = described[1]
    path = Path(_unescaped(shown).decode() if shown.startswith("\\x") else shown)
    if name in ("fsync", "fdatasync"):
        return Call(name, path)
    if name == "ftruncate":
        return Call(name, path, size=int(arguments.rsplit(",", 1)[1]))
    data = re.search(r'"([^"]*)"', arguments)
    assert data is not None
    offset = int(arguments.rsplit(",", 1)[1]) if name == "pwrite64" else None
    return Call(name, path, data=_unescaped(data[1]), offset=offset)
