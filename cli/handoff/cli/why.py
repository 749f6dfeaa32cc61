"""`handoff why`: the post-mortem of one handoff or of all that failed."""

import typer

from handoff.cli.arguments import AnyHandoff, JournalFile, JsonOutput
from handoff.cli.output import console, print_document, progress
from handoff.cli.why_view import why_view
from handoff.journal.examination import examine
from handoff.journal.handoff_list import list_handoffs
from handoff.journal.postmortem import explain, why_document
from handoff.journal.reader import HandoffRecord, JournalReader

EXAMPLE = "handoff why run.db"


def why(
    journal: JournalFile,
    handoff: AnyHandoff = None,
    json: JsonOutput = False,
) -> None:
    """Explain what went wrong: root cause, cleanup owner and verdict per side, each sentence with its rows.

    Without HANDOFF it explains all handoffs with findings. Exits 1 when there is any finding.
    """
    with JournalReader(journal) as reader, progress("examining", reader.last_seq, quiet=json) as on_row:
        chosen = None if handoff is None else [reader.find_handoff(handoff)]
        examined = examine(reader, on_row=on_row, only=[each.number for each in chosen or ()])
        postmortems = list(explain(reader, examined, chosen))
        total = 1 if handoff else sum(1 for _ in reader.handoffs())
        still_open = _still_open(reader, chosen)
    elsewhere = tuple(finding for finding in examined.findings if not finding.handoffs and handoff is None)
    if json:
        print_document(why_document(str(journal), postmortems, elsewhere))
    else:
        console().print(why_view(postmortems, total, elsewhere, still_open))
    if elsewhere or any(not postmortem.healthy for postmortem in postmortems):
        raise typer.Exit(1)


def _still_open(reader: JournalReader, chosen: list[HandoffRecord] | None) -> int:
    """How many handoffs a run without an end, killed or still recording, left open."""
    unended = {record.run for record in reader.runs() if record.state is None}
    asked = reader.handoffs() if chosen is None else chosen
    return sum(summary.open for summary in list_handoffs(reader, [each for each in asked if each.run in unended]))
