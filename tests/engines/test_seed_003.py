"""The offline runtime's specification by example: every test of seed 003, under its name."""

import sys

import pytest
from offline_fixtures import (
    KV_ROUTER,
    ROUND_ROBIN,
    SGLANG,
    THRESHOLD_ROUTER,
    VLLM,
    cluster,
    engine,
    listed,
    request,
    run_sessions,
    run_trace,
    sglang_chunk,
    step,
    transitions,
    with_decode,
    with_prefill,
    with_transfer_delay,
)

from handoff.engines.engine_settings import InvalidSetting
from handoff.engines.kv_router import decode_stage, prefill_stage
from handoff.engines.offline_runtime import DisaggregatedCluster
from handoff.engines.scenario import KvRouterSettings, RouterMode
from handoff.engines.simulated_request import Phase, SimulatedRequest
from handoff.engines.summary import RunTotals, summarize
from handoff.engines.workload import Session, normalized
from handoff.journal.coordinator import Fact
from handoff.journal.vocabulary import EngineType, FactName, RequestId, TerminalStatus, TimingMode, WorkerRole

ONE, TWO = RequestId("1"), RequestId("2")
both_routers = pytest.mark.parametrize("mode", [ROUND_ROBIN, KV_ROUTER])
both_engines = pytest.mark.parametrize("engine_type", [VLLM, SGLANG])


def routed(mode: RouterMode) -> dict[str, object]:
    return {"router_mode": mode, "kv_router": THRESHOLD_ROUTER}


def timed(engine_type: EngineType, mode: TimingMode, decode_workers: int) -> DisaggregatedCluster:
    setup = with_transfer_delay(cluster(engine_type, 1, decode_workers))
    return with_decode(with_prefill(setup, kv_transfer_timing_mode=mode), kv_transfer_timing_mode=mode)


def known(value: float | None) -> float:
    assert value is not None
    return value


def test_trtllm_disaggregation_is_rejected_before_runtime_state() -> None:
    with pytest.raises(InvalidSetting, match="does not support TRT-LLM"):
        engine(WorkerRole.PREFILL, EngineType.TRTLLM, block_size=4, num_gpu_blocks=4, enable_prefix_caching=False)


def test_derive_stage_router_configs_force_required_overrides() -> None:
    settings = KvRouterSettings(overlap_score_credit=1.0)
    assert not prefill_stage(settings).router_track_active_blocks
    decode = decode_stage(settings)
    assert decode.overlap_score_credit == 0.0
    assert not decode.router_assume_kv_reuse
    assert not decode.router_track_prefill_tokens


@both_routers
def test_trace_smoke_reports_decode_only_tokens(mode: RouterMode) -> None:
    runtime = run_trace(cluster(), [request("1", 128, 3, 5.0)], **routed(mode))
    snapshot = runtime.collector.snapshot(ONE)
    assert snapshot.arrival_ms == 0.0
    assert snapshot.first_admit_ms is not None
    assert snapshot.first_token_ms is not None
    assert snapshot.output_tokens == 3
    assert (runtime.collector.completed, runtime.collector.output_tokens) == (1, 3)
    assert snapshot.phase is Phase.DONE


@both_engines
def test_decode_terminal_retains_handoff_until_deferred_cleanup_drains(engine_type: EngineType) -> None:
    shapes = [
        (6755, 500), (7319, 490), (7234, 794), (2287, 316), (9013, 3), (6506, 3), (4824, 173), (3119, 20), (23090, 453),
    ]  # fmt: skip
    requests = [
        request(
            str(index + 1),
            [position if position < 512 else index * 100_000 + position for position in range(length)],
            output,
            number=index,
        )
        for index, (length, output) in enumerate(shapes)
    ]
    size = {
        "block_size": 512, "num_gpu_blocks": 20_000, "max_num_batched_tokens": 32_768, "max_num_seqs": 64,
        "speedup_ratio": 1.0, "decode_speedup_ratio": 1.0,
    }  # fmt: skip
    link = {"kv_transfer_bandwidth": 100.0, "kv_bytes_per_token": 131_072}
    setup = with_decode(with_prefill(cluster(engine_type), **size, **link), **size)
    runtime = run_trace(setup, requests)
    assert runtime.collector.completed == len(shapes)
    assert runtime.collector.output_tokens == sum(output for _, output in shapes)
    overtaken = [
        name
        for name in map(str, range(1, 10))
        if transitions(runtime, name).index("request_marked_done") < transitions(runtime, name).index("source_released")
    ]
    assert overtaken
    assert all(done.phase is Phase.DONE for done in runtime.collector.requests)


