"""`handoff export`: a journal in another form."""

import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from handoff.cli.arguments import JournalFile
from handoff.cli.output import progress
from handoff.journal.exporter import export_lines
from handoff.journal.incident_page import incident_page
from handoff.journal.perfetto import export_perfetto
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff export run.db --format jsonl --out run.jsonl"


class ExportFormat(StrEnum):
    """The forms that a journal can be written in."""

    JSONL = "jsonl"
    HTML = "html"
    PERFETTO = "perfetto"


def export(
    journal: JournalFile,
    format: Annotated[ExportFormat, typer.Option(help="Which form.")] = ExportFormat.JSONL,  # noqa: A002
    out: Annotated[Path | None, typer.Option(help="Where to; standard output by default.", show_default=False)] = None,
    handoff: Annotated[str | None, typer.Option(help="With html: show this handoff alone.")] = None,
) -> None:
    """Write a journal in another form.

    jsonl: one JSON object a line, which `import` turns into the same rows again. html: an offline page with the
    handoffs that have findings. perfetto: a trace for ui.perfetto.dev, a lane for each worker and arrows between them.
    """
    with (
        JournalReader(journal) as reader,
        progress("exporting", reader.last_seq, quiet=out is None) as on_row,
        nullcontext(sys.stdout) if out is None else out.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        match format:
            case ExportFormat.JSONL:
                export_lines(reader, stream, on_row=on_row)
            case ExportFormat.HTML:
                chosen = None if handoff is None else [reader.find_handoff(handoff)]
                stream.write(incident_page(reader, journal.name, chosen))
            case ExportFormat.PERFETTO:
                export_perfetto(reader, stream)
