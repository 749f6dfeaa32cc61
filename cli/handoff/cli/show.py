"""`handoff show`: one handoff's rows as a ladder."""

from typing import Annotated

import typer

from handoff.cli.arguments import HandoffName, JournalFile, JsonOutput
from handoff.cli.ladder_view import ladder_view
from handoff.cli.output import console, print_document
from handoff.journal.chronicle import chronicles
from handoff.journal.ladder import show_document
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff show run.db 3f2a"


def show(
    journal: JournalFile,
    handoff: HandoffName,
    all_rows: Annotated[
        bool, typer.Option("--all", help="Show the bookkeeping too: timers, engine rows, flushes.")
    ] = False,
    json: JsonOutput = False,
) -> None:
    """Show a handoff as a two-lane ladder: source, wire, destination, with times and row numbers."""
    with JournalReader(journal) as reader:
        (chronicle,) = chronicles(reader, [reader.find_handoff(handoff)])
    if json:
        print_document(show_document(str(journal), chronicle))
        return

    out = console()
    out.print(ladder_view(chronicle, all_rows=all_rows, width=out.width))
