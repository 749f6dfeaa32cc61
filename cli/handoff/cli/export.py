"""`handoff export`: a journal in another form."""

import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from secrets import token_bytes
from typing import Annotated

import typer

from handoff.cli.arguments import JournalFile
from handoff.cli.output import progress
from handoff.journal.event_source import EventSource
from handoff.journal.exporter import export_lines
from handoff.journal.incident_page import incident_page
from handoff.journal.perfetto import export_perfetto
from handoff.journal.reader import JournalReader
from handoff.journal.redaction import redacted

EXAMPLE = "handoff export run.db --format jsonl --out run.jsonl"


class ExportFormat(StrEnum):
    """The forms that a journal can be written in."""

    JSONL = "jsonl"
    HTML = "html"
    PERFETTO = "perfetto"


def export(  # noqa: PLR0917 - options are named, not counted
    journal: JournalFile,
    format: Annotated[ExportFormat, typer.Option(help="Which form.")] = ExportFormat.JSONL,  # noqa: A002
    out: Annotated[Path | None, typer.Option(help="Where to; standard output by default.", show_default=False)] = None,
    handoff: Annotated[str | None, typer.Option(help="With html: show this handoff alone.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace names, hosts and free text by tokens.")] = False,
    key: Annotated[str | None, typer.Option(help="The key of the tokens; a new one by default.")] = None,
) -> None:
    """Write a journal in another form.

    jsonl: one JSON object a line, which `import` turns into the same rows again. html: an offline page with the
    handoffs that have findings. perfetto: a trace for ui.perfetto.dev, a lane for each worker and arrows between them.

    With `--redact` findings and replay stay the same, and nothing is written if something that looks private remains.
    """
    with JournalReader(journal) as reader, progress("exporting", reader.last_seq, quiet=out is None) as on_row:
        number = None if handoff is None else reader.find_handoff(handoff).number
        secret = token_bytes(32) if key is None else key.encode()
        source: EventSource = redacted(reader, secret) if redact else reader
        with nullcontext(sys.stdout) if out is None else out.open("w", encoding="utf-8", newline="\n") as stream:
            match format:
                case ExportFormat.JSONL:
                    export_lines(source, stream, on_row=on_row)
                case ExportFormat.HTML:
                    chosen = None if number is None else [source.handoff(number)]
                    title = "journal" if redact else journal.name
                    stream.write(incident_page(source, title, chosen))
                case ExportFormat.PERFETTO:
                    export_perfetto(source, stream)
