"""The offline runtime: handoffs between simulated pools in virtual time, without a wire.

A heap of events drives coordinators, engine cores and routers. It equals the deployed simulator event for event, so
its order of work is a contract. One timestamp is *drained* in rounds until a round changes nothing:

1. passes that end now, 2. workers that become ready, 3. transfers that complete (each kind as long as it is on top of
the heap); 4. arrivals; 5. actions of coordinators, until there are none; 6. prefill workers, then 7. decode workers
start passes, in order of id; 8. drained workers are removed. Planner ticks see the settled timestamp.

Events of one time are ordered by when they were pushed. Inside a run of decode passes nothing is pushed, so the key
says what the push would have been: the start of the pass that ends, the phase in which passes start, the worker. A
run that is cut gets a new event; the old one is known by its serial and dropped.

**An engine that does nothing sleeps.** The deployed simulator lets it try again at every timestamp that anybody visits.
Nothing can come of that until something reaches the engine, so here it is not done.

**A run always ends.** If nothing can happen any more although requests are in flight, that is a *stall*: the first
request that waits on the first such engine is failed, with a reason that names what it waits for and who holds it,
and the run goes on. The deployed simulator aborts there, or loops.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final, Protocol, assert_never

from attrs import define, field, frozen

from handoff.engines.collector import Collector
from handoff.engines.engine_core import (
    Blocked,
    DestinationReserved,
    EndKind,
    EngineError,
    EngineRequest,
    ForwardPassMetrics,
    PassResult,
    RequestEnd,
)
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.kv_router import KvRouter, Placement, RoutedPrompt, decode_stage, prefill_stage
from handoff.engines.offline_pool import OfflinePool, SimulatedWorker, WorkerState
from handoff.engines.offline_scaling import (
    LifecycleLog,
    Planner,
    PlannerSnapshot,
    ScalingCause,
    WorkerTransition,
    grow,
    pool_state,
    settle_drained,
    shrink,
)
from handoff.engines.scenario import KvRouterSettings, RouterMode
from handoff.engines.seeded_stream import SeededStream, derived_uuid
from handoff.engines.simulated_request import Admitted, Phase, Routing, SimulatedRequest
from handoff.engines.traffic_window import TrafficStats, TrafficWindow
from handoff.engines.workload import Arrival, Turn, WorkloadSource
from handoff.journal.coordinator import (
    ACCEPTED,
    APPLIED,
    NOOP,
    SCHEDULED,
    SUBMITTED,
    Action,
    Coordinator,
    Fact,
    Mode,
    Outcome,
    failed,
)
from handoff.journal.vocabulary import (
    ActionName,
    Completion,
    FactName,
    HandoffId,
    RequestId,
    TerminalStatus,
    order_for_engine,
)

_PASS: Final = 0
_READY: Final = 1
_TRANSFER: Final = 2
_LATER: Final = 3
_TICK: Final = 4

_ACTIONS_PHASE: Final = 0
_PREFILL_PHASE: Final = 1
_DECODE_PHASE: Final = 2
_PHASES: Final = 3


@frozen
class DisaggregatedCluster:
    """What a run simulates.

    Attributes:
        prefill, decode: engines of the two pools; same type and block size.
        num_prefill_workers, num_decode_workers: at least 1.
    """

    prefill: EngineSettings
    decode: EngineSettings
    num_prefill_workers: int
    num_decode_workers: int


@frozen
class Stall:
    """Requests were in flight, but nothing could happen any more.

    Attributes:
        at_ms: when.
        pool, worker: the engine whose first waiting request was failed; None when actions waited for a worker.
        failed_request: that request.
        reason: what it waited for, and who held what.
        waiting: every request that was in flight.
    """

    at_ms: float
    pool: str
    worker: int | None
    failed_request: RequestId
    reason: str
    waiting: tuple[RequestId, ...]


class RuntimeObserver(Protocol):
    """Somebody who writes down what a run does. Every call happens at `now_ms`, in the order of events."""

    def arrived(self, now_ms: float, request: SimulatedRequest, actions: tuple[Action, ...]) -> None:
        """A request arrived; its coordinator was started."""

    def outcome(
        self, now_ms: float, request: SimulatedRequest, action: Action, outcome: Outcome, actions: tuple[Action, ...]
    ) -> None:
        """An action was answered, and the coordinator issued further ones."""

    def fact(self, now_ms: float, request: SimulatedRequest, fact: Fact, actions: tuple[Action, ...]) -> None:
        """A fact was observed, and the coordinator issued further actions."""

    def transition(self, now_ms: float, name: str, request: SimulatedRequest | None) -> None:
        """Something of the transition log."""

    def admitted(self, now_ms: float, pool: str, worker: int, request: SimulatedRequest, reused_tokens: int) -> None:
        """A scheduler took a request into its batch."""

    def placed(self, now_ms: float, pool: str, request: SimulatedRequest, placement: Placement | None) -> None:
        """A KV-aware router placed or queued (None) a request."""


@define
class RuntimeCounts:
    """What tests ask for."""

    prefill_marked: int = 0
    prefill_router_freed: int = 0
    decode_router_freed: int = 0
    prefill_assignments: dict[RequestId, int] = field(factory=dict)
    decode_assignments: dict[RequestId, int] = field(factory=dict)
    handoff_ms: dict[RequestId, float] = field(factory=dict)
    transition_log: list[tuple[str, RequestId | None]] = field(factory=list)


class OfflineRuntime:
    """Simulates one run.

    Args:
        cluster: the pools.
        source: the workload.
        names: names of the complete blocks of a turn's prompt, in the engines' block size.
        router_mode, kv_router: how requests are spread.
        seed: of the run; ids and ties follow from it.
        collector: takes requests that have ended.
        max_sim_time_ms: stop after this moment.
        keeps_transitions: whether `counts` are kept, for tests and small runs.
        capture_metrics: whether every pass reports its metrics.
        observer: is told of everything, or None.
        planner: decides on scaling at ticks, or None.

    Attributes:
        now_ms: the clock.
        events: the heap; see the module for its order.
        pending, waiting_prefill, waiting_decode: actions to carry out, and actions without a worker.
        has_draining: whether a worker may be draining.
        stalls: what had to be failed so that the run could go on.
    """

    def __init__(
        self,
        cluster: DisaggregatedCluster,
        source: WorkloadSource,
        names: Callable[[Turn], Sequence[int]],
        *,
        router_mode: RouterMode = RouterMode.ROUND_ROBIN,
        kv_router: KvRouterSettings | None = None,
        seed: int = 0,
        collector: Collector | None = None,
        max_sim_time_ms: float | None = None,
        keeps_transitions: bool = False,
        capture_metrics: bool = False,
        observer: RuntimeObserver | None = None,
        planner: Planner | None = None,
    ) -> None:
        if max_sim_time_ms is not None and not (math.isfinite(max_sim_time_ms) and max_sim_time_ms >= 0.0):
            raise ValueError(f"max_sim_time_ms = {max_sim_time_ms}: expected a finite number of at least 0")
        self._order = order_for_engine(cluster.prefill.engine_type)
        self._source = source
        self._names = names
        self._seed = seed
        self.collector = collector or Collector()
        self._max_sim_time_ms = max_sim_time_ms
        self._observer = observer
        self._planner = planner
        self._ticks = 0
        self._idle_ticks = 0
        self.lifecycle = LifecycleLog()
        self._keeps_transitions = keeps_transitions
        self._logs = keeps_transitions or observer is not None
        routers = self._routers(cluster, router_mode, kv_router or KvRouterSettings(), seed)
        self.prefill = OfflinePool(
            "prefill",
            cluster.prefill,
            cluster.num_prefill_workers,
            routers[0],
            capture_kv_events=routers[0] is not None,
            capture_metrics=capture_metrics,
            counts_gaps=False,
        )
        self.decode = OfflinePool(
            "decode",
            cluster.decode,
            cluster.num_decode_workers,
            routers[1],
            capture_kv_events=False,
            capture_metrics=capture_metrics,
            counts_gaps=True,
        )
        self.now_ms = 0.0
        self.events: list[tuple[Any, ...]] = []
        self._next_serial = 0
        self._round = 0
        self._drained_at: float | None = None
        self.pending: deque[tuple[SimulatedRequest, Action]] = deque()
        self.waiting_prefill: list[tuple[SimulatedRequest, Action]] = []
        self.waiting_decode: list[tuple[SimulatedRequest, Action]] = []
        self._requests: dict[RequestId, SimulatedRequest] = {}
        self._by_handoff: dict[HandoffId, SimulatedRequest] = {}
        self.has_draining = False
        self._next_number = 0
        self.in_flight = 0
        self.counts = RuntimeCounts()
        self.traffic = TrafficWindow()
        self.stalls: list[Stall] = []
        self._carry_out: dict[ActionName, Callable[[SimulatedRequest, Action], None]] = {
            ActionName.SUBMIT_PREFILL: self._submit_prefill,
            ActionName.RESERVE_DESTINATION: self._reserve_destination,
            ActionName.START_TRANSFER: self._start_transfer,
            ActionName.ACTIVATE_DESTINATION: self._activate_destination,
            ActionName.RELEASE_SOURCE: self._release_source,
            ActionName.CANCEL_SOURCE: self._cancel_source,
            ActionName.CANCEL_DESTINATION: self._cancel_destination,
            ActionName.COMPLETE: self._complete,
        }

    @staticmethod
    def _routers(
        cluster: DisaggregatedCluster, mode: RouterMode, settings: KvRouterSettings, seed: int
    ) -> tuple[KvRouter | None, KvRouter | None]:
        match mode:
            case RouterMode.ROUND_ROBIN:
                return None, None
            case RouterMode.KV_ROUTER:
                return (
                    KvRouter(prefill_stage(settings), cluster.prefill, SeededStream(seed, "router/prefill")),
                    KvRouter(decode_stage(settings), cluster.decode, SeededStream(seed, "router/decode")),
                )
            case _:
                assert_never(mode)

    # -- the clock ------------------------------------------------------------------------------------

    def run(self, watch: Callable[["OfflineRuntime"], bool] | None = None, every: int = 256) -> bool:
        """Run to the end of the workload, or to the cap.

        Args:
            watch: called now and then; returns False to stop the run.
            every: after how many timestamps it is called.

        Returns:
            False if `watch` stopped it.
        """
        self.drain_current_timestamp()
        if self._planner is not None:
            self._push_tick(self._planner.initial_tick_ms())
        visited = 0
        source, limit_ms = self._source, math.inf if self._max_sim_time_ms is None else self._max_sim_time_ms
        goes_on = True
        while goes_on:
            events = self.events
            next_ms = source.ready_ms
            if events and events[0][0] < next_ms:
                next_ms = events[0][0]
            if next_ms == math.inf or self._idle_ticks > _IDLE_TICKS:
                if self.is_done:
                    break
                self._idle_ticks = 0
                self._resolve_stall()
                continue
            if self._planner is not None and self.is_done:
                break
            if next_ms > limit_ms:
                break
            self.now_ms = next_ms
            self.drain_current_timestamp()
            visited += 1
            if watch is not None and visited % every == 0:
                goes_on = watch(self)
        self.pay_workers()
        return goes_on

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do but idle workers becoming ready."""
        return (
            not self.in_flight
            and not self._by_handoff
            and self._source.is_drained
            and not (self.pending or self.waiting_prefill or self.waiting_decode)
            and self.prefill.is_drained
            and self.decode.is_drained
        )

    def next_timestamp(self) -> float | None:
        """When something happens next, or None."""
        self._drop_stale_events()
        ready_ms = self._source.next_ready_ms()
        if not self.events:
            return ready_ms
        event_ms: float = self.events[0][0]
        return event_ms if ready_ms is None or event_ms < ready_ms else ready_ms

    def advance_now(self, to_ms: float) -> None:
        """Move the clock."""
        self.now_ms = to_ms

    def pay_workers(self) -> None:
        """Count the time of all workers since the last payment; call before their number changes."""
        for pool in (self.prefill, self.decode):
            pool.pay(self.now_ms)

    def advance_to(self, to_ms: float) -> bool:
        """Do everything that happens up to `to_ms`; returns whether the workload is done.

        The clock ends at `to_ms`, or at the last event of a workload that is done.
        """
        self.drain_current_timestamp()
        while not self.is_done:
            next_ms = self.next_timestamp()
            if next_ms is None or next_ms > to_ms:
                if math.isfinite(to_ms) and to_ms < _FOREVER_MS:
                    self.advance_now(to_ms)
                return False
            self.advance_now(next_ms)
            self.drain_current_timestamp()
        return True

    def drain_current_timestamp(self) -> None:
        """Do everything that happens now, in rounds, until nothing changes."""
        now_ms = self.now_ms
        events, source, pending, carry_out = self.events, self._source, self.pending, self._carry_out
        prefill, decode = self.prefill, self.decode
        self._round = 0
        while True:
            if events and events[0][0] <= now_ms:
                self._apply_due_events(now_ms)
            if source.ready_ms <= now_ms:
                for arrival in source.take_ready(now_ms):
                    self._arrive(arrival)
            while pending:
                request, action = pending.popleft()
                carry_out[action.name](request, action)
            while prefill.candidates:
                self._drive(prefill)
            while decode.candidates:
                self._drive(decode)
            if self._logs:
                self._log("decode_drive_quiesced", None)
            if self.has_draining:
                self._remove_drained()
            self._round += 1
            if pending or prefill.candidates or decode.candidates or source.ready_ms <= now_ms:
                continue
            self._drop_stale_events()
            if not events or events[0][0] > now_ms:
                return
            if events[0][6] == _TICK and self._planner is not None:
                self._idle_ticks = self._idle_ticks + 1 if self._round == 1 else 0
                self._tick(self._planner)

    # -- events ---------------------------------------------------------------------------------------

    def _push(self, at_ms: float, kind: int, payload: object) -> None:
        """An event that an action of this moment causes."""
        serial = self._next_serial
        self._next_serial += 1
        phase = self._round * _PHASES + _ACTIONS_PHASE
        heappush(self.events, (at_ms, kind == _TICK, self.now_ms, phase, serial, serial, kind, payload))

    def _is_stale(self, event: tuple[Any, ...]) -> bool:
        kind, payload = event[6], event[7]
        if kind == _PASS:
            return bool(payload[1].serial != event[5])
        if kind in (_TRANSFER, _LATER):
            return bool(payload[0].is_retired)
        if kind == _READY:
            return bool(payload[1].state is not WorkerState.STARTING)
        return False

    def _drop_stale_events(self) -> None:
        events = self.events
        while events and self._is_stale(events[0]):
            heappop(events)

    def _apply_due_events(self, now_ms: float) -> None:
        """Each kind in turn, as long as it is on top; the next round goes on with the rest."""
        events = self.events
        in_turn = _PASS
        while events and events[0][0] <= now_ms:
            event = events[0]
            kind = event[6]
            first, second = event[7]
            if kind == _PASS:
                if second.serial != event[5]:
                    heappop(events)
                    continue
                if in_turn > _PASS:
                    return
                heappop(events)
                self._finish_pass(first, second)
                continue
            if self._is_stale(event):
                heappop(events)
                continue
            if kind < in_turn or kind == _TICK:
                return
            in_turn = kind
            heappop(events)
            if kind == _TRANSFER:
                self._tell_fact(first, Fact(FactName.TRANSFER_COMPLETED, first.handoff_id))
            elif kind == _READY:
                self._worker_is_ready(first, second)
            else:
                second()

    def _touch(self, pool: OfflinePool, worker: SimulatedWorker) -> bool:
        """Something reaches a worker; whether it is in a pass. A run is cut, and its end pushed anew."""
        clock = worker.clock
        if clock.touch(self.now_ms):
            assert clock.running is not None
            self._push_end(pool, worker, clock.running, inside_run=True)
        if clock.running is not None:
            return True
        pool.nominate(worker)
        return False

    def _push_end(self, pool: OfflinePool, worker: SimulatedWorker, result: PassResult, *, inside_run: bool) -> None:
        """The end of a pass: its key says when the last of its passes started."""
        phase = _PREFILL_PHASE if pool is self.prefill else _DECODE_PHASE
        if not (inside_run or result.passes > 1):
            phase += self._round * _PHASES
        serial = worker.serial = self._next_serial
        self._next_serial += 1
        heappush(
            self.events,
            (result.end_ms, False, result.last_start_ms, phase, worker.worker_id, serial, _PASS, (pool, worker)),
        )

    # -- passes ---------------------------------------------------------------------------------------

    def _drive(self, pool: OfflinePool) -> None:
        """Let every listed worker that is ready start a pass."""
        now_ms = self.now_ms
        for worker in pool.take_candidates():
            clock = worker.clock
            if clock.running is not None or clock.asleep or not clock.core.has_work:
                continue
            result = clock.start(now_ms)
            for request_id, reused in result.admissions:
                self._admit(pool, worker, self._requests[request_id], reused)
            if result.end_ms > now_ms:
                self._push_end(pool, worker, result, inside_run=False)
            else:
                self._finish_pass(pool, worker)

    def _admit(self, pool: OfflinePool, worker: SimulatedWorker, request: SimulatedRequest, reused: int) -> None:
        now_ms = self.now_ms
        request.admissions.append(Admitted(pool.name, now_ms, reused))
        if request.first_admit_ms is None:
            request.first_admit_ms = now_ms
        if pool is self.prefill:
            if request.prefill_admit_ms is None:
                request.prefill_admit_ms = now_ms
            request.reused = max(request.reused, reused)
        else:
            request.decode_reused = max(request.decode_reused or 0, reused)
            if request.decode_admit_ms is None:
                request.decode_admit_ms = now_ms
                request.phase = Phase.RUNNING_DECODE
                if self._logs:
                    self._log("decode_admitted", request)
        if self._observer is not None:
            self._observer.admitted(now_ms, pool.name, worker.worker_id, request, reused)

    def _finish_pass(self, pool: OfflinePool, worker: SimulatedWorker) -> None:
        """A pass ends: commands held back, metrics, cache events, ends, holds, and the boundary's reservation."""
        worker.serial = -1
        result, reserved = worker.clock.finish()
        if worker.deferred:
            self.pending.extend(worker.deferred)
            worker.deferred = []
        if result.metrics is not None:
            pool.metrics.append((worker.worker_id, result.metrics))
            pool.latest_metrics[worker.worker_id] = result.metrics
        if pool.router is not None and result.kv_events:
            pool.router.apply_events(worker.worker_id, result.kv_events)
        for record in result.pressure:
            self.collector.add_pressure(self._requests[record.request_id], record)
        ended = self._prefill_ended if pool is self.prefill else self._decode_ended
        for end in result.ends:
            ended(self._requests[end.request_id], end)
        for held in result.held:
            request = self._by_handoff[held.handoff_id]
            request.held_ms = self.now_ms
            if self._logs:
                self._log("source_held", request)
            self._tell_fact(request, Fact(FactName.SOURCE_HELD, held.handoff_id, transfer_timing=held.transfer_timing))
        if reserved is not None:
            self._reserved(reserved)
        if worker.clock.is_ready:
            pool.nominate(worker)

    def _prefill_ended(self, request: SimulatedRequest, end: RequestEnd) -> None:
        router = self.prefill.router
        if router is not None:
            router.prefill_completed(request.request_id)
        self.counts.prefill_marked += 1
        if self._logs:
            self._log("prefill_mark_completed", request)
        if end.kind is EndKind.REJECTED:
            request.set_status(TerminalStatus.REJECTED, self.now_ms)
            self._tell_fact(request, Fact(FactName.FAILED, request.handoff_id))
        if router is not None:
            self._dispatch_released(self.prefill)

    def _decode_ended(self, request: SimulatedRequest, end: RequestEnd) -> None:
        request.take_tokens(end)
        if self.decode.router is not None:
            self.decode.router.free(request.request_id)
        request.booked_decode = False
        self.counts.decode_router_freed += 1
        if self._logs:
            self._log("decode_free", request)
        completed = end.kind is EndKind.COMPLETED
        request.set_status(TerminalStatus.COMPLETED if completed else TerminalStatus.REJECTED, self.now_ms)
        self._end_logically(request)
        if self.decode.router is not None:
            self._dispatch_released(self.decode)

    # -- requests -------------------------------------------------------------------------------------

    def _arrive(self, arrival: Arrival) -> None:
        number = self._next_number
        self._next_number += 1
        turn = arrival.turn
        request_id = RequestId(turn.request_id or derived_uuid(self._seed, "request", number))
        if request_id in self._requests:
            raise ValueError(f"request {request_id} is already in flight")
        engine_request = EngineRequest(request_id, turn.prompt_tokens, turn.output_tokens, self._names(turn))
        handoff_id = HandoffId(derived_uuid(self._seed, "handoff", number))
        coordinator = Coordinator(handoff_id, self._order)
        request = SimulatedRequest(number, arrival, engine_request, handoff_id, coordinator)
        self._requests[request_id] = request
        self._by_handoff[handoff_id] = request
        self.in_flight += 1
        self.collector.arrived(request)
        self.traffic.arrived()
        actions = coordinator.start()
        if self._observer is not None:
            self._observer.arrived(self.now_ms, request, actions)
        if actions[0].name is ActionName.RESERVE_DESTINATION:
            request.phase = Phase.AWAITING_DESTINATION
        self.pending.append((request, actions[0]))

    def _end_logically(self, request: SimulatedRequest) -> None:
        """The client's view of the request is over, whatever its handoff still has to do."""
        if not request.counted_in_flight:
            return
        request.counted_in_flight = False
        self.in_flight -= 1
        now_ms = self.now_ms
        assert request.status is not None
        self.traffic.ended(request)
        self._source.on_end(request.arrival, request.status, now_ms)
        if self._logs:
            self._log("request_marked_done", request)
        if self._logs and self._source.is_workload:
            self._log("workload_completed", request)
        if request.handoff_is_over:
            self._retire(request)
        else:
            request.phase = Phase.CLEANUP_PENDING

    def _retire(self, request: SimulatedRequest) -> None:
        request.phase = Phase.DONE
        request.is_retired = True
        del self._by_handoff[request.handoff_id]
        del self._requests[request.request_id]
        self.collector.retired(request)

    def _tell_outcome(self, request: SimulatedRequest, action: Action, outcome: Outcome) -> None:
        actions = request.coordinator.on_outcome(action.id, outcome)
        if self._observer is not None:
            self._observer.outcome(self.now_ms, request, action, outcome, actions)
        for issued in actions:
            self.pending.append((request, issued))

    def _tell_fact(self, request: SimulatedRequest, fact: Fact) -> None:
        actions = request.coordinator.on_fact(fact)
        if self._observer is not None:
            self._observer.fact(self.now_ms, request, fact, actions)
        for issued in actions:
            self.pending.append((request, issued))

    def apply_handoff_fact(self, request_id: RequestId, fact: Fact) -> None:
        """Feed a fact from outside, such as a cancellation; it takes effect with the next drain."""
        self._tell_fact(self._requests[request_id], fact)

    # -- actions --------------------------------------------------------------------------------------

    def _submit_prefill(self, request: SimulatedRequest, action: Action) -> None:
        pool = self.prefill
        if not pool.active:
            self.waiting_prefill.append((request, action))
            return
        request.phase = Phase.QUEUED_PREFILL
        worker_id = self._route(pool, request, action)
        if worker_id is not None:
            self._submit_to(pool.workers[worker_id], request, action)

    def _submit_to(self, worker: SimulatedWorker, request: SimulatedRequest, action: Action) -> None:
        request.prefill_worker = worker.worker_id
        if self._keeps_transitions:
            self.counts.prefill_assignments[request.request_id] = worker.worker_id
        self._touch(self.prefill, worker)
        worker.clock.core.submit_handoff_prefill(request.handoff_id, request.request)
        request.phase = Phase.RUNNING_PREFILL
        self._tell_outcome(request, action, SUBMITTED)

    def _reserve_destination(self, request: SimulatedRequest, action: Action) -> None:
        pool = self.decode
        if not pool.active:
            self.waiting_decode.append((request, action))
            return
        request.phase = Phase.AWAITING_DESTINATION
        worker_id = self._route(pool, request, action)
        if worker_id is not None:
            self._reserve_at(pool.workers[worker_id], request, action)

    def _reserve_at(self, worker: SimulatedWorker, request: SimulatedRequest, action: Action) -> None:
        busy = self._touch(self.decode, worker)
        try:
            reply = worker.clock.core.reserve_destination(request.handoff_id, request.request, busy=busy)
        except EngineError as error:
            request.set_status(TerminalStatus.FAILED, self.now_ms)
            request.failure = str(error)
            if self.decode.router is not None:
                self.decode.router.free(request.request_id)
            request.booked_decode = False
            self._tell_outcome(request, action, failed(str(error)))
            return
        request.decode_worker = worker.worker_id
        if self._keeps_transitions:
            self.counts.decode_assignments[request.request_id] = worker.worker_id
        if self._logs:
            self._log("destination_accepted", request)
        self._tell_outcome(request, action, ACCEPTED)
        if reply.reserved is not None:
            self._reserved(reply.reserved)

    def _reserved(self, reserved: DestinationReserved) -> None:
        request = self._by_handoff[reserved.handoff_id]
        request.reserved_ms = self.now_ms
        if self._logs:
            self._log("destination_reserved", request)
        self._tell_fact(
            request,
            Fact(
                FactName.DESTINATION_RESERVED,
                reserved.handoff_id,
                transferable_prompt_tokens=reserved.transferable_prompt_tokens,
            ),
        )

    def _start_transfer(self, request: SimulatedRequest, action: Action) -> None:
        self._tell_outcome(request, action, SCHEDULED)
        request.phase = Phase.TRANSFER_PENDING
        delay_ms = action.delay_ms or 0.0
        if delay_ms > 0.0:
            self._push(self.now_ms + delay_ms, _TRANSFER, (request, action))
            if self._logs:
                self._log("transfer_queued", request)
        else:
            self._tell_fact(request, Fact(FactName.TRANSFER_COMPLETED, request.handoff_id))

    def _activate_destination(self, request: SimulatedRequest, action: Action) -> None:
        assert request.decode_worker is not None
        worker = self.decode.workers[request.decode_worker]
        if self._touch(self.decode, worker):
            worker.deferred.append((request, action))
            return
        reply = worker.clock.core.activate_destination(request.handoff_id)
        if not reply.applied:
            self._tell_outcome(request, action, failed("the destination is not reserved"))
            return
        request.phase = Phase.READY_DECODE
        request.activated_ms = self.now_ms
        if self._logs:
            self._log("destination_activated", request)
        self._tell_outcome(request, action, APPLIED)
        if reply.reserved is not None:
            self._reserved(reply.reserved)

    def _release_source(self, request: SimulatedRequest, action: Action) -> None:
        assert request.prefill_worker is not None
        worker = self.prefill.workers[request.prefill_worker]
        if self._touch(self.prefill, worker):
            worker.deferred.append((request, action))
            return
        reply = worker.clock.core.release_source(request.handoff_id)
        request.released_ms = self.now_ms
        if self._logs:
            self._log("source_released", request)
        self._feed_command_events(worker)
        self._tell_outcome(request, action, APPLIED if reply.applied else NOOP)

    def _cancel_source(self, request: SimulatedRequest, action: Action) -> None:
        worker = self._worker_of(self.prefill, request.prefill_worker)
        if worker is None:
            self._drop_booking(self.prefill, request)
            self._tell_outcome(request, action, NOOP)
            return
        if self._touch(self.prefill, worker):
            worker.deferred.append((request, action))
            return
        reply = worker.clock.core.cancel_source(request.handoff_id)
        self._feed_command_events(worker)
        self._tell_outcome(request, action, APPLIED if reply.applied else NOOP)

    def _cancel_destination(self, request: SimulatedRequest, action: Action) -> None:
        worker = self._worker_of(self.decode, request.decode_worker)
        if worker is None:
            self._drop_booking(self.decode, request)
            self._tell_outcome(request, action, NOOP)
            return
        if self._touch(self.decode, worker):
            worker.deferred.append((request, action))
            return
        tokens = worker.clock.core.token_times(request.request_id)
        if tokens is not None:
            request.take_tokens(tokens)
        reply = worker.clock.core.cancel_destination(request.handoff_id)
        self._tell_outcome(request, action, APPLIED if reply.applied else NOOP)
        if reply.reserved is not None:
            self._reserved(reply.reserved)

    def _complete(self, request: SimulatedRequest, _action: Action) -> None:
        completion = request.coordinator.completion
        request.handoff_is_over = True
        if completion is Completion.SUCCESS:
            if self.prefill.router is not None:
                self.prefill.router.free(request.request_id)
            request.booked_prefill = False
            self.counts.prefill_router_freed += 1
            if self._logs:
                self._log("prefill_free", request)
            if self._keeps_transitions:
                self.counts.handoff_ms[request.request_id] = self.now_ms
            if self._logs:
                self._log("handoff_completed", request)
            if not request.counted_in_flight:
                self._retire(request)
            if self.prefill.router is not None:
                self._dispatch_released(self.prefill)
            return
        request.set_status(TerminalStatus.CANCELED, self.now_ms)
        self._abandon(request)

    def _forget_actions(self, request: SimulatedRequest) -> None:
        """An ended request has no actions left."""
        kept = [entry for entry in self.pending if entry[0] is not request]
        if len(kept) < len(self.pending):
            self.pending.clear()
            self.pending.extend(kept)
        self.waiting_prefill = [entry for entry in self.waiting_prefill if entry[0] is not request]
        self.waiting_decode = [entry for entry in self.waiting_decode if entry[0] is not request]

    def _worker_of(self, pool: OfflinePool, worker_id: int | None) -> SimulatedWorker | None:
        return None if worker_id is None else pool.workers.get(worker_id)

    def _feed_command_events(self, worker: SimulatedWorker) -> None:
        if self.prefill.router is not None:
            self.prefill.router.apply_events(worker.worker_id, worker.clock.core.take_kv_events())

    # -- routing --------------------------------------------------------------------------------------

    def _route(self, pool: OfflinePool, request: SimulatedRequest, action: Action) -> int | None:
        """The worker that takes a request, or None while the router queues it."""
        router = pool.router
        if router is None:
            worker_id = pool.round_robin.choose(pool.active)
            request.routings.append(Routing(pool.name, worker_id))
            self._note_overlap(pool, request, 0)
            return worker_id
        size = pool.settings.block_size
        prompt = RoutedPrompt(
            request.request_id,
            request.input_tokens,
            request.request.block_names[: request.input_tokens // size],
            request.arrival_ms / 1000.0,
            request.arrival.turn.priority,
            request.arrival.turn.strict_priority,
        )
        placement = router.place(prompt, self.now_ms)
        self._book(pool, request)
        if self._observer is not None:
            self._observer.placed(self.now_ms, pool.name, request, placement)
        if placement is None:
            request.parked = action
            return None
        self._note_placement(pool, request, placement)
        return placement.worker

    def _book(self, pool: OfflinePool, request: SimulatedRequest) -> None:
        if pool is self.prefill:
            request.booked_prefill = True
        else:
            request.booked_decode = True

    def _drop_booking(self, pool: OfflinePool, request: SimulatedRequest) -> None:
        booked = request.booked_prefill if pool is self.prefill else request.booked_decode
        if pool.router is None or not booked:
            return
        pool.router.free(request.request_id)
        if pool is self.prefill:
            request.booked_prefill = False
        else:
            request.booked_decode = False
        self._dispatch_released(pool)

    def _note_overlap(self, pool: OfflinePool, request: SimulatedRequest, tokens: int) -> None:
        if pool is self.prefill:
            request.prefill_overlap_tokens = tokens
        else:
            request.decode_overlap_tokens = tokens

    def _note_placement(self, pool: OfflinePool, request: SimulatedRequest, placement: Placement) -> None:
        queued_ms = placement.queued_at_ms
        request.routings.append(
            Routing(
                pool.name,
                placement.worker,
                queued_ms,
                None if queued_ms is None else self.now_ms,
                placement.overlap_blocks,
                placement.best_overlap_blocks,
            )
        )
        overlap_tokens = min(placement.overlap_blocks * pool.settings.block_size, request.input_tokens)
        self._note_overlap(pool, request, overlap_tokens)
        if pool is self.prefill:
            self.traffic.routed(placement.overlap_blocks, -(-request.input_tokens // pool.settings.block_size))

    def _dispatch_released(self, pool: OfflinePool) -> list[RequestId]:
        """Send on what the router's queue lets go; returns who."""
        if pool.router is None:
            return []
        released = []
        for placement in pool.router.take_released():
            request = self._requests[RequestId(placement.key)]
            action, request.parked = request.parked, None
            assert action is not None
            self._note_placement(pool, request, placement)
            if self._observer is not None:
                self._observer.placed(self.now_ms, pool.name, request, placement)
            worker = pool.workers[placement.worker]
            if pool is self.prefill:
                self._submit_to(worker, request, action)
            else:
                self._reserve_at(worker, request, action)
            released.append(request.request_id)
        return released

    # -- stalls --------------------------------------------------------------------------

    def _resolve_stall(self) -> None:
        """Fail the first request that waits on the first engine where somebody does, and let the run go on."""
        pool_name, worker_id, request, reason = self._find_stalled()
        waiting = tuple(other.request_id for other in self._requests.values())
        self.stalls.append(Stall(self.now_ms, pool_name, worker_id, request.request_id, reason, waiting))
        request.set_status(TerminalStatus.FAILED, self.now_ms)
        if request.failure is None:
            request.failure = reason
        match request.coordinator.mode:
            case Mode.ACTIVE:
                self._tell_fact(request, Fact(FactName.FAILED, request.handoff_id))
            case Mode.CLEANING_UP:
                self._give_up_handoff(request)
            case Mode.COMPLETE:
                self._drop_from_decode(request)
        self.drain_current_timestamp()

    def _give_up_handoff(self, request: SimulatedRequest) -> None:
        """A cleanup that is never answered is carried out all the same, and the handoff forgotten."""
        for pool, worker_id in ((self.prefill, request.prefill_worker), (self.decode, request.decode_worker)):
            worker = self._worker_of(pool, worker_id)
            if worker is None:
                continue
            self._touch(pool, worker)
            core = worker.clock.core
            is_prefill = pool is self.prefill
            cancel = core.cancel_source if is_prefill else core.cancel_destination
            reply = cancel(request.handoff_id)
            if is_prefill:
                self._feed_command_events(worker)
            if reply.reserved is not None:
                self._reserved(reply.reserved)
        request.handoff_is_over = True
        self._abandon(request)

    def _abandon(self, request: SimulatedRequest) -> None:
        """A handoff that did not succeed is over: its bookings and actions go, and the request with them."""
        self._drop_booking(self.prefill, request)
        self._drop_booking(self.decode, request)
        self._forget_actions(request)
        if request.counted_in_flight:
            self._end_logically(request)
        else:
            self._retire(request)

    def _find_stalled(self) -> tuple[str, int | None, SimulatedRequest, str]:
        for pool in (self.prefill, self.decode):
            for worker in pool.workers.values():
                for blocked in worker.clock.core.blocked():
                    request = self._requests[blocked.request_id]
                    if request.status is None:
                        return pool.name, worker.worker_id, request, _stall_reason(pool.name, worker, blocked)
        for pool_name, waiting in (("prefill", self.waiting_prefill), ("decode", self.waiting_decode)):
            for request, _ in waiting:
                return pool_name, None, request, f"the {pool_name} pool has no active worker"
        for request in self._requests.values():
            unanswered = [name for _, name in request.coordinator.unanswered()]
            awaited = f"the answer to {unanswered[0]}" if unanswered else "a fact that never came"
            return "prefill", None, request, f"its handoff waits for {awaited}"
        raise AssertionError("the workload is not done, but no request is in flight")

    def _drop_from_decode(self, request: SimulatedRequest) -> None:
        """Take a request whose handoff is over out of its engine."""
        worker = self._worker_of(self.decode, request.decode_worker)
        if worker is not None:
            self._touch(self.decode, worker)
            tokens = worker.clock.core.token_times(request.request_id)
            if tokens is not None:
                request.take_tokens(tokens)
            reply = worker.clock.core.cancel_request(request.request_id)
            if reply.reserved is not None:
                self._reserved(reply.reserved)
        self._drop_booking(self.decode, request)
        self._end_logically(request)

    # -- scaling --------------------------------------------------------------------------------------

    def apply_scaling(self, target_prefill: int, target_decode: int) -> None:
        """Set the number of workers that are active or starting in each pool, now."""
        self._scale(target_prefill, target_decode, ScalingCause.MANUAL_SCALE, None)

    def _scale(self, target_prefill: int, target_decode: int, cause: ScalingCause, tick: int | None) -> None:
        changes = []
        self.pay_workers()
        for pool, target in ((self.prefill, target_prefill), (self.decode, target_decode)):
            difference = target - pool_state(pool).non_draining
            transitions: list[WorkerTransition] = []
            if difference > 0:
                workers, transitions = grow(pool, difference)
                for worker in workers:
                    self._started(pool, worker)
            elif difference < 0:
                transitions = shrink(pool, -difference)
                self.has_draining = True
            changes.append((pool, transitions))
        for pool, transitions in changes:
            released = self._dispatch_released(pool)
            self.lifecycle.add(self.now_ms, pool, cause, transitions, released=released, tick=tick)

    def _started(self, pool: OfflinePool, worker: SimulatedWorker) -> None:
        if worker.state is WorkerState.ACTIVE:
            self._wake_waiting(pool)
            return
        ready_ms = self.now_ms + (pool.settings.startup_time or 0.0) * 1000.0
        self._push(ready_ms, _READY, (pool, worker))

    def _wake_waiting(self, pool: OfflinePool) -> None:
        """Actions that waited for a worker of the pool can be carried out."""
        if pool is self.prefill:
            self.pending.extend(self.waiting_prefill)
            self.waiting_prefill = []
        else:
            self.pending.extend(self.waiting_decode)
            self.waiting_decode = []

    def _worker_is_ready(self, pool: OfflinePool, worker: SimulatedWorker) -> None:
        pool.activate(worker)
        self._wake_waiting(pool)
        transition = WorkerTransition(worker.worker_id, "worker_ready", WorkerState.STARTING, WorkerState.ACTIVE)
        released = self._dispatch_released(pool)
        self.lifecycle.add(self.now_ms, pool, ScalingCause.WORKER_READY_EVENT, [transition], released=released)

    def _remove_drained(self) -> None:
        self.pay_workers()
        for pool in (self.prefill, self.decode):
            self.lifecycle.add(self.now_ms, pool, ScalingCause.DRAIN_SETTLEMENT, settle_drained(pool))
        self.has_draining = any(pool_state(pool).draining for pool in (self.prefill, self.decode))

    def _tick(self, planner: Planner) -> None:
        """The planner looks at a settled timestamp."""
        heappop(self.events)
        snapshot = PlannerSnapshot(
            self._ticks,
            self.now_ms,
            pool_state(self.prefill),
            pool_state(self.decode),
            tuple(sorted(self.prefill.latest_metrics.items())),
            tuple(sorted(self.decode.latest_metrics.items())),
            self.traffic.drain(self.now_ms),
        )
        self.prefill.latest_metrics.clear()
        self.decode.latest_metrics.clear()
        decision = planner.on_tick(snapshot)
        targets = [
            pool_state(pool).non_draining if target is None else target
            for pool, target in ((self.prefill, decision.target_prefill), (self.decode, decision.target_decode))
        ]
        self._scale(targets[0], targets[1], ScalingCause.PLANNER_SCALE, self._ticks)
        self._ticks += 1
        self._push_tick(decision.next_tick_ms)

    def _later(self, delay_ms: float, request: SimulatedRequest, what: Callable[[], None]) -> None:
        """Do something for a request after a delay, unless it is over by then."""
        self._push(self.now_ms + delay_ms, _LATER, (request, what))

    def _push_tick(self, at_ms: float | None) -> None:
        if at_ms is not None and at_ms > self.now_ms:
            self._push(at_ms, _TICK, (None, None))

    # -- looking --------------------------------------------------------------------------------------

    def state(self, request_id: RequestId) -> SimulatedRequest:
        """A request in flight, or one that is over if the collector keeps requests."""
        request = self._requests.get(request_id)
        return self.collector.snapshot(request_id) if request is None else request

    def pending_transfers(self) -> int:
        """Transfers whose completion is still to come, those of handoffs that are over included."""
        return sum(event[6] == _TRANSFER for event in self.events)

    def drain_traffic(self) -> TrafficStats:
        """The traffic since the last call or tick."""
        return self.traffic.drain(self.now_ms)

    def drain_metrics(self, pool: OfflinePool) -> list[tuple[int, ForwardPassMetrics]]:
        """A pool's (worker, metrics) of every pass since the last call, in order; needs `capture_metrics`."""
        metrics, pool.metrics = pool.metrics, []
        return metrics

    def _log(self, name: str, request: SimulatedRequest | None) -> None:
        if self._keeps_transitions:
            self.counts.transition_log.append((name, None if request is None else request.request_id))
        if self._observer is not None:
            self._observer.transition(self.now_ms, name, request)


def _stall_reason(pool: str, worker: SimulatedWorker, blocked: Blocked) -> str:
    holders = worker.clock.core.holders()
    held = ", ".join(f"{holder.request_id} ({holder.state}, {holder.blocks})" for holder in holders[:_HOLDERS_SHOWN])
    if len(holders) > _HOLDERS_SHOWN:
        held += f" and {len(holders) - _HOLDERS_SHOWN} more"
    lacking = f", {blocked.blocks_needed} more than can be had" if blocked.blocks_needed else ""
    where = f"{pool} worker {worker.worker_id}"
    return f"{where}: waits for {blocked.waits_for}{lacking}; blocks are held by {held or 'nobody'}"


_HOLDERS_SHOWN: Final = 8
_IDLE_TICKS: Final = 1000
"""So many planner ticks in a row without anything else, and requests in flight count as stalled."""
_FOREVER_MS: Final = 1.7976931348623157e308
