"""What replay and the readers need of a journal, whoever kept it.

They only ever stream rows in order, look one row up, and look one actor up. `reader.JournalReader` does that from a
file in bounded memory; `EventList` does it from rows in memory.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attrs import define, field, frozen

from handoff.journal.declarations import ActorStarted, HandoffOpened
from handoff.journal.event import Event
from handoff.journal.row_codec import decode
from handoff.journal.terms import ActorKind, Kind


class ActorDeclaration(Protocol):
    """An actor as its `actor_started` row declares it."""

    @property
    def actor(self) -> int:
        """Its number."""
        ...

    @property
    def kind(self) -> ActorKind:
        """Which machine it is an instance of."""
        ...

    @property
    def label(self) -> str:
        """A name for people."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """What its machine was built from."""
        ...

    @property
    def parent(self) -> int | None:
        """The actor that owns it as a sub-machine."""
        ...

    @property
    def handoff(self) -> int | None:
        """The handoff it serves, if it serves one alone."""
        ...


class HandoffDeclaration(Protocol):
    """A handoff as its `handoff_opened` row declares it."""

    @property
    def number(self) -> int:
        """Its number in the journal."""
        ...

    @property
    def run(self) -> int:
        """The run it was opened in."""
        ...

    @property
    def handoff_id(self) -> str:
        """Its name."""
        ...

    @property
    def opened(self) -> HandoffOpened:
        """All that the row says."""
        ...


class EventSource(Protocol):
    """Rows in order, and look-ups by number."""

    @property
    def last_seq(self) -> int:
        """Number of the last row, 0 for an empty journal."""
        ...

    def events(
        self,
        *,
        first: int = 1,
        last: int | None = None,
        handoff: int | None = None,
        actor: int | None = None,
        run: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        """The rows from `first` to `last`, narrowed to one handoff, actor, run or some kinds."""
        ...

    def event(self, seq: int) -> Event:
        """One row.

        Raises:
            LookupError: there is no such row.
        """
        ...

    def actor(self, number: int) -> ActorDeclaration:
        """One actor's declaration.

        Raises:
            LookupError: there is no such actor.
        """
        ...

    def handoffs(self, run: int | None = None) -> Iterator[HandoffDeclaration]:
        """The handoffs, of one run or all, in the order of their numbers."""
        ...

    def handoff(self, number: int) -> HandoffDeclaration:
        """One handoff's declaration.

        Raises:
            LookupError: there is no such handoff.
        """
        ...


@runtime_checkable
class StoredRows(Protocol):
    """A source that also gives its rows as they are stored, for bulk readers that need no more of most of them."""

    def rows(self, *, kinds: Collection[str] | None = None) -> Iterator[tuple[Any, ...]]:
        """The stored rows in order, columns as in `event.COLUMNS`, words as their numbers."""
        ...


@frozen
class DeclaredHandoff:
    """A `handoff_opened` row with its number and run."""

    number: int
    run: int
    opened: HandoffOpened

    @property
    def handoff_id(self) -> str:
        """Its name."""
        return self.opened.handoff_id


@frozen
class DeclaredActor:
    """An `actor_started` row with the handoff and run it was declared for."""

    actor: int
    kind: ActorKind
    label: str
    config: Mapping[str, Any]
    parent: int | None
    handoff: int | None
    run: int


def declared_actor(event: Event) -> DeclaredActor:
    """What an `actor_started` row declares.

    Raises:
        UnreadableRow: the row does not fit its kind.
    """
    started: ActorStarted = decode(event)
    return DeclaredActor(
        started.actor, started.kind, started.label, started.config, started.parent, event.handoff, event.run
    )


@define
class EventList:
    """Rows in memory as an `EventSource`; they need not be numbered soundly."""

    listed: Sequence[Event]
    _by_seq: dict[int, Event] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._by_seq = {event.seq: event for event in self.listed}

    def events(
        self,
        *,
        first: int = 1,
        last: int | None = None,
        handoff: int | None = None,
        actor: int | None = None,
        run: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        """See `EventSource`."""
        for event in self.listed:
            if (
                event.seq >= first
                and (last is None or event.seq <= last)
                and (handoff is None or event.handoff == handoff)
                and (actor is None or event.actor == actor)
                and (run is None or event.run == run)
                and (kinds is None or event.kind in kinds)
            ):
                yield event

    @property
    def last_seq(self) -> int:
        """See `EventSource`."""
        return self.listed[-1].seq if self.listed else 0

    def handoffs(self, run: int | None = None) -> Iterator[DeclaredHandoff]:
        """See `EventSource`."""
        for event in self.events(kinds={Kind.HANDOFF_OPENED.value}, run=run):
            assert event.handoff is not None
            yield DeclaredHandoff(event.handoff, event.run, decode(event))

    def handoff(self, number: int) -> DeclaredHandoff:
        """See `EventSource`."""
        for declared in self.handoffs():
            if declared.number == number:
                return declared
        raise LookupError(f"no row opens handoff {number}")

    def event(self, seq: int) -> Event:
        """See `EventSource`."""
        return self._by_seq[seq]

    def actor(self, number: int) -> DeclaredActor:
        """See `EventSource`."""
        for event in self.events(kinds={Kind.ACTOR_STARTED.value}):
            declared = declared_actor(event)
            if declared.actor == number:
                return declared
        raise LookupError(f"no row declares actor {number}")
