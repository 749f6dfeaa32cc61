"""How the answer of `verify` looks on a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from handoff.cli.output import counted
from handoff.journal.verify import VerifyReport, VerifyState

_STYLES = {
    VerifyState.SOUND: "bold green",
    VerifyState.OPEN: "bold yellow",
    VerifyState.TAIL_LOST: "bold red",
    VerifyState.DAMAGED: "bold red",
}


def verify_view(report: VerifyReport) -> RenderableType:
    """The state in a line, then each problem."""
    head = Text(report.state.replace("_", " "), style=_STYLES[report.state])
    head.append(
        "  "
        + ", ".join(
            (counted(report.last_seq, "row"), counted(report.handoffs, "handoff"), counted(report.runs, "run"))
        ),
        style="default",
    )
    if report.state is not VerifyState.SOUND:
        head.append(f"; trustworthy up to row #{report.last_trustworthy_seq}", style="default")
    parts: list[RenderableType] = [head]
    if report.chain_head is not None:
        parts.append(Text.assemble(("chain  ", "dim"), report.chain_head))
    for problem in report.problems:
        line = Text.assemble(
            ("■ ", _STYLES[problem.state]), (problem.code, _STYLES[problem.state]), f"  {problem.text}"
        )
        if problem.first_seq is not None:
            rows = f"#{problem.first_seq}"
            rows += f" to #{problem.last_seq}" if problem.last_seq not in (None, problem.first_seq) else ""
            line.append(f"  [{rows}]", style="cyan")
        parts.append(line)
    return Group(*parts)
