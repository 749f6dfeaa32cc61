"""How a simulated run looks on a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from handoff.cli.output import counted
from handoff.engines.simulation import Simulation

FIGURES = {
    "ttft_ms": "first token, ms",
    "ttst_ms": "second token, ms",
    "itl_ms": "between tokens, ms",
    "tpot_ms": "per token, ms",
    "e2e_latency_ms": "whole request, ms",
    "output_token_throughput_per_user": "tokens a second, each user",
}
"""Distributions by their report name, and what people call them."""

COLUMNS = ("mean", "min", "median", "p75", "p90", "p95", "p99", "max", "std")
NARROW_COLUMNS = 125
"""Below this many columns of a terminal the table keeps `_FEWER_COLUMNS` only; the report has them all."""

_FEWER_COLUMNS = ("mean", "median", "p90", "p99")


def simulate_view(simulation: Simulation, *, width: int = NARROW_COLUMNS) -> RenderableType:
    """Counts and rates, a table of distributions, and what went wrong, for a terminal of `width` columns."""
    report = simulation.report
    parts: list[RenderableType] = [_counts(simulation), Text(), _distributions(simulation, width), Text()]
    rates = Text()
    rates.append(f"{report['request_throughput_rps']:,.2f} requests/s", style="bold")
    rates.append(f", {report['output_throughput_tok_s']:,.0f} output tokens/s, ")
    rates.append(f"{report['input_throughput_tok_s']:,.0f} input tokens/s; ")
    rates.append(f"{report['prefix_cache_reused_ratio']:.1%} of the input was cached; ")
    rates.append(f"{report['gpu_hours']:,.3f} GPU hours")
    if "goodput_completed_requests" in report:
        rates.append(f"; {report['goodput_completed_requests']:,} requests were good enough")
    parts.append(rates)
    parts.extend(_stalls(simulation))
    return Group(*parts)


def _counts(simulation: Simulation) -> Text:
    report = simulation.report
    text = Text()
    text.append(counted(report["completed_requests"], "request") + " completed", style="bold green")
    text.append(f" of {report['num_requests']:,}")
    for status, count in report["terminal_statuses"].items():
        if count and status != "completed":
            text.append(f", {count:,} {status}", style="red")
    text.append(f" in {report['duration_ms'] / 1000.0:,.3f} s of virtual time, ")
    text.append(f"{simulation.real_time['wall_time_ms'] / 1000.0:.2f} s of real time")
    if simulation.interrupted:
        text.append("\ninterrupted: figures are of what was done until then", style="bold yellow")
    if simulation.capped:
        text.append("\nstopped at max_sim_time_ms", style="yellow")
    return text


def _distributions(simulation: Simulation, width: int) -> Table:
    columns = COLUMNS if width >= NARROW_COLUMNS else _FEWER_COLUMNS
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for figure, name in FIGURES.items():
        table.add_row(name, *(f"{simulation.report[f'{column}_{figure}']:,.3f}" for column in columns))
    return table


def _stalls(simulation: Simulation) -> list[RenderableType]:
    if not simulation.stalls:
        return []
    lines: list[RenderableType] = [Text(), Text(counted(len(simulation.stalls), "stall"), style="bold red")]
    lines.extend(
        Text(f"  {stall.at_ms:,.3f} ms: failed {stall.failed_request}: {stall.reason}")
        for stall in simulation.stalls[:10]
    )
    if len(simulation.stalls) > 10:
        lines.append(Text(f"  and {len(simulation.stalls) - 10} more, see --report"))
    return lines
