"""The offline runtime where the specification has numbers, and where it has to be better than what it follows."""

import json
from pathlib import Path

import pytest
from attrs import evolve
from conformance_case import run_case
from offline_fixtures import (
    KV_ROUTER,
    SGLANG,
    VLLM,
    cluster,
    listed,
    request,
    run_trace,
    sglang_chunk,
    with_decode,
    with_prefill,
    with_transfer_delay,
)

from handoff.engines.engine_settings import FullHit
from handoff.engines.offline_runtime import DisaggregatedCluster
from handoff.engines.offline_scaling import PlannerSnapshot, ScalingCause, ScalingDecision
from handoff.engines.request_record import record_line, record_of
from handoff.engines.scenario import KvRouterSettings, QueuePolicy
from handoff.engines.workload import Session, Turn
from handoff.journal.vocabulary import EngineType, RequestId, TerminalStatus


def real_time(engine_type: EngineType, **changes: object) -> DisaggregatedCluster:
    size = {"speedup_ratio": 1.0, "decode_speedup_ratio": 1.0} | changes
    return with_decode(with_prefill(cluster(engine_type, 1, 1), **size), **size)


@pytest.mark.parametrize(("engine_type", "held"), [(VLLM, 18.451798), (SGLANG, 24.4024)])
def test_the_anchor_of_128_tokens(engine_type: EngineType, held: float) -> None:
    (record,) = run_trace(real_time(engine_type), [request("1", 128, 3)]).collector.requests
    assert record.held_ms == pytest.approx(held, abs=5e-5)
    if engine_type is VLLM:
        assert (record.first_token_ms, record.last_token_ms) == pytest.approx((24.61218, 36.94276), abs=5e-7)


@pytest.mark.parametrize(("engine_type", "activated"), [(VLLM, 146.451798), (SGLANG, 152.4024)])
def test_the_anchor_of_a_transfer(engine_type: EngineType, activated: float) -> None:
    (record,) = run_trace(with_transfer_delay(real_time(engine_type)), [request("1", 128, 2)]).collector.requests
    assert record.activated_ms == pytest.approx(activated, abs=5e-5)


@pytest.mark.parametrize(("engine_type", "held"), [(VLLM, 52.424655), (SGLANG, 58.4802)])
def test_the_anchor_of_three_chunks(engine_type: EngineType, held: float) -> None:
    setup = real_time(engine_type, max_num_batched_tokens=64)
    if engine_type is SGLANG:
        setup = with_prefill(setup, sglang=sglang_chunk(64))
    (record,) = run_trace(setup, [request("1", 192, 2)]).collector.requests
    assert record.held_ms == pytest.approx(held, abs=5e-5)


def test_a_full_hit_is_reused_whole_or_its_last_block_is_computed_again() -> None:
    requests = [request("1", 128, 1), request("2", 128, 1, 100.0, 1)]
    reused = {}
    for mode in FullHit:
        setup = with_prefill(cluster(VLLM, 1, 1), full_hit=mode)
        reused[mode] = run_trace(setup, requests).collector.snapshot(RequestId("2")).reused
    assert reused == {FullHit.REUSE_ALL: 128, FullHit.RECOMPUTE_LAST: 64}


def test_no_output_completes_at_the_decode_admission_with_no_token() -> None:
    (record,) = run_trace(real_time(VLLM), [request("1", 64, 0)]).collector.requests
    assert (record.status, record.output_tokens, record.first_token_ms) == (TerminalStatus.COMPLETED, 0, None)
    assert record.terminal_ms == pytest.approx(17.474885, abs=5e-7)


