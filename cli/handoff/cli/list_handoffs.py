"""`handoff list`: one line per handoff."""

from collections.abc import Callable, Iterator
from time import sleep
from typing import Annotated

import typer

from handoff.cli.arguments import JournalFile, JsonOutput
from handoff.cli.list_view import follow_line, list_view
from handoff.cli.output import console, print_document
from handoff.journal.follow import handoffs_as_they_end
from handoff.journal.handoff_list import HandoffSummary, list_document, summary_document
from handoff.journal.handoff_list import list_handoffs as summaries
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff list run.db --failed"
_POLL_S = 0.2


def list_handoffs(
    journal: JournalFile,
    failed: Annotated[bool, typer.Option("--failed", help="Only handoffs that failed on any side.")] = False,
    run: Annotated[int | None, typer.Option("--run", metavar="N", help="Only handoffs of run N.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show each handoff as it ends, until the run ends or Ctrl-C.")
    ] = False,
    json: JsonOutput = False,
) -> None:
    """List handoffs, a line each: order, engine, request, duration, how each side ended, and what failed."""
    with JournalReader(journal) as reader:
        if follow:
            for summary in _followed(reader, failed=failed, run=run):
                if json:
                    print_document({"schema": "handoff.list-line/1", **summary_document(summary)})
                else:
                    console().print(follow_line(summary))
            return
        found = summaries(reader, reader.handoffs(run), failed=failed)
        if json:
            print_document(list_document(str(journal), found))
            return

        out = console()
        out.print(list_view(list(found), failed_only=failed, width=out.width))


def _followed(reader: JournalReader, *, failed: bool, run: int | None) -> Iterator[HandoffSummary]:
    """Each handoff once it has ended, in the order in which they end."""
    yield from handoffs_as_they_end(reader, _waiter(), failed=failed, run=run)


def _waiter() -> Callable[[], bool]:

    def wait() -> bool:
        sleep(_POLL_S)
        return True

    return wait
