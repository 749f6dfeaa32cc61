"""`handoff salvage`: what is left of a damaged journal."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from handoff.cli.arguments import JournalFile, JsonOutput
from handoff.cli.output import console, counted, print_document
from handoff.journal.salvage import SalvageReport, salvage_journal
from handoff.journal.salvage_document import salvage_document

EXAMPLE = "handoff salvage run.db --journal rescued.db"


def salvage(
    journal: JournalFile,
    new: Annotated[Path, typer.Option("--journal", metavar="NEW", help="The new journal; it must not exist yet.")],
    json: JsonOutput = False,
) -> None:
    """Write what can be proved of a damaged journal into a new one, and say what was dropped.

    The damaged journal is not changed. Exits 1 when rows were dropped.
    """
    report = salvage_journal(journal, new)
    if json:
        print_document(salvage_document(report))
    else:
        _print(report)
    if report.lost:
        raise typer.Exit(1)


def _print(report: SalvageReport) -> None:
    head = Text.assemble(("salvaged", "bold"), f"  {counted(report.kept, 'row')} of {report.last_seq:,} kept in ")
    head.append(str(report.new_path))
    out = console()
    out.print(head)
    if report.recovered:
        out.print(f"{counted(report.recovered, 'row')} found in raw pages only")
    if report.unproved:
        out.print(f"{counted(report.unproved, 'row')} after the last proof: plausible, not proved")
    for first, last in report.lost:
        out.print(Text.assemble(("■ lost  ", "bold red"), (f"#{first} to #{last}", "cyan")))
