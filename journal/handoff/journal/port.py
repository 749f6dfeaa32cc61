"""What drivers need of a journal, whoever keeps it.

Four keepers exist: the SQLite log with its writer thread (`durable_journal`), the same log written on the calling
thread (`sync_journal`), a list in memory for tests, and one that discards its rows, which shows what journaling
costs. They number rows in one way, which is `RowStream`; they differ in what becomes of a group once it is numbered.
A driver's loop is always the same:

    step = machine.step(value, at_ms)
    first = journal.append(actor, step, at_ms, cause)
    if step has an effect that others can see: await journal.durable(last row of the step)
    carry out the effects, in order
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import Factory, define, frozen

from handoff.journal.declarations import (
    ActorStarted,
    HandoffOpened,
    RunEnded,
    RunResumed,
    RunStarted,
    SourceDeclared,
)
from handoff.journal.event import Event, StoredRow, event_from_row
from handoff.journal.row_codec import encode, handoff_of
from handoff.journal.step import Step
from handoff.journal.terms import ActorKind, EndState
from handoff.journal.vocabulary import Seq

Row = tuple[Any, ...]
"""The values of a `StoredRow` in the order of its columns."""


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
        """Wait until the journal has room for new root work; steps in progress and cleanup never ask.

        Raises:
            JournalFailed: it will never have room again.
        """
        ...


@define
class RowStream:
    """Numbers rows, runs, handoffs, actors and sources from 1, in the order of their declaration.

    Attributes:
        last_seq: number of the last row appended.
        last_at_ms: the last row's time, for whoever continues or ends a run.
        run: the current run; 0 before the first.
        run_open: whether it has not ended.
        run_first_seq: number of the row that began it.
        handoffs_before_run: handoffs opened in earlier runs.
    """

    last_seq: int = 0
    last_at_ms: float = 0.0
    run: int = 0
    run_open: bool = False
    run_first_seq: int = 1
    handoffs: int = 0
    handoffs_before_run: int = 0
    actors: int = 0
    sources: int = 0

    def _take(self, rows: list[Row]) -> None:
        """Keep the rows of one group, which are numbered and complete."""
        raise NotImplementedError

    def begin_run(
        self,
        *,
        tool: str,
        wall_ns: int,
        scenario: Mapping[str, Any] | None = None,
        trace_digest: str | None = None,
        clock: str = "run",
    ) -> int:
        """Begin the next run at its time 0 and give its number; see `RunStarted` for the arguments."""
        self.run += 1
        self.run_open = True
        self.run_first_seq = self.last_seq + 1
        self.handoffs_before_run = self.handoffs
        self._add(RunStarted(self.run, tool, wall_ns, scenario or {}, trace_digest, clock), 0.0)
        return self.run

    def resume_run(self, *, tool: str, wall_ns: int, at_ms: float) -> int:
        """Go on with the last run in a new process; gives its number.

        Args:
            tool: name and version of the recording program.
            wall_ns: wall clock now, ns since the epoch.
            at_ms: the run's time now; not before the last row's.
        """
        assert self.run_open, "only a run that has not ended can go on"
        self._add(RunResumed(self.run, tool, wall_ns), max(at_ms, self.last_at_ms))
        return self.run

    def end_run(self, state: EndState, at_ms: float, reason: str | None = None) -> Seq:
        """End the run; the row counts its rows and handoffs."""
        self.run_open = False
        rows = self.last_seq + 2 - self.run_first_seq
        return self._add(RunEnded(state, rows, self.handoffs - self.handoffs_before_run, reason), at_ms)

    def declare_source(self, declared: SourceDeclared, at_ms: float) -> int:
        """Declare a stream of rows and give its number."""
        self._add(declared, at_ms, source=self.sources + 1)
        self.sources += 1
        return self.sources

    def open_handoff(self, opened: HandoffOpened, at_ms: float, *, source: int | None = None) -> int:
        """See `JournalPort`; `source` is the number of the stream that said so."""
        self._add(opened, at_ms, handoff=self.handoffs + 1, source=source)
        self.handoffs += 1
        return self.handoffs

    def start_actor(
        self,
        slots: tuple[ActorKind, ...],
        label: str,
        config: Mapping[str, Any],
        at_ms: float,
        *,
        handoff: int | None = None,
        source: int | None = None,
    ) -> ActorHandle:
        """See `JournalPort`; `source` is the number of the stream whose rows the actor's are."""
        numbers: list[int] = []
        for kind in slots:
            number = self.actors + 1
            parent = numbers[0] if numbers else None
            started = ActorStarted(number, kind, label, config if parent is None else {}, parent)
            self._add(started, at_ms, handoff=handoff, source=source)
            self.actors = number
            numbers.append(number)
        return ActorHandle(tuple(numbers), handoff, source)

    def append(self, actor: ActorHandle, step: Step, at_ms: float, cause: Seq | None = None) -> Seq:
        """See `JournalPort`."""
        at_ms = _storable_time(at_ms)
        first = self.last_seq + 1
        numbers, handoff, source, run = actor.actors, actor.handoff, actor.source, self.run
        rows = []
        for index, entry in enumerate(step.entries):
            row_cause = cause if index == 0 else None if entry.cause is None else first + entry.cause
            fields = encode(entry.value, entry.verdict, row_cause, caused=index == 0 and cause is not None)
            own = handoff_of(entry.value, handoff)
            rows.append((first + index, first, run, own, numbers[entry.slot], source, at_ms, None, None, *fields))
        self.last_seq += len(rows)
        self.last_at_ms = at_ms
        self._take(rows)
        return Seq(first)

    def append_rows(self, rows: Sequence[Row]) -> None:
        """Append complete rows of whole groups, numbered on from `last_seq` (the way of importers).

        Runs, handoffs, actors and sources that the rows declare must be numbered on, too.

        Raises:
            ValueError: a value cannot be stored; none of the rows was appended.
        """
        assert [row[0] for row in rows] == list(range(self.last_seq + 1, self.last_seq + 1 + len(rows)))
        if rows:
            storable = [_storable(row) for row in rows]
            self.last_seq = storable[-1][0]
            self.last_at_ms = storable[-1][6]
            self._take(storable)

    def annotate(self, value: Any, at_ms: float, *, handoff: int | None = None) -> Seq:
        """See `JournalPort`."""
        return self._add(value, at_ms, handoff=handoff)

    def _add(self, value: Any, at_ms: float, *, handoff: int | None = None, source: int | None = None) -> Seq:
        seq = self.last_seq + 1
        fields = encode(value, None, None)
        self.append_rows([(seq, seq, self.run, handoff, None, source, _storable_time(at_ms), None, None, *fields)])
        return Seq(seq)


