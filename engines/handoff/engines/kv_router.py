"""The KV-aware router of one pool: it sends a request where least work awaits it.

For each candidate, with block size ``B``, a prompt of ``I`` tokens and ``o`` leading blocks cached there::

    prefill = (active prefill tokens + I) / B            if prefill work is tracked, else 0
    credit  = credit / (1 + decay * surplus / ceil(I/B)) surplus: active prefill tokens over the least loaded, / B
    decode  = active blocks + new blocks of the request  if blocks are tracked, else 0
    cost    = scale * max(0, prefill - credit * o) + decode + weight * active requests

The lowest cost wins; ties go to the lowest id, or are drawn from the run's seed. Fractions of blocks count on the
prefill side, only complete blocks on the decode side.

A placed request is *booked*: its uncached prompt counts as prefill work until its prefill is over, its blocks until
it is freed. While all candidates have more prefill work than a threshold, requests queue; the overlap that they
were queued with is a snapshot and stays, but loads are read again when they leave the queue.
"""

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from attrs import evolve, frozen

from handoff.engines.engine_core import KvEvent
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.prefix_index import PrefixIndex
from handoff.engines.scenario import KvRouterSettings, QueuePolicy
from handoff.engines.seeded_stream import SeededStream

_FALLBACK_BUDGET = 8192


def prefill_stage(settings: KvRouterSettings) -> KvRouterSettings:
    """A router's settings for the prefill pool: blocks of running requests mean nothing there."""
    return evolve(settings, router_track_active_blocks=False)


def decode_stage(settings: KvRouterSettings) -> KvRouterSettings:
    """A router's settings for the decode pool: nothing is reused and nothing prefilled there."""
    return evolve(settings, overlap_score_credit=0.0, router_assume_kv_reuse=False, router_track_prefill_tokens=False)


class RoutedPrompt(NamedTuple):
    """What a router must know of a request.

    Attributes:
        key: the request.
        prompt_tokens: length of its prompt.
        block_names: names of its complete blocks.
        arrived_s: when it arrived, in seconds.
        priority, strict_priority: see `Turn`.
    """

    key: str
    prompt_tokens: int
    block_names: Sequence[int]
    arrived_s: float
    priority: int
    strict_priority: int


class Placement(NamedTuple):
    """Where a request was sent.

    Attributes:
        key: the request.
        worker: the chosen worker.
        overlap_blocks: leading blocks that it had announced when the request came.
        best_overlap_blocks: the most that any candidate had.
        queued_at_ms: when it was queued, or None.
        costs: the candidates' costs, by ascending id.
    """

    key: str
    worker: int
    overlap_blocks: int
    best_overlap_blocks: int
    queued_at_ms: float | None
    costs: tuple[float, ...]


class _Load:
    """What is booked on one worker."""

    __slots__ = ("blocks", "names", "prefill_tokens", "requests")

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.blocks = 0
        self.requests = 0
        self.names: dict[int, int] = {}


class _Booking:
    """One booked request."""

    __slots__ = ("blocks", "names", "prefill_tokens", "worker")

    def __init__(self, worker: int, prefill_tokens: int, blocks: int, names: Sequence[int]) -> None:
        self.worker = worker
        self.prefill_tokens = prefill_tokens
        self.blocks = blocks
        self.names = names


class _Queued(NamedTuple):
    order: tuple[float, ...]
    prompt: RoutedPrompt
    overlaps: dict[int, int]
    at_ms: float


@frozen
class RouterSnapshot:
    """A router's state, for people and tests.

    Attributes:
        pending: queued requests, next first.
        active_blocks_by_worker, active_tokens_by_worker: of every registered worker, also 0.
        cached_blocks_by_worker: announced blocks.
    """

    pending: tuple[str, ...]
    active_blocks_by_worker: tuple[tuple[int, int], ...]
    active_tokens_by_worker: tuple[tuple[int, int], ...]
    cached_blocks_by_worker: tuple[tuple[int, int], ...]


