"""Runs one conformance case here, and says where the answers differ from the deployed simulator's."""

import json
import math
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from handoff.engines.block_names import TraceNames
from handoff.engines.collector import Collector
from handoff.engines.engine_settings import EngineSettings, FullHit, SglangSettings
from handoff.engines.mooncake import load_mooncake
from handoff.engines.offline_runtime import DisaggregatedCluster, OfflineRuntime
from handoff.engines.request_record import record_of
from handoff.engines.scenario import RouterMode
from handoff.engines.summary import RunTotals, summarize
from handoff.engines.workload import SessionSource

FIELDS_MS = (
    "arrival_time_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_time_ms", "ttft_ms", "ttst_ms",
    "itl_ms", "e2e_latency_ms", "prefill_admit_ms", "source_held_ms", "destination_reserved_ms",
    "destination_activated_ms", "decode_admit_ms", "source_released_ms",
)  # fmt: skip
FIELDS_EXACT = (
    "input_length", "output_length", "reused_input_tokens", "prefill_worker_idx", "decode_worker_idx",
    "decode_reused_input_tokens", "admission_count", "readmission_count", "terminal_status",
)  # fmt: skip
MACHINE_DEPENDENT = ("wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s")
_SKETCHED = ("itl_ms", "output_token_throughput_per_user")
TOLERANCE_MS = 1e-6


@frozen
class Comparison:
    """How far two answers are apart.

    Attributes:
        largest_ms: the largest difference of a time.
        largest_ratio: the largest relative difference of a summary figure that is not sketched.
        mismatches: what differs by more than it may.
    """

    largest_ms: float
    largest_ratio: float
    mismatches: tuple[str, ...]


def engine_settings(arguments: dict[str, Any]) -> EngineSettings:
    """The deployed simulator's engine arguments as ours."""
    values = dict(arguments)
    values["worker_role"] = values.pop("worker_type")
    if "sglang" in values:
        values["sglang"] = SglangSettings(**values["sglang"])
    return evolve(EngineSettings(**values), full_hit=FullHit.RECOMPUTE_LAST)


def run_case(case: dict[str, Any], folder: Path, *, leaps: bool = True) -> tuple[OfflineRuntime, Collector]:
    """Run a case's scenario.

    Args:
        case: with `config` and `trace`.
        folder: where the trace is written for a moment.
        leaps: whether runs of passes are taken at once; the answer must not depend on it.
    """
    config = case["config"]
    prefill, decode = engine_settings(config["prefill"]), engine_settings(config["decode"])
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in case["trace"]))
    concurrency = config.get("replay_concurrency")
    sessions = load_mooncake(trace, config["trace_block_size"], by_time=concurrency is None)
    names = TraceNames(config["trace_block_size"], prefill.block_size)
    names.adopt_ids(turn.blocks for session in sessions for turn in session.turns)
    collector = Collector(keeps_requests=True)
    runtime = OfflineRuntime(
        DisaggregatedCluster(prefill, decode, config["num_prefill_workers"], config["num_decode_workers"]),
        SessionSource(sessions, concurrency, config["arrival_speedup_ratio"]),
        names.of_turn,
        router_mode=RouterMode(config["router_mode"]),
        collector=collector,
        capture_metrics=not leaps,
    )
    runtime.run()
    return runtime, collector


def compare_case(case: dict[str, Any], folder: Path) -> Comparison:
    """Run a case and compare it with what it expects."""
    runtime, collector = run_case(case, folder)
    ours = [record_of(request) for request in collector.requests if request.status is not None]
    theirs = case["expected"]["per_request"]
    if len(ours) != len(theirs):
        return Comparison(math.inf, math.inf, (f"{len(ours)} records instead of {len(theirs)}",))
    largest_ms, mismatches = 0.0, []
    for mine, reference in zip(sorted(ours, key=_identity), sorted(theirs, key=_identity), strict=True):
        where = f"request arriving at {reference['arrival_time_ms']} with {reference['input_length']} tokens"
        for field in FIELDS_MS:
            difference = _difference(mine[field], reference[field])
            largest_ms = max(largest_ms, difference)
            if difference > TOLERANCE_MS:
                mismatches.append(f"{where}: {field} {mine[field]} instead of {reference[field]}")
        mismatches += [
            f"{where}: {field} {mine[field]} instead of {reference[field]}"
            for field in FIELDS_EXACT
            if mine[field] != reference[field]
        ]
    totals = RunTotals(runtime.prefill.worker_seconds, runtime.decode.worker_seconds, runtime.decode.gap_logs)
    largest_ratio, wrong = compare_summaries(summarize(collector, totals), case["expected"]["summary"])
    return Comparison(largest_ms, largest_ratio, (*mismatches, *wrong))


def compare_summaries(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, list[str]]:
    """The largest relative difference of exact figures, and the figures that differ too much."""
    largest, wrong = 0.0, []
    for name, expected in theirs.items():
        if name in MACHINE_DEPENDENT:
            continue
        sketched = name.endswith(_SKETCHED) and name[0] in "mp" and not name.startswith(("mean", "min", "max"))
        scale = max(abs(expected), abs(ours[name]))
        ratio = abs(ours[name] - expected) / scale if scale else 0.0
        if not sketched:
            largest = max(largest, ratio)
        if ratio > (2e-3 if sketched else 1e-9):
            wrong.append(f"{name} {ours[name]} instead of {expected}")
    return largest, wrong


def _identity(record: dict[str, Any]) -> tuple[Any, ...]:
    """Pairs records of both sides: ids differ, and ties of arrival are ordered at random there."""
    return (
        round(record["arrival_time_ms"], 6),
        record["input_length"],
        round(record["terminal_time_ms"], 5),
        round(record["last_token_ms"] or -1.0, 5),
        record["output_length"],
        -1 if record["prefill_worker_idx"] is None else record["prefill_worker_idx"],
        -1 if record["decode_worker_idx"] is None else record["decode_worker_idx"],
    )


def _difference(mine: float | None, reference: float | None) -> float:
    if mine is None or reference is None:
        return 0.0 if mine is reference else math.inf
    return abs(mine - reference)
