"""A live cluster at work on a workload: arrivals, routing, the workers, and the order in which everything ends.

The workload says when requests are ready, the conductor where they go, the workers do the rest, and the end of a
request may make the next one ready. One task brings the arrivals; each routed request has a task of its own.

A run ends when the workload is drained and every request has ended, or when it is stopped: then nothing more arrives,
sessions are told to shut down, and they have the grace period to clean up. What has not ended by then is torn
down, and the run's last row names the handoffs that are still inside a worker.
"""

import math
from collections.abc import Callable, Sequence

import trio
from attrs import define, field, frozen

from handoff.engines.conductor import Conductor
from handoff.engines.conductor_rows import (
    CacheChanged,
    ConductorStopped,
    PrefillEnded,
    RequestArrived,
    RequestEnded,
    RequestRouted,
)
from handoff.engines.engine_core import EngineRequest, KvEvent, KvEventKind
from handoff.engines.faults import PlannedFaults
from handoff.engines.identity import HandoffIdentity
from handoff.engines.interception import FaultKind, InterceptionPoint, Interference
from handoff.engines.live_records import LiveRecords
from handoff.engines.live_workers import DecodeWorker, PrefillWorker, Served, Ticket
from handoff.engines.prompt_shape import to_runs
from handoff.engines.scenario import Scenario
from handoff.engines.seeded_stream import SeededStream, derived_uuid
from handoff.engines.session_context import SessionContext
from handoff.engines.signals import Signal
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.step_writer import StepWriter
from handoff.engines.workload import Arrival, Turn, WorkloadSource
from handoff.journal.coordinator import Coordinator
from handoff.journal.declarations import HandoffOpened
from handoff.journal.port import JournalFailed
from handoff.journal.vocabulary import (
    HandoffId,
    RequestId,
    Seq,
    TerminalStatus,
    order_for_engine,
)


@frozen
class Underway:
    """A request that has arrived and not ended.

    Attributes:
        arrival: what the workload sent.
        record: what will be reported of it.
        identity: its names.
        canceled: set when the client gives it up.
    """

    arrival: Arrival
    record: SimulatedRequest
    identity: HandoffIdentity
    canceled: Signal = field(factory=Signal)


