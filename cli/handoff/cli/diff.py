"""`handoff diff`: what differs between two journals, by meaning."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from handoff.cli.arguments import JsonOutput
from handoff.cli.output import console, print_document
from handoff.journal.chronicle import chronicle_of
from handoff.journal.event import Event
from handoff.journal.journal_diff import HandoffDiff, JournalDiff, diff_document, diff_handoffs, diff_journals
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff diff before.db after.db"

_SHOWN = 20


def diff(
    a: Annotated[Path, typer.Argument(help="One journal.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="The other one.", show_default=False)],
    handoff_a: Annotated[str | None, typer.Option(help="Compare this handoff of A alone.")] = None,
    handoff_b: Annotated[str | None, typer.Option(help="With this handoff of B; the same name by default.")] = None,
    json: JsonOutput = False,
) -> None:
    """Compare two journals, or two handoffs, by meaning: the first row that differs, and what follows from it.

    Exits 1 when they differ.
    """
    with JournalReader(a) as one, JournalReader(b) as other:
        if handoff_a is None:
            found = diff_journals(one, other)
        else:
            pair = one.find_handoff(handoff_a), other.find_handoff(handoff_b or handoff_a)
            parted = diff_handoffs(chronicle_of(one, pair[0]), chronicle_of(other, pair[1]))
            found = JournalDiff(1, () if parted is None else (parted,), (), ())
    if json:
        print_document({"schema": "handoff.diff/1", "a": str(a), "b": str(b), **diff_document(found)})
    else:
        console().print(_view(found))
    if not found.same:
        raise typer.Exit(1)


def _view(found: JournalDiff) -> RenderableType:
    if found.same:
        return Text(f"{found.paired:,} handoffs compared: the same in meaning", "green")
    parts: list[RenderableType] = [
        Text(f"{len(found.differing):,} of {found.paired:,} pairs of handoffs differ", "bold")
    ]
    parts += [part for each in found.differing[:_SHOWN] for part in _handoff(each)]
    for label, names in (("only in A", found.only_a), ("only in B", found.only_b)):
        if names:
            parts.append(Text(f"{label}: {', '.join(names[:_SHOWN])}", "yellow"))
    return Group(*parts)


def _handoff(each: HandoffDiff) -> list[RenderableType]:
    first = each.first
    name = each.name_a if each.name_a == each.name_b else f"{each.name_a} and {each.name_b}"
    lines: list[RenderableType] = [
        Text.assemble((name, "bold"), f"  {each.completion_a or 'open'} and {each.completion_b or 'open'}"),
        Text(f"  A {_row(first.a)}"),
        Text(f"  B {_row(first.b)}"),
    ]
    lines += [Text(f"    {field}: {was} and {is_now}") for field, (was, is_now) in first.fields.items()]
    for label, rows in (("A", first.dependents_a), ("B", first.dependents_b)):
        if rows:
            told = " ".join(f"#{row}" for row in rows[:_SHOWN])
            lines.append(Text(f"    what follows from it in {label}: {told}", "dim"))
    return lines


def _row(event: Event | None) -> str:
    if event is None:
        return "lacks it"
    words = [event.kind, event.name, None if event.action_id is None else f"action {event.action_id}", event.outcome]
    return f"#{event.seq} {' '.join(word for word in words if word)} ({event.at_ms:g} ms)"
