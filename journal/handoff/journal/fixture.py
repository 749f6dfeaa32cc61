"""Regression fixtures: a small history as event lines, and beside it what is to be found in it.

A fixture is one JSON object that people can read and review:

* ``format`` (1), ``id``, ``title``, ``setup``, ``verdict``: what it is and where it came from, for people;
* ``events``: the event lines; ``end_ms``: until when the history was observed;
* ``root_cause`` (a code or null) and ``consequences`` (codes, in order, each as often as it is found);
* ``completions`` by handoff: ``success``, ``canceled``, ``open:active`` or ``open:cleaning``;
* ``source_held``, ``destination_held``: block ids still held at the end, by handoff;
* ``pending``: unanswered actions of each open handoff, such as ``A3 ActivateDestination``.

Unknown keys are kept. What a fixture does not say is not compared; ``findings`` (codes that must be among all found) is
the loose form of ``root_cause`` and ``consequences``.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from handoff.journal.chronicle import Chronicle, chronicles
from handoff.journal.coordinator import Mode
from handoff.journal.event_source import EventList
from handoff.journal.examination import Examination, examine
from handoff.journal.importer import ImportReport, import_lines
from handoff.journal.ledger import Asset, HoldingState, ledger_at
from handoff.journal.line_files import Line
from handoff.journal.port import MemoryJournal

FIXTURE_FORMAT = 1
FIXTURE_SUFFIX = ".handoff.json"

_KNOWN_FORMATS = frozenset({1})


class FixtureUnreadable(Exception):
    """A file that is no fixture of a known format.

    Attributes:
        path: the file.
        reason: what is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


@frozen
class Fixture:
    """A history and what is to be found in it.

    Attributes:
        name: the file's name or the fixture's id.
        fields: everything the file holds.
    """

    name: str
    fields: Mapping[str, Any]

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """The event lines."""
        events: list[Mapping[str, Any]] = self.fields["events"]
        return events

    @property
    def expectations(self) -> dict[str, Any]:
        """What the fixture says is to be found."""
        return {key: self.fields[key] for key in _EXPECTATIONS if key in self.fields}


@frozen
class Observation:
    """What is found in a fixture's history, in the words of a fixture."""

    fields: Mapping[str, Any]
    examination: Examination
    journal: MemoryJournal
    report: ImportReport


@frozen
class Mismatch:
    """One thing that a fixture expects otherwise than it is found."""

    key: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        if isinstance(self.expected, Mapping) and isinstance(self.actual, Mapping):
            names = sorted({*self.expected, *self.actual})
            return "; ".join(
                f"{self.key} of handoff {name}: expected {self.expected.get(name)}, found {self.actual.get(name)}"
                for name in names
                if self.expected.get(name) != self.actual.get(name)
            )
        return f"{self.key}: expected {self.expected}, found {self.actual}"


def read_fixture(path: Path) -> Fixture:
    """A fixture file.

    Raises:
        FixtureUnreadable: it is no JSON object with events, or of an unknown format.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FixtureUnreadable(str(path), str(error)) from error
    if not isinstance(fields, dict) or not isinstance(fields.get("events"), list):
        raise FixtureUnreadable(str(path), "a fixture is a JSON object with a list of event lines under events")
    if fields.get("format", FIXTURE_FORMAT) not in _KNOWN_FORMATS:
        raise FixtureUnreadable(str(path), f"its format {fields['format']} is unknown; this handoff reads format 1")
    return Fixture(path.name.removesuffix(FIXTURE_SUFFIX).removesuffix(".json"), fields)


def write_fixture(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a fixture so that people can review it: one event a line."""
    head = {key: item for key, item in fields.items() if key != "events"}
    text = json.dumps({"format": FIXTURE_FORMAT, **head}, ensure_ascii=False, indent=1)
    events = ",\n".join("  " + json.dumps(event, ensure_ascii=False) for event in fields["events"])
    path.write_text(f'{text[:-2]},\n "events": [\n{events}\n ]\n}}\n', encoding="utf-8")


def observe(fixture: Fixture) -> Observation:
    """Import a fixture's history and look at it: findings, completions, what is held and what is pending."""
    return observe_lines(fixture.events, fixture.fields.get("end_ms"), fixture.name)


def observe_lines(events: Iterable[Mapping[str, Any]], end_ms: float | None = None, name: str = "") -> Observation:
    """Look at event lines in memory as `observe` does at a fixture's."""
    lines = [Line(name, number, event) for number, event in enumerate(events, start=1)]
    journal = MemoryJournal(run=0)
    report = import_lines({name: lines}, journal, end_ms=end_ms)
    source = EventList(journal.events)
    examination = examine(source)
    told = list(chronicles(source, source.handoffs()))
    fields = {
        **_causes(examination),
        "completions": {c.handoff_id: _completion(c) for c in told if c.core is not None},
        **_held(source, told),
        "pending": {c.handoff_id: _pending(c) for c in told if c.core is not None and c.core.mode is not Mode.COMPLETE},
    }
    return Observation(fields, examination, journal, report)


def check(fixture: Fixture) -> list[Mismatch]:
    """Everything that is found otherwise than the fixture expects; empty when it holds."""
    actual = observe(fixture).fields
    return [
        Mismatch(key, expected, found)
        for key, expected in fixture.expectations.items()
        for found in [actual[key]]
        if not _EXPECTATIONS[key](expected, found)
    ]


def _same(expected: Any, actual: Any) -> bool:
    return bool(expected == actual)


def _same_codes(expected: Any, actual: Any) -> bool:
    return Counter(expected) == Counter(actual)


def _among(expected: Any, actual: Any) -> bool:
    return set(expected) <= set(actual)


_EXPECTATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "root_cause": _same,
    "consequences": _same_codes,
    "findings": _among,
    "completions": _same,
    "source_held": _same,
    "destination_held": _same,
    "pending": _same,
}
"""What is compared, and how."""


def _causes(examination: Examination) -> dict[str, Any]:
    roots = [finding.code for finding in examination.root_causes]
    return {
        "root_cause": None if not roots else roots[0] if len(roots) == 1 else roots,
        "consequences": sorted(f.code for f in examination.findings if f.consequence_of is not None),
        "findings": sorted({finding.code for finding in examination.findings}),
    }


def _completion(chronicle: Chronicle) -> str:
    assert chronicle.core is not None
    if chronicle.completion is not None:
        return chronicle.completion
    return "open:cleaning" if chronicle.core.mode is Mode.CLEANING_UP else "open:active"


def _pending(chronicle: Chronicle) -> list[str]:
    assert chronicle.core is not None
    return [f"A{number} {name.value.title().replace('_', '')}" for number, name in chronicle.core.unanswered()]


def _held(source: EventList, told: list[Chronicle]) -> dict[str, Any]:
    names = {chronicle.number: chronicle.handoff_id for chronicle in told}
    held: dict[str, dict[str, list[int]]] = {"source_held": {}, "destination_held": {}}
    places = {Asset.SOURCE_KV: "source_held", Asset.DESTINATION_KV: "destination_held"}
    for holding in ledger_at(source).holdings():
        if holding.asset in places and holding.state is not HoldingState.POSSIBLE and holding.blocks is not None:
            held[places[holding.asset]][names[holding.handoff]] = list(holding.blocks)
    return held
