"""`handoff verify`: whether a journal is what was written."""

import typer

from handoff.cli.arguments import JournalFile, JsonOutput
from handoff.cli.output import console, print_document
from handoff.cli.verify_view import verify_view
from handoff.journal.verify import verify_journal
from handoff.journal.verify_document import verify_document

EXAMPLE = "handoff verify run.db"


def verify(journal: JournalFile, json: JsonOutput = False) -> None:
    """Check that a journal is what was written: rows, digest chain, receipt, schema, ends of runs.

    Exits 1 when rows are damaged or lost, or the receipt is missing. A journal that was never closed, as after a kill,
    is open: what is there is proved, and later rows may be missing.
    """
    report = verify_journal(journal)
    if json:
        print_document(verify_document(report))
    else:
        console().print(verify_view(report))
    if report.faulty:
        raise typer.Exit(1)
