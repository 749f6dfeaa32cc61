"""What is drawn of a run, kept small while it goes on: samples of load, busy time of workers, the notable requests.

Time is divided into buckets whose width doubles when there are too many, so a run of any length costs the same.
"""

from collections.abc import Sequence
from heapq import heappush, heappushpop

from attrs import define, field, frozen

from handoff.engines.offline_pool import OfflinePool
from handoff.engines.offline_runtime import OfflineRuntime
from handoff.engines.simulated_request import SimulatedRequest
from handoff.journal.vocabulary import TerminalStatus

MOST_BUCKETS = 240
MOST_SAMPLES = 480
MOST_NOTABLE = 25


@frozen
class LoadSample:
    """The pools at one moment.

    Attributes:
        at_ms: when.
        in_flight: requests.
        prefill_waiting, decode_waiting: in the engines' queues.
        prefill_usage, decode_usage: active share of all blocks, 0 to 1.
    """

    at_ms: float
    in_flight: int
    prefill_waiting: int
    decode_waiting: int
    prefill_usage: float
    decode_usage: float


@define
class WorkerLane:
    """Request milliseconds of one worker, by bucket."""

    pool: str
    worker: int
    busy_ms: list[float] = field(factory=list)


@define
class RunChart:
    """Gathers what a page shows.

    Attributes:
        samples: load over time.
        lanes: by pool and worker.
        bucket_ms: width of a lane's bucket.
        failed: the first requests that did not complete.
        ttft_ms, e2e_ms: of completed requests.
    """

    samples: list[LoadSample] = field(factory=list)
    lanes: dict[tuple[str, int], WorkerLane] = field(factory=dict)
    bucket_ms: float = 1.0
    failed: list[SimulatedRequest] = field(factory=list)
    num_failed: int = 0
    ttft_ms: Sequence[float] = ()
    e2e_ms: Sequence[float] = ()
    _slowest: list[tuple[float, int, SimulatedRequest]] = field(factory=list)
    _skip: int = 1
    _seen: int = 0

    def sample(self, runtime: OfflineRuntime) -> None:
        """Note the load now; every second sample is forgotten when there are too many."""
        self._seen += 1
        if self._seen % self._skip:
            return
        prefill_waiting, prefill_usage = _load_of(runtime.prefill)
        decode_waiting, decode_usage = _load_of(runtime.decode)
        self.samples.append(
            LoadSample(runtime.now_ms, runtime.in_flight, prefill_waiting, decode_waiting, prefill_usage, decode_usage)
        )
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[1::2]
            self._skip *= 2

    def take(self, request: SimulatedRequest) -> None:
        """Note an ended request."""
        if request.prefill_worker is not None and request.prefill_admit_ms is not None:
            end_ms = request.held_ms or request.terminal_ms or request.prefill_admit_ms
            self._occupy("prefill", request.prefill_worker, request.prefill_admit_ms, end_ms)
        if request.decode_worker is not None and request.decode_admit_ms is not None:
            end_ms = request.last_token_ms or request.terminal_ms or request.decode_admit_ms
            self._occupy("decode", request.decode_worker, request.decode_admit_ms, end_ms)
        if request.status is not TerminalStatus.COMPLETED:
            self.num_failed += 1
            if len(self.failed) < MOST_NOTABLE:
                self.failed.append(request)
        elif request.last_token_ms is not None:
            entry = (request.last_token_ms - request.arrival_ms, -request.number, request)
            if len(self._slowest) < MOST_NOTABLE:
                heappush(self._slowest, entry)
            else:
                heappushpop(self._slowest, entry)

    def slowest(self) -> list[SimulatedRequest]:
        """The completed requests that took longest, the longest first."""
        return [request for _, _, request in sorted(self._slowest, key=lambda entry: (-entry[0], -entry[1]))]

    def _occupy(self, pool: str, worker: int, start_ms: float, end_ms: float) -> None:
        lane = self.lanes.setdefault((pool, worker), WorkerLane(pool, worker))
        while end_ms / self.bucket_ms >= MOST_BUCKETS:
            self._double()
        width = self.bucket_ms
        first, last = int(start_ms / width), int(end_ms / width)
        busy = lane.busy_ms
        if len(busy) <= last:
            busy.extend([0.0] * (last + 1 - len(busy)))
        if first == last:
            busy[first] += end_ms - start_ms
            return
        busy[first] += (first + 1) * width - start_ms
        for bucket in range(first + 1, last):
            busy[bucket] += width
        busy[last] += end_ms - last * width

    def _double(self) -> None:
        self.bucket_ms *= 2.0
        for lane in self.lanes.values():
            busy = lane.busy_ms
            if len(busy) % 2:
                busy.append(0.0)
            lane.busy_ms = [busy[index] + busy[index + 1] for index in range(0, len(busy), 2)]


def _load_of(pool: OfflinePool) -> tuple[int, float]:
    """Requests that wait in a pool's engines, and the active share of its blocks."""
    waiting = active = total = 0
    for worker in pool.workers.values():
        metrics = worker.clock.core.metrics()
        waiting += metrics.waiting
        active += metrics.active_blocks
        total += metrics.total_blocks
    return waiting, active / total if total else 0.0
