"""`handoff simulate`: run a scenario in virtual time."""

import json as json_text
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TextIO

import typer

from handoff.cli.arguments import JsonOutput, ScenarioFile
from handoff.cli.errors import FOUND, INTERRUPTED
from handoff.cli.output import console, print_document, progress
from handoff.cli.simulate_view import simulate_view
from handoff.engines.scenario import Scenario, load_scenario
from handoff.engines.service_level import ServiceLevel
from handoff.engines.simulation import Simulation, SimulationProgress
from handoff.engines.simulation import simulate as run_simulation

EXAMPLE = "handoff simulate examples/chat-vllm.toml --html chat.html"


def simulate(
    scenario: ScenarioFile,
    *,
    per_request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one JSON object a request, in order of arrival.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary figures as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that shows the run.")] = None,
    sla_ttft_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Goodput: at most so long to the first token.")
    ] = None,
    sla_itl_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Goodput: at most so long between tokens, on average.")
    ] = None,
    sla_e2e_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Goodput: at most so long in all; excludes the other two.")
    ] = None,
    json: JsonOutput = False,
) -> None:
    """Run a scenario in virtual time.

    An hour of traffic takes about a second. The same scenario gives the same records and report, byte for byte. Ctrl-C
    ends the run with a report of what was done, which says so. Exits 1 when requests had to be failed because nothing
    could happen any more.
    """
    loaded = load_scenario(scenario)
    level = _service_level(sla_ttft_ms, sla_itl_ms, sla_e2e_ms)
    with _interruptible() as interrupted, _text_file(per_request) as records:
        simulation = _run(loaded, records, level, interrupted, draws=html is not None, quiet=json)
    if report is not None:
        report.write_text(json_text.dumps(simulation.report, indent=2) + "\n", encoding="utf-8")
    if html is not None:
        from handoff.cli.simulate_page import simulate_page  # noqa: PLC0415 - only who wants a page waits for it

        html.write_text(simulate_page(simulation), encoding="utf-8")
    if json:
        print_document(_document(simulation))
    else:
        out = console()
        out.print(simulate_view(simulation, width=out.width))
    if simulation.interrupted:
        raise typer.Exit(INTERRUPTED)
    if simulation.stalls:
        raise typer.Exit(FOUND)


def _run(
    scenario: Scenario,
    records: TextIO | None,
    level: ServiceLevel | None,
    interrupted: Callable[[], bool],
    *,
    draws: bool,
    quiet: bool,
) -> Simulation:
    with ExitStack() as stack:
        advance: Callable[[int], None] | None = None
        total = 0

        def on_progress(state: SimulationProgress) -> bool:
            nonlocal advance, total
            if not total:
                total = state.total
                advance = stack.enter_context(progress("simulating", total, quiet=quiet))
            if advance is not None:
                advance(state.ended)
            return not interrupted()

        return run_simulation(scenario, per_request=records, service_level=level, draws=draws, on_progress=on_progress)


def _service_level(ttft_ms: float | None, itl_ms: float | None, e2e_ms: float | None) -> ServiceLevel | None:
    if ttft_ms is None and itl_ms is None and e2e_ms is None:
        return None
    try:
        return ServiceLevel(ttft_ms, itl_ms, e2e_ms)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _document(simulation: Simulation) -> dict[str, Any]:
    """The report; nothing in it depends on the machine, so the same scenario prints the same bytes."""
    return {**simulation.report, "schema": "handoff.simulate/1"}


@contextmanager
def _text_file(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    with path.open("w", encoding="utf-8") as file:
        yield file


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn a first Ctrl-C into a question that a run asks now and then; a second one ends it at once."""
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
