"""Runs one session: everything that waits, around a machine that decides.

One task takes the inputs, one by one: it reads the clock, steps the machine, appends the step to the journal, waits
until that is durable if anybody else can see an effect, and carries the effects out in order. Around it, child tasks
wait for the world: one reads frames, one listens to the engine, one for each call of the engine, one keeps time, and
one sends frames. Cancel and shutdown are signals, which need no task.

The life of a session has two parts, and only the second may not be taken away:

1. *Ordinary work*, in a nursery of its own. It ends when the machine has ended or failed. Leaving the nursery stops and
   awaits the children, so that no ordinary call is waited for when cleanup begins.
2. *Winding up*, behind a shield, in a nursery of its own *inside* that shield: the children of an outer nursery are
   canceled already if the program is being torn down, and a call started there would never be made. Its end is
   bounded by the machine's cleanup limit.

The sender outlives both parts behind a shield of its own, since a frame that was sent in half would make the abort
after it unreadable; each frame has its limit.

If Trio tears the session down while effects of a step were not begun (it was waiting for the journal), each gets a
`not_carried_out` row, and the machine hears `torn_down`. If the journal fails (or, in cleanup, does not commit for 30
s), the machine hears `journal_lost`, effects not yet begun are dropped, and cleanup goes on without rows. If the
machine itself raises, its input is journaled as crashed and the engine is told to cancel without it.

A fault that crashes the session cancels everything at once, shields included, closes the socket, and writes nothing.
"""

from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

import trio
from attrs import fields

from handoff.engines.boundary import ControlCall, ControlReply, EngineBoundary
from handoff.engines.connection import BootstrapConnection, TransportError
from handoff.engines.fault_gate import FaultGate
from handoff.engines.interception import InterceptionPoint
from handoff.engines.session_context import SessionContext
from handoff.engines.session_inbox import Arrived, Inbox
from handoff.engines.session_machine import CLEANUP_LIMIT_MS, SessionMachine
from handoff.engines.session_rows import (
    CancelRequested,
    ChildrenStopped,
    CleanupReplied,
    CompletionDelivered,
    ControlCalled,
    ControlReplied,
    DeadlineFired,
    DeadlineMoved,
    DeadlineSet,
    FactObserved,
    JournalLost,
    LifecycleEnded,
    NotCarriedOut,
    ObserverEvent,
    OutboxFull,
    PeerClosed,
    SessionEnded,
    SessionInput,
    SessionStarted,
    ShutdownRequested,
    StopChildren,
    TimerCanceled,
    TimerSet,
    TornDown,
    TransportClosed,
    TransportFailed,
    WireFailed,
    WireFlushed,
    WireReceived,
    WireSent,
)
from handoff.engines.signals import HandoffResult, Signal
from handoff.engines.wire import WireError
from handoff.engines.wire_messages import Message
from handoff.journal.coordinator import Outcome, failed
from handoff.journal.port import ActorHandle, JournalFailed
from handoff.journal.step import crashed
from handoff.journal.terms import WireName
from handoff.journal.vocabulary import ActionId, ActionName, Seq, Side

INBOX_LIMIT = 32
"""Frames that wait to be heard before the reader stops reading."""
OUTBOX_LIMIT = 32
"""Frames that wait to be sent before a further one fails the session."""

_VISIBLE = (WireSent, ControlCalled, ObserverEvent, TransportClosed, SessionEnded, CompletionDelivered)
_contents = attrgetter(*(attribute.name for attribute in fields(Message)))


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


