"""Runs the rendezvous of a prefill worker: brings it arrivals and time, and runs one source session for each pair.

Registrations wait in a queue of their own process, connections in the bootstrap server's; both are taken only when the
journal has room. Every input steps the machine on the spot, in whatever task brings it, and its group of rows is
appended. What others can see of it (a pair, a rejection) is carried out by one task, in order, as soon as its rows are
durable. So the rendezvous never waits for a commit before it takes the next input, and one commit serves many.

While a participant is pending, nobody polls for it: a source's cancel signal calls back, and a destination's connection
has a task that reads ahead and sees the end of the stream. That task has let go of the connection before anybody else
uses it.

A source session tells the manager that it has ended before it answers its request, so an answered handoff is retired.
Every registration that was taken is answered: by its session, by a rejection, or, if Trio tears the manager down, on
the way out. A journal that fails sets the shutdown signal: without a log no new handoff may begin.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

import trio
from attrs import define, field, frozen

from handoff.engines.connection import BootstrapConnection, TransportError
from handoff.engines.rendezvous import (
    DestinationConnected,
    Paired,
    QueueFull,
    Reason,
    Rejected,
    RejectionDropped,
    RejectionSent,
    Rendezvous,
    RendezvousInput,
    Retired,
    SessionLeft,
    SourceRegistered,
)
from handoff.engines.session_context import SessionContext
from handoff.engines.session_rows import (
    CancelRequested,
    DeadlineFired,
    DeadlineSet,
    PeerClosed,
    ShutdownRequested,
    TimerFired,
    TimerSet,
    TransportFailed,
)
from handoff.engines.signals import HandoffResult
from handoff.engines.source_driver import SourceRegistration, run_source_session
from handoff.engines.timer_heap import PendingTimer, TimerHeap
from handoff.engines.wire import WireError
from handoff.engines.wire_messages import OVERLOADED, Message, protocol_error
from handoff.journal.port import JournalFailed
from handoff.journal.step import crashed
from handoff.journal.terms import EndState
from handoff.journal.vocabulary import HandoffId, Seq, Side, Verdict


class SourceAdmissionFailed(Exception):
    """A source registration was not taken; its completion will not be answered, and the caller keeps its permit.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"source admission failed: {reason}")


@define(eq=False)
class _Waiting:
    """What the driver holds for a pending handoff."""

    source: SourceRegistration | None = None
    destination: BootstrapConnection | None = None
    deadline: PendingTimer | None = None
    withdraw: Callable[[], None] | None = None
    watch: trio.CancelScope | None = None
    unwatched: trio.Event = field(factory=trio.Event)

    def stop_watching(self) -> None:
        """Expect nothing more of the two, and of time."""
        if self.deadline is not None:
            self.deadline.cancel()
        if self.withdraw is not None:
            self.withdraw()
        if self.watch is None:
            self.unwatched.set()
        else:
            self.watch.cancel()


@frozen
class _Begin:
    """A session is to begin."""

    waiting: _Waiting
    row: Seq
    handoff: int


@frozen
class _Answer:
    """A source is to be answered."""

    registration: SourceRegistration
    result: HandoffResult


@frozen
class _Dismiss:
    """A destination is to be told something (None: nothing) and its connection to be closed."""

    connection: BootstrapConnection
    unwatched: trio.Event
    handoff: int
    message: Message | None


_Errand = _Begin | _Answer | _Dismiss