@both_routers
def test_prefill_and_decode_use_separate_worker_pools(mode: RouterMode) -> None:
    runtime = run_trace(cluster(), [request("1", 128, 2), request("2", 128, 2, 10.0)], **routed(mode))
    for name in (ONE, TWO):
        snapshot = runtime.collector.snapshot(name)
        assert snapshot.phase is Phase.DONE
        assert snapshot.prefill_worker == runtime.counts.prefill_assignments[name]
        assert snapshot.decode_worker == runtime.counts.decode_assignments[name]


@both_engines
def test_source_cleanup_events_restore_prefill_prefix_routing(engine_type: EngineType) -> None:
    requests = [request("1", 128, 2), request("2", 128, 2, 100.0)]
    runtime = run_trace(cluster(engine_type), requests, **routed(KV_ROUTER))
    assert runtime.counts.prefill_assignments[ONE] == runtime.counts.prefill_assignments[TWO]
    assert runtime.collector.snapshot(TWO).reused > 0


def test_hidden_prefill_reports_reused_tokens_even_when_decode_prefix_caching_is_disabled() -> None:
    setup = with_decode(cluster(VLLM, 1, 1), enable_prefix_caching=False)
    runtime = run_trace(setup, [request("1", 128, 2), request("2", 128, 2, 100.0)], **routed(KV_ROUTER))
    assert runtime.collector.snapshot(TWO).reused > 0
    assert summarize(runtime.collector, RunTotals(0.0, 0.0, ()))["prefix_cache_reused_ratio"] > 0.0


@both_routers
def test_concurrency_backfill_waits_for_decode_completion(mode: RouterMode) -> None:
    requests = [request("1", [1] * 128, 3, None), request("2", [2] * 128, 3, None)]
    runtime = listed(cluster(), requests, max_in_flight=1, **routed(mode))
    assert runtime.run()
    first, second = runtime.collector.snapshot(ONE), runtime.collector.snapshot(TWO)
    assert first.arrival_ms == 0.0
    assert second.arrival_ms == first.last_token_ms
    assert first.phase is Phase.DONE
    assert second.phase is Phase.DONE


@both_engines
def test_source_release_waits_for_destination_activation(engine_type: EngineType) -> None:
    runtime = run_trace(cluster(engine_type), [request("1", 128, 2)], **routed(KV_ROUTER))
    counts = runtime.counts
    assert (counts.prefill_marked, counts.prefill_router_freed, counts.decode_router_freed) == (1, 1, 1)
    order = transitions(runtime, "1")
    awaited = ["prefill_mark_completed", "source_held", "destination_activated", "source_released", "prefill_free"]
    assert [order.index(name) for name in awaited] == sorted(order.index(name) for name in awaited)
    assert runtime.collector.snapshot(ONE).phase is Phase.DONE