class SessionDriver:
    """Drives one session of either side.

    Args:
        machine: what decides.
        context: what all drivers of the process share.
        connection: to the peer; the session owns and closes it.
        boundary: this side of the handoff at its engine.
        cancel: the request's cancel signal.
        handoff: the handoff's number in the journal.
        label: a name for people.
    """

    side: ClassVar[Side]
    cleanup_action: ClassVar[ActionName]
    ranks: ClassVar[Mapping[type, int]]
    """The rank of each input; the ones that are not listed come last."""

    def __init__(
        self,
        machine: SessionMachine,
        context: SessionContext,
        connection: BootstrapConnection,
        boundary: EngineBoundary,
        *,
        cancel: Signal,
        handoff: int,
        label: str,
    ) -> None:
        self.machine: Any = machine
        self.context = context
        self.connection = connection
        self.boundary = boundary
        self.ended_row: Seq | None = None
        self.crashed = False
        self._cancel = cancel
        self._handoff = handoff
        self._label = label
        self._last_rank = max(self.ranks.values()) + 1
        self._inbox = Inbox(context.clock, self._last_rank + 1)
        self.faults = FaultGate(
            context,
            machine.handoff_id,
            connection,
            cancel=cancel,
            inbox=self._inbox,
            post=self._post,
            spawn=lambda task: self._children.start_soon(task),  # noqa: PLW0108 - in the nursery of that time
        )
        self._outbox: deque[tuple[Seq, WireSent]] = deque()
        self._outbox_filled = trio.Event()
        self._uncarried: deque[tuple[Seq, Any]] = deque()
        self._ordered: dict[ActionId, ActionName] = {}
        self._actor: ActorHandle
        self._children: trio.Nursery
        self._journal_lost = False
        self._machine_error: BaseException | None = None
        self._closed = False
        self._whole = trio.CancelScope()
        self._shield = trio.CancelScope(shield=True)
        self._sender = trio.CancelScope(shield=True)

    @property
    def result(self) -> HandoffResult:
        """How the session ended."""
        if self.crashed:
            return HandoffResult(f"the {self.side} session crashed")
        if self._machine_error is not None:
            return HandoffResult(f"the {self.side} session's machine raised {self._machine_error!r}")
        if not self.machine.ended and self.machine.error is None:
            return HandoffResult(f"the {self.side} session was never run to its end")
        return HandoffResult(self.machine.error)

    # -- the life of a session ----------------------------------------------------------------------------

    async def run(self, cause: Seq | None = None) -> None:
        """Run the session to its end; `result` then says how it ended.

        Args:
            cause: the row that made it begin.
        """
        context, handoff_id = self.context, self.machine.handoff_id
        self._actor = context.journal.start_actor(
            self.machine.SLOTS, self._label, self.machine.config(), context.clock.now_ms(), handoff=self._handoff
        )
        switch = context.crashes.install(handoff_id, self.side)
        withdrawals = (
            switch.subscribe(self._crash),
            context.shutdown.subscribe(lambda: self._post(ShutdownRequested())),
            self._cancel.subscribe(lambda: self._post(CancelRequested())),
        )
        try:
            with self._whole:
                async with trio.open_nursery() as outer:
                    outer.start_soon(self._send_all)
                    await self._live(cause)
        finally:
            for withdraw in withdrawals:
                withdraw()
            context.crashes.remove(handoff_id, self.side, switch)
            context.links.forget(self.connection.incoming)
            with trio.CancelScope(shield=True):
                await self._close()

    async def _live(self, cause: Seq | None) -> None:
        calm = False
        try:
            async with trio.open_nursery() as children:
                self._children = children
                children.start_soon(self._inbox.keep_time)
                await self._offer(Arrived(SessionStarted(), cause, self.context.clock.now_ms()))
                children.start_soon(self._read_all)
                children.start_soon(self._listen)
                await self._work(lambda: self.machine.ended or self.machine.failing)
                children.cancel_scope.cancel()
            calm = True
        finally:
            try:
                with self._shield:
                    await self._wind_up(calm)
            finally:
                self._sender.cancel()

    async def _wind_up(self, calm: bool) -> None:
        if self.crashed:
            return
        if self._machine_error is None:
            async with trio.open_nursery() as children:
                self._children = children
                children.start_soon(self._inbox.keep_time)
                await self._finish(calm)
                children.cancel_scope.cancel()
        if self._machine_error is not None:
            await self._clean_up_without_machine()

    async def _finish(self, calm: bool) -> None:
        if not calm:
            await self._tear_down()
        if self.machine.failing:
            await self._offer_now(ChildrenStopped())
        await self._work(lambda: self.machine.ended)
        while (arrived := self._inbox.take_ready()) is not None:
            await self._offer(arrived)

    async def _tear_down(self) -> None:
        if self.machine.ended:
            await self._carry_out_all()
            return
        uncarried, self._uncarried = self._uncarried, deque()
        for row, _value in uncarried:
            await self._offer_now(NotCarriedOut(), row)
        if not self.machine.failing:
            await self._offer_now(TornDown())

    async def _clean_up_without_machine(self) -> None:
        limit_ms = max(self.machine.session_timeout_ms, CLEANUP_LIMIT_MS)
        with self.context.clock.move_on_at(self.context.clock.now_ms() + limit_ms):
            try:
                await self.boundary.execute(ControlCall(self.cleanup_action))
            except Exception:  # noqa: BLE001 - the engine may be anybody's; there is nobody left to tell
                return

    def _crash(self) -> None:
        """Stop dead, as if the process had died."""
        self.crashed = True
        for scope in (self._whole, self._shield, self._sender):
            scope.cancel()

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            await self.connection.aclose()

    # -- one input after the other --------------------------------------------------------------------------

    def _post(self, value: SessionInput, cause: Seq | None = None) -> None:
        self._inbox.post(self.ranks.get(type(value), self._last_rank), value, cause)

    async def _work(self, done: Callable[[], bool]) -> None:
        def stop() -> bool:
            return done() or self._machine_error is not None

        while (arrived := await self._inbox.take(stop)) is not None:
            await self._offer(arrived)

    async def _offer_now(self, value: SessionInput, cause: Seq | None = None) -> None:
        await self._offer(Arrived(value, cause, self.context.clock.now_ms()))

    async def _offer(self, arrived: Arrived) -> None:
        """Take one input: step, append, wait until durable where others can see it, carry out."""
        journal = self.context.journal
        try:
            step = self.machine.step(arrived.value, arrived.at_ms)
        except Exception as error:  # noqa: BLE001 - a bug must end this session and no other
            self._machine_error = error
            step = crashed(arrived.value)
        entries = step.entries
        first = Seq(0)
        if not self._journal_lost:
            first = journal.append(self._actor, step, arrived.at_ms, arrived.cause)
        self._uncarried.extend(
            (Seq(first + index), entry.value)
            for index, entry in enumerate(entries)
            if entry.verdict is None and entry.slot == 0
        )
        if any(isinstance(value, _VISIBLE) for _row, value in self._uncarried) and not self._journal_lost:
            await self._wait_durable(Seq(first + len(entries) - 1))
        await self._carry_out_all()

    async def _wait_durable(self, last: Seq) -> None:
        try:
            if not (self.machine.ended or self.machine.failing):
                await self.context.journal.durable(last)
                return
            clock = self.context.clock
            with clock.move_on_at(clock.now_ms() + CLEANUP_LIMIT_MS) as limit:
                limit.shield = self.machine.ended  # the end is decided, and must be told
                await self.context.journal.durable(last)
            if limit.cancelled_caught:
                await self._lose_journal()
        except JournalFailed:
            await self._lose_journal()

    async def _lose_journal(self) -> None:
        """Go on without rows: nothing new is begun, and whatever is held is given up."""
        self._journal_lost = True
        if not (self.machine.ended or self.machine.failing):
            self._uncarried.clear()
            await self._offer_now(JournalLost())

    # -- effects ----------------------------------------------------------------------------------------------

    async def _carry_out_all(self) -> None:
        while self._uncarried:
            row, value = self._uncarried.popleft()
            await self._carry_out(row, value)

    async def _carry_out(self, row: Seq, value: Any) -> None:
        match value:
            case WireSent():
                self._put(row, value)
            case ControlCalled():
                self._children.start_soon(self._call, row, value)
            case DeadlineSet() | DeadlineMoved():
                fired = DeadlineFired(value.name, value.generation)
                self._inbox.arm(value.name, value.expires_ms, lambda: self._post(fired))
            case TimerSet():
                self.faults.start_transfer(value)
            case TimerCanceled():
                self._inbox.disarm(value.name)
            case StopChildren():
                self._inbox.disarm_all()
            case ObserverEvent():
                self._notify(value)
            case TransportClosed():
                with trio.CancelScope(shield=True):
                    await self._close()
            case SessionEnded():
                self._inbox.disarm_all()
                self.ended_row = None if self._journal_lost else row
            case _:
                pass  # said for readers, or carried out by whoever runs the session

    def _notify(self, event: ObserverEvent) -> None:
        """Tell whoever observes the session."""

    def _put(self, row: Seq, frame: WireSent) -> None:
        if len(self._outbox) >= OUTBOX_LIMIT:
            self._inbox.post(0, OutboxFull(frame.name, frame.action_id), row)
            return
        if frame.action is not None and frame.action_id is not None:
            self._ordered[frame.action_id] = frame.action
        self._outbox.append((row, frame))
        self._outbox_filled.set()

    # -- what waits for the world --------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        with self._sender:
            while True:
                while self._outbox:
                    await self._send(*self._outbox.popleft())
                self._outbox_filled = trio.Event()
                await self._outbox_filled.wait()

    async def _send(self, row: Seq, frame: WireSent) -> None:
        failure = None
        if frame.name is WireName.COMPLETE:
            copies, failure = await self.faults.let_pass(InterceptionPoint.ACTION, ActionName.COMPLETE)
            if not copies:
                return
        if failure is None:
            copies, failure = await self.faults.let_pass(InterceptionPoint.FRAME, frame.name)
        try:
            if failure is not None:
                raise TransportError(failure)
            data = self.connection.encode(frame)
            for _ in range(copies):
                if not self._journal_lost:
                    self.context.links.sent(self.connection.outgoing, row, _contents(frame))
                await self.connection.send_bytes(data)
        except (WireError, TransportError) as error:
            self._post(WireFailed(frame.name, _text(error), frame.action_id), row)
        else:
            self._post(WireFlushed(frame.name, frame.action_id), row)

    async def _read_all(self) -> None:
        try:
            while (message := await self.connection.receive()) is not None:
                contents = _contents(message)
                row = self.context.links.received(self.connection.incoming, contents)
                await self._inbox.wait_room(self._last_rank, INBOX_LIMIT)
                await self._receive(WireReceived(*contents), row)
        except (WireError, TransportError) as error:
            if not self._closed:
                self._post(TransportFailed(_text(error)))
        else:
            self._post(PeerClosed())

    async def _receive(self, received: WireReceived, row: Seq | None) -> None:
        """Hand a frame over to the machine."""
        self._post(received, row)

    async def _listen(self) -> None:
        while True:
            try:
                event = await self.boundary.next_event()
            except Exception as error:  # noqa: BLE001 - the engine may be anybody's
                self._post(LifecycleEnded(_text(error)))
                return
            if event is None:
                self._post(LifecycleEnded())
                return
            copies, failure = await self.faults.let_pass(InterceptionPoint.FACT, event.name)
            if failure is not None:
                self._post(LifecycleEnded(failure))
                return
            fact = FactObserved(event.name, event.transfer_timing, event.transferable_prompt_tokens)
            for _ in range(copies):
                self._post(fact, event.cause)

    async def _call(self, row: Seq, called: ControlCalled) -> None:
        if called.action_id is None:
            reply = await self._execute(row, called)
            raw = reply.outcome if reply.raw is None else reply.raw
            self._post(CleanupReplied(called.name, raw.name, raw.message), reply.cause)
            return
        copies, failure = await self.faults.let_pass(InterceptionPoint.ACTION, called.name)
        if failure is not None:
            await self._reply(called, ControlReply(failed(failure)))
            return
        for _ in range(copies):
            await self._reply(called, await self._execute(row, called))

    async def _execute(self, row: Seq, called: ControlCalled) -> ControlReply:
        call = ControlCall(called.name, called.action_id, None if self._journal_lost else row)
        try:
            answer = await self.boundary.execute(call)
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is a failed outcome
            return ControlReply(failed(_text(error)))
        return ControlReply(answer) if isinstance(answer, Outcome) else answer

    async def _reply(self, called: ControlCalled, reply: ControlReply) -> None:
        """Hand an engine's answer over to the machine."""
        raw = reply.outcome if reply.raw is None else reply.raw
        mapped = None if raw == reply.outcome else reply.outcome
        replied = ControlReplied(
            called.name,
            raw.name,
            called.action_id,
            raw.message,
            None if mapped is None else mapped.name,
            None if mapped is None else mapped.message,
        )
        self._post(replied, reply.cause)
