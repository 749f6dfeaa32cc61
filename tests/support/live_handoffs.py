"""A pair of real engines with a bootstrap server and a manager between them, as the conformance fixture has it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field, frozen
from live_engines import fixture_request, fixture_settings
from recorded_steps import assert_replays

from handoff.engines.bootstrap import BootstrapServer, connect_to_prefill
from handoff.engines.clock import RunClock
from handoff.engines.connection import BootstrapConnection
from handoff.engines.destination_driver import run_destination_session
from handoff.engines.engine_core import KvEvent
from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.live_boundary import LiveHandoffBoundary, live_handoff_boundary
from handoff.engines.live_engine import LiveEngine, LiveEngineConfig
from handoff.engines.manager import SourceHandoffManager
from handoff.engines.permit_pool import Permit, PermitPool
from handoff.engines.request_stream import RequestStream
from handoff.engines.seeded_stream import derived_uuid
from handoff.engines.session_context import SessionContext
from handoff.engines.signals import HandoffCompletion, HandoffResult, Signal
from handoff.engines.source_driver import SourceRegistration
from handoff.journal.event import Event
from handoff.journal.port import MemoryJournal
from handoff.journal.terms import ObserverName
from handoff.journal.vocabulary import EngineType, HandoffId, RequestId, TimingMode, WorkerRole, order_for_engine

SESSION_TIMEOUT_MS = 2000.0


@frozen
class PreparedSide:
    """One side of a handoff at its engine."""

    stream: RequestStream
    boundary: LiveHandoffBoundary


@define(eq=False)
class Outcome:
    """What a session running in the background came to."""

    result: HandoffResult | None = None
    done: trio.Event = field(factory=trio.Event)

    async def wait(self) -> HandoffResult:
        """Its result."""
        await self.done.wait()
        assert self.result is not None
        return self.result


@define(eq=False)
class LivePair:
    """Two engines, and what stands between them.

    Attributes:
        source_events, destination_events: cache events that nobody has taken off yet.
        observed: calls these with each step of the normalized lifecycle.
    """

    nursery: trio.Nursery
    journal: MemoryJournal
    context: SessionContext
    engine_type: EngineType
    source: LiveEngine
    destination: LiveEngine
    server: BootstrapServer
    manager: SourceHandoffManager
    permits: PermitPool
    source_events: list[KvEvent]
    destination_events: list[KvEvent]
    observed: list[Callable[[ObserverName], None]] = field(factory=list)

    def identity(self, number: int) -> HandoffIdentity:
        """The names of a handoff of this pair."""
        request_id = RequestId(derived_uuid(0, "request", number))
        return HandoffIdentity(HandoffId(derived_uuid(0, "handoff", number)), 20, request_id)

    def handoff_number(self, identity: HandoffIdentity) -> int:
        """Its number in the journal."""
        return self.context.handoff_number(identity, order_for_engine(self.engine_type), self.engine_type)

    def prepare(self, engine: LiveEngine, identity: HandoffIdentity, output_tokens: int) -> PreparedSide:
        """Prepare the request and register the handoff at one of the engines."""
        number = self.handoff_number(identity)
        request = fixture_request(identity.request_id, output_tokens)
        registration, stream = engine.prepare_request(request, handoff=number)
        control, events = engine.register_handoff(identity.handoff_id, handoff=number)
        return PreparedSide(stream, live_handoff_boundary(control, events, registration))

    def register(
        self,
        identity: HandoffIdentity,
        side: PreparedSide,
        *,
        cancel: Signal | None = None,
        permit: Permit | None = None,
    ) -> HandoffCompletion:
        """Hand the source to the manager."""
        completion = HandoffCompletion()
        permit = permit or self.permits.take(self.handoff_number(identity))
        self.manager.try_register(
            SourceRegistration(
                identity,
                order_for_engine(self.engine_type),
                self.engine_type,
                side.boundary,
                completion,
                Signal() if cancel is None else cancel,
                self._observe,
                permit,
            )
        )
        return completion

    async def connect(self, identity: HandoffIdentity) -> BootstrapConnection:
        """Connect the destination."""
        registration = ParticipantRegistration(order_for_engine(self.engine_type), self.engine_type)
        return await connect_to_prefill("127.0.0.1", self.server.port, identity, registration)

    def run_destination(
        self, connection: BootstrapConnection, side: PreparedSide, cancel: Signal | None = None
    ) -> Outcome:
        """Run the destination's session in the background."""
        outcome = Outcome()

        async def run() -> None:
            outcome.result = await run_destination_session(connection, side.boundary, self.context, cancel=cancel)
            outcome.done.set()

        self.nursery.start_soon(run)
        return outcome

    def _observe(self, name: ObserverName) -> None:
        for observer in self.observed:
            observer(name)


@asynccontextmanager
async def live_pair(
    engine_type: EngineType = EngineType.VLLM,
    timing_mode: TimingMode = TimingMode.FULL_PROMPT,
    *,
    session_timeout_ms: float = SESSION_TIMEOUT_MS,
    max_sessions: int = 1,
    **changes: Any,
) -> AsyncIterator[LivePair]:
    """A pair at work; in the end everything is shut down, and every row of it must replay."""
    journal = MemoryJournal()
    clock = RunClock()
    context = SessionContext(journal, clock, session_timeout_ms=session_timeout_ms)
    async with trio.open_nursery() as nursery:
        events: dict[WorkerRole, list[KvEvent]] = {WorkerRole.PREFILL: [], WorkerRole.DECODE: []}
        engines = {}
        for role, taken in events.items():
            settings = fixture_settings(engine_type, role, timing_mode, **changes)
            config = LiveEngineConfig(kv_sinks=(taken.append,), journal=journal, clock=clock, label=role.value)
            engines[role] = LiveEngine.start_with_config(nursery, settings, config)
        server = BootstrapServer(0, context.shutdown, host="127.0.0.1")
        manager = SourceHandoffManager(server.take_incoming(), max_sessions, context)
        await nursery.start(manager.run)
        await nursery.start(server.run)
        permits = PermitPool(max_sessions, "permits", journal, clock)
        yield LivePair(
            nursery, journal, context, engine_type, engines[WorkerRole.PREFILL], engines[WorkerRole.DECODE],
            server, manager, permits, events[WorkerRole.PREFILL], events[WorkerRole.DECODE],
        )  # fmt: skip
        context.shutdown.set()
        await manager.wait_closed()
        await server.wait_closed()
        for engine in engines.values():
            await engine.shutdown()
    assert_replays(journal)


def run_real(main: Callable[[], Awaitable[None]], limit_s: float = 20.0) -> None:
    """Run on real time, which real sockets need, within a limit."""

    async def limited() -> None:
        with trio.fail_after(limit_s):
            await main()

    trio.run(limited)


def kinds(events: list[Event], actor: int | None = None) -> list[str]:
    """Kinds of rows in order."""
    return [event.kind for event in events if actor is None or event.actor == actor]
