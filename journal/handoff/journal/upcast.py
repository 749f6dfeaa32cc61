"""Reading what older versions wrote.

A file says its format version. Each version that can still be read has a function that makes a stored row of the next
version out of one of its own; a reader composes them up to the current version, and everything above sees current
rows only. A rule for those who change the format: words are only appended to `TERMS` (no new version is needed for
that), columns are only added, and a golden journal of every version stays in the tests.

Version 1 is the first, so the table is empty.
"""

from collections.abc import Callable
from functools import reduce

from handoff.journal.port import Row
from handoff.journal.schema import FORMAT_VERSION

Upcaster = Callable[[Row], Row]

UPCASTERS: dict[int, Upcaster] = {}
"""By version: what makes a row of the next version out of a row of this one."""


class UnknownVersion(Exception):
    """A file of a version that this code cannot read.

    Attributes:
        version: the file's version.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"its format is version {version}, and this handoff reads {readable_versions()}")


def readable_versions() -> str:
    """The versions that can be read, for people."""
    return ", ".join(map(str, sorted({*UPCASTERS, FORMAT_VERSION})))


def upcaster(version: int) -> Upcaster | None:
    """What makes current rows out of rows of a version; None when they are current.

    Raises:
        UnknownVersion: there is no way from that version to the current one.
    """
    if version == FORMAT_VERSION:
        return None
    steps: list[Upcaster] = []
    while version != FORMAT_VERSION:
        step = UPCASTERS.get(version)
        if step is None:
            raise UnknownVersion(version)
        steps.append(step)
        version += 1
    return lambda row: reduce(lambda older, step: step(older), steps, row)
