"""The two kinds of worker of a live cluster, and what each does around a request.

A worker is an engine with its permits. A *prefill worker* also runs a bootstrap server and the manager of its source
sessions; a *decode worker* connects to the server of the prefill worker that the request was routed to. Both do the
same around a request, whatever happens inside:

1. take a permit, or refuse at once; 2. prepare the request and register the handoff with the engine, and bind the
two; 3. hand the source to the manager, or connect and run the destination's session; 4. read the stream to its end,
and wait for the handoff to end; 5. if that was not a normal end: cancel the handoff, tell the engine once more to
give up what it holds for it, and close the
   request's stream. The session has cleaned up by then, so this mostly finds nothing; it is for sessions that died.

**Shutting down**, in this order: the handoffs' shutdown signal; the managers; the servers; the requests' tasks; the
engines. Engines outlive sessions, so that every cleanup is answered.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import trio
from attrs import define, frozen

from handoff.engines.bootstrap import BootstrapServer, BootstrapServerConfig, connect_to_prefill
from handoff.engines.boundary import ControlCall
from handoff.engines.conductor_rows import RequestRouted
from handoff.engines.connection import BootstrapConnection, TransportError
from handoff.engines.destination_driver import run_destination_session
from handoff.engines.engine_core import KvEvent
from handoff.engines.engine_errors import LiveEngineError
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.live_boundary import LiveHandoffBoundary, live_handoff_boundary
from handoff.engines.live_engine import LiveEngine, LiveEngineConfig, LiveRequest
from handoff.engines.manager import SourceAdmissionFailed, SourceHandoffManager
from handoff.engines.permit_pool import AlreadyInside, NoPermit, Permit, PermitPool
from handoff.engines.prompt_shape import from_runs
from handoff.engines.request_stream import OutputSignal, RequestStream
from handoff.engines.session_context import SessionContext
from handoff.engines.signals import HandoffCompletion, Signal
from handoff.engines.source_driver import SourceRegistration
from handoff.journal.port import JournalFailed
from handoff.journal.vocabulary import ActionName, Seq, order_for_engine


@frozen
class Ticket:
    """One routed request, as both of its workers see it.

    Attributes:
        handoff: the handoff's number in the journal.
        identity: its names.
        routed: where it goes and what it is.
        row: the row that says so.
        cancel: set when the client, or the other worker, gives the request up.
    """

    handoff: int
    identity: HandoffIdentity
    routed: RequestRouted
    row: Seq
    cancel: Signal

    @property
    def request(self) -> LiveRequest:
        """The request for an engine."""
        routed = self.routed
        return LiveRequest(
            max_output_tokens=routed.max_output_tokens,
            request_id=self.identity.request_id,
            prompt_tokens=routed.prompt_tokens,
            block_names=from_runs(routed.block_runs),
        )


@frozen
class Served:
    """How a worker's part of a request ended.

    Attributes:
        last: the last output signal, if the request ended by itself.
        error: why it did not end well, or None.
        entered: whether the handoff ever reached its session.
    """

    last: OutputSignal | None = None
    error: str | None = None
    entered: bool = True


@frozen
class _Prepared:
    """What a worker holds for a request."""

    permit: Permit
    stream: RequestStream
    boundary: LiveHandoffBoundary


@define
class _Outcome:
    """What is known so far of a worker's part of a request."""

    last: OutputSignal | None = None
    error: str | None = None

    def served(self) -> Served:
        """All of it is known."""
        if self.last is not None and self.last.rejected:
            return Served(self.last, "the engine rejected the request: it can never run there")
        if self.last is None and self.error is None:
            return Served(error="the request's stream was closed before its end")
        return Served(self.last, self.error)


class LiveWorker:
    """An engine with its permits.

    Args:
        nursery: where the engine runs.
        settings: of the engine.
        context: journal, clock, faults and shutdown of the run.
        limit: permits.
        label: a name for people, such as ``prefill-0``.
        kv_sink: told of each cache event.
        watcher: told of each effect of the engine.
    """

    cancel_action: ClassVar[ActionName]

    def __init__(
        self,
        nursery: trio.Nursery,
        settings: EngineSettings,
        context: SessionContext,
        limit: int,
        label: str,
        *,
        kv_sink: Callable[[KvEvent], None] | None = None,
        watcher: Callable[[Any], None] | None = None,
    ) -> None:
        self.label = label
        self.context = context
        self.permits = PermitPool(limit, label, context.journal, context.clock)
        self.engine = LiveEngine.start_with_config(
            nursery,
            settings,
            LiveEngineConfig(
                kv_sinks=() if kv_sink is None else (kv_sink,),
                watcher=watcher,
                journal=context.journal,
                clock=context.clock,
                label=label,
            ),
        )

    async def serve(self, ticket: Ticket) -> Served:
        """Do this worker's part of a request, whatever happens, and hold nothing for it afterwards."""
        try:
            prepared = self._prepare(ticket)
        except (NoPermit, AlreadyInside, LiveEngineError) as error:
            return Served(error=str(error), entered=False)
        ended_well = False
        try:
            served = await self._hand_over(ticket, prepared)
            ended_well = served.error is None
        finally:
            if not ended_well:
                await self._make_sure_nothing_is_held(prepared)
            prepared.stream.close()
            prepared.boundary.close()
            prepared.permit.release()
        return served

    def _prepare(self, ticket: Ticket) -> _Prepared:
        permit = self.permits.take(ticket.handoff, ticket.row)
        try:
            registration, stream = self.engine.prepare_request(ticket.request, handoff=ticket.handoff, cause=ticket.row)
            try:
                control, events = self.engine.register_handoff(ticket.identity.handoff_id, handoff=ticket.handoff)
            except LiveEngineError:
                registration.close()
                raise
        except LiveEngineError:
            permit.release()
            raise
        return _Prepared(permit, stream, live_handoff_boundary(control, events, registration))

    async def _hand_over(self, ticket: Ticket, prepared: _Prepared) -> Served:
        raise NotImplementedError

    async def _read(self, ticket: Ticket, prepared: _Prepared, outcome: _Outcome) -> None:
        """Read the stream to its end; a request that the engine rejects is given up on both sides."""
        outcome.last = await prepared.stream.ended()
        if outcome.last is not None and outcome.last.rejected:
            ticket.cancel.set()

    async def _make_sure_nothing_is_held(self, prepared: _Prepared) -> None:
        """Tell the engine to give up what it may hold, behind a shield: tearing down must not leave anything."""
        clock = self.context.clock
        with clock.move_on_at(clock.now_ms() + self.context.session_timeout_ms) as scope:
            scope.shield = True
            with contextlib.suppress(LiveEngineError):  # the engine is gone, and what it held with it
                await prepared.boundary.execute(ControlCall(self.cancel_action))


