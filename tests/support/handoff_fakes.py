"""Stand-ins for what surrounds a session: an engine that a test answers for, one that answers by itself, and wires."""

import random
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import trio
import trio.testing
from attrs import define, field, frozen

from handoff.engines.boundary import ControlCall, ControlReply, LifecycleEvent, destination_reserved, source_held
from handoff.engines.connection import BootstrapConnection
from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.interception import PASS, InterceptionPoint, Interference
from handoff.engines.wire import Registration, Wire
from handoff.journal.coordinator import ACCEPTED, APPLIED, NOOP, SUBMITTED, Outcome, failed
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionName, EngineType, HandoffId, HandoffOrder, RequestId, TimingMode

SCHEDULES = 20
"""How many schedules of Trio each session test runs under."""


def run_scheduled(seed: int, function: Callable[..., Awaitable[Any]], *arguments: Any, real_time: bool = False) -> Any:
    """Run under Trio with the schedule that a seed gives, on a clock that jumps unless real time is asked for."""
    scheduler: random.Random = trio._core._run._r  # type: ignore[attr-defined]
    state = scheduler.getstate()
    scheduler.seed(seed)
    try:
        clock = None if real_time else trio.testing.MockClock(autojump_threshold=0)
        return trio.run(function, *arguments, clock=clock)
    finally:
        scheduler.setstate(state)


def handoff_uuid(number: int) -> HandoffId:
    """The handoff with a small number."""
    return HandoffId(str(UUID(int=number)))


def identity_of(handoff: int, request: int, room: int = 17) -> HandoffIdentity:
    """An identity from small numbers."""
    return HandoffIdentity(handoff_uuid(handoff), room, RequestId(str(UUID(int=request))))


SOURCE_FIRST = ParticipantRegistration(HandoffOrder.SOURCE_FIRST, EngineType.VLLM)
DESTINATION_FIRST = ParticipantRegistration(HandoffOrder.DESTINATION_FIRST, EngineType.SGLANG)


def unmodelled_timing(delay_ms: float | None = None) -> TransferTiming:
    """A transfer of one token that takes `delay_ms`, or whose time is not modelled."""
    if delay_ms is None:
        return TransferTiming(TimingMode.FULL_PROMPT, 1)
    return TransferTiming(TimingMode.FULL_PROMPT, 1, int(delay_ms * 1_000_000.0), 1.0)


def connection_pair(
    identity: HandoffIdentity, registration: ParticipantRegistration
) -> tuple[BootstrapConnection, BootstrapConnection]:
    """A registered connection in memory: the source's end, and the destination's."""
    source_stream, destination_stream = trio.testing.memory_stream_pair()
    client, server = Wire.client(identity), Wire.server()
    server.receive_data(client.register(registration))
    assert server.next_event() == Registration(identity, registration)
    down, up = object(), object()
    return (
        BootstrapConnection(source_stream, server, registration, down, up),
        BootstrapConnection(destination_stream, client, registration, up, down),
    )


@define(eq=False)
class Invocation:
    """A call that waits for the test's answer."""

    call: ControlCall
    _answered: trio.Event = field(factory=trio.Event)
    _answer: Outcome | ControlReply | Exception | None = None

    @property
    def action(self) -> ActionName:
        return ActionName(self.call.action)

    def answer(self, outcome: Outcome | ControlReply | Exception) -> None:
        self._answer = outcome
        self._answered.set()

    async def wait(self) -> Outcome | ControlReply:
        await self._answered.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        assert self._answer is not None
        return self._answer


