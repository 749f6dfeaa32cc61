"""Pools that grow and shrink while a run goes on, by hand or by a planner, and the record of it.

Targets count workers that are active or starting. Growing takes the next unused ids; with a start-up time a worker is
*starting* first and takes no work. Shrinking cancels starting workers first, then drains active ones, always the
highest id first. Each change of a pool is one *operation* with its transitions, also the cancellation of a worker
that had not started.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from attrs import frozen

from handoff.engines.engine_core import ForwardPassMetrics
from handoff.engines.offline_pool import OfflinePool, SimulatedWorker, WorkerState
from handoff.engines.traffic_window import TrafficStats
from handoff.journal.vocabulary import RequestId


class ScalingCause(StrEnum):
    """Why workers came or went."""

    PLANNER_SCALE = "planner_scale"
    MANUAL_SCALE = "manual_scale"
    WORKER_READY_EVENT = "worker_ready_event"
    DRAIN_SETTLEMENT = "drain_settlement"


@frozen
class WorkerTransition:
    """One worker's change of state; `prior_state` is None for a new worker."""

    worker_id: int
    transition: str
    prior_state: WorkerState | None
    state: WorkerState


@frozen
class PoolState:
    """A pool's workers by state, ids ascending."""

    active: tuple[int, ...]
    starting: tuple[int, ...]
    draining: tuple[int, ...]

    @property
    def non_draining(self) -> int:
        """Workers that a target counts."""
        return len(self.active) + len(self.starting)

    @property
    def total(self) -> int:
        """All workers."""
        return self.non_draining + len(self.draining)


@frozen
class LifecycleOperation:
    """What happened to a pool's workers at one moment.

    Attributes:
        operation_ordinal: from 0.
        at_ms, pool, cause: when, where, why.
        planner_tick_ordinal: the tick that asked for it, or None.
        origin_operation_ordinal: the operation that led to it, or None.
        transitions: in order.
        state_after_batch: the pool afterwards.
        topology_released_request_uuids: requests that the router's queue let go because of it.
    """

    operation_ordinal: int
    at_ms: float
    pool: str
    cause: ScalingCause
    planner_tick_ordinal: int | None
    origin_operation_ordinal: int | None
    transitions: tuple[WorkerTransition, ...]
    state_after_batch: PoolState
    topology_released_request_uuids: tuple[RequestId, ...] = ()


@frozen
class PlannerSnapshot:
    """What a planner sees at a tick; metrics are the latest of each worker since the last tick."""

    tick_ordinal: int
    now_ms: float
    prefill: PoolState
    decode: PoolState
    prefill_fpm_snapshots: tuple[tuple[int, ForwardPassMetrics], ...]
    decode_fpm_snapshots: tuple[tuple[int, ForwardPassMetrics], ...]
    traffic: TrafficStats


@frozen
class ScalingDecision:
    """What a planner wants; None keeps a count, or ends the ticks."""

    target_prefill: int | None
    target_decode: int | None
    next_tick_ms: float | None


class Planner(Protocol):
    """Decides on the size of the pools."""

    def initial_tick_ms(self) -> float:
        """When it looks first."""

    def on_tick(self, snapshot: PlannerSnapshot) -> ScalingDecision:
        """What to do now."""


def pool_state(pool: OfflinePool) -> PoolState:
    """A pool's workers by state."""

    def ids(state: WorkerState) -> tuple[int, ...]:
        return tuple(worker.worker_id for worker in pool.in_state(state))

    return PoolState(ids(WorkerState.ACTIVE), ids(WorkerState.STARTING), ids(WorkerState.DRAINING))


def grow(pool: OfflinePool, count: int) -> tuple[list[SimulatedWorker], list[WorkerTransition]]:
    """Add workers; returns them and what happened. Those with a start-up time are only starting."""
    workers, transitions = [], []
    starts_at_once = not pool.settings.startup_time
    for _ in range(count):
        worker = pool.add_worker(WorkerState.STARTING)
        workers.append(worker)
        if starts_at_once:
            pool.activate(worker)
            transitions.append(WorkerTransition(worker.worker_id, "worker_ready", None, WorkerState.ACTIVE))
        else:
            transitions.append(WorkerTransition(worker.worker_id, "worker_starting", None, WorkerState.STARTING))
    return workers, transitions


def shrink(pool: OfflinePool, count: int) -> list[WorkerTransition]:
    """Cancel starting workers and drain active ones, the highest ids first; idle ones are gone at once."""
    transitions = []
    starting = pool.in_state(WorkerState.STARTING)[::-1]
    active = pool.in_state(WorkerState.ACTIVE)[::-1]
    for worker in [*starting, *active][:count]:
        if worker.state is WorkerState.STARTING:
            pool.remove(worker)
            transitions.append(
                WorkerTransition(worker.worker_id, "worker_removed", WorkerState.STARTING, WorkerState.REMOVED)
            )
        else:
            pool.drain(worker)
            transitions.append(
                WorkerTransition(worker.worker_id, "worker_draining", WorkerState.ACTIVE, WorkerState.DRAINING)
            )
    return [*transitions, *settle_drained(pool)]


def settle_drained(pool: OfflinePool) -> list[WorkerTransition]:
    """Remove draining workers that own nothing any more."""
    transitions = []
    for worker in pool.drained_workers():
        pool.remove(worker)
        transitions.append(
            WorkerTransition(worker.worker_id, "worker_removed", WorkerState.DRAINING, WorkerState.REMOVED)
        )
    return transitions


class LifecycleLog:
    """The operations of a run, in order."""

    def __init__(self) -> None:
        self.operations: list[LifecycleOperation] = []
        self._drain_origin: dict[tuple[str, int], int] = {}

    def add(
        self,
        at_ms: float,
        pool: OfflinePool,
        cause: ScalingCause,
        transitions: Sequence[WorkerTransition],
        *,
        released: Sequence[RequestId] = (),
        tick: int | None = None,
    ) -> None:
        """Note an operation; nothing if no worker changed and nothing was released."""
        if not transitions and not released:
            return
        ordinal = len(self.operations)
        origin = None
        for transition in transitions:
            key = (pool.name, transition.worker_id)
            if cause in (ScalingCause.PLANNER_SCALE, ScalingCause.MANUAL_SCALE):
                self._drain_origin[key] = ordinal
            else:
                origin = self._drain_origin.get(key)
        self.operations.append(
            LifecycleOperation(
                ordinal, at_ms, pool.name, cause, tick, origin, tuple(transitions), pool_state(pool), tuple(released)
            )
        )
