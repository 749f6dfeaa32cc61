"""The handoffs of a journal, one line each: who, how long, how each side ended, and what failed.

The end of a handoff is its source side's end; where it never had a session, its coordinator's ``complete``, or the row
that kept it out. The two sides may end differently (a peer that dies after the last frame was sent), and then the line
says so.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import frozen

from handoff.journal.chronicle import Chronicle, chronicles
from handoff.journal.event_source import EventSource, HandoffDeclaration
from handoff.journal.terms import EndState
from handoff.journal.trigger import trigger_of
from handoff.journal.vocabulary import ActionName, Completion, Side


@frozen
class HandoffSummary:
    """One handoff in a line.

    Attributes:
        number, run, handoff_id, request, order, engine_type, attempt: who it is.
        opened_ms: when it was opened, ms since the run's start.
        duration_ms: from there to its end, or None while it is open.
        end: success, error, canceled, rejected, interrupted or open: its source side's view.
        source_end, destination_end: how each side's session ended, or None.
        failure: what struck first, or None.
        failure_seq: the row of that.
        first_seq, last_seq: its first and last row.
    """

    number: int
    run: int
    handoff_id: str
    request: str | None
    order: str | None
    engine_type: str | None
    attempt: int | None
    opened_ms: float
    duration_ms: float | None
    end: str
    source_end: str | None
    destination_end: str | None
    failure: str | None
    failure_seq: int | None
    first_seq: int
    last_seq: int

    @property
    def split(self) -> bool:
        """Whether both sides ended, and not alike."""
        return None not in (self.source_end, self.destination_end) and self.source_end != self.destination_end

    @property
    def failed(self) -> bool:
        """Whether it ended in another way than success on any side."""
        ends = {self.end, self.source_end, self.destination_end} - {None, "open"}
        return bool(ends - {"success"})

    @property
    def open(self) -> bool:
        """Whether its rows stop before it ended."""
        return self.end == "open"


def summary_of(chronicle: Chronicle) -> HandoffSummary:
    """One handoff in a line."""
    source_end, destination_end = (chronicle.end_of(side) for side in Side)
    end, ended_ms = _end(chronicle)
    trigger = None if end == Completion.SUCCESS and _agree(source_end, destination_end) else trigger_of(chronicle)
    return HandoffSummary(
        chronicle.number, chronicle.run, chronicle.handoff_id, chronicle.request,
        None if chronicle.order is None else chronicle.order.value, chronicle.engine_type, chronicle.attempt,
        chronicle.opened_at_ms,
        None if ended_ms is None else ended_ms - chronicle.opened_at_ms,
        end,
        None if source_end is None else source_end.name,
        None if destination_end is None else destination_end.name,
        None if trigger is None else trigger.sentence,
        None if trigger is None else trigger.seq,
        chronicle.first_seq,
        chronicle.last_event.seq,
    )  # fmt: skip


def _agree(left: Any, right: Any) -> bool:
    return left is None or right is None or left.name == right.name


def _end(chronicle: Chronicle) -> tuple[str, float | None]:
    for side in Side:
        ended = chronicle.end_of(side)
        if ended is not None and (side is Side.SOURCE or not chronicle.session_of(Side.SOURCE)):
            canceled = ended.name == EndState.SUCCESS and chronicle.completion == Completion.CANCELED
            return (Completion.CANCELED.value if canceled else str(ended.name)), ended.at_ms
    if chronicle.session_of(Side.SOURCE) or chronicle.session_of(Side.DESTINATION):
        return "open", None
    complete = chronicle.action(ActionName.COMPLETE)
    if complete is not None:
        return str(chronicle.completion), complete.at_ms
    trigger = trigger_of(chronicle)
    if trigger is not None and trigger.blow == "rejected":
        return "rejected", trigger.at_ms
    return "open", None


def list_handoffs(
    source: EventSource, handoffs: Iterable[HandoffDeclaration] | None = None, *, failed: bool = False
) -> Iterator[HandoffSummary]:
    """The handoffs of a journal in the order in which they were opened.

    Args:
        source: the journal.
        handoffs: which; all of them by default.
        failed: only those that failed on any side.
    """
    for chronicle in chronicles(source, source.handoffs() if handoffs is None else handoffs):
        summary = summary_of(chronicle)
        if summary.failed or not failed:
            yield summary


def summary_document(summary: HandoffSummary) -> dict[str, Any]:
    """One line as JSON (docs/schemas/list.schema.json)."""
    return {
        "handoff": summary.handoff_id,
        "number": summary.number,
        "run": summary.run,
        "request": summary.request,
        "order": summary.order,
        "engine_type": summary.engine_type,
        "attempt": summary.attempt,
        "opened_ms": summary.opened_ms,
        "duration_ms": summary.duration_ms,
        "end": summary.end,
        "source_end": summary.source_end,
        "destination_end": summary.destination_end,
        "split": summary.split,
        "failed": summary.failed,
        "failure": summary.failure,
        "failure_row": summary.failure_seq,
        "rows": [summary.first_seq, summary.last_seq],
    }


def list_document(journal: str, summaries: Iterable[HandoffSummary]) -> dict[str, Any]:
    """The list as a JSON document (docs/schemas/list.schema.json)."""
    return {
        "schema": "handoff.list/1",
        "journal": journal,
        "handoffs": [summary_document(summary) for summary in summaries],
    }
