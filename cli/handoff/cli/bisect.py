"""`handoff bisect`: which one change of one input turns a good handoff into a bad one."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from handoff.cli.arguments import JsonOutput
from handoff.cli.output import console, print_document
from handoff.journal.bisection import Bisection, Ending, NothingToBisect, bisect_handoffs
from handoff.journal.chronicle import Chronicle, chronicle_of
from handoff.journal.journal_diff import diff_journals
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff bisect good.db bad.db"


def bisect(
    good: Annotated[Path, typer.Argument(help="The journal with the handoff that ended well.", show_default=False)],
    bad: Annotated[Path, typer.Argument(help="The journal with the one that did not.", show_default=False)],
    handoff_good: Annotated[str | None, typer.Option(help="The good handoff.")] = None,
    handoff_bad: Annotated[str | None, typer.Option(help="The bad handoff; the same name by default.")] = None,
    json: JsonOutput = False,
) -> None:
    """Find the smallest change of one order or one value among the inputs that turns one outcome into the other.

    The coordinator is executed anew for each candidate. Without names the first pair that ended differently is taken.
    """
    with JournalReader(good) as one, JournalReader(bad) as other:
        names = (handoff_good, handoff_bad or handoff_good)
        if handoff_good is None:
            parted = [each for each in diff_journals(one, other).differing if each.completion_a != each.completion_b]
            if not parted:
                raise NothingToBisect("no pair of handoffs ended differently; name two (--handoff-good, --handoff-bad)")
            names = (parted[0].name_a, parted[0].name_b)
        pair = _chronicle(one, names[0]), _chronicle(other, names[1])
        found = bisect_handoffs(*pair)
    if json:
        print_document({"schema": "handoff.bisect/1", "good": names[0], "bad": names[1], **_document(found)})
    else:
        console().print(_view(found, names))
    if not found.edits:
        raise typer.Exit(1)


def _chronicle(reader: JournalReader, name: str | None) -> Chronicle:
    return chronicle_of(reader, reader.find_handoff(name or ""))


def _document(found: Bisection) -> dict[str, Any]:
    return {
        "good_ending": {"mode": found.good.mode, "completion": found.good.completion},
        "bad_ending": {"mode": found.bad.mode, "completion": found.bad.completion},
        "tried": found.tried,
        "edits": [
            {"kind": edit.kind.value, "text": str(edit), "row_good": edit.seq_good, "row_bad": edit.seq_bad}
            for edit in found.edits
        ],
    }


def _view(found: Bisection, names: tuple[str | None, str | None]) -> Group:
    parts = [
        Text(f"{names[0]} ended {_ended(found.good)}", "green"),
        Text(f"{names[1]} ended {_ended(found.bad)}", "red"),
    ]
    if not found.edits:
        parts.append(Text("no change of the inputs that differ makes the one of the other"))
    for edit in found.edits:
        rows = [f"#{row} of {which}" for row, which in ((edit.seq_good, "good"), (edit.seq_bad, "bad")) if row]
        parts.append(Text(f"  {edit}  [{', '.join(rows)}]", "bold"))
    return Group(*parts)


def _ended(ending: Ending) -> str:
    return ending.completion or ending.mode.replace("_", " ")
