"""Who serves a request: a pure machine over the two pools of a live cluster.

A request arrives, and is routed to one prefill and one decode worker, at once or when a cache-aware router lets it go.
Both workers are told together, because live the two sides meet over the network in either order; the offline runtime
chooses the second side later, when the first has something to hand over. It ends once: the first end that is reported
stays, and later ones are duplicates.

The workload is the world: sessions, their delays and the number of requests in flight belong to the client, and the
journal holds what arrived. The conductor decides placement alone, so what it has to know is small: arrivals with
their prompts, ends, and, with cache-aware routing, the prefill workers' cache events and the ends of prefills.

Round robin keeps one counter a pool and queues nothing. After a stop nothing more is routed: what is queued ends as
canceled, and arrivals are late.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import define, field

from handoff.engines.conductor_rows import (
    CacheChanged,
    ConductorInput,
    ConductorStopped,
    PrefillEnded,
    RequestArrived,
    RequestEnded,
    RequestRouted,
)
from handoff.engines.engine_core import KvEvent, KvEventKind
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.kv_router import KvRouter, RoutedPrompt, decode_stage, prefill_stage
from handoff.engines.prompt_shape import from_runs
from handoff.engines.round_robin import RoundRobin
from handoff.engines.scenario import Cluster, RouterMode
from handoff.engines.seeded_stream import SeededStream
from handoff.engines.stored_settings import (
    cluster_from_config,
    cluster_to_config,
    settings_from_config,
    settings_to_config,
)
from handoff.journal.step import Step, StepBuilder
from handoff.journal.terms import ActorKind
from handoff.journal.vocabulary import Verdict


@define
class _Underway:
    """A request that has arrived and not ended."""

    arrived: RequestArrived
    prefill: int | None = None
    decode: int | None = None
    prefill_ended: bool = False


@define
class Conductor:
    """Routes the requests of one run.

    Attributes:
        cluster: pools and router.
        prefill, decode: the pools' engines.
        seed: of the run, for routers that draw.
        stopped: whether nothing more is routed.
    """

    SLOTS: ClassVar[tuple[ActorKind, ...]] = (ActorKind.CONDUCTOR,)

    cluster: Cluster
    prefill: EngineSettings
    decode: EngineSettings
    seed: int
    stopped: bool = field(default=False, init=False)
    _underway: dict[int, _Underway] = field(factory=dict, init=False)
    _routers: tuple[KvRouter, KvRouter] | None = field(default=None, init=False)
    _turns: tuple[RoundRobin, RoundRobin] = field(factory=lambda: (RoundRobin(), RoundRobin()), init=False)

    def __attrs_post_init__(self) -> None:
        cluster = self.cluster
        if cluster.router_mode is not RouterMode.KV_ROUTER:
            return
        self._routers = (
            KvRouter(prefill_stage(cluster.kv_router), self.prefill, SeededStream(self.seed, "prefill-router")),
            KvRouter(decode_stage(cluster.kv_router), self.decode, SeededStream(self.seed, "decode-router")),
        )
        for router, workers in zip(self._routers, self._pool_sizes, strict=True):
            for worker in range(workers):
                router.add_worker(worker)

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> "Conductor":
        """The machine that an `actor_started` row with this configuration describes."""
        return cls(
            cluster_from_config(config["cluster"]),
            settings_from_config(config["prefill"]),
            settings_from_config(config["decode"]),
            config["seed"],
        )

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row."""
        return {
            "cluster": cluster_to_config(self.cluster),
            "prefill": settings_to_config(self.prefill),
            "decode": settings_to_config(self.decode),
            "seed": self.seed,
        }

    @property
    def watches_caches(self) -> bool:
        """Whether cache events and ends of prefills matter."""
        return self._routers is not None

    @property
    def underway(self) -> tuple[int, ...]:
        """Handoffs whose request has not ended, in order of arrival."""
        return tuple(self._underway)

    def step(self, value: ConductorInput, at_ms: float) -> Step:
        """Take one input."""
        builder = StepBuilder()
        builder.add(value)
        return builder.finish(self._take(value, at_ms, builder))

    def _take(self, value: ConductorInput, at_ms: float, builder: StepBuilder) -> Verdict:
        match value:
            case RequestArrived():
                return self._arrived(value, at_ms, builder)
            case PrefillEnded():
                return self._prefill_ended(value.handoff, at_ms, builder)
            case RequestEnded():
                return self._ended(value.handoff, at_ms, builder)
            case CacheChanged():
                if self._routers is None:
                    return Verdict.UNKNOWN
                kind = KvEventKind.STORED if value.stored else KvEventKind.REMOVED
                event = KvEvent(0, kind, value.parent, from_runs(value.block_runs))
                self._routers[0].apply_events(value.worker, [event])
                return Verdict.APPLIED
            case ConductorStopped():
                already, self.stopped = self.stopped, True
                return Verdict.DUPLICATE if already else Verdict.APPLIED

    def _arrived(self, arrived: RequestArrived, at_ms: float, builder: StepBuilder) -> Verdict:
        if self.stopped:
            return Verdict.LATE
        if arrived.handoff in self._underway:
            return Verdict.DUPLICATE
        underway = self._underway[arrived.handoff] = _Underway(arrived)
        if self._routers is None:
            prefill, decode = (
                turn.choose(range(workers)) for turn, workers in zip(self._turns, self._pool_sizes, strict=True)
            )
            self._route(underway, prefill, decode, 0, builder)
            return Verdict.APPLIED
        placement = self._routers[0].place(_prompt(arrived), at_ms)
        if placement is None:
            return Verdict.KEPT
        self._place_decode(underway, placement.worker, placement.overlap_blocks, at_ms, builder)
        return Verdict.APPLIED

    def _place_decode(
        self, underway: _Underway, prefill: int, overlap_blocks: int, at_ms: float, builder: StepBuilder
    ) -> None:
        """Choose the decode worker; that router tracks no prefill work, so it never queues."""
        assert self._routers is not None
        placement = self._routers[1].place(_prompt(underway.arrived), at_ms)
        assert placement is not None
        self._route(underway, prefill, placement.worker, overlap_blocks, builder)

    def _route(self, underway: _Underway, prefill: int, decode: int, overlap_blocks: int, builder: StepBuilder) -> None:
        underway.prefill, underway.decode = prefill, decode
        arrived = underway.arrived
        builder.add(
            RequestRouted(
                arrived.handoff, prefill, decode, arrived.prompt_tokens, arrived.max_output_tokens,
                arrived.block_runs, overlap_blocks,
            )
        )  # fmt: skip

    def _prefill_ended(self, handoff: int, at_ms: float, builder: StepBuilder) -> Verdict:
        underway = self._underway.get(handoff)
        if underway is None or underway.prefill is None or self._routers is None:
            return Verdict.UNKNOWN
        if underway.prefill_ended:
            return Verdict.DUPLICATE
        underway.prefill_ended = True
        self._routers[0].prefill_completed(str(handoff))
        self._release(at_ms, builder)
        return Verdict.APPLIED

    def _ended(self, handoff: int, at_ms: float, builder: StepBuilder) -> Verdict:
        if self._underway.pop(handoff, None) is None:
            return Verdict.DUPLICATE
        if self._routers is not None:
            for router in self._routers:
                router.free(str(handoff))
            self._release(at_ms, builder)
        return Verdict.APPLIED

    def _release(self, at_ms: float, builder: StepBuilder) -> None:
        """Route what a busy pool had queued."""
        assert self._routers is not None
        if self.stopped:
            return
        for placement in self._routers[0].take_released():
            underway = self._underway[int(placement.key)]
            self._place_decode(underway, placement.worker, placement.overlap_blocks, at_ms, builder)

    @property
    def _pool_sizes(self) -> tuple[int, int]:
        return self.cluster.num_prefill_workers, self.cluster.num_decode_workers


def _prompt(arrived: RequestArrived) -> RoutedPrompt:
    return RoutedPrompt(
        str(arrived.handoff), arrived.prompt_tokens, from_runs(arrived.block_runs),
        arrived.arrival_ms / 1000.0, arrived.priority, arrived.strict_priority,
    )  # fmt: skip
