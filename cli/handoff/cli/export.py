"""`handoff export`: a journal in another form."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from handoff.cli.arguments import JournalFile
from handoff.cli.output import progress
from handoff.journal.exporter import export_lines
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff export run.db --format jsonl --out run.jsonl"


class ExportFormat(StrEnum):
    """The forms that a journal can be written in."""

    JSONL = "jsonl"


def export(
    journal: JournalFile,
    format: Annotated[ExportFormat, typer.Option(help="Which form.")] = ExportFormat.JSONL,  # noqa: A002
    out: Annotated[Path | None, typer.Option(help="Where to; standard output by default.", show_default=False)] = None,
) -> None:
    """Write a journal as event lines: one JSON object a line, which `import` turns into the same rows again."""
    with JournalReader(journal) as reader, progress("exporting", reader.last_seq, quiet=out is None) as on_row:
        match format:
            case ExportFormat.JSONL:
                if out is None:
                    export_lines(reader, sys.stdout)
                else:
                    with out.open("w", encoding="utf-8", newline="\n") as stream:
                        export_lines(reader, stream, on_row=on_row)
