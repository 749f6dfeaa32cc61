"""Double-entry bookkeeping over a journal's rows: each change of ownership is a posting from one account to another.

An account is a pool, a handoff, or a decode: source KV moves from the source's pool to a handoff and back, destination
KV from its pool to a handoff, then to the running decode, then back. Permits and sessions move between a worker and a
handoff. A posting takes from one account what it gives to another, so all accounts of an asset together are zero after
every row; what can be wrong is what an account has:

* a block that two handoffs own at the same time, in one pool (*owned twice*),
* a giving up of blocks that the handoff did not own (*given up unowned*),
* an account that still has something when its handoff is over (the leaks that the post-mortem tells of).
"""

from collections.abc import Iterator
from enum import StrEnum

from attrs import define, field, frozen

from handoff.journal.brief import pool_of
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource
from handoff.journal.ledger import Asset, Holding, HoldingState, Ledger
from handoff.journal.terms import Kind
from handoff.journal.vocabulary import Side


@frozen
class Posting:
    """One change of ownership.

    Attributes:
        seq, at_ms: the row that brought it about.
        handoff: the handoff's number.
        asset: what changed its owner.
        giver, taker: the accounts, such as ``source pool``, ``handoff``, ``decode``; the handoff itself may be in doubt
            (``handoff?``) while it is only known to have been ordered.
        blocks: how many blocks, where rows name them; else 1 for the asset as a whole.
        balance: what the handoff owns of the asset afterwards, in the same unit.
    """

    seq: int
    at_ms: float
    handoff: int
    asset: Asset
    giver: str
    taker: str
    blocks: int
    balance: int


class ImbalanceKind(StrEnum):
    """What can be wrong with an account."""

    OWNED_TWICE = "owned_twice"
    GIVEN_UP_UNOWNED = "given_up_unowned"


@frozen
class Imbalance:
    """An account that has what it cannot have, after a row.

    Attributes:
        seq: the row.
        kind: what is wrong.
        handoffs: numbers of the handoffs concerned.
        blocks: the blocks concerned.
        side: on which side.
    """

    seq: int
    kind: ImbalanceKind
    handoffs: tuple[int, ...]
    blocks: tuple[int, ...]
    side: Side


_HOME = {
    (Asset.SOURCE_KV, Side.SOURCE): "source pool",
    (Asset.DESTINATION_KV, Side.DESTINATION): "destination pool",
    (Asset.TRANSFER, Side.SOURCE): "transport",
}
_TAKES = {"source_held": Asset.SOURCE_KV, "destination_blocks": Asset.DESTINATION_KV}
_GIVES = {
    "source_freed": Asset.SOURCE_KV,
    "source_lease_expired": Asset.SOURCE_KV,
    "destination_freed": Asset.DESTINATION_KV,
    "destination_finished": Asset.DESTINATION_KV,
}
_SIDES = {Asset.SOURCE_KV: Side.SOURCE, Asset.DESTINATION_KV: Side.DESTINATION}


@define
class Book:
    """Keeps the accounts; `post` takes rows in order and gives the postings of each.

    Attributes:
        ledger: who owns what now.
        imbalances: what is wrong with the accounts so far.
        turnover: by asset, how many blocks or things were taken and given up; equal when all is back home.
    """

    ledger: Ledger = field(factory=Ledger)
    imbalances: list[Imbalance] = field(factory=list)
    turnover: dict[Asset, list[int]] = field(factory=lambda: {asset: [0, 0] for asset in Asset})
    _owners: dict[tuple[Asset, object, int], int] = field(factory=dict)
    _owned: dict[tuple[Asset, int], tuple[object, frozenset[int]]] = field(factory=dict)

    def post(self, event: Event) -> tuple[Posting, ...]:
        """Take the next row."""
        if event.handoff is None:
            self.ledger.apply(event)
            return ()
        before = dict(self.ledger.of(event.handoff))
        if event.kind == Kind.RESOURCE:
            self._check(event)
        self.ledger.apply(event)
        after = self.ledger.of(event.handoff)
        keys = [*before, *(key for key in after if key not in before)]
        postings = [self._posting(event, before.get(key), after.get(key)) for key in keys]
        return tuple(posting for posting in postings if posting is not None)

    def balanced(self) -> bool:
        """Whether nothing is owned any more and no account was ever wrong."""
        return not self.imbalances and not any(holding.owed for holding in self.ledger.holdings())

    def _posting(self, event: Event, old: Holding | None, new: Holding | None) -> Posting | None:
        shown = new or old
        if shown is None or (old is not None and new is not None and _account(old) == _account(new)):
            return None
        home = _HOME.get((shown.asset, shown.side), f"{shown.side} worker")
        giver = home if old is None else _account(old)
        taker = home if new is None else _account(new)
        blocks = 1 if shown.blocks is None else len(shown.blocks)
        if old is None:
            self.turnover[shown.asset][0] += 1
        if new is None:
            self.turnover[shown.asset][1] += 1
        assert event.handoff is not None
        balance = blocks if new is not None and new.owed else 0
        return Posting(event.seq, event.at_ms, event.handoff, shown.asset, giver, taker, blocks, balance)

    def _check(self, event: Event) -> None:
        payload = event.payload
        name, blocks = str(payload.get("resource")), frozenset(payload.get("blocks") or ())
        taken, given = _TAKES.get(name), _GIVES.get(name)
        assert event.handoff is not None
        if taken is not None and blocks:
            pool = pool_of(event)
            others: dict[int, list[int]] = {}
            for block in sorted(blocks):
                owner = self._owners.get((taken, pool, block), event.handoff)
                if owner != event.handoff:
                    others.setdefault(owner, []).append(block)
                self._owners[taken, pool, block] = event.handoff
            self._owned[taken, event.handoff] = (pool, blocks)
            for owner, shared in others.items():
                self._wrong(event, ImbalanceKind.OWNED_TWICE, (owner, event.handoff), tuple(shared), _SIDES[taken])
        elif given is not None:
            pool, owned = self._owned.pop((given, event.handoff), (pool_of(event), frozenset()))
            for block in owned:
                if self._owners.get((given, pool, block)) == event.handoff:
                    del self._owners[given, pool, block]
            unowned = tuple(sorted(blocks - owned))
            if unowned:
                self._wrong(event, ImbalanceKind.GIVEN_UP_UNOWNED, (event.handoff,), unowned, _SIDES[given])

    def _wrong(
        self, event: Event, kind: ImbalanceKind, handoffs: tuple[int, ...], blocks: tuple[int, ...], side: Side
    ) -> None:
        self.imbalances.append(Imbalance(event.seq, kind, handoffs, blocks, side))


def _account(holding: Holding) -> str:
    match holding.state:
        case HoldingState.POSSIBLE:
            return "handoff?"
        case HoldingState.HELD:
            return "handoff"
        case HoldingState.DECODING:
            return "decode"


def keep_books(source: EventSource, at: int | None = None) -> Book:
    """The books after a row; the whole journal's by default."""
    book = Book()
    for event in source.events(last=at):
        book.post(event)
    return book


def postings_of(source: EventSource, handoff: int, at: int | None = None) -> Iterator[Posting]:
    """The postings of one handoff, in order."""
    book = Book()
    for event in source.events(handoff=handoff, last=at):
        yield from book.post(event)