class SemanticBoundary:
    """An engine whose every answer and event comes from the test."""

    def __init__(self) -> None:
        self._calls, self.calls = trio.open_memory_channel[Invocation](100)
        self._events: list[tuple[LifecycleEvent | None, trio.Event]] = []
        self._event_added = trio.Event()

    async def execute(self, call: ControlCall) -> Outcome | ControlReply:
        invocation = Invocation(call)
        self._calls.send_nowait(invocation)
        return await invocation.wait()

    async def next_event(self) -> LifecycleEvent | None:
        while not self._events:
            self._event_added = trio.Event()
            await self._event_added.wait()
        event, consumed = self._events.pop(0)
        consumed.set()
        return event

    def emit(self, event: LifecycleEvent | None) -> trio.Event:
        """Let the engine observe something (None: the end); gives what tells that it was read."""
        consumed = trio.Event()
        self._events.append((event, consumed))
        self._event_added.set()
        return consumed

    async def called(self, action: ActionName, limit_s: float = 60.0) -> Invocation:
        """The next call, which must be for this action."""
        with trio.fail_after(limit_s):
            invocation = await self.calls.receive()
        assert invocation.action is action, invocation.action
        return invocation

    def uncalled(self) -> bool:
        """Whether no call waits to be looked at."""
        return self.calls.statistics().current_buffer_used == 0


async def nothing_received(connection: BootstrapConnection, for_s: float = 0.02) -> bool:
    """Whether nothing arrives for a while."""
    with trio.move_on_after(for_s) as waited:
        await connection.receive()
    return waited.cancelled_caught


@define(eq=False)
class IdealEngine:
    """One side of one handoff at an engine that does everything at once, and remembers what it holds.

    Attributes:
        timing: what a hold announces.
        missing_tokens: what a reservation announces.
        held: whether something is held, reserved or active.
        calls: every action, in order.
        answers: outcomes for the next calls of an action, instead of the engine's own.
    """

    timing: TransferTiming = field(factory=lambda: unmodelled_timing(8.0))
    missing_tokens: int = 1
    held: bool = False
    calls: list[ActionName] = field(factory=list)
    answers: dict[ActionName, list[Outcome]] = field(factory=dict)
    silent_on: frozenset[ActionName] = frozenset()
    _events: list[LifecycleEvent | None] = field(factory=list)
    _event_added: trio.Event = field(factory=trio.Event)

    async def execute(self, call: ControlCall) -> Outcome | ControlReply:
        action = ActionName(call.action)
        self.calls.append(action)
        await trio.lowlevel.checkpoint()
        if action in self.silent_on:
            await trio.sleep_forever()
        scripted = self.answers.get(action)
        if scripted:
            return scripted.pop(0)
        match action:
            case ActionName.SUBMIT_PREFILL:
                self.held = True
                self.emit(source_held(self.timing))
                return SUBMITTED
            case ActionName.RESERVE_DESTINATION:
                self.held = True
                self.emit(destination_reserved(self.missing_tokens))
                return ACCEPTED
            case ActionName.ACTIVATE_DESTINATION:
                return APPLIED if self.held else failed("nothing is reserved")
            case _:
                was_held, self.held = self.held, False
                return APPLIED if was_held else ControlReply(APPLIED, raw=NOOP)

    async def next_event(self) -> LifecycleEvent | None:
        while not self._events:
            self._event_added = trio.Event()
            await self._event_added.wait()
        return self._events.pop(0)

    def emit(self, event: LifecycleEvent | None) -> None:
        self._events.append(event)
        self._event_added.set()


@define
class Permits:
    """Counts permits as a worker would."""

    available: int = 1

    def take(self) -> "Permit":
        assert self.available > 0
        self.available -= 1
        return Permit(self)


@define
class Permit:
    _permits: Permits | None

    def release(self) -> None:
        if self._permits is not None:
            self._permits.available += 1
            self._permits = None


@frozen
class OneFault:
    """Strikes the n-th thing of a name at a point, once."""

    point: InterceptionPoint
    name: str
    interference: Interference
    struck: list[str] = field(factory=list)

    def intercept(self, point: InterceptionPoint, name: str, handoff_id: HandoffId) -> Interference:
        if point is not self.point or name != self.name or self.struck:
            return PASS
        self.struck.append(handoff_id)
        return self.interference