class PrefillWorker(LiveWorker):
    """A worker that prefills: sources register with its manager, destinations with its server."""

    cancel_action: ClassVar[ActionName] = ActionName.CANCEL_SOURCE

    async def start(self, nursery: trio.Nursery, host: str, port: int, max_sessions: int) -> None:
        """Listen for destinations.

        Args:
            nursery: where the server and the sessions run.
            host: the address to listen on.
            port: the port, or 0 to pick a free one.
            max_sessions: handoffs that may be pending or active at once.

        Raises:
            OSError: the address cannot be listened on.
        """
        self.host = host
        self.server = BootstrapServer(
            port,
            self.context.shutdown,
            BootstrapServerConfig(max_pending_connections=max_sessions),
            host=host,
            room=self._room,
        )
        self.manager = SourceHandoffManager(self.server.take_incoming(), max_sessions, self.context, label=self.label)
        self.server.on_overloaded = self.manager.note_overloaded
        await nursery.start(self.manager.run)
        await nursery.start(self.server.run)

    async def _room(self) -> None:
        """Wait for room in the journal; when it is lost there will be none, and nobody is let in any more."""
        try:
            await self.context.journal.room()
        except JournalFailed:
            await self.context.shutdown.wait()

    async def wait_closed(self) -> None:
        """Wait until, after the shutdown signal, every session has cleaned up and the server is closed."""
        await self.manager.wait_closed()
        await self.server.wait_closed()

    async def _hand_over(self, ticket: Ticket, prepared: _Prepared) -> Served:
        completion = HandoffCompletion()
        settings = self.engine.settings
        registration = SourceRegistration(
            ticket.identity,
            order_for_engine(settings.engine_type),
            settings.engine_type,
            prepared.boundary,
            completion,
            ticket.cancel,
            permit=prepared.permit,
            label=self.label,
        )
        try:
            self.manager.try_register(registration)
        except SourceAdmissionFailed as error:
            return Served(error=str(error), entered=False)
        outcome = _Outcome()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, ticket, prepared, outcome)
            outcome.error = (await completion.wait()).error
            if outcome.error is not None:
                nursery.cancel_scope.cancel()
        return outcome.served()


class DecodeWorker(LiveWorker):
    """A worker that decodes: it connects to the prefill worker of each request."""

    cancel_action: ClassVar[ActionName] = ActionName.CANCEL_DESTINATION

    def __init__(self, *arguments: Any, peers: Sequence[PrefillWorker], **options: Any) -> None:
        """Take the arguments of a worker, and the prefill workers that requests may come from."""
        super().__init__(*arguments, **options)
        self._peers = peers

    async def _hand_over(self, ticket: Ticket, prepared: _Prepared) -> Served:
        settings, peer = self.engine.settings, self._peers[ticket.routed.prefill]
        registration = ParticipantRegistration(order_for_engine(settings.engine_type), settings.engine_type)
        try:
            connection = await connect_to_prefill(peer.host, peer.server.port, ticket.identity, registration)
        except TransportError as error:
            return Served(error=str(error), entered=False)
        outcome = _Outcome()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_session, connection, ticket, prepared, outcome, nursery.cancel_scope)
            await self._read(ticket, prepared, outcome)
        return outcome.served()

    async def _run_session(
        self,
        connection: BootstrapConnection,
        ticket: Ticket,
        prepared: _Prepared,
        outcome: _Outcome,
        reading: trio.CancelScope,
    ) -> None:
        """Run the destination's session; an error of it ends the response."""
        result = await run_destination_session(
            connection, prepared.boundary, self.context, cancel=ticket.cancel, label=self.label
        )
        outcome.error = result.error
        if result.error is not None:
            reading.cancel()