@define(eq=False)
class LiveCluster:
    """Serves one workload, whose time 0 is the moment at which all workers are up.

    Attributes:
        scenario: the run's description.
        workload: where requests come from.
        names: names of a turn's complete blocks.
        context: what all sessions share: journal, clock, faults, shutdown.
        faults: the same faults, for requests.
        prefill, decode: the workers.
        records: what will be reported.
        on_end: told of each request that has ended.
        stopped: why the run was stopped early, or None.
    """

    scenario: Scenario
    workload: WorkloadSource
    names: Callable[[Turn], Sequence[int]]
    context: SessionContext
    faults: PlannedFaults
    prefill: Sequence[PrefillWorker]
    decode: Sequence[DecodeWorker]
    records: LiveRecords
    on_end: Callable[[RequestEnded], None]
    stopped: str | None = field(default=None, init=False)
    _conductor: StepWriter[Conductor] = field(init=False)
    _underway: dict[int, Underway] = field(factory=dict, init=False)
    _routed: set[int] = field(factory=set, init=False)
    _arrived: int = field(default=0, init=False)
    _begun_ms: float = field(default=0.0, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _requests: trio.Nursery | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        scenario = self.scenario
        machine = Conductor(scenario.cluster, scenario.prefill, scenario.decode, scenario.seed)
        self._conductor = StepWriter(machine, "conductor", self.context.journal, self.context.clock)

    @property
    def watches_caches(self) -> bool:
        """Whether the conductor wants the prefill workers' cache events."""
        return self._conductor.machine.watches_caches

    @property
    def inside(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """For each worker that still has handoffs inside, which ones."""
        workers = (*self.prefill, *self.decode)
        return tuple((worker.label, worker.permits.inside) for worker in workers if worker.permits.inside)

    async def run(self) -> None:
        """Serve the workload until it is drained or stopped, and every request has ended."""
        async with trio.open_nursery() as requests:
            self._requests = requests
            await self._bring_arrivals()

    def stop(self, reason: str) -> None:
        """Let nothing more arrive, end what a router still queues, and have every session clean up."""
        if self.stopped is None:
            self.stopped = reason
            self._offer(ConductorStopped(reason))
            nowhere = Served(error=f"the run was stopped before it was routed: {reason}", entered=False)
            for handoff, underway in list(self._underway.items()):
                if handoff not in self._routed:
                    self._end(handoff, underway, nowhere, nowhere)
            for worker in (*self.prefill, *self.decode):
                worker.permits.close()
            self.context.shutdown.set()
            self._changed.set()

    def cache_changed(self, worker: int, event: KvEvent) -> None:
        """A prefill worker's cache took or dropped blocks."""
        stored = event.kind is KvEventKind.STORED
        self._offer(CacheChanged(worker, stored, to_runs(event.block_names), event.parent))

    def prefill_ended(self, handoff: int) -> None:
        """A request's prefill is complete."""
        self._offer(PrefillEnded(handoff))

    # -- arrivals ---------------------------------------------------------------------------------------------------

    async def _bring_arrivals(self) -> None:
        clock = self.context.clock
        self._begun_ms = clock.now_ms()
        given = self.scenario.workload.max_sim_time_ms
        limit_ms = math.inf if given is None else given
        try:
            while self.stopped is None and not self.workload.is_drained:
                self._changed = trio.Event()
                ready_ms = self.workload.next_ready_ms()
                if ready_ms is not None and ready_ms > limit_ms:
                    return
                if ready_ms is None or self._begun_ms + ready_ms > clock.now_ms():
                    with clock.move_on_at(math.inf if ready_ms is None else self._begun_ms + ready_ms):
                        await self._changed.wait()
                    continue
                await self.context.journal.room()
                if self.stopped is not None:
                    return  # told to stop while waiting for room: nothing more arrives
                for arrival in self.workload.take_ready(min(clock.now_ms() - self._begun_ms, limit_ms)):
                    self._arrive(arrival)
        except JournalFailed as lost:
            self.stop(str(lost))

    def _arrive(self, arrival: Arrival) -> None:
        seed, number, turn = self.scenario.seed, self._arrived, arrival.turn
        self._arrived += 1
        engine_type = self.scenario.cluster.engine_type
        order = order_for_engine(engine_type)
        handoff_id = HandoffId(derived_uuid(seed, "handoff", number))
        request_id = RequestId(derived_uuid(seed, "request", number))
        room = SeededStream(seed, f"room/{number}").word()
        names = tuple(self.names(turn))
        clock = self.context.clock
        opened = HandoffOpened(handoff_id, order, engine_type, turn.request_id or request_id, str(room), 1)
        handoff = self.context.journal.open_handoff(opened, clock.now_ms())
        request = EngineRequest(request_id, turn.prompt_tokens, turn.output_tokens, names)
        record = SimulatedRequest(number, arrival, request, handoff_id, Coordinator(handoff_id, order))
        record.arrival_ms = arrival_ms = self._begun_ms + arrival.at_ms
        self._underway[handoff] = Underway(arrival, record, HandoffIdentity(handoff_id, room, request_id))
        self.context.numbers.learn(handoff_id, handoff)
        self.faults.handoffs[handoff_id] = (number + 1, handoff)
        self.records.arrived(handoff, record)
        named = arrival.session.is_named or self.workload.reports_sessions
        self._offer(
            RequestArrived(
                handoff, number + 1, arrival_ms, turn.prompt_tokens, turn.output_tokens, to_runs(names),
                arrival.session.session_id if named else None, arrival.turn_index if named else None,
                turn.priority, turn.strict_priority,
            )
        )  # fmt: skip

    def _offer(self, value: object, cause: Seq | None = None) -> None:
        """Tell the conductor, and start what it routes."""
        for entry, row in self._conductor.offer(value, cause):
            routed = entry.value
            assert isinstance(routed, RequestRouted)
            assert self._requests is not None
            self._routed.add(routed.handoff)
            self.records.routed(routed, cache_aware=self.watches_caches)
            self._requests.start_soon(self._serve, routed, row, name=f"handoff {routed.handoff}")

    # -- one request --------------------------------------------------------------------------------------------------

    async def _serve(self, routed: RequestRouted, row: Seq) -> None:
        underway = self._underway[routed.handoff]
        ticket = Ticket(routed.handoff, underway.identity, routed, row, underway.canceled)
        interference = self.faults.intercept(InterceptionPoint.REQUEST, "", underway.identity.handoff_id)
        prefill, decode = await self._with_interference(ticket, interference)
        self._end(routed.handoff, underway, prefill, decode)

    async def _with_interference(self, ticket: Ticket, interference: Interference) -> tuple[Served, Served]:
        """Serve a request that a fault may have struck on its way to the workers."""
        clock = self.context.clock
        match interference.do:
            case FaultKind.DROP:
                return (Served(error="the request was lost on its way", entered=False),) * 2
            case FaultKind.FAIL:
                return (Served(error=interference.message, entered=False),) * 2
            case FaultKind.DELAY:
                await clock.sleep_until_ms(clock.now_ms() + interference.delay_ms)
                return await self._on_both_workers(ticket)
            case FaultKind.DUPLICATE:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._on_both_workers, ticket, False)
                    return await self._on_both_workers(ticket)
            case FaultKind.CANCEL | FaultKind.DISCONNECT | FaultKind.TIMEOUT:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._give_up, ticket, interference.delay_ms)
                    served = await self._on_both_workers(ticket)
                    nursery.cancel_scope.cancel()
                return served
            case FaultKind.CRASH_SOURCE:
                return _gone(), await self.decode[ticket.routed.decode].serve(ticket)
            case FaultKind.CRASH_DESTINATION:
                return await self.prefill[ticket.routed.prefill].serve(ticket), _gone()
            case FaultKind.PASS:
                return await self._on_both_workers(ticket)

    async def _give_up(self, ticket: Ticket, delay_ms: float) -> None:
        """The client gives the request up after a while."""
        clock = self.context.clock
        await clock.sleep_until_ms(clock.now_ms() + delay_ms)
        ticket.cancel.set()

    async def _on_both_workers(self, ticket: Ticket, first_copy: bool = True) -> tuple[Served, Served]:
        """Have both workers serve the request; one that refuses it ends it for the other as well."""
        served: dict[str, Served] = {}

        async def on(worker: PrefillWorker | DecodeWorker, pool: str) -> None:
            served[pool] = await worker.serve(ticket)
            if first_copy and not served[pool].entered:
                ticket.cancel.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(on, self.prefill[ticket.routed.prefill], "prefill")
            nursery.start_soon(on, self.decode[ticket.routed.decode], "decode")
        return served["prefill"], served["decode"]

    def _end(self, handoff: int, underway: Underway, prefill: Served, decode: Served) -> None:
        record = underway.record
        end = RequestEnded(
            handoff,
            _status(prefill, decode, canceled=self.stopped is not None or underway.canceled.is_set),
            record.output_tokens,
            record.first_token_ms,
            record.second_token_ms,
            record.last_token_ms,
            _first_error(prefill, decode),
        )
        now_ms = self.context.clock.now_ms()
        del self._underway[handoff]
        self._routed.discard(handoff)
        del self.faults.handoffs[underway.identity.handoff_id]
        self.records.ended(end, now_ms)
        self.workload.on_end(underway.arrival, end.name, now_ms - self._begun_ms)
        self._offer(end, None if decode.last is None else decode.last.cause)
        self._changed.set()
        self.on_end(end)


def _gone() -> Served:
    """The part of a worker that died before it saw the request."""
    return Served(error="the worker crashed before it saw the request", entered=False)


def _first_error(prefill: Served, decode: Served) -> str | None:
    """What to tell the client: a refusal explains more than what it led to on the other side."""
    errors = [served.error for served in (prefill, decode) if served.error is not None]
    refusals = [served.error for served in (prefill, decode) if served.error is not None and not served.entered]
    return next(iter((*refusals, *errors)), None)


def _status(prefill: Served, decode: Served, *, canceled: bool) -> TerminalStatus:
    if any(served.last is not None and served.last.rejected for served in (prefill, decode)):
        return TerminalStatus.REJECTED
    if prefill.error is None and decode.error is None:
        return TerminalStatus.COMPLETED
    refused = not (prefill.entered and decode.entered)
    return TerminalStatus.CANCELED if canceled and not refused else TerminalStatus.FAILED