@both_engines
def test_chunked_prefill_handoff_waits_for_full_materialization(engine_type: EngineType) -> None:
    setup = with_prefill(cluster(engine_type, 1, 1), speedup_ratio=1.0, max_num_batched_tokens=64)
    if engine_type is SGLANG:
        setup = with_prefill(setup, sglang=sglang_chunk(64))
    runtime = listed(setup, normalized([request("1", 192, 2)]), capture_metrics=True)
    prefills = []
    for _ in range(32):
        if "source_held" in transitions(runtime, "1"):
            break
        runtime.advance_to(known(runtime.next_timestamp()))
        prefills += [metrics for _, metrics in runtime.drain_metrics(runtime.prefill) if metrics.sum_prefill_tokens]
    assert "source_held" in transitions(runtime, "1")
    assert len(prefills) >= 3
    assert sum(metrics.sum_prefill_tokens for metrics in prefills) == 192

    assert runtime.advance_to(sys.float_info.max)
    decodes = [metrics for _, metrics in runtime.drain_metrics(runtime.decode)]
    order = transitions(runtime, "1")
    awaited = [order.index(name) for name in ("source_held", "destination_activated", "decode_admitted")]
    assert awaited == sorted(awaited)
    assert order.index("destination_activated") < order.index("source_released")
    assert all((metrics.num_prefill_requests, metrics.sum_prefill_tokens) == (0, 0) for metrics in decodes)
    assert any(metrics.num_decode_requests for metrics in decodes)
    assert runtime.prefill.is_drained
    assert runtime.decode.is_drained
    assert [*runtime.pending, *runtime.waiting_prefill, *runtime.waiting_decode] == []
    done = runtime.collector.snapshot(ONE)
    assert (done.phase, done.status) == (Phase.DONE, TerminalStatus.COMPLETED)
    collector = runtime.collector
    assert (collector.completed, collector.input_tokens, collector.output_tokens) == (1, 192, 2)


@both_engines
def test_per_request_handoff_detail_preserves_backend_causality_and_stage_reuse(engine_type: EngineType) -> None:
    requests = [request("1", 128, 2), request("2", 128, 2, 100.0)]
    first, second = run_trace(cluster(engine_type), requests, **routed(KV_ROUTER)).collector.requests
    for record in (first, second):
        assert record.status is TerminalStatus.COMPLETED
        admitted, held, released = known(record.prefill_admit_ms), known(record.held_ms), known(record.released_ms)
        reserved, activated = known(record.reserved_ms), known(record.activated_ms)
        assert admitted <= held <= released
        assert reserved <= activated <= released
        assert activated <= known(record.decode_admit_ms)
        assert held <= reserved if engine_type is VLLM else reserved <= admitted
    assert first.prefill_overlap_tokens == 0
    assert first.prefill_admit_ms == first.first_admit_ms
    assert first.decode_reused == 0
    assert (second.prefill_overlap_tokens, second.decode_overlap_tokens) == (128, 0)
    assert second.reused > 0


def test_rejected_prefill_remains_rejected_during_failed_handoff_cleanup() -> None:
    setup = with_prefill(cluster(VLLM, 1, 1), num_gpu_blocks=1)
    (record,) = run_trace(setup, [request("1", 128, 2)]).collector.requests
    assert record.status is TerminalStatus.REJECTED
    assert record.first_token_ms is None
    assert record.last_token_ms is None


@both_engines
def test_permanently_unavailable_destination_unwinds_without_stalling(engine_type: EngineType) -> None:
    runtime = run_trace(with_decode(cluster(engine_type, 1, 1), num_gpu_blocks=1), [request("1", 128, 2)])
    (record,) = runtime.collector.requests
    assert (record.phase, record.status, record.first_token_ms) == (Phase.DONE, TerminalStatus.FAILED, None)
    assert runtime.collector.completed == 0
    assert runtime.stalls == []
    seen = transitions(runtime, "1")
    assert "request_marked_done" in seen
    assert not {"destination_accepted", "destination_reserved"} & set(seen)


def test_handoff_delay_is_applied_once_to_decode_visible_ttft() -> None:
    plain = run_trace(cluster(), [request("1", 128, 2)])
    delayed = run_trace(with_transfer_delay(cluster()), [request("1", 128, 2)])
    ttft = [known(run.collector.snapshot(ONE).first_token_ms) for run in (plain, delayed)]
    assert ttft[1] >= ttft[0] + 120.0
    assert delayed.counts.handoff_ms[ONE] - plain.counts.handoff_ms[ONE] == pytest.approx(128.0, abs=1e-6)
    order = transitions(delayed, "1")
    assert order.index("transfer_queued") < order.index("destination_activated")


