"""The summary of a run: counts, rates and distributions, under the names of the deployed simulator's report.

All figures but the number of requests are over completed ones. The duration counts from 0 to the last completed
request's end. Waits between tokens come counted, see `token_gaps`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from handoff.engines.collector import Collector
from handoff.engines.distribution import counted_distribution, distribution
from handoff.engines.token_gaps import GapLog, counted_gaps

_SHORTEST_S = 1e-9


@frozen
class RunTotals:
    """What a summary needs besides the requests.

    Attributes:
        prefill_worker_seconds, decode_worker_seconds: provisioned.
        gap_logs: of all decode workers.
        wall_time_ms: real time that the run took, or None to leave out what depends on it: then the same run has the
            same summary.
        max_prefill_pending, max_decode_pending: most requests in a router's queue.
    """

    prefill_worker_seconds: float
    decode_worker_seconds: float
    gap_logs: Sequence[GapLog]
    wall_time_ms: float | None = None
    max_prefill_pending: int = 0
    max_decode_pending: int = 0


def summarize(collector: Collector, totals: RunTotals) -> dict[str, Any]:
    """The flat summary of a run."""
    tokens_in, tokens_out = collector.input_tokens, collector.output_tokens
    duration_s = max(collector.duration_ms / 1000.0, _SHORTEST_S)
    worker_seconds = totals.prefill_worker_seconds + totals.decode_worker_seconds
    values, counts = counted_gaps(totals.gap_logs)
    waits = counted_distribution(values, counts)
    summary: dict[str, Any] = {
        "num_requests": collector.num_requests,
        "completed_requests": collector.completed,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "duration_ms": collector.duration_ms,
        "request_throughput_rps": collector.completed / duration_s,
        "input_throughput_tok_s": tokens_in / duration_s,
        "output_throughput_tok_s": tokens_out / duration_s,
        "total_throughput_tok_s": (tokens_in + tokens_out) / duration_s,
        "prefill_worker_seconds": totals.prefill_worker_seconds,
        "decode_worker_seconds": totals.decode_worker_seconds,
        "prefill_gpus_per_worker": 1,
        "decode_gpus_per_worker": 1,
        "gpu_hours": worker_seconds / 3600.0,
        "processed_tokens": tokens_in + tokens_out,
        "prefix_cache_reused_ratio": _ratio(collector.reused_tokens, tokens_in),
        "first_admission_prefix_cache_reused_ratio": _ratio(collector.first_reused_tokens, tokens_in),
        "num_ttft_samples": len(collector.ttft_ms),
        "num_tpot_samples": len(collector.tpot_ms),
        "num_e2e_latency_samples": len(collector.e2e_ms),
        **distribution(collector.ttft_ms).named("ttft_ms"),
        **distribution(collector.ttst_ms).named("ttst_ms"),
        **distribution(collector.tpot_ms).named("tpot_ms"),
        **waits.named("itl_ms"),
        **distribution(collector.e2e_ms).named("e2e_latency_ms"),
        **_rates(values, counts),
        "max_prefill_router_pending_count": totals.max_prefill_pending,
        "max_decode_router_pending_count": totals.max_decode_pending,
        "terminal_statuses": {status.value: count for status, count in collector.statuses.items()},
    }
    if totals.wall_time_ms is not None:
        summary |= real_time_figures(totals.wall_time_ms, tokens_in, tokens_out)
    if collector.service_level is not None:
        summary |= {
            "goodput_completed_requests": collector.good_requests,
            "goodput_request_throughput_rps": collector.good_requests / duration_s,
            "goodput_output_throughput_tok_s": collector.good_tokens / duration_s,
        }
    return summary


def real_time_figures(wall_time_ms: float, input_tokens: int, output_tokens: int) -> dict[str, float]:
    """What depends on how fast the machine was."""
    wall_s = max(wall_time_ms / 1000.0, _SHORTEST_S)
    return {
        "wall_time_ms": wall_time_ms,
        "processed_tokens_per_s": (input_tokens + output_tokens) / wall_s,
        "processed_output_tokens_per_s": output_tokens / wall_s,
    }


def _rates(values: Sequence[float], counts: Sequence[int]) -> Mapping[str, float]:
    """What each wait means as a rate for its user, in tokens a second; waits of 0 have none."""
    first = 1 if values and values[0] <= 0.0 else 0
    rates = [1000.0 / value for value in reversed(values[first:])]
    return counted_distribution(rates, counts[first:][::-1]).named("output_token_throughput_per_user")


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
