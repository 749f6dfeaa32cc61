"""One pool of simulated workers: who is there, who is busy, and who may start a pass.

Worker ids count up from 0 and are never used again. A worker is *starting* (it was added with a start-up time),
*active* (it takes new work) or *draining* (it only finishes); a draining worker that owns nothing any more is
removed.
"""

from collections.abc import Sequence
from enum import StrEnum

from handoff.engines.core_factory import build_core, build_timing
from handoff.engines.engine_core import ForwardPassMetrics
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.kv_router import KvRouter
from handoff.engines.pass_clock import PassClock
from handoff.engines.round_robin import RoundRobin
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.token_gaps import GapLog
from handoff.journal.coordinator import Action


class WorkerState(StrEnum):
    """What a worker is there for."""

    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"
    REMOVED = "removed"


class SimulatedWorker:
    """One engine of a pool.

    Attributes:
        worker_id: its number in the pool.
        clock: its engine on the model clock.
        state: see `WorkerState`.
        deferred: commands that wait for the end of its pass.
        serial: number of the only valid event that ends its pass.
        is_candidate: whether it is listed to be looked at by the next drive.
        gaps: waits between its tokens.
    """

    __slots__ = ("clock", "deferred", "gaps", "is_candidate", "serial", "state", "worker_id")

    def __init__(self, worker_id: int, clock: PassClock, state: WorkerState, gaps: GapLog | None) -> None:
        self.worker_id = worker_id
        self.clock = clock
        self.state = state
        self.deferred: list[tuple[SimulatedRequest, Action]] = []
        self.serial = -1
        self.is_candidate = False
        self.gaps = gaps


class OfflinePool:
    """A pool.

    Args:
        name: ``prefill`` or ``decode``.
        settings: of every engine.
        workers: how many to begin with.
        router: its KV-aware router, or None for round robin.
        capture_kv_events, capture_metrics: see `build_core`.
        counts_gaps: whether waits between tokens are kept.

    Attributes:
        workers: by id, those that were not removed.
        gap_logs: of every worker that ever was, in order of id.
        metrics: what passes reported since the last drain, if captured.
        worker_seconds: provisioned up to the last payment, see `pay`.
        candidates: workers that the next drive looks at.
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        workers: int,
        router: KvRouter | None,
        *,
        capture_kv_events: bool,
        capture_metrics: bool,
        counts_gaps: bool,
    ) -> None:
        self.name = name
        self.settings = settings
        self.router = router
        self.round_robin = RoundRobin()
        self.workers: dict[int, SimulatedWorker] = {}
        self.active: list[int] = []
        self.gap_logs: list[GapLog] = []
        self.metrics: list[tuple[int, ForwardPassMetrics]] = []
        self.latest_metrics: dict[int, ForwardPassMetrics] = {}
        self.worker_seconds = 0.0
        self._paid_until_ms = 0.0
        self._timing = build_timing(settings)
        self._capture_kv_events = capture_kv_events
        self._capture_metrics = capture_metrics
        self._counts_gaps = counts_gaps
        self.candidates: list[SimulatedWorker] = []
        self._next_id = 0
        for _ in range(workers):
            self.activate(self.add_worker(WorkerState.ACTIVE))

    def pay(self, now_ms: float) -> None:
        """Count the time of all workers up to now."""
        self.worker_seconds += len(self.workers) * (now_ms - self._paid_until_ms) / 1000.0
        self._paid_until_ms = now_ms

    def add_worker(self, state: WorkerState) -> SimulatedWorker:
        """A new worker; call `activate` once it may take work."""
        gaps = GapLog(self._timing.decode) if self._counts_gaps else None
        core = build_core(
            self.settings,
            timing=self._timing,
            capture_kv_events=self._capture_kv_events,
            capture_metrics=self._capture_metrics,
            gap_log=gaps,
            names_tokens=False,
        )
        worker = SimulatedWorker(self._next_id, PassClock(core, leaps=not self._capture_metrics), state, gaps)
        self._next_id += 1
        self.workers[worker.worker_id] = worker
        if gaps is not None:
            self.gap_logs.append(gaps)
        return worker

    def activate(self, worker: SimulatedWorker) -> None:
        """The worker takes new work from now on."""
        worker.state = WorkerState.ACTIVE
        self.active.append(worker.worker_id)
        self.active.sort()
        if self.router is not None:
            self.router.add_worker(worker.worker_id)

    def drain(self, worker: SimulatedWorker) -> None:
        """The worker takes no new work from now on."""
        worker.state = WorkerState.DRAINING
        self.active.remove(worker.worker_id)
        if self.router is not None:
            self.router.stop_choosing(worker.worker_id)

    def remove(self, worker: SimulatedWorker) -> None:
        """The worker is gone."""
        worker.state = WorkerState.REMOVED
        worker.serial = -1
        del self.workers[worker.worker_id]
        if self.router is not None:
            self.router.forget_worker(worker.worker_id)

    def in_state(self, state: WorkerState) -> list[SimulatedWorker]:
        """The workers in a state, by ascending id."""
        return [worker for worker in self.workers.values() if worker.state is state]

    def drained_workers(self) -> list[SimulatedWorker]:
        """Draining workers that own nothing any more, by ascending id."""
        return [
            worker
            for worker in self.workers.values()
            if worker.state is WorkerState.DRAINING and worker.clock.running is None and worker.clock.core.is_empty
        ]

    @property
    def is_drained(self) -> bool:
        """Whether no worker owns anything."""
        return all(worker.clock.running is None and worker.clock.core.is_empty for worker in self.workers.values())

    def nominate(self, worker: SimulatedWorker) -> None:
        """List a worker for the next drive."""
        if not worker.is_candidate:
            worker.is_candidate = True
            self.candidates.append(worker)

    def take_candidates(self) -> Sequence[SimulatedWorker]:
        """The listed workers by ascending id; the list is empty afterwards."""
        candidates = self.candidates
        self.candidates = []
        if len(candidates) > 1:
            candidates.sort(key=_by_id)
        for worker in candidates:
            worker.is_candidate = False
        return candidates


def _by_id(worker: SimulatedWorker) -> int:
    return worker.worker_id
