"""A whole journal examined: which handoffs have findings, and what hangs together.

Four passes, none of which keeps rows: the screen reads all rows once and passes the plainly healthy handoffs; each
suspect is examined by itself; the rules over several handoffs look at what was kept of the suspects; and findings that
share handoffs become incidents with one root cause each.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from attrs import Factory, frozen

from handoff.journal.brief import brief_of
from handoff.journal.case import Case, case_of
from handoff.journal.chronicle import chronicles
from handoff.journal.event_source import EventSource
from handoff.journal.finding import Finding
from handoff.journal.findings import findings_in, link
from handoff.journal.fleet import Fleet
from handoff.journal.row_order import Observers
from handoff.journal.screen import Screen
from handoff.journal.terms import Kind


@frozen
class Examination:
    """What is wrong in a journal.

    Attributes:
        findings: all of them, each pointing to its incident's root cause.
        involved: by number the names of the handoffs that were examined or that a finding names.
        observers: the journal's sources, and what they could show.
    """

    findings: tuple[Finding, ...]
    involved: Mapping[int, str] = Factory(dict)
    observers: Observers = Factory(Observers)

    @property
    def root_causes(self) -> tuple[Finding, ...]:
        """The findings that follow from no other."""
        return tuple(finding for finding in self.findings if finding.consequence_of is None)

    def about(self, name: str) -> tuple[Finding, ...]:
        """The findings about a handoff, and the root causes that they follow from; links are within the answer."""
        chosen = [index for index, finding in enumerate(self.findings) if name in finding.handoffs]
        roots = {self.findings[index].consequence_of for index in chosen} - {None, *chosen}
        order = sorted([*chosen, *(root for root in roots if root is not None)])
        place = {index: new for new, index in enumerate(order)}
        return tuple(
            _pointed(self.findings[index], place.get(cause) if cause is not None else None)
            for index in order
            for cause in [self.findings[index].consequence_of]
        )


def _pointed(finding: Finding, cause: int | None) -> Finding:
    return Finding(
        finding.code, finding.certainty, finding.handoffs, finding.rows, finding.sentence, finding.fields, cause,
        finding.would_settle,
    )  # fmt: skip


def examine(
    source: EventSource,
    *,
    on_row: Callable[[int], None] | None = None,
    only: Collection[int] | None = None,
) -> Examination:
    """Examine a journal.

    Args:
        source: the journal.
        on_row: told the number of a row now and then, for a progress bar.
        only: numbers of handoffs that are examined even if they look healthy.
    """
    screen = Screen()
    screen.take_all(source, on_row)
    suspects = sorted({*screen.suspects(), *(only or ())})
    observers = observers_of(source)
    briefs = {}
    findings: list[Finding] = []
    for case in cases(source, suspects, observers):
        found = findings_in(case)
        findings.extend(found)
        briefs[case.chronicle.number] = brief_of(case, found)
    fleet = Fleet(source, briefs)
    between = list(fleet.findings())
    involved = {**fleet.others, **{number: briefs[number].name for number in suspects}}
    return Examination(link(_without_mere_ends(between, findings)), involved, observers)


def observers_of(source: EventSource) -> Observers:
    """The sources that a journal declares."""
    return Observers.of(source.events(kinds=(Kind.SOURCE_DECLARED.value,)))


def cases(source: EventSource, numbers: Iterable[int], observers: Observers) -> Iterator[Case]:
    """Prepare some handoffs for the rules, one after the other."""
    for chronicle in chronicles(source, map(source.handoff, numbers)):
        yield case_of(chronicle, observers)


def _without_mere_ends(between: list[Finding], within: list[Finding]) -> list[Finding]:
    """All findings; a mere bad end is left out where its handoff has part in something worse."""
    involved = {name for finding in between for name in finding.handoffs}
    ends = ("failed", "rejected", "canceled")
    return [*between, *(f for f in within if f.code not in ends or not involved.intersection(f.handoffs))]
