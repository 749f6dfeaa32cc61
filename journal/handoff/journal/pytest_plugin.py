"""Pytest collects fixtures: each ``*.handoff.json`` is a test that its history is found as it says.

A failure speaks of handoffs and findings instead of rows. ``--handoff-accept`` writes what is found into the files that
fail, and says what changed in their meaning.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handoff.journal.fixture import (
    FIXTURE_SUFFIX,
    FixtureUnreadable,
    Mismatch,
    check,
    observe,
    read_fixture,
    write_fixture,
)


class FixtureFailed(Exception):
    """A fixture whose history is found otherwise than it says.

    Attributes:
        mismatches: what differs.
    """

    def __init__(self, mismatches: list[Mismatch]) -> None:
        self.mismatches = mismatches
        super().__init__("; ".join(map(str, mismatches)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that accepts what is found."""
    group = parser.getgroup("handoff", "handoff fixtures")
    text = "write what is found into fixtures that fail, and say what changed"
    group.addoption("--handoff-accept", action="store_true", help=text)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the fixtures."""
    if file_path.name.endswith(FIXTURE_SUFFIX):
        return FixtureFile.from_parent(parent, path=file_path)
    return None


class FixtureFile(pytest.File):
    """A file with one fixture."""

    def collect(self) -> Iterator[pytest.Item]:
        """The fixture, as a test of its file's name."""
        yield FixtureItem.from_parent(self, name=self.path.name.removesuffix(FIXTURE_SUFFIX))


class FixtureItem(pytest.Item):
    """The test that a fixture's history is found as it says."""

    def runtest(self) -> None:
        """Check the fixture, or accept what is found."""
        fixture = read_fixture(self.path)
        mismatches = check(fixture)
        if not mismatches:
            return
        if not self.config.getoption("--handoff-accept"):
            raise FixtureFailed(mismatches)
        found = observe(fixture).fields
        fields = dict(fixture.fields)
        fields.update((mismatch.key, found[mismatch.key]) for mismatch in mismatches)
        write_fixture(self.path, fields)
        self.add_report_section("call", "handoff", "accepted: " + "; ".join(map(str, mismatches)))
        self.config.stash.setdefault(_ACCEPTED, []).append((self.nodeid, mismatches))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What differs, a line each."""
        if isinstance(excinfo.value, FixtureFailed):
            title = read_fixture(self.path).fields.get("title", self.name)
            return "\n".join([f"{self.name}: {title}", *(f"  {mismatch}" for mismatch in excinfo.value.mismatches)])
        if isinstance(excinfo.value, FixtureUnreadable):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test stands."""
        return self.path, None, f"fixture {self.name}"


_ACCEPTED: pytest.StashKey[list[tuple[str, list[Mismatch]]]] = pytest.StashKey()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was accepted."""
    accepted = config.stash.get(_ACCEPTED, [])
    if accepted:
        terminalreporter.section("accepted fixtures")
        for name, mismatches in accepted:
            terminalreporter.line(f"{name}: " + "; ".join(map(str, mismatches)))