class KvRouter:
    """Routes the requests of one pool.

    Args:
        settings: of this stage, see `prefill_stage` and `decode_stage`.
        engine: of the pool, for block size and token budget.
        stream: for ties and temperature.

    Attributes:
        max_pending: most requests ever queued at once.
    """

    def __init__(self, settings: KvRouterSettings, engine: EngineSettings, stream: SeededStream) -> None:
        self.settings = settings
        self._block_size = engine.block_size
        self._stream = stream
        self._index = PrefixIndex()
        self._loads: dict[int, _Load] = {}
        self._candidates: list[int] = []
        self._bookings: dict[str, _Booking] = {}
        self._queue: list[tuple[Any, ...]] = []
        self._queued: dict[str, _Queued] = {}
        self._next_order = 0
        self.max_pending = 0
        self._limit = (
            None
            if settings.router_queue_threshold is None
            else settings.router_queue_threshold * (engine.max_num_batched_tokens or _FALLBACK_BUDGET)
        )

    # -- workers --------------------------------------------------------------------------------------

    def add_worker(self, worker: int) -> None:
        """A worker can be chosen from now on."""
        self._loads[worker] = _Load()
        self._candidates = sorted([*self._candidates, worker])

    def stop_choosing(self, worker: int) -> None:
        """A worker is draining: its bookings stay."""
        self._candidates = [candidate for candidate in self._candidates if candidate != worker]

    def forget_worker(self, worker: int) -> None:
        """A worker is gone, with its load and its blocks."""
        self.stop_choosing(worker)
        self._loads.pop(worker, None)
        self._index.forget(worker)

    def apply_events(self, worker: int, events: Sequence[KvEvent]) -> None:
        """Cache events of a worker."""
        self._index.apply(worker, events)

    # -- requests -------------------------------------------------------------------------------------

    def place(self, prompt: RoutedPrompt, now_ms: float) -> Placement | None:
        """Send a request somewhere, or queue it (None)."""
        overlaps = {worker: self._index.overlap(worker, prompt.block_names) for worker in self._candidates}
        if self._limit is not None and (self._queued or self._all_busy()):
            queued = _Queued(self._order(prompt, overlaps), prompt, overlaps, now_ms)
            self._queued[prompt.key] = queued
            heappush(self._queue, (*queued.order, self._next_order, prompt.key))
            self._next_order += 1
            self.max_pending = max(self.max_pending, len(self._queued))
            return None
        return self._book(prompt, overlaps, None)

    def take_released(self) -> list[Placement]:
        """Place queued requests while not all candidates are busy."""
        placements: list[Placement] = []
        while self._queued and self._candidates and not self._all_busy():
            key = heappop(self._queue)[-1]
            queued = self._queued.pop(key, None)
            if queued is not None:
                placements.append(self._book(queued.prompt, queued.overlaps, queued.at_ms))
        return placements

    def prefill_completed(self, key: str) -> None:
        """A booked request's prefill is over; the booking stays."""
        booking = self._bookings[key]
        load = self._loads.get(booking.worker)
        if load is not None:
            load.prefill_tokens -= booking.prefill_tokens
        booking.prefill_tokens = 0

    def free(self, key: str) -> bool:
        """Forget a request, booked or queued; whether it was known."""
        if self._queued.pop(key, None) is not None:
            self._queue = [entry for entry in self._queue if entry[-1] != key]
            self._queue.sort()
            return True
        booking = self._bookings.pop(key, None)
        if booking is None:
            return False
        load = self._loads.get(booking.worker)
        if load is not None:
            load.prefill_tokens -= booking.prefill_tokens
            load.blocks -= booking.blocks
            load.requests -= 1
            for name in booking.names:
                count = load.names[name] - 1
                if count:
                    load.names[name] = count
                    load.blocks += 1
                else:
                    del load.names[name]
        return True

    def snapshot(self) -> RouterSnapshot:
        """The state as it is."""
        counts = self._index.block_counts()
        loads = sorted(self._loads.items())
        return RouterSnapshot(
            pending=tuple(entry[-1] for entry in sorted(self._queue) if entry[-1] in self._queued),
            active_blocks_by_worker=tuple((worker, load.blocks) for worker, load in loads),
            active_tokens_by_worker=tuple((worker, load.prefill_tokens) for worker, load in loads),
            cached_blocks_by_worker=tuple((worker, counts.get(worker, 0)) for worker, _ in loads),
        )

    # -- choice ---------------------------------------------------------------------------------------

    def _all_busy(self) -> bool:
        limit = self._limit
        assert limit is not None
        return all(self._loads[worker].prefill_tokens > limit for worker in self._candidates)

    def _order(self, prompt: RoutedPrompt, overlaps: dict[int, int]) -> tuple[float, ...]:
        """Smallest first: strict priority, then the policy's score."""
        jump_s = max(0, prompt.priority)
        match self.settings.router_queue_policy:
            case QueuePolicy.FCFS:
                score = jump_s - prompt.arrived_s
            case QueuePolicy.LCFS:
                score = jump_s + prompt.arrived_s
            case QueuePolicy.WSPT:
                best = min(max(overlaps.values(), default=0) * self._block_size, prompt.prompt_tokens)
                score = (1 + jump_s) / max(1, prompt.prompt_tokens - best)
        return (-prompt.strict_priority, -score)

    def _book(self, prompt: RoutedPrompt, overlaps: dict[int, int], queued_at_ms: float | None) -> Placement:
        settings, size = self.settings, self._block_size
        costs = self._costs(prompt, overlaps)
        worker = self._candidates[self._choose(costs)]
        overlap = overlaps.get(worker, 0)
        load = self._loads[worker]
        prefill_tokens = 0
        if settings.router_track_prefill_tokens:
            prefill_tokens = prompt.prompt_tokens - min(overlap * size, prompt.prompt_tokens)
        blocks = 0
        names: tuple[int, ...] = ()
        if settings.router_track_active_blocks:
            blocks = prompt.prompt_tokens // size
            load.blocks += blocks
            if settings.router_assume_kv_reuse:
                names = tuple(prompt.block_names)
                load.blocks += self._share(load, names)
        load.prefill_tokens += prefill_tokens
        load.requests += 1
        self._bookings[prompt.key] = _Booking(worker, prefill_tokens, blocks, names)
        best = max(overlaps.values(), default=0)
        return Placement(prompt.key, worker, overlap, best, queued_at_ms, tuple(costs))

    @staticmethod
    def _share(load: _Load, names: Sequence[int]) -> int:
        """Count named blocks; each one that is there already is a block less."""
        surplus = 0
        for name in names:
            count = load.names.get(name, 0)
            load.names[name] = count + 1
            if count:
                surplus -= 1
        return surplus

    def _costs(self, prompt: RoutedPrompt, overlaps: dict[int, int]) -> list[float]:
        settings, size = self.settings, self._block_size
        loads = [self._loads[worker] for worker in self._candidates]
        least = min(load.prefill_tokens for load in loads)
        prompt_blocks = math.ceil(prompt.prompt_tokens / size)
        costs = []
        for worker, load in zip(self._candidates, loads, strict=True):
            prefill = 0.0
            if settings.router_track_prefill_tokens:
                prefill = (load.prefill_tokens + prompt.prompt_tokens) / size
            credit = settings.overlap_score_credit
            if settings.overlap_score_credit_decay:
                surplus = (load.prefill_tokens - least) / size
                credit = credit / (1.0 + settings.overlap_score_credit_decay * surplus / prompt_blocks)
            cost = settings.prefill_load_scale * max(0.0, prefill - credit * overlaps.get(worker, 0))
            if settings.router_track_active_blocks:
                cost += load.blocks + self._new_blocks(prompt, load)
            cost += settings.decode_active_request_weight * load.requests
            costs.append(cost)
        return costs

    def _new_blocks(self, prompt: RoutedPrompt, load: _Load) -> int:
        blocks = prompt.prompt_tokens // self._block_size
        if self.settings.router_assume_kv_reuse:
            blocks -= sum(map(load.names.__contains__, prompt.block_names))
        return blocks

    def _choose(self, costs: Sequence[float]) -> int:
        """The index of the chosen candidate."""
        lowest, highest = min(costs), max(costs)
        temperature = self.settings.router_temperature
        if temperature > 0.0:
            if highest == lowest:
                return self._stream.below(len(costs))
            scale = (highest - lowest) * temperature
            return self._draw([math.exp(-(cost - lowest) / scale) for cost in costs])
        if self.settings.break_ties_at_random:
            cheapest = [index for index, cost in enumerate(costs) if cost == lowest]
            return cheapest[self._stream.below(len(cheapest))] if len(cheapest) > 1 else cheapest[0]
        return costs.index(lowest)

    def _draw(self, weights: Sequence[float]) -> int:
        """An index with probability in proportion to its weight."""
        point = self._stream.unit() * sum(weights)
        for index, weight in enumerate(weights):
            point -= weight
            if point < 0.0:
                return index
        return len(weights) - 1
