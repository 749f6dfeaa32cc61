"""How a divergence looks on a terminal: its sentence, the two rows, what led there, and the machine's state."""

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from handoff.journal.divergence import Divergence
from handoff.journal.event import Event
from handoff.journal.replay_report import row_document

_COLOURS = {"missing": "red", "extra": "red", "reordered": "magenta", "payload": "red", "timing_only": "yellow"}
_ABSENT = Text("-", style="dim")


def divergence_view(divergence: Divergence) -> RenderableType:
    """One divergence, framed."""
    colour = _COLOURS.get(divergence.kind, "red")
    parts: list[RenderableType] = [Text(divergence.sentence), Text(), _rows(divergence), *_context(divergence)]
    if divergence.state is not None:
        parts += [Text(), Text("the machine, as re-execution left it", style="dim"), _state(divergence.state)]
    title = f"[bold {colour}]{divergence.kind.replace('_', ' ')}[/] at row [bold]#{divergence.seq}[/]"
    return Panel(Group(*parts), title=title, title_align="left", border_style=colour, padding=(0, 1))


def _rows(divergence: Divergence) -> Table:
    different = {difference.field for difference in divergence.differences}
    expected, actual = _flat(divergence.expected), _flat(divergence.actual)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("field")
    table.add_column("re-execution gives")
    table.add_column("the journal holds")
    whole = divergence.expected is None or divergence.actual is None
    for name in dict.fromkeys((*expected, *actual)):
        style = "bold red" if name in different else "" if whole else "dim"
        left, right = (_cell(side.get(name), name in different) for side in (expected, actual))
        table.add_row(Text(name, style=style), left, right)
    for difference in divergence.differences:
        if difference.field not in expected and difference.field not in actual:
            cells = (_cell(difference.expected, True), _cell(difference.actual, True))
            table.add_row(Text(difference.field, style="bold red"), *cells)
    return table


def _cell(item: Any, differs: bool) -> Text:
    if item is None:
        return _ABSENT
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return Text(text, style="bold" if differs else "")


def _flat(event: Event | None) -> dict[str, Any]:
    document = dict(row_document(event) or {})
    payload = document.pop("payload", {})
    return document | {f"payload.{name}": item for name, item in payload.items()}


def _context(divergence: Divergence) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if divergence.actor_name is not None:
        lines.append(_line("actor", divergence.actor_name))
    if divergence.last_common is not None:
        lines.append(_line("last row in common", f"#{divergence.last_common}"))
    if divergence.caused_by:
        lines.append(_line("caused by", " <- ".join(f"#{seq}" for seq in divergence.caused_by)))
    return [Text(), *lines] if lines else []


def _line(label: str, text: str) -> Text:
    return Text.assemble((f"{label}  ", "dim"), text)


def _state(state: Any) -> Padding:
    """The state, a field a line; nested values stay on their line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, item in state.items():
        shown = json.dumps(item, ensure_ascii=False, default=str)
        if isinstance(item, dict) and len(shown) > 100:
            for inner, value in item.items():
                table.add_row(Text(f"{name}.{inner}", style="dim"), _short(value))
        else:
            table.add_row(Text(name, style="dim"), _short(item))
    return Padding(table, (0, 0, 0, 2))


def _short(item: Any) -> Text:
    text = json.dumps(item, ensure_ascii=False, default=str)
    return Text(text if len(text) <= 160 else text[:157] + "...")
