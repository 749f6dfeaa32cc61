"""What the rules over several handoffs keep of one that was examined: its names, its waits, its open writes."""

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import frozen

from handoff.journal.case import Case, blocks_of, window_of
from handoff.journal.chronicle import SIDE_OF_ACTION
from handoff.journal.event import Event
from handoff.journal.finding import Finding
from handoff.journal.ledger import Asset, HoldingState
from handoff.journal.row_order import before
from handoff.journal.terms import Kind
from handoff.journal.vocabulary import ActionName, FactName, Side


@frozen
class OpenWrite:
    """Destination blocks that were freed while a transfer may have been writing to them."""

    freed: Event
    opened: Event
    closed: Event | None
    until_ms: float
    blocks: frozenset[int]
    pool: object


@frozen
class Wait:
    """An order to the destination that was never answered, or a reservation that was never granted."""

    action: str
    seq: int
    at_ms: float
    holds: tuple[int, ...] | None
    pool_size: int | None


@frozen
class Brief:
    """What is kept of an examined handoff.

    Attributes:
        number, name, request, parent, room: what it is called.
        opened, last: its first row and its last one that is no note.
        over: whether nothing more can come for it.
        silent: whether it has no rows but its opening.
        codes, findings: what is wrong with it by itself.
        succeeded: whether its coordinator completed with success.
        claimed: whether a destination ever reserved for it.
        held: the row of its source's hold.
        struck: whether anything turned it from its healthy path.
        open_write: blocks that were freed while they were written.
        waits: what it waits for at the destination, at its end.
        queued: rows that say where it stood in a queue.
        overdue: its finding that a lease ended late.
    """

    number: int
    name: str
    request: str | None
    parent: str | None
    room: str | None
    opened: Event
    last: Event
    over: bool
    silent: bool
    codes: frozenset[str]
    findings: tuple[Finding, ...]
    succeeded: bool
    claimed: bool
    held: Event | None
    struck: bool
    open_write: OpenWrite | None
    waits: tuple[Wait, ...]
    queued: tuple[Event, ...]
    overdue: Finding | None

    @property
    def is_unclaimed(self) -> bool:
        """Whether its source held KV that no destination ever asked for, and nothing ended it."""
        return self.held is not None and not self.claimed and self.over and not self.struck

    def is_holding_at(self, seq: int) -> bool:
        """Whether its source had held KV before a row."""
        return self.held is not None and self.held.seq < seq


def brief_of(case: Case, findings: Iterable[Finding]) -> Brief:
    """Keep what rules over several handoffs need of one."""
    chronicle = case.chronicle
    opened = chronicle.events[0]
    found = tuple(findings)
    told = [e for e in chronicle.events if e.kind not in _OPENING and resource_of(e) not in _NAMING_THE_VERDICT]
    held = case.annotated("source_held") or [e for e in case.fact_rows if e.name == FactName.SOURCE_HELD]
    claimed = case.annotated("destination_blocks") or chronicle.fact(FactName.DESTINATION_RESERVED)
    return Brief(
        number=chronicle.number,
        name=chronicle.handoff_id,
        request=chronicle.request,
        parent=opened.payload.get("parent_request"),
        room=opened.payload.get("room"),
        opened=opened,
        last=chronicle.last_event,
        over=case.over,
        silent=not told,
        codes=frozenset(finding.code for finding in found),
        findings=found,
        succeeded=chronicle.completion == "success",
        claimed=bool(claimed),
        held=held[0] if held else None,
        struck=case.trigger is not None,
        open_write=_open_write(case),
        waits=tuple(_waits(case)),
        queued=tuple(case.annotated("destination_queued", "source_queued")),
        overdue=next((finding for finding in found if finding.code == "lease_overdue"), None),
    )


_OPENING = frozenset({Kind.HANDOFF_OPENED.value, Kind.ACTOR_STARTED.value, Kind.FAULT.value, Kind.NOTE.value})
_NAMING_THE_VERDICT = frozenset({"unknown_handoff"})


def resource_of(event: Event) -> Any:
    """The name of an annotation, or None for another row."""
    return event.payload.get("resource") if event.kind == Kind.RESOURCE else None


def pool_of(event: Event) -> object:
    """Which pool's block ids a row speaks of: that of the worker or source that told it."""
    extra = event.payload.get("extra")
    worker = extra.get("worker") if isinstance(extra, dict) else None
    return event.source if worker is None else worker


def _open_write(case: Case) -> OpenWrite | None:
    window = window_of(case)
    freed = next(iter(case.annotated("destination_freed")), None)
    if window is None or freed is None or before(window.opened, freed) is False:
        return None
    if window.closed is not None and before(freed, window.closed) is False:
        return None
    record = case.chronicle.action(ActionName.START_TRANSFER)
    delay_ms = 0.0 if record is None else case.by_seq[record.seq].payload.get("delay_ms") or 0.0
    until_ms = window.opened.at_ms + delay_ms
    if window.closed is not None:
        until_ms = window.closed.at_ms if window.closed.at_max_ms is None else window.closed.at_max_ms
    return OpenWrite(freed, window.opened, window.closed, until_ms, blocks_of(freed), pool_of(freed))


def _waits(case: Case) -> Iterator[Wait]:
    if case.trigger is not None or not case.over:
        return
    holds = [h for h in case.ledger.holdings(case.chronicle.number) if h.asset is Asset.DESTINATION_KV]
    held = next((h.blocks or () for h in holds if h.state is HoldingState.HELD), None)
    sizes = [case.said(event, "pool") for event in case.annotated("destination_blocks", "destination_queued")]
    size = next((size for size in sizes if isinstance(size, int)), None)
    for record in case.chronicle.unanswered():
        if SIDE_OF_ACTION[record.name] is Side.DESTINATION:
            yield Wait(record.name, record.seq, record.at_ms, held, size)
