"""What drivers need of a journal, whoever keeps it.

Three keepers exist: the SQLite log (`writer`), a list in memory for tests, and one that discards its rows, which
shows what journaling costs. A driver's loop is always the same:

    step = machine.step(value, at_ms)
    first = journal.append(actor, step, at_ms, cause)
    if step has an effect that others can see: await journal.durable(last row of the step)
    carry out the effects, in order
"""

from collections.abc import Mapping
from typing import Any, Protocol

from attrs import Factory, define, frozen

from handoff.journal.declarations import ActorStarted, HandoffOpened
from handoff.journal.event import Event, event_from_row
from handoff.journal.row_codec import encode, handoff_of
from handoff.journal.step import Step
from handoff.journal.terms import ActorKind
from handoff.journal.vocabulary import Seq


class JournalFailed(Exception):
    """The journal could not commit, and never will again: a failed sync must not be retried.

    Attributes:
        last_durable_seq: the last row that is known to be on disk.
        cause: what the commit failed with.
    """

    def __init__(self, last_durable_seq: int, cause: BaseException | None) -> None:
        self.last_durable_seq = last_durable_seq
        self.cause = cause
        super().__init__(f"the journal failed after row {last_durable_seq}: {cause}")


@frozen
class ActorHandle:
    """An actor under which rows are appended.

    Attributes:
        actors: its number, then those of its sub-machines, by slot.
        handoff: the handoff's number, or None; a value with a ``handoff`` of its own is a row of that one.
        source: the number of the source whose rows these are, or None.
    """

    actors: tuple[int, ...]
    handoff: int | None = None
    source: int | None = None


class JournalPort(Protocol):
    """The part of a journal that drivers use. All but `durable` and `room` return at once and never fail."""

    def open_handoff(self, opened: HandoffOpened, at_ms: float) -> int:
        """Declare a handoff and give its number."""
        ...

    def start_actor(
        self,
        slots: tuple[ActorKind, ...],
        label: str,
        config: Mapping[str, Any],
        at_ms: float,
        *,
        handoff: int | None = None,
    ) -> ActorHandle:
        """Declare an actor and its sub-machines; the sub-machines get the same configuration."""
        ...

    def append(self, actor: ActorHandle, step: Step, at_ms: float, cause: Seq | None = None) -> Seq:
        """Append a step as one group; gives the number of its first row (entry i is row first + i).

        Args:
            actor: whose step it is.
            step: the input, its verdict and its effects.
            at_ms: when the driver read the clock for it; the very number that the machine got.
            cause: number of the row, of another actor, that the step's input was an effect of.
        """
        ...

    def annotate(self, value: Any, at_ms: float, *, handoff: int | None = None) -> Seq:
        """Append one row of `declarations` that belongs to no actor."""
        ...

    async def durable(self, seq: Seq) -> None:
        """Wait until every row up to `seq` is committed at the journal's durability level.

        Canceling the wait withdraws nothing.

        Raises:
            JournalFailed: the rows could not be committed.
        """
        ...

    async def room(self) -> None:
        """Wait until the journal has room for new root work; steps in progress and cleanup never ask."""
        ...


@define
class MemoryJournal:
    """A journal in memory: what tests read back. `durable` and `room` return at once.

    Attributes:
        events: all rows so far.
    """

    events: list[Event] = Factory(list)
    _handoffs: int = 0
    _actors: int = 0
    run: int = 1

    def open_handoff(self, opened: HandoffOpened, at_ms: float) -> int:
        """See `JournalPort`."""
        self._handoffs += 1
        self._add(opened, at_ms, handoff=self._handoffs)
        return self._handoffs

    def start_actor(
        self,
        slots: tuple[ActorKind, ...],
        label: str,
        config: Mapping[str, Any],
        at_ms: float,
        *,
        handoff: int | None = None,
    ) -> ActorHandle:
        """See `JournalPort`."""
        parent = None
        numbers = []
        for kind in slots:
            self._actors += 1
            numbers.append(self._actors)
            started = ActorStarted(self._actors, kind, label, config if parent is None else {}, parent)
            self._add(started, at_ms, handoff=handoff)
            parent = numbers[0]
        return ActorHandle(tuple(numbers), handoff)

    def append(self, actor: ActorHandle, step: Step, at_ms: float, cause: Seq | None = None) -> Seq:
        """See `JournalPort`."""
        first = Seq(len(self.events) + 1)
        for index, entry in enumerate(step.entries):
            row_cause = cause if index == 0 else None if entry.cause is None else first + entry.cause
            fields = encode(entry.value, entry.verdict, row_cause, caused=index == 0 and cause is not None)
            self.events.append(
                event_from_row(
                    (first + index, first, self.run, handoff_of(entry.value, actor.handoff),
                     actor.actors[entry.slot], actor.source, at_ms, None, None, *fields)
                )
            )  # fmt: skip
        return first

    def annotate(self, value: Any, at_ms: float, *, handoff: int | None = None) -> Seq:
        """See `JournalPort`."""
        return self._add(value, at_ms, handoff=handoff)

    async def durable(self, seq: Seq) -> None:
        """See `JournalPort`."""

    async def room(self) -> None:
        """See `JournalPort`."""

    def _add(self, value: Any, at_ms: float, *, handoff: int | None) -> Seq:
        seq = Seq(len(self.events) + 1)
        fields = encode(value, None, None)
        self.events.append(event_from_row((seq, seq, self.run, handoff, None, None, at_ms, None, None, *fields)))
        return seq
