"""`handoff ledger`: who owns what at a row, and whose duty each cleanup is."""

from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from handoff.cli.arguments import JournalFile, JsonOutput
from handoff.cli.output import console, print_document, progress
from handoff.journal.ledger import Holding
from handoff.journal.postings import Book, Posting, postings_of
from handoff.journal.reader import JournalReader

EXAMPLE = "handoff ledger run.db --at 120"


def ledger(
    journal: JournalFile,
    at: Annotated[int | None, typer.Option(help="The row after which to look; the last by default.")] = None,
    follow: Annotated[str | None, typer.Option(help="Show every posting of this handoff instead.")] = None,
    json: JsonOutput = False,
) -> None:
    """Show who owns which blocks, transfers, permits and sessions after a row, since when and whose duty it is.

    Exits 1 when an account has what it cannot have, such as blocks that two handoffs own.
    """
    with JournalReader(journal) as reader:
        last = reader.last_seq if at is None else min(at, reader.last_seq)
        if follow is not None:
            found = reader.find_handoff(follow)
            postings = list(postings_of(reader, found.number, last))
            told: dict[str, Any] = {"handoff": found.handoff_id, "postings": [_posting(each) for each in postings]}
            _tell(told, _postings(postings), last, json=json)
            return
        book = Book()
        with progress("bookkeeping", last, quiet=json) as on_row:
            for event in reader.events(last=last):
                book.post(event)
                if on_row is not None and event.seq % 4096 == 0:
                    on_row(event.seq)
        names = {h.handoff: reader.handoff(h.handoff).handoff_id for h in book.ledger.holdings()}
        names |= {n: reader.handoff(n).handoff_id for wrong in book.imbalances for n in wrong.handoffs}
    accounts: dict[str, Any] = {
        "balanced": book.balanced(),
        "holdings": [_holding(holding, names) for holding in book.ledger.holdings()],
        "turnover": {asset.value: {"taken": t, "given_up": g} for asset, (t, g) in book.turnover.items()},
        "imbalances": [
            {
                "seq": wrong.seq,
                "kind": wrong.kind.value,
                "handoffs": [names[number] for number in wrong.handoffs],
                "blocks": list(wrong.blocks),
                "side": wrong.side.value,
            }
            for wrong in book.imbalances
        ],
    }
    _tell(accounts, _accounts(book, names), last, json=json)
    if book.imbalances:
        raise typer.Exit(1)


def _tell(document: dict[str, Any], view: RenderableType, at: int, *, json: bool) -> None:
    if json:
        print_document({"schema": "handoff.ledger/1", "at": at, **document})
    else:
        console().print(view)


def _holding(holding: Holding, names: dict[int, str]) -> dict[str, Any]:
    return {
        "handoff": names[holding.handoff],
        "asset": holding.asset.value,
        "side": holding.side.value,
        "state": holding.state.value,
        "since": holding.since_seq,
        "since_ms": holding.since_ms,
        "until_ms": holding.until_ms,
        "blocks": None if holding.blocks is None else list(holding.blocks),
        "duty": holding.duty,
        "owed": holding.owed,
    }


def _posting(posting: Posting) -> dict[str, Any]:
    return {
        "seq": posting.seq,
        "at_ms": posting.at_ms,
        "asset": posting.asset.value,
        "from": posting.giver,
        "to": posting.taker,
        "amount": posting.blocks,
        "balance": posting.balance,
    }


def _accounts(book: Book, names: dict[int, str]) -> RenderableType:
    holdings = book.ledger.holdings()
    parts: list[RenderableType] = []
    if holdings:
        table = Table("handoff", "asset", "state", "since", "until", "blocks", "whose duty", box=None, pad_edge=False)
        for h in holdings:
            blocks = "" if h.blocks is None else " ".join(map(str, h.blocks[:12])) + " …" * (len(h.blocks) > 12)
            until = "" if h.until_ms is None else f"{h.until_ms:g} ms"
            style = None if h.owed else "dim"
            since = f"[cyan]#{h.since_seq}[/] {h.since_ms:g} ms"
            table.add_row(names[h.handoff], h.asset.value, h.state.value, since, until, blocks, h.duty, style=style)
        parts.append(table)
    else:
        parts.append(Text("nothing is owned", "green"))
    owed = {asset.value: count for asset, count in book.ledger.balance().items() if count}
    parts.append(Text("owed: " + (", ".join(f"{count} {name}" for name, count in owed.items()) or "nothing"), "bold"))
    for wrong in book.imbalances[:20]:
        who = " and ".join(names[number] for number in wrong.handoffs)
        kind = wrong.kind.replace("_", " ")
        parts.append(Text(f"row {wrong.seq}: {kind}: blocks {list(wrong.blocks)} of {who}", "red"))
    return Group(*parts)


def _postings(postings: list[Posting]) -> RenderableType:
    table = Table("row", "at ms", "asset", "from", "to", "amount", "owns then", box=None, pad_edge=False)
    for p in postings:
        row = (f"[cyan]#{p.seq}[/]", f"{p.at_ms:g}", p.asset.value, p.giver, p.taker, str(p.blocks), str(p.balance))
        table.add_row(*row)
    return table
