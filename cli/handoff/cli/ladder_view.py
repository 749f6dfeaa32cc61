"""How a handoff's ladder looks on a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from handoff.cli.output import counted
from handoff.journal.chronicle import Chronicle
from handoff.journal.findings import findings_of
from handoff.journal.ladder import Lane, Rung, Weight, ladder_of

NARROW_COLUMNS = 110
"""Below this many columns the lanes stand in one column, each row with the name of its lane."""

_WIRE_WIDTH = 38
_STYLES = {
    Weight.QUIET: "dim",
    Weight.PLAIN: "",
    Weight.DECISION: "bold",
    Weight.REMARK: "italic cyan",
    Weight.TROUBLE: "bold red",
    Weight.GOOD: "bold green",
}


def ladder_view(chronicle: Chronicle, *, all_rows: bool = False, width: int = NARROW_COLUMNS) -> RenderableType:
    """The ladder for `width` columns, headed by who it is; bookkeeping is left out unless every row is asked for.

    Rows that a finding about this handoff alone rests on are marked and never left out.
    """
    findings = findings_of(chronicle)
    marked = {row for finding in findings for row in finding.rows}
    rungs = [
        rung for rung in ladder_of(chronicle) if all_rows or rung.weight is not Weight.QUIET or rung.event.seq in marked
    ]
    narrow = width < NARROW_COLUMNS
    table = _table(narrow=narrow)
    last_ms: float | None = None
    for rung in rungs:
        at_ms = rung.event.at_ms
        time = "" if at_ms == last_ms else f"{at_ms:.3f}"
        last_ms = at_ms
        mark = Text("▌", "bold red") if rung.event.seq in marked else Text(" ")
        table.add_row(time, Text.assemble(mark, f"#{rung.event.seq}"), *(_one_lane(rung) if narrow else _lanes(rung)))
    hidden = len(chronicle.events) - len(rungs)
    parts: list[RenderableType] = [_heading(chronicle), Text(), table]
    if hidden:
        parts += [Text(f"\n{counted(hidden, 'row')} of bookkeeping not shown; --all shows every row.", style="dim")]
    if findings:
        codes = ", ".join(dict.fromkeys(finding.code for finding in findings))
        parts.append(Text.assemble("\n", ("▌", "bold red"), " marks the rows of ", (codes, "red"), "; see handoff why"))
    return Group(*parts)


def _table(*, narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("row", justify="right", style="cyan", no_wrap=True)
    if narrow:
        table.add_column("lane", style="dim", no_wrap=True)
        table.add_column("what")
    else:
        table.add_column("source")
        table.add_column("wire", justify="center", width=_WIRE_WIDTH)
        table.add_column("destination")
    return table


def _heading(chronicle: Chronicle) -> Text:
    text = Text.assemble(("handoff ", "dim"), (chronicle.handoff_id, "bold"))
    order = None if chronicle.order is None else chronicle.order.replace("_", " ")
    for label, item in (("run", str(chronicle.run)), ("", chronicle.engine_type), ("", order)):
        if item:
            text.append(f"  {label} {item}" if label else f"  {item}", style="dim")
    if chronicle.request:
        text.append(f"  request {chronicle.request}", style="dim")
    return text


def _lanes(rung: Rung) -> tuple[Text, Text, Text]:
    text = Text(rung.text, style=_STYLES[rung.weight])
    if rung.blocks is not None:
        text.append(f"  blocks {_blocks(rung.blocks)}", style="yellow")
    none = Text()
    if rung.wire is not None:
        wire = _arrow(rung)
        sent = rung.event.kind == "wire_sent"
        own = Text("sends" if sent else "receives", style="dim")
        return (own, wire, none) if rung.lane is Lane.SOURCE else (none, wire, own)
    match rung.lane:
        case Lane.SOURCE:
            return text, none, none
        case Lane.DESTINATION:
            return none, none, text
        case Lane.BOTH:
            return none, text, none


def _one_lane(rung: Rung) -> tuple[str, Text]:
    lane = {Lane.SOURCE: "source", Lane.DESTINATION: "destination", Lane.BOTH: ""}[rung.lane]
    return lane, Text(" ").join(text for text in _lanes(rung) if text)


def _arrow(rung: Rung) -> Text:
    """A frame on its way: a hollow head where it was sent, a full one where it arrived."""
    sent = rung.event.kind == "wire_sent"
    line = "─" * max(1, _WIRE_WIDTH - len(rung.wire or "") - 5)
    shape = {
        (True, True): f"─ {rung.wire} {line}▷",
        (True, False): f"{line} {rung.wire} ─▶",
        (False, True): f"◁{line} {rung.wire} ─",
        (False, False): f"◀─ {rung.wire} {line}",
    }[rung.rightwards, sent]
    return Text(shape, style="bold red" if rung.weight is Weight.TROUBLE else "blue")


def _blocks(blocks: tuple[int, ...]) -> str:
    """Block ids, consecutive ones as a range."""
    ranges: list[list[int]] = []
    for block in blocks:
        if ranges and block == ranges[-1][1] + 1:
            ranges[-1][1] = block
        else:
            ranges.append([block, block])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
