"""`handoff fixture`: incidents as regression fixtures."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from handoff.cli.arguments import JournalFile, JsonOutput
from handoff.cli.output import console, print_document, progress
from handoff.journal.examination import examine
from handoff.journal.fixture import Mismatch, check, observe_lines, read_fixture, write_fixture
from handoff.journal.fixture_export import as_python_test, fixture_fields, incident_of
from handoff.journal.reader import JournalReader
from handoff.journal.shrink import Shrinker

EXAMPLE = "handoff fixture export run.db --out tests/lost-ack.handoff.json"

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def fixture() -> None:
    """Turn incidents into regression fixtures: cut them out of a journal, make them smaller, check them."""


@app.command(epilog="Example: handoff fixture export run.db --code lost_outcome --out tests/lost-ack.handoff.json")
def export(  # noqa: PLR0917 - options are named, not counted
    journal: JournalFile,
    out: Annotated[Path, typer.Option(help="The fixture to write.", show_default=False)],
    handoff: Annotated[str | None, typer.Option(help="The handoff whose incident it is.")] = None,
    code: Annotated[str | None, typer.Option(help="The finding's code; the root cause by default.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Keep the whole incident; do not shrink it.")] = False,
    as_test: Annotated[bool, typer.Option("--as-test", help="Write a Python test instead.")] = False,
) -> None:
    """Cut the smallest history that still shows a finding out of a journal."""
    with JournalReader(journal) as reader:
        number = None if handoff is None else reader.find_handoff(handoff).number
        with progress("examining", reader.last_seq, quiet=False) as on_row:
            examined = examine(reader, on_row=on_row, only=() if number is None else (number,))
        incident = incident_of(reader, code=code, handoff=number, examined=examined)
    lines = None
    if not whole:
        lines = Shrinker(incident.finding.code, incident.end_ms).shrink(incident.lines)
        if incident.finding.code not in _codes(lines):
            lines = None  # it rests on how long the handoff was observed
    fields = fixture_fields(incident, lines, out.name.partition(".")[0])
    _write(out, fields, as_test=as_test)
    console().print(Text(f"{out}: {fields['root_cause']} in {len(fields['events'])} lines", "green"))


@app.command(epilog="Example: handoff fixture shrink tests/lost-ack.handoff.json")
def shrink(
    file: Annotated[Path, typer.Argument(help="The fixture to shrink.", show_default=False)],
    code: Annotated[str | None, typer.Option(help="The finding that must stay; the root cause by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to; in place by default.", show_default=False)] = None,
) -> None:
    """Make a fixture smaller while the same finding stays: handoffs, events, blocks, times."""
    read = read_fixture(file)
    wanted = code or read.fields.get("root_cause") or ""
    lines = Shrinker(str(wanted), read.fields.get("end_ms")).shrink(read.events)
    observed = observe_lines(lines, read.fields.get("end_ms")).fields
    kept = {key: item for key, item in read.fields.items() if key != "events"}
    kept.update((key, observed[key]) for key in read.expectations)
    write_fixture(out or file, {**kept, "events": lines})
    console().print(Text(f"{out or file}: {len(read.events)} lines became {len(lines)}", "green"))


@app.command("check", epilog="Example: handoff fixture check tests/*.handoff.json")
def check_files(
    files: Annotated[list[Path], typer.Argument(help="The fixtures.", show_default=False)],
    json: JsonOutput = False,
) -> None:
    """Replay fixtures and compare findings, completions and balances. Exits 1 when one is found otherwise."""
    results = [(path, check(read_fixture(path))) for path in files]
    if json:
        print_document(_document(results))
    else:
        for path, mismatches in results:
            console().print(Text(f"{path}: {'as it says' if not mismatches else 'found otherwise'}"))
            for mismatch in mismatches:
                console().print(Text(f"  {mismatch}", "yellow"))
    if any(mismatches for _, mismatches in results):
        raise typer.Exit(1)


def _codes(lines: list[dict[str, Any]]) -> set[str]:
    return {finding.code for finding in observe_lines(lines).examination.findings}


def _write(out: Path, fields: dict[str, Any], *, as_test: bool) -> None:
    if as_test:
        out.write_text(as_python_test(fields), encoding="utf-8")
    else:
        write_fixture(out, fields)


def _document(results: list[tuple[Path, list[Mismatch]]]) -> dict[str, Any]:
    return {
        "schema": "handoff.fixture/1",
        "fixtures": [
            {
                "file": str(path),
                "holds": not mismatches,
                "mismatches": [{"key": m.key, "expected": m.expected, "actual": m.actual} for m in mismatches],
            }
            for path, mismatches in results
        ],
    }
