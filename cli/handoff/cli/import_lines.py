"""`handoff import`: event lines of other systems, or an exported journal, into a journal."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from handoff.cli.arguments import JsonOutput
from handoff.cli.output import console, print_document, progress
from handoff.journal.importer import ImportReport
from handoff.journal.importer import import_lines as write_lines
from handoff.journal.sync_journal import SyncJournal

EXAMPLE = "handoff import prefill.jsonl decode.jsonl.gz --journal incident.db"

_SHOWN = 10
_BYTES_A_LINE = 110


def import_lines(
    files: Annotated[list[Path], typer.Argument(help="Event lines, plain or gzip, in any order.", show_default=False)],
    journal: Annotated[Path, typer.Option(help="The journal to write; a run is added to it.", show_default=False)],
    json: JsonOutput = False,
) -> None:
    """Write event lines of other systems, or an exported journal, into a journal.

    Several files are put in one order by what causes what; clocks are aligned, and both sides' names of a handoff are
    joined. Exits 1 when something in the files could not be placed; it is listed.
    """
    guessed = sum(path.stat().st_size // _BYTES_A_LINE for path in files if path.exists())
    with SyncJournal.create(journal) as writer, progress("importing", guessed, quiet=json) as on_line:
        report = write_lines(files, writer, on_line=on_line)
    if json:
        print_document(_document(journal, report))
    else:
        console().print(_view(journal, report))
    if report.unplaced_count:
        raise typer.Exit(1)


def _document(journal: Path, report: ImportReport) -> dict[str, Any]:
    return {
        "schema": "handoff.import/1",
        "journal": str(journal),
        "rows": report.rows,
        "lines": report.lines,
        "handoffs": report.handoffs,
        "native": report.native,
        "coordinators": report.coordinators,
        "without_meaning": report.without_meaning,
        "joined": [{"alias": joined.alias, "by": joined.by, "key": joined.key} for joined in report.joined],
        "ambiguous": [{"key": key, "handoffs": list(names)} for key, names in report.ambiguous],
        "clocks": [
            {
                "clock": clock.clock,
                "reference": clock.reference,
                "offset_ms": clock.offset_ms,
                "low_ms": clock.low_ms,
                "high_ms": clock.high_ms,
                "pairs": clock.pairs,
                "consistent": clock.consistent,
            }
            for clock in report.clocks
        ],
        "unplaced_count": report.unplaced_count,
        "unplaced": [
            {"file": item.file, "line": item.number, "reason": item.reason, "text": item.text}
            for item in report.unplaced
        ],
    }


def _view(journal: Path, report: ImportReport) -> Group:
    facts_only = report.handoffs - report.coordinators
    parts = [
        Text(f"{report.lines:,} lines became {report.rows:,} rows of {journal}: {report.handoffs:,} handoffs", "bold")
    ]
    if facts_only and not report.native:
        parts.append(Text(f"  {facts_only:,} of them have no actions: facts only, not replayed"))
    for clock in report.clocks:
        low = "unbounded" if clock.low_ms is None else f"{clock.low_ms:g}"
        high = "unbounded" if clock.high_ms is None else f"{clock.high_ms:g}"
        moved = f"  clock {clock.clock}: {clock.offset_ms:+g} ms to {clock.reference} (between {low} and {high})"
        parts.append(Text(moved if clock.consistent else f"{moved}; no single offset fits: a clock drifted or was set"))
    parts += [Text(f"  {item.alias} is another name, by {item.by} {item.key}") for item in report.joined[:_SHOWN]]
    parts += [
        Text(f"  {key} is shared by {', '.join(names)}, so it joins none of them", "yellow")
        for key, names in report.ambiguous[:_SHOWN]
    ]
    if report.unplaced_count:
        parts.append(Text(f"  {report.unplaced_count:,} pieces could not be placed:", "bold yellow"))
        parts += [Text(f"    {item}", "yellow") for item in report.unplaced[:_SHOWN]]
    return Group(*parts)
