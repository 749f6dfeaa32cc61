"""Handoffs of a journal that is still being written, each as soon as it has ended.

A handoff has ended when every session that it started has, or, where it never had one, when its coordinator completed
or it was kept out. What is still open when the run's last row comes is given then.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from handoff.journal.chronicle import Chronicle, chronicle_of
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource, HandoffDeclaration
from handoff.journal.handoff_list import HandoffSummary, summary_of
from handoff.journal.terms import Kind
from handoff.journal.vocabulary import ActionName, Side

_TELLING = tuple(
    kind.value
    for kind in (
        Kind.HANDOFF_OPENED, Kind.SESSION_ENDED, Kind.ACTION_ISSUED, Kind.REJECTED, Kind.PERMIT_REFUSED, Kind.RUN_ENDED,
    )
)  # fmt: skip


class FollowedSource(EventSource, Protocol):
    """A journal that can be read while it grows, such as `JournalReader`."""

    def follow(self, *, after: int = 0, wait: Callable[[], bool], kinds: tuple[str, ...]) -> Iterator[Event]:
        """The rows after one, then those that are appended, until `wait` says to stop."""
        ...

    def handoff(self, number: int) -> HandoffDeclaration:
        """One handoff by its number."""
        ...


def handoffs_as_they_end(
    source: FollowedSource, wait: Callable[[], bool], *, failed: bool = False, run: int | None = None
) -> Iterator[HandoffSummary]:
    """Give each handoff once, in the order in which they end.

    Args:
        source: the journal.
        wait: called when all rows were read; waits a while, and returns False to stop.
        failed: only those that failed on any side.
        run: only those of one run.
    """
    waiting: dict[int, None] = {}
    over = False

    def wait_for_more() -> bool:
        return not over and wait()

    def over_by_now(number: int) -> bool:
        return has_ended(chronicle_of(source, source.handoff(number)))

    def due(number: int) -> Iterator[HandoffSummary]:
        del waiting[number]
        summary = summary_of(chronicle_of(source, source.handoff(number)))
        if (run is None or summary.run == run) and (summary.failed or not failed):
            yield summary

    for event in source.follow(wait=wait_for_more, kinds=_TELLING):
        over = event.kind == Kind.RUN_ENDED and event.seq == source.last_seq
        if event.kind == Kind.RUN_ENDED:
            for number in list(waiting):
                yield from due(number)
        elif event.handoff is None:
            continue
        elif event.kind == Kind.HANDOFF_OPENED:
            waiting[event.handoff] = None
        elif event.handoff in waiting and _tells_an_end(event) and over_by_now(event.handoff):
            yield from due(event.handoff)
    for number in list(waiting):
        yield from due(number)


def _tells_an_end(event: Event) -> bool:
    return event.kind != Kind.ACTION_ISSUED or event.name == ActionName.COMPLETE


def has_ended(chronicle: Chronicle) -> bool:
    """Whether every session of a handoff has ended; without sessions, whether it has an end of its own."""
    sides = [side for side in Side if chronicle.session_of(side)]
    if sides:
        return all(chronicle.end_of(side) is not None for side in sides)
    return not summary_of(chronicle).open