@both_engines
@pytest.mark.parametrize(
    ("seed_tokens", "measured_tokens", "missing_ms"), [(None, 128, 128.0), (64, 128, 64.0), (64, 64, 0.0)]
)
def test_destination_missing_timing_uses_isolated_destination_cache_state(
    engine_type: EngineType, seed_tokens: int | None, measured_tokens: int, missing_ms: float
) -> None:
    requests = [] if seed_tokens is None else [request("1", seed_tokens, 1)]
    requests.append(request("2", measured_tokens, 2, 1000.0, 1))

    def measured(mode: TimingMode) -> SimulatedRequest:
        record = run_trace(timed(engine_type, mode, 1), requests).collector.snapshot(TWO)
        assert record.status is TerminalStatus.COMPLETED
        assert known(record.held_ms) <= known(record.activated_ms) <= known(record.released_ms)
        assert known(record.reserved_ms) <= known(record.activated_ms)
        return record

    full, missing = measured(TimingMode.FULL_PROMPT), measured(TimingMode.DESTINATION_MISSING)
    spans = [known(record.activated_ms) - known(record.reserved_ms) for record in (full, missing)]
    assert spans[0] - spans[1] == pytest.approx(measured_tokens - missing_ms, abs=1e-6)
    assert missing_ms <= spans[1] < missing_ms + 1.0


@both_engines
def test_source_only_reuse_does_not_reduce_destination_missing_transfer(engine_type: EngineType) -> None:
    requests = [request("1", 64, 1), request("2", 64, 2, 1000.0, 1)]
    record = run_trace(timed(engine_type, TimingMode.DESTINATION_MISSING, 2), requests).collector.snapshot(TWO)
    assert record.reused > 0
    assert record.decode_reused == 0
    assert 64.0 <= known(record.activated_ms) - known(record.reserved_ms) < 65.0


@pytest.mark.parametrize("mode", list(TimingMode))
def test_cancellation_during_transfer_ignores_retired_completion_event(mode: TimingMode) -> None:
    setup = with_transfer_delay(cluster())
    setup = with_decode(with_prefill(setup, kv_transfer_timing_mode=mode), kv_transfer_timing_mode=mode)
    runtime = listed(setup, [request("1", 128, 2)])
    runtime.drain_current_timestamp()
    for _ in range(16):
        if runtime.state(ONE).phase is Phase.TRANSFER_PENDING:
            break
        step(runtime)
    assert runtime.state(ONE).phase is Phase.TRANSFER_PENDING
    runtime.apply_scaling(0, 0)
    assert (len(runtime.prefill.workers), len(runtime.decode.workers)) == (1, 1)
    runtime.apply_handoff_fact(ONE, Fact(FactName.CANCELED, runtime.state(ONE).handoff_id))
    runtime.drain_current_timestamp()
    assert runtime.pending_transfers() == 0
    while not runtime.is_done:
        step(runtime)
    assert (len(runtime.prefill.workers), len(runtime.decode.workers)) == (0, 0)
    assert "destination_activated" not in transitions(runtime, "1")
    (record,) = runtime.collector.requests
    assert (record.phase, record.status) == (Phase.DONE, TerminalStatus.CANCELED)


@both_routers
def test_source_first_handoff_waits_for_decode_scale_up(mode: RouterMode) -> None:
    runtime = listed(cluster(), [request("1", 128, 2)], **routed(mode))
    runtime.drain_current_timestamp()
    runtime.apply_scaling(1, 0)
    assert len(runtime.decode.workers) == 0
    for _ in range(16):
        if runtime.waiting_decode:
            break
        step(runtime)
    assert len(runtime.waiting_decode) == 1
    assert not runtime.state(ONE).coordinator.is_complete
    wait_until_ms = runtime.now_ms + 100.0
    assert not runtime.advance_to(wait_until_ms)
    assert runtime.now_ms == wait_until_ms
    runtime.apply_scaling(1, 1)
    assert runtime.run()
    assert runtime.state(ONE).phase is Phase.DONE
    assert runtime.state(ONE).reserved_ms == wait_until_ms


