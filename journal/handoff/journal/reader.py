"""Reading a journal: rows in order, declarations by number, handoffs by name.

A reader never changes a file; how it opens one is told in `read_only`.

Rows are read in pieces of 4,096, each its own transaction. Memory stays bounded, a live writer's log can be reset in
between, and a second pass sees what was appended since.
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from attrs import frozen

from handoff.journal.declarations import ActorStarted, HandoffOpened, RunStarted
from handoff.journal.errors import AmbiguousHandoff, JournalUnreadable, UnknownHandoff
from handoff.journal.event import COLUMNS, Event, event_from_row
from handoff.journal.port import Row
from handoff.journal.read_only import SQLITE_ERRORS, ReadOnlyFile
from handoff.journal.row_codec import UnreadableRow, decode
from handoff.journal.schema import APPLICATION_ID, schema_differences
from handoff.journal.terms import TERM_CODE, TERMS, ActorKind
from handoff.journal.upcast import UnknownVersion, Upcaster, upcaster

if TYPE_CHECKING:
    from sqlite_utils import Database

_PIECE_ROWS = 4096
_LIST = ", ".join(COLUMNS)


@frozen
class RunRecord:
    """A run of the journal.

    Attributes:
        run: its number.
        started: what its first row says.
        first_seq: that row.
        last_seq: its `run_ended` row, or None while it is open.
        state: how it ended, or None.
        reason: why, where it says so.
        resumed_seqs: the rows at which it went on after a crash.
    """

    run: int
    started: RunStarted
    first_seq: int
    last_seq: int | None
    state: str | None
    reason: str | None
    resumed_seqs: tuple[int, ...]


@frozen
class HandoffRecord:
    """A handoff of the journal: its number, its run, its name, what its first row says, and that row's number."""

    number: int
    run: int
    handoff_id: str
    opened: HandoffOpened
    first_seq: int


@frozen
class ActorRecord:
    """An actor of the journal, as its `actor_started` row declares it.

    Attributes:
        actor: its number.
        kind: which machine it is an instance of.
        label: a name for people.
        config: what its machine was built from.
        parent: the actor that owns it as a sub-machine.
        handoff: the handoff it serves, if it serves one alone.
        run: its run.
        first_seq: the declaring row.
    """

    actor: int
    kind: ActorKind
    label: str
    config: Any
    parent: int | None
    handoff: int | None
    run: int
    first_seq: int