def test_a_request_that_can_never_finish_is_failed_and_the_run_goes_on() -> None:
    setup = with_decode(real_time(VLLM, block_size=4, num_gpu_blocks=64), num_gpu_blocks=3)
    requests = [request("long", 8, 20), request("short", 4, 2, 1.0, 1)]
    runtime = run_trace(setup, requests)
    long, short = (runtime.collector.snapshot(RequestId(name)) for name in ("long", "short"))
    assert (long.status, short.status) == (TerminalStatus.FAILED, TerminalStatus.COMPLETED)
    (stall,) = runtime.stalls
    assert (stall.pool, stall.worker, stall.failed_request) == ("decode", 0, "long")
    assert "decode worker 0: waits for" in stall.reason
    assert record_of(long)["failure"] == stall.reason


def test_a_stall_names_who_holds_the_blocks() -> None:
    setup = with_decode(real_time(SGLANG, block_size=4, num_gpu_blocks=64, sglang=sglang_chunk(64)), num_gpu_blocks=4)
    requests = [request("a", [1] * 8, 8, 0.0, 0), request("b", [2] * 8, 8, 0.0, 1)]
    runtime = run_trace(setup, requests)
    assert runtime.is_done
    assert all(record.status is not None for record in runtime.collector.requests)


def test_without_a_decode_worker_the_request_is_failed_at_the_end() -> None:
    runtime = listed(cluster(), [request("1", 128, 2)])
    runtime.drain_current_timestamp()
    runtime.apply_scaling(1, 0)
    assert runtime.run()
    (stall,) = runtime.stalls
    assert (stall.pool, stall.worker, stall.reason) == ("decode", None, "the decode pool has no active worker")
    assert runtime.state(RequestId("1")).status is TerminalStatus.FAILED
    assert runtime.prefill.is_drained


class TwoTicks:
    """Asks for a second decode worker at its first tick, and for one again at its second."""

    def __init__(self) -> None:
        self.seen: list[PlannerSnapshot] = []

    def initial_tick_ms(self) -> float:
        return 5.0

    def on_tick(self, snapshot: PlannerSnapshot) -> ScalingDecision:
        self.seen.append(snapshot)
        if snapshot.tick_ordinal == 0:
            return ScalingDecision(None, 2, 30.0)
        return ScalingDecision(None, 1, None)


def test_a_planner_sees_settled_timestamps_and_its_workers_start_late() -> None:
    setup = with_decode(real_time(VLLM), startup_time=0.02)
    planner = TwoTicks()
    requests = [request("1", [1] * 128, 20), request("2", [2] * 128, 20, 1.0, 1)]
    runtime = listed(setup, requests, planner=planner, capture_metrics=True)
    assert runtime.run()
    first, second = planner.seen
    assert (first.now_ms, first.traffic.num_req, first.decode.active) == (5.0, 2, (0,))
    assert (second.now_ms, second.decode.active, second.decode.starting) == (30.0, (0, 1), ())
    assert second.prefill_fpm_snapshots[0][1].sum_prefill_tokens > 0
    operations = runtime.lifecycle.operations
    assert [(operation.at_ms, operation.cause, operation.origin_operation_ordinal) for operation in operations[:3]] == [
        (5.0, ScalingCause.PLANNER_SCALE, None),
        (25.0, ScalingCause.WORKER_READY_EVENT, 0),
        (30.0, ScalingCause.PLANNER_SCALE, None),
    ]
    assert [transition.transition for transition in operations[0].transitions] == ["worker_starting"]
    assert runtime.collector.completed == 2


def test_a_starting_worker_that_is_canceled_is_an_operation_too() -> None:
    runtime = listed(with_decode(cluster(), startup_time=1.0), [request("1", 64, 1)])
    runtime.apply_scaling(2, 4)
    runtime.apply_scaling(2, 1)
    changes = [(t.worker_id, t.transition) for operation in runtime.lifecycle.operations for t in operation.transitions]
    assert changes == [
        (2, "worker_starting"), (3, "worker_starting"), (3, "worker_removed"), (2, "worker_removed"),
        (1, "worker_draining"), (1, "worker_removed"),
    ]  # fmt: skip
    assert runtime.run()


