"""How a replay's report looks on a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from handoff.cli.output import counted
from handoff.journal.replay_report import ReplayReport, RunEnding


def replay_view(report: ReplayReport) -> RenderableType:
    """The verdict in a line, then what was re-executed, then how the runs ended."""
    parts: list[RenderableType] = [_verdict(report)]
    if report.actors:
        parts.append(_actors(report))
    parts.extend(_ending(run) for run in report.runs if run.name != "finished")
    if report.unended and report.ends_open:
        parts.append(Text(f"{len(report.unended)} sessions were still going on at its end.", style="dim"))
    if report.skipped:
        parts.append(Text(f"{report.skipped:,} rows after a divergence were not compared.", style="dim"))
    return Group(*parts)


def _verdict(report: ReplayReport) -> Text:
    scope = "every actor" if report.tier == "full" else "the coordinators"
    line = Text()
    if report.agrees:
        line.append("agrees", style="bold green")
        line.append(f"  {counted(report.compared, 'row')} of {scope} re-executed in {counted(report.steps, 'step')}, ")
        line.append(f"{counted(report.handoffs, 'handoff')}, tier {report.tier}")
    else:
        line.append("diverges", style="bold red")
        line.append(f"  in {counted(report.divergence_count, 'place')}; tier {report.tier}, ")
        line.append(f"{counted(report.compared, 'row')} compared in {counted(report.handoffs, 'handoff')}")
    return line


def _actors(report: ReplayReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("actors")
    table.add_column("count", justify="right")
    table.add_column("rows", justify="right")
    table.add_column("")
    for tally in report.actors:
        if not tally.re_executed and report.tier == "core":
            continue
        how = (
            Text("re-executed", style="green")
            if tally.re_executed
            else Text("recorded, not re-executed", style="yellow")
        )
        table.add_row(tally.kind.replace("_", " "), f"{tally.actors:,}", f"{tally.rows:,}", how)
    return table


def _ending(run: RunEnding) -> Text:
    if run.name is None:
        return Text(f"Run {run.run} ends open: its last row is missing, as after a kill.", style="yellow")
    reason = f" ({run.reason})" if run.reason else ""
    return Text(f"Run {run.run} ended: {run.name}{reason}.", style="yellow")
