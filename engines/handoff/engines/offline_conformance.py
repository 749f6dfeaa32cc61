"""The offline side of the conformance report: one handoff in virtual time, watched where a live one is watched.

The runtime tells its transitions to an observer; two of its pass clocks are replaced by ones that also keep what each
pass published, since a live engine's sinks see that and the runtime itself has no use for it.
"""

from collections.abc import Sequence

from attrs import define, field

from handoff.engines.block_names import block_names
from handoff.engines.collector import Collector
from handoff.engines.conformance import NormalizedHandoffConformance, NormalizedStoredTiming
from handoff.engines.core_factory import build_core
from handoff.engines.engine_core import DestinationReserved, EngineCore, KvEvent, KvEventKind, PassResult
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.kv_router import Placement
from handoff.engines.offline_runtime import DisaggregatedCluster, OfflineRuntime
from handoff.engines.pass_clock import PassClock
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.workload import Session, SessionSource, Turn
from handoff.journal.coordinator import Action, Fact, Outcome
from handoff.journal.terms import ObserverName
from handoff.journal.vocabulary import EngineType, TerminalStatus, TimingMode, WorkerRole, order_for_engine

PROMPT_TOKENS = 8
OUTPUT_TOKENS = 2
BLOCK_SIZE = 4

_OBSERVED = {
    "source_held": ObserverName.SOURCE_HELD,
    "destination_accepted": ObserverName.DESTINATION_ACCEPTED,
    "destination_reserved": ObserverName.DESTINATION_RESERVED,
    "destination_activated": ObserverName.DESTINATION_ACTIVATED,
    "source_released": ObserverName.SOURCE_RELEASED,
    "handoff_completed": ObserverName.COMPLETED,
}


def conformance_settings(engine_type: EngineType, role: WorkerRole, timing_mode: TimingMode) -> EngineSettings:
    """The engine of the conformance fixture: 64 blocks of 4 tokens, 2 slots, 1 ms of transfer a token."""
    return EngineSettings(
        engine_type=engine_type,
        worker_role=role,
        block_size=BLOCK_SIZE,
        num_gpu_blocks=64,
        max_num_batched_tokens=64,
        max_num_seqs=2,
        speedup_ratio=1000.0,
        decode_speedup_ratio=1000.0,
        kv_transfer_bandwidth=1.0,
        kv_bytes_per_token=1_000_000,
        kv_transfer_timing_mode=timing_mode,
    )


class _WatchedClock(PassClock):
    """A pass clock that keeps what its passes published and ended."""

    __slots__ = ("output_tokens", "published")

    def __init__(self, core: EngineCore) -> None:
        super().__init__(core, leaps=True)
        self.published: list[KvEvent] = []
        self.output_tokens = 0

    def finish(self) -> tuple[PassResult, DestinationReserved | None]:
        """See `PassClock.finish`."""
        result, reserved = super().finish()
        self.published += result.kv_events
        self.output_tokens += sum(end.output_tokens for end in result.ends)
        return result, reserved

    def take_stored(self) -> list[int]:
        """Names of the blocks that were stored since the last call, by passes and by commands."""
        events, self.published = [*self.published, *self.core.take_kv_events()], []
        return [name for event in events if event.kind is KvEventKind.STORED for name in event.block_names]


@define
class _Watcher:
    """Notes the lifecycle, and takes the destination's blocks off at each step of it."""

    destination: _WatchedClock
    lifecycle: list[ObserverName] = field(factory=list)
    before_activation: int = 0
    activation: list[int] = field(factory=list)

    def transition(self, now_ms: float, name: str, request: SimulatedRequest | None) -> None:
        """See `RuntimeObserver`."""
        del now_ms, request
        step = _OBSERVED.get(name)
        if step is None:
            return
        if step is ObserverName.DESTINATION_ACTIVATED:
            self.activation = self.destination.take_stored()
        elif ObserverName.DESTINATION_ACTIVATED not in self.lifecycle:
            self.before_activation += len(self.destination.take_stored())
        self.lifecycle.append(step)

    def arrived(self, now_ms: float, request: SimulatedRequest, actions: tuple[Action, ...]) -> None:
        """See `RuntimeObserver`."""

    def outcome(
        self, now_ms: float, request: SimulatedRequest, action: Action, outcome: Outcome, actions: tuple[Action, ...]
    ) -> None:
        """See `RuntimeObserver`."""

    def fact(self, now_ms: float, request: SimulatedRequest, fact: Fact, actions: tuple[Action, ...]) -> None:
        """See `RuntimeObserver`."""

    def admitted(self, now_ms: float, pool: str, worker: int, request: SimulatedRequest, reused_tokens: int) -> None:
        """See `RuntimeObserver`."""

    def placed(self, now_ms: float, pool: str, request: SimulatedRequest, placement: Placement | None) -> None:
        """See `RuntimeObserver`."""


def run_offline_handoff_conformance(engine_type: EngineType, timing_mode: TimingMode) -> NormalizedHandoffConformance:
    """Hand one prompt over in virtual time and report what it looked like.

    Raises:
        ValueError: the engine type supports no handoff.
    """
    prefill = conformance_settings(engine_type, WorkerRole.PREFILL, timing_mode)
    decode = conformance_settings(engine_type, WorkerRole.DECODE, timing_mode)
    source = _WatchedClock(build_core(prefill, capture_kv_events=True))
    destination = _WatchedClock(build_core(decode, capture_kv_events=True))
    watcher = _Watcher(destination)
    names = block_names(range(PROMPT_TOKENS), BLOCK_SIZE)
    turns = [Turn(PROMPT_TOKENS, OUTPUT_TOKENS, names)]

    def names_of(turn: Turn) -> Sequence[int]:
        return turn.blocks

    collector = Collector(keeps_requests=True)
    runtime = OfflineRuntime(
        DisaggregatedCluster(prefill, decode, 1, 1),
        SessionSource([Session("conformance", 0.0, turns)]),
        names_of,
        collector=collector,
        observer=watcher,
    )
    runtime.prefill.workers[0].clock = source
    runtime.decode.workers[0].clock = destination
    runtime.run()
    (request,) = collector.requests
    activation = set(watcher.activation)
    return NormalizedHandoffConformance(
        engine_type=engine_type,
        order=order_for_engine(engine_type),
        lifecycle=tuple(watcher.lifecycle),
        source_output_tokens=source.output_tokens,
        destination_output_tokens=request.output_tokens,
        completed_requests=collector.statuses[TerminalStatus.COMPLETED],
        destination_stored=NormalizedStoredTiming(
            watcher.before_activation,
            len(watcher.activation),
            sum(name in activation for name in destination.take_stored()),
        ),
        source_drained=source.core.is_empty,
        destination_drained=destination.core.is_empty,
        driver_drained=runtime.is_done and not runtime.pending and runtime.in_flight == 0,
    )