class SourceHandoffManager:
    """The source side of a prefill worker. Start it with ``await nursery.start(manager.run)``.

    Args:
        incoming: registered connections, from `BootstrapServer.take_incoming`.
        max_sessions: handoffs that may be pending or active at once, at least 1.
        context: journal, clock, limits, and the shutdown signal that ends the manager.
        label: a name for people.
    """

    def __init__(
        self,
        incoming: trio.MemoryReceiveChannel[BootstrapConnection],
        max_sessions: int,
        context: SessionContext,
        *,
        label: str = "rendezvous",
    ) -> None:
        self.context = context
        self.machine = Rendezvous(max_sessions, context.session_timeout_ms, context.rendezvous_timeout_ms)
        self._incoming = incoming
        self._queue, self._registrations = trio.open_memory_channel[SourceRegistration](max(1, max_sessions))
        self._actor = context.journal.start_actor(
            self.machine.SLOTS, label, self.machine.config(), context.clock.now_ms()
        )
        self._timers = TimerHeap(context.clock)
        self._waiting: dict[int, _Waiting] = {}
        self._errands: deque[tuple[Seq, _Errand]] = deque()
        self._errand_added = trio.Event()
        self._changed = trio.Event()
        self._nursery: trio.Nursery
        self._running = 0
        self._closed = trio.Event()

    # -- what users call --------------------------------------------------------------------------------------

    def try_register(self, registration: SourceRegistration) -> None:
        """Hand a source over, without waiting; from then on its completion will be answered.

        Raises:
            SourceAdmissionFailed: the queue is full, or the manager is shutting down.
        """
        if self.machine.closed or self._closed.is_set():
            raise SourceAdmissionFailed("the handoff manager is shutting down")
        try:
            self._queue.send_nowait(registration)
        except trio.WouldBlock:
            limit = self.machine.max_sessions
            self._offer(QueueFull(self._number_of_source(registration), Side.SOURCE, limit))
            raise SourceAdmissionFailed(f"{limit} registrations wait already") from None

    def note_overloaded(self, connection: BootstrapConnection) -> None:
        """Journal that the bootstrap server turned a destination away (for its `on_overloaded`)."""
        self._offer(QueueFull(self._number_of(connection), Side.DESTINATION, self.machine.max_sessions))

    async def wait_closed(self) -> None:
        """Wait until the manager was shut down and every session and goodbye has ended."""
        await self._closed.wait()

    async def wait_for_pending_source(self, handoff_id: HandoffId) -> None:
        """Wait until a source waits for its destination."""
        await self._until(handoff_id, lambda number: Side.SOURCE in self.machine.pending_sides(number))

    async def wait_for_pending_destination(self, handoff_id: HandoffId) -> None:
        """Wait until a destination waits for its source."""
        await self._until(handoff_id, lambda number: Side.DESTINATION in self.machine.pending_sides(number))

    async def wait_for_active(self, handoff_id: HandoffId) -> None:
        """Wait until a handoff's session runs."""
        await self._until(handoff_id, self.machine.is_active)

    async def wait_for_retired(self, handoff_id: HandoffId) -> None:
        """Wait until a handoff has ended here."""
        await self._until(handoff_id, self.machine.is_retired)

    async def _until(self, handoff_id: HandoffId, holds: Callable[[int], bool]) -> None:
        while True:
            number = self.context.numbers.get(handoff_id)
            if number is not None and holds(number):
                return
            await self._changed.wait()

    # -- running -------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pair and run sessions until shutdown, and then until everything has ended."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._timers.run)
                nursery.start_soon(self._run_errands)
                async with trio.open_nursery() as arrivals:
                    arrivals.start_soon(self._take_registrations)
                    arrivals.start_soon(self._take_connections)
                    task_status.started()
                    await self.context.shutdown.wait()
                    arrivals.cancel_scope.cancel()
                self._reject_everybody()
                while self._errands or self._running:
                    await self._changed.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._reject_everybody()
            self._incoming.close()  # a server that still runs closes what it would have queued
            with trio.CancelScope(shield=True):
                await self._abandon_errands()
            self._closed.set()
            self._note_change()

    async def _take_registrations(self) -> None:
        while await self._has_room():
            self._arrive_source(await self._registrations.receive())

    async def _take_connections(self) -> None:
        while await self._has_room():
            try:
                connection = await self._incoming.receive()
            except trio.EndOfChannel:
                return
            self._arrive_destination(connection)

    async def _has_room(self) -> bool:
        try:
            await self.context.journal.room()
        except JournalFailed:
            self.context.shutdown.set()
            return False
        return True

    def _reject_everybody(self) -> None:
        if not self.machine.closed:
            self._offer(ShutdownRequested())
        try:
            while True:
                self._arrive_source(self._registrations.receive_nowait())
        except trio.WouldBlock:
            pass
        try:
            while True:
                self._arrive_destination(self._incoming.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            pass

    # -- the machine -----------------------------------------------------------------------------------------------

    def _number_of_source(self, registration: SourceRegistration) -> int:
        return self.context.handoff_number(registration.identity, registration.order, registration.engine_type)

    def _number_of(self, connection: BootstrapConnection) -> int:
        said = connection.registration
        return self.context.handoff_number(connection.identity, said.order, said.engine_type)

    def _arrive_source(self, source: SourceRegistration) -> None:
        number, identity = self._number_of_source(source), source.identity
        arrival = SourceRegistered(
            number, str(identity.bootstrap_room), identity.request_id, source.order, source.engine_type
        )
        self._offer(arrival, arriving=_Waiting(source=source))
        waiting = self._waiting.get(number)
        if waiting is not None and waiting.source is source:
            waiting.withdraw = source.cancel.subscribe(lambda: self._offer(CancelRequested(number)))

    def _arrive_destination(self, connection: BootstrapConnection) -> None:
        number, identity, said = self._number_of(connection), connection.identity, connection.registration
        arrival = DestinationConnected(
            number, str(identity.bootstrap_room), identity.request_id, said.order, said.engine_type, said.dp_rank
        )
        self._offer(arrival, arriving=_Waiting(destination=connection))
        waiting = self._waiting.get(number)
        if waiting is not None and waiting.destination is connection:
            waiting.watch = trio.CancelScope()
            self._nursery.start_soon(self._watch, waiting, waiting.watch, number)

    def _offer(self, value: RendezvousInput, cause: Seq | None = None, arriving: _Waiting | None = None) -> None:
        """Take one input: step, append, and note what is to be done once the rows are durable."""
        at_ms = self.context.clock.now_ms()
        try:
            step = self.machine.step(value, at_ms)
        except Exception:
            self.context.journal.append(self._actor, crashed(value), at_ms, cause)
            raise
        first = self.context.journal.append(self._actor, step, at_ms, cause)
        last = Seq(first + len(step.entries) - 1)
        if (
            isinstance(value, SourceRegistered | DestinationConnected)
            and arriving is not None
            and step.verdict is Verdict.APPLIED
        ):
            self._admit(value.handoff, arriving)
            arriving = None
        for index, entry in enumerate(step.entries):
            if entry.verdict is None:
                self._effect(Seq(first + index), last, entry.value, arriving)
        self._note_change()

    def _admit(self, handoff: int, arriving: _Waiting) -> None:
        waiting = self._waiting.setdefault(handoff, arriving)
        if waiting is not arriving:
            waiting.source = waiting.source or arriving.source
            waiting.destination = waiting.destination or arriving.destination

    def _effect(self, row: Seq, last: Seq, effect: Any, refused: _Waiting | None) -> None:
        match effect:
            case DeadlineSet():
                assert effect.handoff is not None
                fired = DeadlineFired(effect.name, effect.generation, effect.handoff)
                timer = self._timers.arm(effect.expires_ms, lambda: self._offer(fired))
                self._waiting[effect.handoff].deadline = timer
            case TimerSet():
                ripe = TimerFired(effect.name, effect.generation)
                self._timers.arm(effect.expires_ms, lambda: self._offer(ripe))
            case Paired():
                waiting = self._waiting.pop(effect.handoff)
                waiting.stop_watching()
                self._add_errand(last, _Begin(waiting, row, effect.handoff))
            case Rejected() if effect.reason is Reason.QUEUE_FULL:
                pass  # whoever had no place for it has told it; who waits here under its name is another
            case Rejected():
                self._turn_away(last, effect, refused or self._waiting.get(effect.handoff))
            case RejectionDropped():
                concerned = refused or self._waiting[effect.handoff]
                self._dismiss(last, concerned, effect.handoff, None)
            case Retired():
                left = self._waiting.pop(effect.handoff, None)
                if left is not None:
                    left.stop_watching()
                    if effect.reason is Reason.PEER_CLOSED:
                        self._dismiss(last, left, effect.handoff, None)
            case _:
                pass  # said for readers

    def _turn_away(self, last: Seq, rejected: Rejected, concerned: _Waiting | None) -> None:
        assert concerned is not None
        if rejected.side is Side.SOURCE:
            assert concerned.source is not None
            self._add_errand(last, _Answer(concerned.source, HandoffResult(rejected.message)))
        else:
            overloaded = rejected.reason is Reason.LIMIT_REACHED
            message = OVERLOADED if overloaded else protocol_error(rejected.message)
            self._dismiss(last, concerned, rejected.handoff, message)

    def _dismiss(self, last: Seq, concerned: _Waiting, handoff: int, message: Message | None) -> None:
        assert concerned.destination is not None
        if concerned.watch is None:
            concerned.unwatched.set()
        self._add_errand(last, _Dismiss(concerned.destination, concerned.unwatched, handoff, message))

    # -- what is done once its rows are durable ----------------------------------------------------------------------

    def _add_errand(self, last: Seq, errand: _Errand) -> None:
        self._errands.append((last, errand))
        self._errand_added.set()

    async def _run_errands(self) -> None:
        while True:
            while self._errands:
                try:
                    await self.context.journal.durable(self._errands[0][0])
                except JournalFailed:
                    self.context.shutdown.set()
                self._run_errand(self._errands.popleft()[1])
                self._note_change()
            self._errand_added = trio.Event()
            await self._errand_added.wait()

    def _run_errand(self, errand: _Errand) -> None:
        match errand:
            case _Begin():
                self._running += 1
                self._nursery.start_soon(self._session, errand)
            case _Answer():
                errand.registration.answer(errand.result)
            case _Dismiss():
                self._running += 1
                self._nursery.start_soon(self._say_goodbye, errand)
            case _:
                assert_never(errand)

    async def _abandon_errands(self) -> None:
        """The manager is torn down: answer every source, close every connection."""
        while self._errands:
            errand = self._errands.popleft()[1]
            match errand:
                case _Begin():
                    assert errand.waiting.source is not None
                    assert errand.waiting.destination is not None
                    await errand.waiting.destination.cut()
                    self._offer(SessionLeft(errand.handoff, EndState.ERROR))
                    errand.waiting.source.answer(HandoffResult("the handoff manager was torn down"))
                case _Answer():
                    errand.registration.answer(errand.result)
                case _Dismiss():
                    await errand.connection.cut()
                case _:
                    assert_never(errand)

    async def _session(self, begin: _Begin) -> None:
        source, destination = begin.waiting.source, begin.waiting.destination
        assert source is not None
        assert destination is not None

        def left(row: Seq | None, result: HandoffResult) -> None:
            self._offer(SessionLeft(begin.handoff, EndState.SUCCESS if result.ok else EndState.ERROR), row)

        try:
            with trio.CancelScope(shield=True):  # the watcher was told already, and waits for nothing
                await begin.waiting.unwatched.wait()
            await run_source_session(source, destination, self.context, cause=begin.row, on_ended=left)
        finally:
            self._running -= 1
            self._note_change()

    async def _say_goodbye(self, dismissed: _Dismiss) -> None:
        failure = None
        try:
            await dismissed.unwatched.wait()
            if dismissed.message is not None:
                await dismissed.connection.send(dismissed.message)
        except TransportError as error:
            failure = str(error)
        finally:
            with trio.CancelScope(shield=True):
                await dismissed.connection.aclose()
            if dismissed.message is not None:
                self._offer(RejectionSent(dismissed.handoff, failure))
            self._running -= 1
            self._note_change()

    async def _watch(self, waiting: _Waiting, scope: trio.CancelScope, handoff: int) -> None:
        """See a pending destination leave."""
        assert waiting.destination is not None
        seen: RendezvousInput | None = None
        try:
            with scope:
                try:
                    await waiting.destination.wait_peer_closed()
                    seen = PeerClosed(handoff)
                except (WireError, TransportError) as error:
                    seen = TransportFailed(str(error), handoff)
        finally:  # a tear-down passes through `scope`, and a session may wait for this behind a shield
            waiting.unwatched.set()
        if seen is not None:
            self._offer(seen)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
