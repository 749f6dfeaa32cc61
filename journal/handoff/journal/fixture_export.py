"""From an incident in a journal to a fixture, or to a Python test, that shows it again."""

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from handoff.journal.chronicle import run_spans
from handoff.journal.event_source import EventSource
from handoff.journal.examination import Examination, examine
from handoff.journal.excerpt import excerpt
from handoff.journal.finding import Finding
from handoff.journal.finding_codes import CODES
from handoff.journal.fixture import observe_lines


class FixtureRefused(Exception):
    """An incident that cannot be made into a fixture as asked.

    Attributes:
        reason: why, and what would do.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@frozen
class Incident:
    """A finding of a journal, with the history that shows it.

    Attributes:
        finding: what is to be shown.
        lines: the handoffs that it is about, as event lines.
        end_ms: until when they were observed.
    """

    finding: Finding
    lines: list[dict[str, Any]]
    end_ms: float


def incident_of(
    source: EventSource, *, code: str | None = None, handoff: int | None = None, examined: Examination | None = None
) -> Incident:
    """The history of one finding of a journal.

    Args:
        source: the journal.
        code: the finding's code; by default the root cause.
        handoff: number of a handoff that it is about; by default any.
        examined: the journal's examination, where it is there already.

    Raises:
        FixtureRefused: there is no such finding, or its handoffs alone do not show it.
    """
    examined = examine(source, only=() if handoff is None else (handoff,)) if examined is None else examined
    finding = _chosen(examined, code, None if handoff is None else examined.involved.get(handoff))
    numbers = [number for number, name in examined.involved.items() if name in finding.handoffs]
    lines = excerpt(source, numbers)
    runs = {event.run for number in numbers for event in source.events(handoff=number)}
    until_ms = max((span.until_ms for run, span in run_spans(source).items() if run in runs), default=0.0)
    found = observe_lines(lines, until_ms).examination.findings
    if finding.code not in [each.code for each in found]:
        reason = f"{finding.code} rests on rows that event lines do not tell; export the journal whole instead"
        raise FixtureRefused(reason)
    return Incident(finding, lines, until_ms)


def _chosen(examined: Examination, code: str | None, name: str | None) -> Finding:
    candidates = [
        finding
        for finding in examined.findings
        if finding.handoffs
        and (finding.consequence_of is None if code is None else finding.code == code)
        and (name is None or name in finding.handoffs)
    ]
    if not candidates:
        there = ", ".join(sorted({finding.code for finding in examined.findings})) or "nothing"
        raise FixtureRefused(f"there is no such finding; found: {there}")
    if len({finding.code for finding in candidates}) > 1:
        choice = "; ".join(f"{f.code} of {f.handoffs[0]}" for f in candidates[:8])
        raise FixtureRefused(f"there are several: {choice}; name a handoff or a code")
    return candidates[0]


def fixture_fields(
    incident: Incident, lines: list[dict[str, Any]] | None = None, name: str | None = None
) -> dict[str, Any]:
    """A fixture that shows an incident, with everything that is found in it as its expectations.

    Args:
        incident: the incident.
        lines: its history made smaller, if it was.
        name: the fixture's id; by default the finding's code.
    """
    events = incident.lines if lines is None else lines
    end_ms = incident.end_ms if lines is None else None
    observed = observe_lines(events, end_ms).fields
    fields: dict[str, Any] = {
        "id": name or incident.finding.code,
        "title": CODES[incident.finding.code].title,
        "verdict": incident.finding.sentence.partition(" [#")[0],
    }
    if end_ms is not None:
        fields["end_ms"] = end_ms
    expectations = {key: item for key, item in observed.items() if key != "findings"}
    return {**fields, **expectations, "events": events}


def as_python_test(fields: Mapping[str, Any]) -> str:
    """A fixture as a Python test that needs no file beside it."""
    name = "".join(character if character.isalnum() else "_" for character in fields["id"]).strip("_").lower()
    name = name.removeprefix("test_")
    events = "\n".join(f"    {json.loads(json.dumps(event))!r}," for event in fields["events"])
    roots = fields["root_cause"] if isinstance(fields["root_cause"], list) else [fields["root_cause"]]
    return f'''"""{fields["title"].capitalize()}: {fields["verdict"]}."""

from handoff.journal.fixture import observe_lines

EVENTS = [
{events}
]


def test_{name}_is_found():
    observed = observe_lines(EVENTS, end_ms={fields.get("end_ms")!r})
    assert observed.report.unplaced == ()
    assert [finding.code for finding in observed.examination.root_causes] == {roots!r}
    assert observed.fields["consequences"] == {fields["consequences"]!r}
    assert observed.fields["completions"] == {fields["completions"]!r}
'''
