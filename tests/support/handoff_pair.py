"""Both sides of a handoff in one process: a manager, a connection in memory or over TCP, and two engines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field
from handoff_fakes import (
    DESTINATION_FIRST,
    SOURCE_FIRST,
    IdealEngine,
    Permits,
    connection_pair,
    identity_of,
)

from handoff.engines.bootstrap import BootstrapServer, connect_to_prefill
from handoff.engines.connection import BootstrapConnection
from handoff.engines.destination_driver import run_destination_session
from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.interception import Interceptor, no_faults
from handoff.engines.manager import SourceHandoffManager
from handoff.engines.session_context import SessionContext
from handoff.engines.signals import HandoffCompletion, HandoffResult, Signal
from handoff.engines.source_driver import SourceRegistration
from handoff.journal.event import Event
from handoff.journal.port import JournalPort, MemoryJournal
from handoff.journal.terms import ObserverName
from handoff.journal.vocabulary import HandoffOrder

REGISTRATIONS = {HandoffOrder.SOURCE_FIRST: SOURCE_FIRST, HandoffOrder.DESTINATION_FIRST: DESTINATION_FIRST}

LIFECYCLE = {
    HandoffOrder.SOURCE_FIRST: [
        ObserverName.SOURCE_HELD,
        ObserverName.DESTINATION_ACCEPTED,
        ObserverName.DESTINATION_RESERVED,
        ObserverName.DESTINATION_ACTIVATED,
        ObserverName.SOURCE_RELEASED,
        ObserverName.COMPLETED,
    ],
    HandoffOrder.DESTINATION_FIRST: [
        ObserverName.DESTINATION_ACCEPTED,
        ObserverName.DESTINATION_RESERVED,
        ObserverName.SOURCE_HELD,
        ObserverName.DESTINATION_ACTIVATED,
        ObserverName.SOURCE_RELEASED,
        ObserverName.COMPLETED,
    ],
}
"""What an observer sees of a handoff that succeeds."""


@define(eq=False)
class HandoffPair:
    """One handoff with everything around it; `prefill_worker` runs its manager.

    Attributes:
        engines: the source's and the destination's.
        observed: the normalized lifecycle so far.
        result: how the destination ended.
    """

    manager: SourceHandoffManager
    arrivals: trio.MemorySendChannel[BootstrapConnection]
    permits: Permits
    order: HandoffOrder = HandoffOrder.SOURCE_FIRST
    identity: HandoffIdentity = field(factory=lambda: identity_of(75_001, 75_002, room=20))
    source_engine: Any = field(factory=IdealEngine)
    destination_engine: Any = field(factory=IdealEngine)
    source_cancel: Signal = field(factory=Signal)
    destination_cancel: Signal = field(factory=Signal)
    completion: HandoffCompletion = field(factory=HandoffCompletion)
    observed: list[ObserverName] = field(factory=list)
    connection: BootstrapConnection | None = None
    result: HandoffResult | None = None
    destination_ended: trio.Event = field(factory=trio.Event)

    @property
    def context(self) -> SessionContext:
        return self.manager.context

    @property
    def registration(self) -> ParticipantRegistration:
        return REGISTRATIONS[self.order]

    def register_source(self) -> None:
        self.manager.try_register(
            SourceRegistration(
                self.identity,
                self.order,
                self.registration.engine_type,
                self.source_engine,
                self.completion,
                self.source_cancel,
                observer=self.observed.append,
                permit=self.permits.take(),
            )
        )

    def connect(self) -> BootstrapConnection:
        """Connect a destination in memory, and give its end."""
        source_end, self.connection = connection_pair(self.identity, self.registration)
        self.arrivals.send_nowait(source_end)
        return self.connection

    async def run_destination(self, connection: BootstrapConnection | None = None) -> None:
        connection = self.connect() if connection is None else connection
        self.result = await run_destination_session(
            connection, self.destination_engine, self.context, cancel=self.destination_cancel
        )
        self.destination_ended.set()

    async def both_end(self) -> tuple[HandoffResult, HandoffResult]:
        """How the source and the destination ended."""
        source = await self.completion.wait()
        await self.destination_ended.wait()
        assert self.result is not None
        return source, self.result


@asynccontextmanager
async def prefill_worker(
    journal: JournalPort,
    *,
    max_sessions: int = 1,
    session_timeout_ms: float = 2000.0,
    rendezvous_timeout_ms: float = 30_000.0,
    interceptor: Interceptor = no_faults,
    **fields: Any,
) -> AsyncIterator[tuple[trio.Nursery, HandoffPair]]:
    """A manager that is shut down on leaving, and a handoff for it."""
    arrivals, incoming = trio.open_memory_channel[BootstrapConnection](8)
    context = SessionContext(
        journal,
        session_timeout_ms=session_timeout_ms,
        rendezvous_timeout_ms=rendezvous_timeout_ms,
        interceptor=interceptor,
    )
    manager = SourceHandoffManager(incoming, max_sessions, context)
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        yield nursery, HandoffPair(manager, arrivals, Permits(max_sessions), **fields)
        context.shutdown.set()
        await manager.wait_closed()


@asynccontextmanager
async def tcp_pair(journal: JournalPort, **fields: Any) -> AsyncIterator[tuple[trio.Nursery, HandoffPair]]:
    """The same with a bootstrap server; `fields["connection"]` is made over the loopback."""
    context = SessionContext(journal, session_timeout_ms=2000.0)
    server = BootstrapServer(0, context.shutdown, host="127.0.0.1", room=journal.room)
    manager = SourceHandoffManager(server.take_incoming(), 1, context)
    arrivals, _unused = trio.open_memory_channel[BootstrapConnection](1)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await nursery.start(manager.run)
        pair = HandoffPair(manager, arrivals, Permits(), **fields)
        pair.connection = await connect_to_prefill("127.0.0.1", server.port, pair.identity, pair.registration)
        yield nursery, pair
        context.shutdown.set()
        await manager.wait_closed()
        await server.wait_closed()


def rows_of(journal: MemoryJournal, *kinds: str) -> list[Event]:
    """The rows of some kinds, in order."""
    return [event for event in journal.events if event.kind in kinds]


def kinds_of(journal: MemoryJournal) -> set[str]:
    """Every kind that occurs."""
    return {event.kind for event in journal.events}