def _storable_time(at_ms: float) -> float:
    """The time as the file keeps it: SQLite knows neither NaN nor the sign of zero."""
    if at_ms != at_ms:  # noqa: PLR0124
        raise ValueError("a row's time must be a number of ms, not NaN")
    return at_ms + 0.0


_TIMES = slice(6, 9)
_INT64 = range(-(2**63), 2**63)


def _storable(row: Row) -> Row:
    """A row from outside, with its times as the file keeps them.

    Raises:
        ValueError: a whole number has more than 64 bits, or text has no UTF-8.
    """
    times = tuple(None if at_ms is None else _storable_time(at_ms) for at_ms in row[_TIMES])
    for column, value in enumerate(row):
        if type(value) is int and value not in _INT64:
            raise ValueError(f"row {row[0]}: {StoredRow._fields[column]} {value} has more than 64 bits")
    if row[-1] is not None and not row[-1].isascii():
        row[-1].encode()
    return (*row[: _TIMES.start], *times, *row[_TIMES.stop :])


@define
class MemoryJournal(RowStream):
    """A journal in memory: what tests read back. `durable` and `room` return at once.

    Attributes:
        events: all rows so far.
    """

    run: int = 1
    events: list[Event] = Factory(list)

    def _take(self, rows: list[Row]) -> None:
        self.events.extend(map(event_from_row, rows))

    async def durable(self, seq: Seq) -> None:
        """See `JournalPort`."""

    async def room(self) -> None:
        """See `JournalPort`."""