class JournalReader:
    """A journal open for reading; a context manager.

    Attributes:
        path: the file that was asked for.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the file.

        Raises:
            JournalUnreadable: there is no such file, or it cannot be read as a journal.
        """
        self._file = ReadOnlyFile(path)
        self.path = self._file.path
        self._connection = self._file.connection
        try:
            self._upcast = self._upcaster()
        except BaseException:
            self.close()
            raise

    @property
    def copied(self) -> bool:
        """Whether a copy is read, since SQLite could not read the file where it lies."""
        return self._file.copied

    def _upcaster(self) -> Upcaster | None:
        (application,) = self._one("PRAGMA application_id")
        (version,) = self._one("PRAGMA user_version")
        if application != APPLICATION_ID:
            raise JournalUnreadable(self.path, "it is a SQLite database, but no journal of handoff", "name a journal")
        try:
            upcast = upcaster(version)
        except UnknownVersion as error:
            raise JournalUnreadable(self.path, str(error), "use a handoff of its time or a newer one") from error
        words = tuple(word for (word,) in self._query("SELECT word FROM term ORDER BY code"))
        if words != TERMS[: len(words)]:
            reason = "its dictionary has words that this handoff does not know or that are damaged"
            raise JournalUnreadable(self.path, reason, "use `handoff verify`, or a newer handoff")
        return upcast

    def _query(self, statement: str, *arguments: Any) -> list[Row]:
        try:
            return self._connection.execute(statement, arguments).fetchall()
        except (*SQLITE_ERRORS, OverflowError) as error:
            raise self._file.unreadable(error) from error

    def _one(self, statement: str, *arguments: Any) -> Row:
        return self._query(statement, *arguments)[0]

    def close(self) -> None:
        """Close the file, and remove the copy if there is one."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def last_seq(self) -> int:
        """The last row's number, 0 when there is none."""
        (last,) = self._one("SELECT coalesce(max(seq), 0) FROM row")
        return int(last)

    def rows(
        self,
        *,
        first: int = 1,
        last: int | None = None,
        handoff: int | None = None,
        actor: int | None = None,
        run: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Row]:
        """The stored rows from `first` to `last` in order, columns as in `COLUMNS`, words as numbers.

        The quick way for bulk readers; `events` gives the same rows as values.

        Raises:
            JournalUnreadable: the file is damaged at some row.
        """
        conditions = ["seq > ?", "seq <= ?"]
        wanted: list[int] = []
        for column, value in (("handoff", handoff), ("actor", actor), ("run", run)):
            if value is not None:
                conditions.append(f"{column} = ?")
                wanted.append(value)
        if kinds is not None:
            codes = sorted(TERM_CODE[kind] for kind in kinds if kind in TERM_CODE)
            conditions.append(f"kind IN ({', '.join(map(str, codes))})")
        where = " AND ".join(conditions)
        query = f"SELECT {_LIST} FROM row WHERE {where} ORDER BY seq LIMIT {_PIECE_ROWS}"  # noqa: S608 ours alone
        after, end = first - 1, self.last_seq if last is None else last
        while True:
            try:
                piece = self._connection.execute(query, (after, end, *wanted)).fetchall()
            except SQLITE_ERRORS as error:
                raise self._file.unreadable(error, after) from error
            yield from piece if self._upcast is None else map(self._upcast, piece)
            if len(piece) < _PIECE_ROWS:
                return
            after = piece[-1][0]

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
        """The rows from `first` to `last` in order, narrowed to one handoff, actor or run (by number) or some kinds.

        Raises:
            JournalUnreadable: the file is damaged at some row.
        """
        for row in self.rows(first=first, last=last, handoff=handoff, actor=actor, run=run, kinds=kinds):
            yield self._event(row)

    def _event(self, row: Row) -> Event:
        try:
            return event_from_row(row)
        except (IndexError, TypeError) as error:
            raise JournalUnreadable(self.path, f"row {row[0]} is damaged", "use `handoff verify`") from error

    def event(self, seq: int) -> Event:
        """One row.

        Raises:
            LookupError: there is no such row.
        """
        for event in self.events(first=seq, last=seq):
            return event
        raise LookupError(f"{self.path}: there is no row {seq}; the last is {self.last_seq}")

    def follow(self, *, after: int = 0, wait: Callable[[], bool], **narrow: Any) -> Iterator[Event]:
        """The rows after `after`, then those that a live writer appends.

        Args:
            after: number of the last row already seen.
            wait: called when all rows were given; waits a while, and returns False to stop.
            narrow: as for `events`.
        """
        while True:
            last = self.last_seq
            yield from self.events(first=after + 1, last=last, **narrow)
            after = last
            if not wait():
                return

    def _declared(self, seq: int) -> Any:
        try:
            return decode(self.event(seq))
        except UnreadableRow as error:
            raise JournalUnreadable(self.path, str(error), "use `handoff verify`") from error

    def runs(self) -> list[RunRecord]:
        """The runs in order."""
        marks: dict[int, list[Row]] = {}
        for line in self._query("SELECT run, seq, mark, state, reason FROM run ORDER BY seq"):
            marks.setdefault(line[0], []).append(line)
        records = []
        for run, lines in marks.items():
            end = next((line for line in lines if line[2] == "ended"), None)
            resumed = tuple(line[1] for line in lines if line[2] == "resumed")
            last_seq, state, reason = (None, None, None) if end is None else (end[1], end[3], end[4])
            first_seq = lines[0][1]
            records.append(RunRecord(run, self._declared(first_seq), first_seq, last_seq, state, reason, resumed))
        return records

    def handoffs(self, run: int | None = None) -> Iterator[HandoffRecord]:
        """The handoffs in the order of their opening, of one run or all."""
        for number, of_run, handoff_id, seq in self._query(
            "SELECT handoff, run, handoff_id, seq FROM handoff WHERE ? IS NULL OR run = ? ORDER BY handoff", run, run
        ):
            yield HandoffRecord(number, of_run, handoff_id, self._declared(seq), seq)

    def handoff(self, number: int) -> HandoffRecord:
        """One handoff by its number.

        Raises:
            LookupError: there is no such handoff.
        """
        return self._handoff_where("handoff = ?", number)

    def _handoff_where(self, condition: str, *arguments: Any) -> HandoffRecord:
        query = f"SELECT handoff, run, handoff_id, seq FROM handoff WHERE {condition}"  # noqa: S608 ours alone
        for number, run, handoff_id, seq in self._query(query, *arguments):
            return HandoffRecord(number, run, handoff_id, self._declared(seq), seq)
        raise LookupError(f"{self.path}: there is no such handoff")

    def find_handoff(self, text: str) -> HandoffRecord:
        """The handoff that a user means: its id, a unique prefix of it, or either after ``RUN:``.

        Raises:
            UnknownHandoff: there is none.
            AmbiguousHandoff: there are several; its candidates would have been unique.
        """
        names = self._query("SELECT handoff, run, handoff_id FROM handoff ORDER BY handoff")
        run, colon, rest = text.partition(":")
        attempts = [(names, text)]
        if colon and run.isdecimal():
            attempts.append(([line for line in names if line[1] == int(run)], rest))
        for lines, wanted in attempts:
            found = [line for line in lines if line[2] == wanted]
            found = found or [line for line in lines if wanted and line[2].startswith(wanted)]
            if len(found) > 1:
                raise AmbiguousHandoff(self.path, text, _names(found))
            if found:
                return self.handoff(found[0][0])
        raise UnknownHandoff(self.path, text)

    def actors(self, handoff: int | None = None) -> Iterator[ActorRecord]:
        """The actors in the order of their start, of one handoff or all."""
        for actor, run, seq, of_handoff in self._query(
            "SELECT actor, run, seq, handoff FROM actor WHERE ? IS NULL OR handoff = ? ORDER BY actor",
            handoff, handoff,
        ):  # fmt: skip
            yield self._actor(actor, run, seq, of_handoff)

    def actor(self, number: int) -> ActorRecord:
        """One actor by its number.

        Raises:
            LookupError: there is no such actor.
        """
        lines = self._query("SELECT actor, run, seq, handoff FROM actor WHERE actor = ?", number)
        if not lines:
            raise LookupError(f"{self.path}: there is no actor {number}")
        return self._actor(*lines[0])

    def _actor(self, actor: int, run: int, seq: int, handoff: int | None) -> ActorRecord:
        started: ActorStarted = self._declared(seq)
        return ActorRecord(actor, started.kind, started.label, started.config, started.parent, handoff, run, seq)

    def database(self) -> "Database":
        """The file as a `sqlite_utils.Database`, read-only, for tables and views.

        Views that read JSON work only when the schema is ours to the letter: others are not trusted that far.
        """
        from sqlite_utils import Database  # noqa: PLC0415  # its import would be half of a command's start

        if not schema_differences(self._connection):
            self._connection.execute("PRAGMA trusted_schema = ON")
        return Database(self._connection)


def _names(lines: list[Row]) -> tuple[str, ...]:
    """Names of handoffs that are unique, with their run where the same id came twice."""
    ids = [line[2] for line in lines]
    repeated = len(set(ids)) < len(ids)
    return tuple(f"{line[1]}:{line[2]}" if repeated else line[2] for line in lines)
