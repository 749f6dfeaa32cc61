"""The ledger: at any row, who owns what, and whose duty each outstanding cleanup is.

A handoff has few assets: the source's copy of the KV, the destination's, the transfer between them, a permit at each
worker, and a session on each side. Rows open and close them. An order alone opens an asset too, since an action that
was issued may have been applied even if nobody ever heard of it: such a holding is *possible* until a fact, an answer
or an annotation makes it *held* or closes it.

Where rows annotate ownership (`resource`, with block ids) they outrank answers: an owner that answered ``noop`` and
kept its blocks still holds them. Once a destination is activated its copy belongs to the running decode and is no
duty of the handoff's any more. When every duty is discharged the balance is zero.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from attrs import define, evolve, field, frozen

from handoff.journal.event import Event
from handoff.journal.event_source import EventSource
from handoff.journal.terms import Kind, TimerName
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, Side, Verdict


class Asset(StrEnum):
    """Something that a handoff can own."""

    SOURCE_KV = "source_kv"
    DESTINATION_KV = "destination_kv"
    TRANSFER = "transfer"
    PERMIT = "permit"
    SESSION = "session"


class HoldingState(StrEnum):
    """How surely it is owned, and by whom."""

    POSSIBLE = "possible"
    """Ordered: it may be there."""
    HELD = "held"
    DECODING = "decoding"
    """It belongs to the running decode, no longer to the handoff."""


@frozen
class Holding:
    """One asset that is owned at a row.

    Attributes:
        handoff: the handoff's number.
        asset: what is owned.
        side: on which side.
        state: how surely.
        since_seq, since_ms: the row that opened it, or made it certain.
        blocks: block ids, where rows name them.
        actor: whose permit or session it is.
        until_ms: the deadline at which it ends by itself: a hold's lease, a session's deadline; None: never.
        duty: who has to give it up: ``source session``, ``destination session``, ``coordinator``, ``decode``, or
            ``nobody`` when those who could are gone.
    """

    handoff: int
    asset: Asset
    side: Side
    state: HoldingState
    since_seq: int
    since_ms: float
    blocks: tuple[int, ...] | None = None
    actor: int | None = None
    until_ms: float | None = None
    duty: str = "coordinator"

    @property
    def owed(self) -> bool:
        """Whether somebody still has to give it up."""
        return self.state is not HoldingState.DECODING


_CLOSES = {
    ActionName.RELEASE_SOURCE.value: Asset.SOURCE_KV,
    ActionName.CANCEL_SOURCE.value: Asset.SOURCE_KV,
    ActionName.CANCEL_DESTINATION.value: Asset.DESTINATION_KV,
}
_OPENS = {
    ActionName.SUBMIT_PREFILL.value: Asset.SOURCE_KV,
    ActionName.RESERVE_DESTINATION.value: Asset.DESTINATION_KV,
    ActionName.START_TRANSFER.value: Asset.TRANSFER,
}
_CONFIRMS = {
    FactName.SOURCE_HELD.value: Asset.SOURCE_KV,
    FactName.DESTINATION_RESERVED.value: Asset.DESTINATION_KV,
}
_ANNOTATED_HELD = {
    "source_held": Asset.SOURCE_KV,
    "destination_blocks": Asset.DESTINATION_KV,
    "destination_quarantined": Asset.DESTINATION_KV,
}
_ANNOTATED_FREED = {
    "source_freed": Asset.SOURCE_KV,
    "source_lease_expired": Asset.SOURCE_KV,
    "destination_freed": Asset.DESTINATION_KV,
    "destination_finished": Asset.DESTINATION_KV,
}
_SIDE = {
    Asset.SOURCE_KV: Side.SOURCE,
    Asset.DESTINATION_KV: Side.DESTINATION,
    Asset.TRANSFER: Side.SOURCE,
}
_DONE = (OutcomeName.APPLIED, OutcomeName.NOOP)
_Key = tuple[int, Asset, int]


@define
class Ledger:
    """Folds rows into holdings; `apply` takes them in order."""

    seq: int = 0
    _open: dict[int, dict[tuple[Asset, int], Holding]] = field(factory=dict)
    _names: dict[tuple[int, int], str] = field(factory=dict)
    _annotated: set[_Key] = field(factory=set)
    _freed: set[_Key] = field(factory=set)
    _sessions: dict[tuple[int, Side], str] = field(factory=dict)
    _sides: dict[int, Side] = field(factory=dict)

    def apply(self, event: Event) -> None:
        """Take the next row."""
        self.seq = event.seq
        if event.handoff is None:
            return
        match event.kind:
            case Kind.ACTOR_STARTED:
                self._declared(event)
            case Kind.ACTION_ISSUED:
                self._ordered(event)
            case Kind.ENGINE_LIFECYCLE | Kind.FACT_OBSERVED | Kind.FACT_APPLIED | Kind.FACT_IGNORED | Kind.FACT_KEPT:
                self._observed(event)
            case Kind.OUTCOME_APPLIED | Kind.OUTCOME_CONFLICT | Kind.OUTCOME_LATE | Kind.CLEANUP_REPLIED:
                self._answered(event)
            case Kind.ENGINE_ANSWERED:
                self._answered(event)
            case Kind.ENGINE_FINISHED if self._holding(event.handoff, Asset.DESTINATION_KV, HoldingState.DECODING):
                self._close(event.handoff, Asset.DESTINATION_KV)
            case Kind.RESOURCE:
                self._annotate(event)
            case Kind.PERMIT_TAKEN | Kind.PERMIT_RETURNED:
                self._permit(event)
            case Kind.SESSION_STARTED | Kind.SESSION_ENDED:
                self._session(event)
            case Kind.DEADLINE_SET | Kind.DEADLINE_MOVED if event.name == TimerName.SESSION_DEADLINE:
                self._deadline(event)
            case _:
                pass

    def holdings(self, handoff: int | None = None) -> tuple[Holding, ...]:
        """What is owned now, by handoff and in the order in which it was opened."""
        return tuple(
            evolve(holding, duty=self._duty(holding))
            for number in (sorted(self._open) if handoff is None else (handoff,))
            for holding in sorted(self.of(number).values(), key=lambda holding: holding.since_seq)
        )

    def of(self, handoff: int) -> Mapping[tuple[Asset, int], Holding]:
        """What one handoff owns, by asset and number of the actor whose it is (0: the handoff's own)."""
        return self._open.get(handoff, {})

    def balance(self, handoff: int | None = None) -> dict[Asset, int]:
        """How many holdings of each asset still have to be given up."""
        totals = dict.fromkeys(Asset, 0)
        for holding in self.holdings(handoff):
            totals[holding.asset] += holding.owed
        return totals

    # -- rows -----------------------------------------------------------------------------------------

    def _declared(self, event: Event) -> None:
        kind, actor = event.payload.get("kind"), event.payload.get("actor")
        side = {"source_session": Side.SOURCE, "destination_session": Side.DESTINATION}.get(str(kind))
        if side is not None and isinstance(actor, int):
            self._sides[actor] = side

    def _ordered(self, event: Event) -> None:
        assert event.handoff is not None
        if event.action_id is not None and event.name is not None:
            self._names[event.handoff, event.action_id] = event.name
        asset = _OPENS.get(str(event.name))
        if asset is not None:
            self._open_asset(event, asset, HoldingState.HELD if asset is Asset.TRANSFER else HoldingState.POSSIBLE)

    def _observed(self, event: Event) -> None:
        assert event.handoff is not None
        if event.name == FactName.TRANSFER_COMPLETED:
            self._close(event.handoff, Asset.TRANSFER)
        asset = _CONFIRMS.get(str(event.name))
        if asset is not None and not self._settled(event.handoff, asset):
            self._open_asset(event, asset, HoldingState.HELD)

    def _answered(self, event: Event) -> None:
        assert event.handoff is not None
        action = event.name or self._names.get((event.handoff, -1 if event.action_id is None else event.action_id))
        if event.outcome not in _DONE:
            return
        if action == ActionName.ACTIVATE_DESTINATION and event.outcome == OutcomeName.APPLIED:
            self._activated(event.handoff)
        asset = _CLOSES.get(str(action))
        if asset is not None:
            self._close(event.handoff, Asset.TRANSFER)
            if (event.handoff, asset, 0) not in self._annotated:
                self._close(event.handoff, asset)

    def _activated(self, handoff: int) -> None:
        key = (handoff, Asset.DESTINATION_KV, 0)
        holding = self._get(key)
        if holding is not None:
            self._put(key, evolve(holding, state=HoldingState.DECODING))

    def _annotate(self, event: Event) -> None:
        assert event.handoff is not None
        name = str(event.payload.get("resource"))
        held, freed = _ANNOTATED_HELD.get(name), _ANNOTATED_FREED.get(name)
        key = (event.handoff, Asset.SOURCE_KV, 0)
        known = self._get(key)
        if name == "lease_renewed" and known is not None:
            self._put(key, evolve(known, until_ms=event.payload.get("lease_deadline_ms")))
        if held is not None:
            blocks = event.payload.get("blocks")
            self._annotated.add((event.handoff, held, 0))
            self._open_asset(event, held, HoldingState.HELD, None if blocks is None else tuple(blocks))
        elif freed is not None:
            self._close(event.handoff, freed)

    def _permit(self, event: Event) -> None:
        assert event.handoff is not None
        key = (event.handoff, Asset.PERMIT, event.actor or 0)
        if event.kind == Kind.PERMIT_TAKEN:
            second = any(asset is Asset.PERMIT for asset, _ in self.of(event.handoff))
            side = Side.DESTINATION if second else Side.SOURCE
            taken = Holding(
                event.handoff, Asset.PERMIT, side, HoldingState.HELD, event.seq, event.at_ms, None, event.actor
            )
            self._put(key, taken)
        elif event.verdict == Verdict.APPLIED:
            self._drop(key)

    def _session(self, event: Event) -> None:
        assert event.handoff is not None
        side = self._sides.get(event.actor or 0)
        if side is None:
            return
        key = (event.handoff, Asset.SESSION, event.actor or 0)
        if event.kind == Kind.SESSION_STARTED:
            self._sessions[event.handoff, side] = "live"
            begun = Holding(
                event.handoff, Asset.SESSION, side, HoldingState.HELD, event.seq, event.at_ms, None, event.actor
            )
            self._put(key, begun)
        elif event.verdict is None:
            self._sessions[event.handoff, side] = "ended"
            self._drop(key)

    def _deadline(self, event: Event) -> None:
        key = (event.handoff or 0, Asset.SESSION, event.actor or 0)
        known = self._get(key)
        if known is not None:
            self._put(key, evolve(known, until_ms=event.payload.get("expires_ms")))

    # -- holdings -------------------------------------------------------------------------------------

    def _get(self, key: _Key) -> Holding | None:
        return self._open.get(key[0], {}).get(key[1:])

    def _put(self, key: _Key, holding: Holding) -> None:
        self._open.setdefault(key[0], {})[key[1:]] = holding

    def _drop(self, key: _Key) -> None:
        own = self._open.get(key[0])
        if own is not None:
            own.pop(key[1:], None)
            if not own:
                del self._open[key[0]]

    def _open_asset(
        self, event: Event, asset: Asset, state: HoldingState, blocks: tuple[int, ...] | None = None
    ) -> None:
        assert event.handoff is not None
        key = (event.handoff, asset, 0)
        known = self._get(key)
        self._freed.discard(key)
        if known is not None and known.state is state and blocks is None:
            return
        if known is not None and known.state is HoldingState.DECODING:
            return
        kept = known.blocks if known is not None and blocks is None else blocks
        until_ms = event.payload.get("lease_deadline_ms", None if known is None else known.until_ms)
        opened = Holding(event.handoff, asset, _SIDE[asset], state, event.seq, event.at_ms, kept, until_ms=until_ms)
        self._put(key, opened)

    def _close(self, handoff: int, asset: Asset) -> None:
        self._drop((handoff, asset, 0))
        self._freed.add((handoff, asset, 0))

    def _settled(self, handoff: int, asset: Asset) -> bool:
        """Whether rows of ownership already told more than a repeated fact can."""
        key = (handoff, asset, 0)
        return key in self._annotated or key in self._freed

    def _holding(self, handoff: int, asset: Asset, state: HoldingState) -> bool:
        holding = self._get((handoff, asset, 0))
        return holding is not None and holding.state is state

    def _duty(self, holding: Holding) -> str:
        if holding.state is HoldingState.DECODING:
            return "decode"
        if holding.asset is Asset.SESSION:
            return f"{holding.side} session"
        match self._sessions.get((holding.handoff, holding.side)):
            case "live":
                return f"{holding.side} session"
            case "ended":
                return "nobody"
            case _:
                return "worker" if holding.asset is Asset.PERMIT else "coordinator"


def ledger_at(source: EventSource, at: int | None = None, *, handoff: int | None = None) -> Ledger:
    """The ledger after a row, of one handoff or of all; the whole journal by default."""
    ledger = Ledger()
    for event in _until(source, at, handoff):
        ledger.apply(event)
    return ledger


def _until(source: EventSource, at: int | None, handoff: int | None) -> Iterator[Event]:
    return source.events(last=at, handoff=handoff)
