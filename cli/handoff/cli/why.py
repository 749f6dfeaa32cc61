"""`handoff why`: the post-mortem of one handoff or of all that failed."""

from collections.abc import Iterator

import typer

from handoff.cli.arguments import AnyHandoff, JournalFile, JsonOutput
from handoff.cli.output import console, print_document, progress
from handoff.cli.why_view import why_view
from handoff.journal.postmortem import PostMortem, why_document
from handoff.journal.postmortem import why as examine
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff why run.db"


def why(
    journal: JournalFile,
    handoff: AnyHandoff = None,
    json: JsonOutput = False,
) -> None:
    """Explain what went wrong: root cause, cleanup owner and verdict per side, each sentence with its rows.

    Without HANDOFF it examines all and explains those with findings. Exits 1 when there is any finding.
    """
    with JournalReader(journal) as reader:
        examined = list(_examined(reader, handoff, quiet=json))
        total = 1 if handoff else sum(1 for _ in reader.handoffs())
    if json:
        print_document(why_document(str(journal), examined))
    else:
        console().print(why_view(examined, total))
    if any(not postmortem.healthy for postmortem in examined):
        raise typer.Exit(1)


def _examined(reader: JournalReader, handoff: str | None, *, quiet: bool) -> Iterator[PostMortem]:
    """The handoff that was asked for, or every one that has a finding."""
    if handoff is not None:
        yield from examine(reader, [reader.find_handoff(handoff)])
        return
    with progress("examining", reader.last_seq, quiet=quiet) as on_row:
        for postmortem in examine(reader):
            if on_row is not None:
                on_row(postmortem.chronicle.first_seq)
            if not postmortem.healthy:
                yield postmortem