def test_pending_destination_booking_survives_scale_down_until_cleanup() -> None:
    small = {"block_size": 4, "max_num_batched_tokens": 64, "max_num_seqs": 4, "decode_speedup_ratio": 1.0}
    setup = with_decode(
        with_prefill(cluster(VLLM, 1, 1), **small, num_gpu_blocks=32), **small, num_gpu_blocks=2, speedup_ratio=1.0
    )
    requests = [request("1", 4, 2), request("2", 8, 2, number=1)]
    runtime = listed(setup, requests, max_in_flight=2, **routed(KV_ROUTER))
    runtime.drain_current_timestamp()
    for _ in range(32):
        if "destination_accepted" in transitions(runtime, "2"):
            break
        step(runtime)
    assert "destination_accepted" in transitions(runtime, "2")
    assert "destination_reserved" not in transitions(runtime, "2")
    assert runtime.state(TWO).decode_worker == 0
    router = runtime.decode.router
    assert router is not None
    assert [worker for worker, _ in router.snapshot().active_tokens_by_worker] == [0]
    runtime.apply_scaling(1, 0)
    assert (len(runtime.decode.active), len(runtime.decode.workers)) == (0, 1)
    assert runtime.state(TWO).decode_worker == 0
    runtime.apply_handoff_fact(TWO, Fact(FactName.CANCELED, runtime.state(TWO).handoff_id))
    runtime.drain_current_timestamp()
    while not runtime.is_done:
        step(runtime)
    assert runtime.state(ONE).phase is Phase.DONE
    assert runtime.state(TWO).phase is Phase.DONE
    assert len(runtime.decode.workers) == 0
    assert runtime.counts.decode_router_freed == 1
    after = router.snapshot()
    assert (after.pending, after.active_tokens_by_worker, after.active_blocks_by_worker) == ((), (), ())


def test_apply_scaling_drains_prefill_router_pending_immediately() -> None:
    size = {"num_gpu_blocks": 512, "max_num_batched_tokens": 64, "speedup_ratio": 1.0, "decode_speedup_ratio": 1.0}
    setup = with_decode(with_prefill(cluster(VLLM, 1, 1), **size), **size)
    requests = [request("1", 64, 8), request("2", 64, 8, number=1)]
    router = KvRouterSettings(router_queue_threshold=0.5)
    runtime = listed(setup, requests, router_mode=KV_ROUTER, kv_router=router)
    runtime.advance_to(0.0)
    assert runtime.state(TWO).phase is Phase.QUEUED_PREFILL
    runtime.apply_scaling(2, 1)
    assert runtime.state(TWO).phase is Phase.RUNNING_PREFILL
    assert runtime.counts.prefill_assignments[TWO] == 1


def test_advance_to_moves_clock_across_idle_gap() -> None:
    runtime = listed(cluster(), [request("1", 64, 2, 1000.0)])
    runtime.advance_to(500.0)
    assert runtime.now_ms == 500.0
    assert runtime.drain_traffic().duration_s == pytest.approx(0.5, abs=1e-9)


def _five_a_second_apart() -> list[Session]:
    return [request(str(number), 64, 2, 1000.0 * number, number) for number in range(5)]


def test_disagg_max_sim_time_truncates_run() -> None:
    runtime = listed(cluster(), _five_a_second_apart(), max_sim_time_ms=2500.0)
    assert runtime.run()
    assert runtime.collector.num_requests == 3
    assert runtime.collector.duration_ms <= 2500.0


def test_disagg_no_cap_completes_everything() -> None:
    runtime = listed(cluster(), _five_a_second_apart())
    assert runtime.run()
    assert (runtime.collector.completed, runtime.collector.num_requests) == (5, 5)
    assert runtime.collector.duration_ms >= 4000.0


def test_trace_workload_follow_up_turn_arrives_after_completion_plus_delay() -> None:
    by_length = {record.input_tokens: record for record in run_sessions(None).collector.requests}
    assert by_length[64].arrival_ms == 0.0
    assert by_length[128].arrival_ms == 5.0
    assert by_length[192].arrival_ms >= known(by_length[64].last_token_ms) + 10.0


def test_concurrency_workload_holds_session_slot_depth_first() -> None:
    records = sorted(run_sessions(1).collector.requests, key=lambda record: record.arrival_ms)
    assert [record.input_tokens for record in records] == [64, 192, 128]