def test_worker_seconds_are_paid_until_the_cap() -> None:
    runtime = listed(cluster(), [request(str(n), 64, 2, 20.0 * n, n) for n in range(3)], max_sim_time_ms=40.0)
    assert runtime.run()
    assert (runtime.collector.num_requests, runtime.collector.completed) == (3, 2)
    assert runtime.prefill.worker_seconds == pytest.approx(0.08)
    with pytest.raises(ValueError, match="max_sim_time_ms"):
        listed(cluster(), [], max_sim_time_ms=float("nan"))


def _queued(policy: QueuePolicy, turns: list[tuple[int, int, int, float]]) -> list[str]:
    """The order in which requests leave a router's queue: (tokens, priority, strict priority, arrival)."""
    setup = with_prefill(real_time(VLLM, num_gpu_blocks=512), max_num_batched_tokens=64)
    blocker = request("blocker", [9] * 64, 1, 0.0)
    requests = [blocker]
    for index, (tokens, priority, strict, at_ms) in enumerate(turns):
        turn = Turn(tokens, 1, [100 + index] * tokens, priority=priority, strict_priority=strict, request_id=f"{index}")
        requests.append(Session(f"{index}", at_ms, (turn,), index + 1, is_named=False))
    router = KvRouterSettings(router_queue_threshold=0.0, router_queue_policy=policy)
    runtime = listed(setup, requests, router_mode=KV_ROUTER, kv_router=router)
    assert runtime.run()
    released = [(record.routings[0].released_at_ms, record.request_id) for record in runtime.collector.requests[1:]]
    assert all(at_ms is not None for at_ms, _ in released)
    assert runtime.prefill.router is not None
    assert runtime.prefill.router.max_pending == len(turns)
    return [name for _, name in sorted(released, key=lambda pair: pair[0] or 0.0)]


def test_the_routers_queue_lets_go_by_policy_and_priority() -> None:
    assert _queued(QueuePolicy.FCFS, [(64, 0, 0, 1.0), (64, 0, 0, 2.0)]) == ["0", "1"]
    assert _queued(QueuePolicy.FCFS, [(64, 0, 0, 1.0), (64, 1, 0, 2.0)]) == ["1", "0"]
    assert _queued(QueuePolicy.FCFS, [(64, 0, 0, 1.0), (64, -1, 0, 2.0)]) == ["0", "1"]
    assert _queued(QueuePolicy.FCFS, [(64, 9, 0, 1.0), (64, 0, 1, 2.0)]) == ["1", "0"]
    assert _queued(QueuePolicy.LCFS, [(64, 0, 0, 1.0), (64, 0, 0, 2.0), (64, 0, 0, 3.0)]) == ["2", "1", "0"]
    assert _queued(QueuePolicy.WSPT, [(100, 0, 0, 1.0), (190, 1, 0, 1.0), (700, 5, 0, 1.0)]) == ["1", "0", "2"]


def test_ties_of_a_router_follow_from_the_seed() -> None:
    requests = [request(str(n), [n] * 64, 1, 1000.0 * n, n) for n in range(12)]
    settings = KvRouterSettings(overlap_score_credit=0.0)

    def choices(seed: int) -> list[int | None]:
        runtime = run_trace(cluster(), requests, router_mode=KV_ROUTER, kv_router=settings, seed=seed)
        return [record.prefill_worker for record in runtime.collector.requests]

    assert choices(1) == choices(1)
    assert len({tuple(choices(seed)) for seed in range(4)}) > 1
    by_id = evolve(settings, break_ties_at_random=False)
    fixed = run_trace(cluster(), requests, router_mode=KV_ROUTER, kv_router=by_id)
    assert {record.prefill_worker for record in fixed.collector.requests} == {0}


@pytest.mark.parametrize("case", ["4", "19", "54"])
def test_the_same_scenario_gives_the_same_records(case: str, tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "conformance" / "cases" / f"{case}.json"
    runs = [run_case(json.loads(path.read_text()), tmp_path)[1].requests for _ in range(2)]
    assert list(map(record_line, runs[0])) == list(map(record_line, runs[1]))
