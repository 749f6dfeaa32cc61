"""The full tier: every actor takes its recorded inputs again, and every row is compared.

Rows come in order. Those of one group are one step of one actor: the first is its input, the rest is what it answered.
The input's value is decoded, or taken from its cause where it has one, so that nothing is believed that another actor
decided; the machine takes it at the recorded time; and the rows that its answer becomes are compared with the recorded
ones, column by column. Nothing depends on how the rows of two actors interleave.

What the rows must satisfy before anything can be re-executed is checked on the way: numbers without gaps, groups
without strangers, causes that lie before and fit, times that never run backwards within an actor, declarations in order
of their numbers, and endings that count right.

After its first divergence an actor's machine is no witness any more: its later rows are skipped and counted. Actors
whose machine is not in the table are recorded, not re-executed, and counted so.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import define, field

from handoff.journal.declarations import RunEnded
from handoff.journal.divergence import (
    Difference,
    Divergence,
    DivergenceClass,
    FieldDifference,
    classify,
    differences_between,
    readable,
)
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource, declared_actor
from handoff.journal.replay_report import Findings, ReplayReport, RunEnding, Tier
from handoff.journal.row_codec import UnreadableRow, decode, inherits
from handoff.journal.seats import RecentValues, Seat, Seats
from handoff.journal.step import MachineFactory
from handoff.journal.step_again import rows_of, sentence_of, take_again
from handoff.journal.terms import ActorKind, EndState, Kind
from handoff.journal.vocabulary import ActorId, Seq, Verdict

_SESSIONS = frozenset({ActorKind.SOURCE_SESSION, ActorKind.DESTINATION_SESSION})
_CAUSE_CHAIN = 16
_NAMES_KEPT = 4096


@define
class FullReplay:
    """Re-executes a journal once; `run` gives the report."""

    source: EventSource
    machines: Mapping[ActorKind, MachineFactory]
    on_row: Callable[[int], None] | None = None
    stop_after: int | None = None
    machines_at_once: int = 8192
    _found: Findings = field(init=False)
    _seats: Seats = field(init=False)
    _values: RecentValues = field(factory=RecentValues, init=False)
    _handoffs: int = field(default=0, init=False)
    _actors: int = field(default=0, init=False)
    _run: int | None = field(default=None, init=False)
    _run_rows: int = field(default=0, init=False)
    _run_handoffs: int = field(default=0, init=False)
    _open_sessions: dict[int, int] = field(factory=dict, init=False)
    _ahead: deque[Event] = field(factory=deque, init=False)
    _names: dict[int, str] = field(factory=dict, init=False)
    _crashed_handoffs: set[int] = field(factory=set, init=False)
    _expected_seq: int = field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        self._found = Findings(Tier.FULL, self.stop_after)
        self._seats = Seats(self.source, self.machines, self._catch_up, self.machines_at_once)

    def run(self) -> ReplayReport:
        """Read every row once, and re-execute every step."""
        for group in self._groups(self.source.events()):
            head = group[0]
            for event in group:  # not as they are read: rows of the next run are read before the last one of this
                self._check_number(event)
                self._count(event)
            if head.actor is None:
                self._declaration(head)
            else:
                self._step(group)
            if self._found.enough:
                break
        return self._found.report(tuple(self._open_sessions))

    # -- rows into groups -----------------------------------------------------------------------------

    def _groups(self, events: Iterator[Event]) -> Iterator[list[Event]]:
        """The rows group by group; `_ahead` holds the two rows after the group."""
        ahead = self._ahead
        ahead.extend(islice(events, 3))
        while ahead:
            group = [ahead.popleft()]
            ahead.extend(islice(events, 1))
            first = group[0]
            while ahead and first.actor is not None and ahead[0].actor is not None and ahead[0].grp == first.seq:
                group.append(ahead.popleft())
                ahead.extend(islice(events, 1))
            yield group

    def _count(self, event: Event) -> None:
        found = self._found
        found.rows += 1
        found.last_seq = event.seq
        if event.run != self._run:
            if self._run is not None and event.run < self._run:
                self._structure(event, f"a row of run {event.run} follows one of run {self._run}")
            self._run, self._run_rows, self._run_handoffs = event.run, 0, 0
            self._open_sessions.clear()
            found.runs.setdefault(event.run, RunEnding(event.run, None))
        elif event.kind == Kind.RUN_RESUMED:
            found.runs[event.run] = RunEnding(event.run, None)
        elif found.runs[event.run].name is not None:
            self._structure(event, f"a row follows the last row of run {event.run}")
        self._run_rows += 1
        if self.on_row is not None and event.seq % 1024 == 0:
            self.on_row(event.seq)

    def _check_number(self, event: Event) -> None:
        expected_seq, self._expected_seq = self._expected_seq, event.seq + 1
        if event.seq == expected_seq:
            return
        if event.seq > expected_seq:
            lost = event.seq - expected_seq
            rows = f"row {expected_seq} is" if lost == 1 else f"rows {expected_seq} to {event.seq - 1} are"
            self._structure(event, f"{rows} missing before row {event.seq}", kind=DivergenceClass.MISSING)
        else:
            self._structure(event, f"row {event.seq} stands after row {expected_seq - 1}", DivergenceClass.REORDERED)

    # -- declarations ---------------------------------------------------------------------------------

    def _declaration(self, event: Event) -> None:
        if event.grp != event.seq:
            self._structure(event, f"row {event.seq} belongs to no actor and yet to the step at row {event.grp}")
        try:
            value = decode(event)
            declared = declared_actor(event) if event.kind == Kind.ACTOR_STARTED else None
        except UnreadableRow as unreadable:
            self._structure(event, unreadable.reason, DivergenceClass.PAYLOAD)
            return
        match event.kind:
            case Kind.HANDOFF_OPENED:
                self._handoffs += 1
                self._run_handoffs += 1
                self._found.handoffs += 1
                self._numbered(event, "handoff", self._handoffs, event.handoff)
                self._name(self._handoffs, value.handoff_id)
            case Kind.ACTOR_STARTED:
                assert declared is not None
                self._actors += 1
                self._numbered(event, "actor", self._actors, declared.actor)
                self._actor_declared(event, declared.kind, declared)
            case Kind.RUN_STARTED | Kind.RUN_RESUMED:
                self._numbered(event, "run", event.run, value.run)
            case Kind.RUN_ENDED:
                self._run_ended(event, value)
            case Kind.FAULT if value.do.startswith("crash") and event.handoff is not None:
                self._crashed_handoffs.add(event.handoff)
            case _:
                pass

    def _name(self, handoff: int, name: str) -> None:
        """Remember what a handoff is called until its actors are declared, which is soon."""
        self._names[handoff] = name
        if len(self._names) > _NAMES_KEPT:
            del self._names[next(iter(self._names))]

    def _numbered(self, event: Event, what: str, expected: int, actual: int | None) -> None:
        if actual != expected:
            self._structure(
                event,
                f"{what}s are numbered in the order of their rows: {expected} expected here, found {actual}",
                differences=(FieldDifference(what, expected, actual),),
            )

    def _actor_declared(self, event: Event, kind: ActorKind, declared: Any) -> None:
        tally = self._found.tally(kind)
        tally.actors += 1
        named = self._names.get(event.handoff) if event.handoff is not None else None
        claimed = declared.config.get("handoff_id", named)
        if named is not None and claimed != named:
            sentence = f"it is declared for handoff {named!r} and configured for {claimed!r}"
            difference = FieldDifference("payload.config.handoff_id", named, claimed)
            self._structure(event, sentence, differences=(difference,))
        try:
            seat = self._seats.take(declared)
        except Exception as error:  # noqa: BLE001 - a foreign configuration may raise anything
            self._structure(event, f"no {kind} can be built from this configuration: {type(error).__name__}: {error}")
            return
        owner = seat if declared.parent is None else self._parent(event, declared.parent, kind)
        tally.re_executed = owner is not None and owner.machine is not None
        if owner is not None and kind in _SESSIONS and owner.machine is not None:
            self._open_sessions[declared.actor] = event.seq

    def _parent(self, event: Event, parent: int, kind: ActorKind) -> Seat | None:
        try:
            owner = self._seats.of(parent, event.seq)
        except LookupError:
            self._structure(event, f"its parent, actor {parent}, was not declared before")
            return None
        slot = self._actors - parent
        if owner.machine is not None and (not 0 < slot < len(owner.slots) or owner.slots[slot] is not kind):
            self._structure(event, f"{owner.name} has no {kind} as sub-machine {slot}")
        return owner

    def _run_ended(self, event: Event, ended: RunEnded) -> None:
        self._found.runs[event.run] = RunEnding(event.run, ended.name, ended.reason)
        counted = (("rows", self._run_rows, ended.rows), ("handoffs", self._run_handoffs, ended.handoffs))
        differences = tuple(FieldDifference(f"payload.{name}", *pair) for name, *pair in counted if pair[0] != pair[1])
        if differences:
            self._structure(event, "the run's last row counts wrong", DivergenceClass.PAYLOAD, differences)
        if ended.name is not EndState.FINISHED:
            return
        for actor, started in self._open_sessions.items():
            seat = self._seats.of(actor, event.seq)
            if seat.handoff in self._crashed_handoffs or seat.diverged:
                continue
            self._structure(
                event,
                f"{seat.name}, declared at row {started}, never ended, though the run finished",
                DivergenceClass.MISSING,
                seat=seat,
            )
        self._open_sessions.clear()

    # -- steps ----------------------------------------------------------------------------------------

    def _step(self, group: Sequence[Event]) -> None:
        head = group[0]
        assert head.actor is not None
        try:
            seat = self._seats.of(head.actor, head.seq)
        except LookupError:
            self._structure(head, f"actor {head.actor} was not declared before its first row")
            return
        except Exception as error:  # noqa: BLE001 - a machine may raise anything while it catches up
            self._structure(head, f"actor {head.actor} cannot be built: {type(error).__name__}: {error}")
            return
        for event in group:
            self._found.tally(self._kind_in(seat, event)).rows += 1
        if seat.diverged:
            self._found.skipped += len(group)
            return
        if head.at_ms < seat.last_at_ms:
            earlier = f"time runs backwards for {seat.name}: {head.at_ms} ms after {seat.last_at_ms} ms"
            self._structure(head, earlier, DivergenceClass.TIMING_ONLY, seat=seat)
            return
        seat.last_at_ms = head.at_ms
        if head.seq != head.grp:
            sentence = f"row {head.seq} belongs to the step at row {head.grp} and stands outside it"
            self._structure(head, sentence, DivergenceClass.REORDERED, seat=seat)
        elif seat.machine is not None:
            self._re_execute(seat, group)
        else:
            self._read_only(seat, group)

    def _kind_in(self, seat: Seat, event: Event) -> ActorKind:
        assert event.actor is not None
        slot = event.actor - seat.actor
        return seat.slots[slot] if 0 <= slot < len(seat.slots) else seat.kind

    def _read_only(self, seat: Seat, group: Sequence[Event]) -> None:
        seat.last_seq = group[-1].seq
        for event in group:
            if event.cause is not None and event.cause >= event.seq:
                self._structure(event, f"row {event.cause} cannot have caused the earlier row {event.seq}", seat=seat)

    def _re_execute(self, seat: Seat, group: Sequence[Event]) -> None:
        head = group[0]
        try:
            value = self._input(seat, head)
        except _Unfit as unfit:
            self._structure(head, unfit.sentence, unfit.kind, seat=seat)
            return
        step, raised = take_again(seat, value, head.at_ms)
        self._found.steps += 1
        self._found.compared += len(group)
        try:
            expected = rows_of(step, seat, head)
        except Exception as error:  # noqa: BLE001 - a tampered input may make an answer that has no row
            self._structure(head, f"the answer of {seat.name} has no rows: {type(error).__name__}: {error}", seat=seat)
            return
        difference = classify(expected, group)
        if difference is not None:
            self._diverge(seat, group, difference, raised)
            return
        seat.last_seq = group[-1].seq
        for event, entry in zip(group, step.entries, strict=True):
            if entry.verdict is None:
                self._values.keep(event.seq, entry.value)
                if event.kind == Kind.SESSION_ENDED:
                    self._open_sessions.pop(seat.actor, None)
        if head.verdict == Verdict.CRASHED:
            self._open_sessions.pop(seat.actor, None)

    def _input(self, seat: Seat, head: Event) -> Any:
        if head.verdict is None:
            raise _Unfit(f"the step of {seat.name} begins with an effect", DivergenceClass.REORDERED)
        cause = None
        if head.cause is not None:
            cause = self._cause(head, head.cause)
        try:
            return decode(head, seat.kind, cause)
        except UnreadableRow as unreadable:
            raise _Unfit(f"its input cannot be read: {unreadable.reason}", DivergenceClass.PAYLOAD) from unreadable

    def _cause(self, head: Event, number: int) -> Any:
        if number >= head.seq:
            raise _Unfit(f"row {number} cannot have caused the earlier row {head.seq}", DivergenceClass.STRUCTURE)
        cause = self._values.get(number)
        if cause is None:
            cause = self._cause_from_source(number)
        fields = inherits(head.kind, self._seats.kind_of(head.actor) if head.actor is not None else None)
        if fields and not any(hasattr(cause, name) for name in fields):
            sentence = f"row {number} ({type(cause).__name__}) cannot have caused a row of kind {head.kind}"
            raise _Unfit(sentence, DivergenceClass.STRUCTURE)
        return cause

    def _cause_from_source(self, number: int) -> Any:
        try:
            event = self.source.event(number)
            kind = None if event.actor is None else self._seats.kind_of(event.actor)
        except LookupError:
            raise _Unfit(f"its cause, row {number}, is not there", DivergenceClass.STRUCTURE) from None
        if event.verdict is not None:
            raise _Unfit(f"its cause, row {number}, is an input, not an effect", DivergenceClass.STRUCTURE)
        try:
            return decode(event, kind)
        except UnreadableRow as unreadable:
            sentence = f"its cause, row {number}, cannot be read: {unreadable.reason}"
            raise _Unfit(sentence, DivergenceClass.PAYLOAD) from unreadable

    def _catch_up(self, seat: Seat, before: int) -> None:
        """Feed a machine just built its actor's inputs up to a row, comparing nothing."""
        if seat.machine is None:
            return
        for event in self.source.events(actor=seat.actor, last=before - 1):
            if event.is_head and event.is_input:
                take_again(seat, self._input(seat, event), event.at_ms)
            seat.last_at_ms, seat.last_seq = event.at_ms, event.seq

    # -- divergences ----------------------------------------------------------------------------------

    def _diverge(self, seat: Seat, group: Sequence[Event], difference: Difference, raised: Exception | None) -> None:
        seat.diverged = True
        strayed = next((event for event in self._ahead if event.grp == group[0].seq), None)
        if difference.kind is DivergenceClass.MISSING and strayed is not None:
            difference = Difference(DivergenceClass.REORDERED, difference.expected, strayed)
        expected, actual = difference.expected, difference.actual
        row = actual or group[-1]
        before = [event.seq for event in group if event.seq < row.seq] if actual is not None else [row.seq]
        sentence = sentence_of(seat, difference)
        if raised is not None:
            sentence += f"; the machine raised {type(raised).__name__}: {raised}"
        self._found.diverged(
            Divergence(
                kind=difference.kind,
                seq=row.seq,
                sentence=sentence,
                actor=ActorId(row.actor if row.actor is not None else seat.actor),
                actor_name=seat.name,
                handoff=row.handoff,
                differences=() if expected is None or actual is None else differences_between(expected, actual),
                expected=expected,
                actual=actual,
                last_common=Seq(before[-1]) if before else _seq_or_none(seat.last_seq),
                caused_by=self._causes(group[0], row),
                state=None if seat.machine is None else readable(seat.machine),
            )
        )

    def _causes(self, head: Event, row: Event) -> tuple[Seq, ...]:
        chain = [] if row.seq == head.seq else [head.seq]
        event: Event | None = head
        while event is not None and event.cause is not None and event.cause < event.seq and len(chain) < _CAUSE_CHAIN:
            chain.append(event.cause)
            try:
                cause = self.source.event(event.cause)
                event = cause if cause.is_head else self.source.event(cause.grp)
            except LookupError:
                break
            if event.seq != chain[-1]:
                chain.append(event.seq)
        return tuple(chain)

    def _structure(
        self,
        event: Event,
        sentence: str,
        kind: DivergenceClass = DivergenceClass.STRUCTURE,
        differences: tuple[FieldDifference, ...] = (),
        *,
        seat: Seat | None = None,
    ) -> None:
        if seat is not None:
            seat.diverged = True
        self._found.diverged(
            Divergence(
                kind=kind,
                seq=event.seq,
                sentence=sentence,
                actor=event.actor,
                actor_name=None if seat is None else seat.name,
                handoff=event.handoff,
                differences=differences,
                actual=event,
                last_common=None if seat is None else _seq_or_none(seat.last_seq),
                caused_by=self._causes(event, event),
                state=None if seat is None or seat.machine is None else readable(seat.machine),
            )
        )


class _Unfit(Exception):
    """An input that cannot be given to its machine."""

    def __init__(self, sentence: str, kind: DivergenceClass) -> None:
        self.sentence = sentence
        self.kind = kind
        super().__init__(sentence)


def _seq_or_none(seq: int | None) -> Seq | None:
    return None if seq is None else Seq(seq)
