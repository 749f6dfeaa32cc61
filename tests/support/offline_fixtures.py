"""Set-ups of the offline runtime's tests: the clusters and requests that the specification's tests share."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from handoff.engines.block_names import TraceNames
from handoff.engines.collector import Collector
from handoff.engines.engine_settings import EngineSettings, SglangSettings
from handoff.engines.offline_runtime import DisaggregatedCluster, OfflineRuntime
from handoff.engines.scenario import KvRouterSettings, RouterMode
from handoff.engines.workload import RequestListSource, Session, SessionSource, Turn, WorkloadSource, normalized
from handoff.journal.vocabulary import EngineType, RequestId, WorkerRole

THRESHOLD_ROUTER = KvRouterSettings(router_queue_threshold=1.25)
VLLM, SGLANG = EngineType.VLLM, EngineType.SGLANG
ROUND_ROBIN, KV_ROUTER = RouterMode.ROUND_ROBIN, RouterMode.KV_ROUTER


def engine(role: WorkerRole, engine_type: EngineType = VLLM, **changes: Any) -> EngineSettings:
    """An engine of the tests: 256 blocks of 64 tokens (SGLang: 512), 8 requests, a thousand times as fast."""
    values: dict[str, Any] = {
        "engine_type": engine_type,
        "worker_role": role,
        "block_size": 64,
        "num_gpu_blocks": 256 if engine_type is VLLM else 512,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 8,
        "speedup_ratio": 1000.0,
        "decode_speedup_ratio": 1000.0,
    }
    return EngineSettings(**values | changes)


def cluster(engine_type: EngineType = VLLM, prefill_workers: int = 2, decode_workers: int = 2) -> DisaggregatedCluster:
    """Two pools of such engines."""
    return DisaggregatedCluster(
        engine(WorkerRole.PREFILL, engine_type), engine(WorkerRole.DECODE, engine_type), prefill_workers, decode_workers
    )


def with_prefill(base: DisaggregatedCluster, **changes: Any) -> DisaggregatedCluster:
    """The same, with other prefill engines."""
    return evolve(base, prefill=evolve(base.prefill, **changes))


def with_decode(base: DisaggregatedCluster, **changes: Any) -> DisaggregatedCluster:
    """The same, with other decode engines."""
    return evolve(base, decode=evolve(base.decode, **changes))


def with_transfer_delay(base: DisaggregatedCluster) -> DisaggregatedCluster:
    """The same, with a transfer of one millisecond a token."""
    return with_prefill(base, kv_transfer_bandwidth=1.0, kv_bytes_per_token=1_000_000)


def sglang_chunk(size: int) -> SglangSettings:
    """SGLang options that prefill in chunks."""
    return SglangSettings(chunked_prefill_size=size, max_prefill_tokens=size)


def request(name: str, prompt: int | Sequence[int], output: int, at_ms: float | None = 0.0, number: int = 0) -> Session:
    """A request: a prompt of so many equal tokens, or of the tokens given."""
    tokens = [1] * prompt if isinstance(prompt, int) else prompt
    turn = Turn(len(tokens), output, tokens, request_id=name)
    return Session(name, at_ms, (turn,), number, is_named=False)


def runtime_of(
    setup: DisaggregatedCluster, source: WorkloadSource, names: TraceNames | None = None, **options: Any
) -> OfflineRuntime:
    """A runtime that keeps requests and transitions. Tokens name blocks, unless `names` says otherwise."""
    names = names or TraceNames(1, setup.prefill.block_size)
    options.setdefault("collector", Collector(keeps_requests=True))
    return OfflineRuntime(setup, source, names.of_turn, keeps_transitions=True, **options)


def listed(setup: DisaggregatedCluster, requests: Sequence[Session], **options: Any) -> OfflineRuntime:
    """A runtime over a list of requests, taken as it is."""
    return runtime_of(setup, RequestListSource(requests, options.pop("max_in_flight", None)), **options)


def run_trace(setup: DisaggregatedCluster, requests: Sequence[Session], **options: Any) -> OfflineRuntime:
    """Run a list of requests by their normalised times."""
    runtime = listed(setup, normalized(requests), **options)
    assert runtime.run()
    return runtime


def two_sessions() -> tuple[list[Session], TraceNames]:
    """Session a with two turns, the second after 10 ms, and session b with one, at 5 ms."""
    first = Session("session-a", 0.0, (Turn(64, 2, [11]), Turn(192, 2, [21, 22, 23], 10.0)), 0)
    second = Session("session-b", 5.0, (Turn(128, 2, [31, 32]),), 1)
    return [first, second], TraceNames(64, 64)


def run_sessions(max_in_flight: int | None) -> OfflineRuntime:
    """Run those two sessions."""
    sessions, names = two_sessions()
    runtime = runtime_of(cluster(), SessionSource(sessions, max_in_flight), names)
    assert runtime.run()
    return runtime


def transitions(runtime: OfflineRuntime, name: str) -> list[str]:
    """The transitions of one request, in order."""
    return [kind for kind, request_id in runtime.counts.transition_log if request_id == RequestId(name)]


def step(runtime: OfflineRuntime) -> None:
    """Go to the next timestamp and drain it."""
    next_ms = runtime.next_timestamp()
    assert next_ms is not None
    runtime.advance_now(next_ms)
    runtime.drain_current_timestamp()
