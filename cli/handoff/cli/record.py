"""`handoff record`: run live handoffs and journal them."""

import contextlib
import fcntl
import json as json_text
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from handoff.cli.arguments import JsonOutput, ScenarioFile
from handoff.cli.errors import FOUND, INTERRUPTED
from handoff.cli.output import console, counted, print_document, watching
from handoff.engines.record import DEFAULT_GRACE_S, RecordProgress, RecordReport, record_scenario
from handoff.engines.record_document import record_document, record_summary
from handoff.engines.request_record import record_line
from handoff.engines.scenario import load_scenario
from handoff.engines.simulated_request import SimulatedRequest
from handoff.journal.receipt import Durability
from handoff.journal.terms import EndState

EXAMPLE = "handoff record examples/chat-vllm.toml --journal run.db"


def record(
    scenario: ScenarioFile,
    *,
    journal: Annotated[Path, typer.Option("--journal", help="The journal: a new file, or one that gets another run.")],
    durability: Annotated[
        Durability, typer.Option(help="full: rows survive a power cut. normal: the end of the process. off: neither.")
    ] = Durability.FULL,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0.0, help="How long cleanup may take after a signal.")
    ] = DEFAULT_GRACE_S,
    require_success: Annotated[
        bool, typer.Option("--require-success", help="Exit 1 if any handoff does not succeed.")
    ] = False,
    report_durable: Annotated[
        int | None, typer.Option(metavar="FD", help="Write the number of each durable row to this descriptor.")
    ] = None,
    per_request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one JSON object a request, in order of arrival.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary figures as JSON.")] = None,
    json: JsonOutput = False,
) -> None:
    """Run live handoffs (real TCP, real time) and journal them.

    A first Ctrl-C lets everything in progress clean up, a second one ends at once; either way the journal says so.
    Exits 0 when every handoff has a recorded end, whatever the end was.
    """
    _check_descriptor(report_durable)
    loaded = load_scenario(scenario)
    with _request_writer(per_request) as sink, watching("recording", quiet=json) as tell:
        outcome = record_scenario(
            loaded,
            journal,
            durability=durability,
            grace_s=grace,
            report_durable_fd=report_durable,
            sink=sink,
            progress=None if tell is None else lambda progress: tell(_progress_text(progress)),
        )
    if report is not None:
        report.write_text(json_text.dumps(record_summary(outcome, loaded), indent=2) + "\n")
    if json:
        print_document(record_document(outcome, str(journal), loaded))
    else:
        _print(outcome, journal)
    status = _status(outcome, require_success=require_success)
    if status:
        raise typer.Exit(status)


def _check_descriptor(descriptor: int | None) -> None:
    """Refuse a descriptor that nothing can be written to, before anything is recorded."""
    if descriptor is None:
        return
    try:
        writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except (OSError, ValueError, OverflowError):
        writable = False
    if not writable:
        raise typer.BadParameter(f"--report-durable {descriptor}: name a descriptor that is open for writing")


def _status(outcome: RecordReport, *, require_success: bool) -> int:
    if outcome.inside:
        return FOUND
    if outcome.state is EndState.INTERRUPTED:
        return INTERRUPTED
    return FOUND if require_success and not outcome.all_succeeded else 0


@contextlib.contextmanager
def _request_writer(path: Path | None) -> Iterator[Callable[[SimulatedRequest], None] | None]:
    if path is None:
        yield None
        return
    with path.open("w", encoding="utf-8") as stream:
        yield lambda request: _write_line(stream, request)


def _write_line(stream: Any, request: SimulatedRequest) -> None:
    stream.write(record_line(request) + "\n")


def _progress_text(progress: RecordProgress) -> str:
    stopping = ", stopping" if progress.stopping else ""
    return f"{progress.arrived:,} requests arrived, {progress.ended:,} ended, {progress.at_ms / 1000.0:.1f} s{stopping}"


def _print(outcome: RecordReport, journal: Path) -> None:
    finished = outcome.state is EndState.FINISHED
    head = Text.assemble((outcome.state.value, "bold green" if finished else "bold yellow"))
    head.append(f"  {counted(outcome.handoffs, 'handoff')}, {counted(outcome.rows, 'row')} in {journal}, ")
    head.append(f"{outcome.duration_ms / 1000.0:.1f} s")
    lines = [head, _statuses(outcome)]
    if outcome.reason:
        lines.append(Text(f"reason: {outcome.reason}", style="yellow"))
    lines += [Text(f"this fault struck nothing: {fault}", style="yellow") for fault in outcome.never_struck]
    console().print(Group(*lines))


def _statuses(outcome: RecordReport) -> Text:
    text = Text()
    for status, count in outcome.statuses.items():
        if count:
            style = "green" if status == "completed" else "red"
            text.append(f"{status} {count:,}  ", style=style)
    return text
