"""Which of two rows came first, as far as anybody can know.

Rows of one source are in true order, and so are the rows of a journal that names no sources. Rows of two sources are
ordered when the intervals in which their times lie do not overlap. Else nobody knows, and a rule that needs to know may
only say *possible*.
"""

from collections.abc import Iterable

from attrs import Factory, define

from handoff.journal.declarations import SourceDeclared
from handoff.journal.event import Event
from handoff.journal.finding import Certainty
from handoff.journal.row_codec import decode
from handoff.journal.terms import Kind


def before(one: Event, other: Event) -> bool | None:
    """Whether `one` came before `other`; None when their times and sources do not say."""
    if one.source == other.source:
        return one.seq < other.seq
    if _latest(one) < _earliest(other):
        return True
    if _latest(other) < _earliest(one):
        return False
    return None


def certainty_of(*known: bool | None) -> Certainty | None:
    """How sure all of some comparisons are: None when one of them does not hold."""
    if any(answer is False for answer in known):
        return None
    return Certainty.PROVED if all(known) else Certainty.POSSIBLE


def _earliest(event: Event) -> float:
    return event.at_ms if event.at_min_ms is None else event.at_min_ms


def _latest(event: Event) -> float:
    return event.at_ms if event.at_max_ms is None else event.at_max_ms


@define
class Observers:
    """The sources of a journal, and what each of them could have shown."""

    declared: dict[int, SourceDeclared] = Factory(dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Observers":
        """The observers that some `source_declared` rows declare."""
        found = (event for event in events if event.kind == Kind.SOURCE_DECLARED and event.source is not None)
        return cls({event.source: decode(event) for event in found if event.source is not None})

    def could_show(self, word: str) -> bool:
        """Whether a row of this kind would have been seen by somebody.

        Args:
            word: the name of a fact, action, outcome or resource.
        """
        if not self.declared:
            return True
        return any(source.observes is None or word in source.observes for source in self.declared.values())

    def clock_of(self, event: Event) -> str | None:
        """The clock of a row's time, where its source says."""
        source = self.declared.get(-1 if event.source is None else event.source)
        return None if source is None else source.clock
