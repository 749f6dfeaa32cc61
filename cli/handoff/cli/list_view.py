"""How the list of handoffs looks on a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from handoff.cli.output import counted
from handoff.journal.handoff_list import HandoffSummary

NARROW_COLUMNS = 130
"""Below this many columns the list leaves out engine and request, and shortens ids to a prefix."""

_SHORTEST_PREFIX = 8
_STYLES = {"success": "green", "open": "yellow", "interrupted": "yellow"}


def list_view(
    summaries: Sequence[HandoffSummary], *, failed_only: bool = False, width: int = NARROW_COLUMNS
) -> RenderableType:
    """A table, and the totals below it, for a terminal of `width` columns."""
    if not summaries:
        return Text("no handoff failed" if failed_only else "no handoffs")
    runs = len({summary.run for summary in summaries}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("#", justify="right", style="dim")
    if runs:
        table.add_column("run", justify="right")
    narrow = width < NARROW_COLUMNS
    table.add_column("handoff", no_wrap=True)
    if not narrow:
        table.add_column("engine", no_wrap=True)
        table.add_column("request", no_wrap=True, overflow="ellipsis", max_width=12)
    table.add_column("opened ms", justify="right", no_wrap=True)
    table.add_column("took ms", justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    table.add_column("destination", no_wrap=True)
    table.add_column("what failed", ratio=1)
    length = _prefix_length(summaries) if narrow else 0
    for summary in summaries:
        handoff, engine, request, *rest = _cells(summary)
        shown = [summary.handoff_id[:length]] if narrow else [handoff, engine, request]
        table.add_row(str(summary.number), *([str(summary.run)] if runs else []), *shown, *rest)
    return Group(table, _totals(summaries))


def _prefix_length(summaries: Sequence[HandoffSummary]) -> int:
    """How many characters tell the ids apart, so that `handoff show` takes what is listed."""
    ids = {summary.handoff_id for summary in summaries}
    length = _SHORTEST_PREFIX
    while len({each[:length] for each in ids}) < len(ids):
        length += 1
    return length


def follow_line(summary: HandoffSummary) -> Text:
    """One handoff in a line of its own."""
    cells = _cells(summary)
    return Text("  ").join(Text(cell) if isinstance(cell, str) else cell for cell in cells if str(cell))


def _cells(summary: HandoffSummary) -> list[str | Text]:
    order = "" if summary.order is None else summary.order.replace("_", " ")
    engine = f"{summary.engine_type}, {order}" if summary.engine_type else order
    return [
        summary.handoff_id,
        engine,
        summary.request or "",
        f"{summary.opened_ms:.1f}",
        "" if summary.duration_ms is None else f"{summary.duration_ms:.1f}",
        _end(summary.source_end or summary.end),
        _end(summary.destination_end) if summary.destination_end else Text(""),
        _failure(summary),
    ]


def _end(end: str | None) -> Text:
    return Text(end or "", style=_STYLES.get(end or "", "red"))


def _failure(summary: HandoffSummary) -> Text:
    text = Text()
    if summary.split:
        text.append("sides differ", style="bold magenta")
        text.append(": " if summary.failure else "")
    if summary.failure is not None:
        text.append(f"{summary.failure} ")
        text.append(f"[#{summary.failure_seq}]", style="cyan")
    return text


def _totals(summaries: Sequence[HandoffSummary]) -> Text:
    failed = sum(summary.failed for summary in summaries)
    still_open = sum(summary.open for summary in summaries)
    text = Text("\n" + counted(len(summaries), "handoff"), style="bold")
    text.append(f", {failed:,} failed", style="red" if failed else "green")
    if still_open:
        text.append(f", {still_open:,} without an end", style="yellow")
    return text
