"""The record of one request, as one line of JSON, under the names of the deployed simulator's report.

Times are ms from the run's start, None until they happened. Records are the bulk of what a run writes, so the line
is put together directly; `record_of` is the same as a dictionary.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from handoff.engines.simulated_request import Admitted, Routing, SimulatedRequest

_quoted: Callable[[object], str] = json.dumps


def record_of(request: SimulatedRequest, *, names_sessions: bool = False) -> dict[str, Any]:
    """The record as a dictionary."""
    record: dict[str, Any] = json.loads(record_line(request, names_sessions=names_sessions))
    return record


def record_line(request: SimulatedRequest, *, names_sessions: bool = False) -> str:
    """The record as a line of JSON, without its end.

    Args:
        request: it must have ended.
        names_sessions: whether unnamed sessions are named too (concurrency mode does).
    """
    session = request.arrival.session
    is_named = session.is_named or names_sessions
    arrival_ms = request.arrival_ms
    first_ms, second_ms, last_ms = request.first_token_ms, request.second_token_ms, request.last_token_ms
    tokens = request.output_tokens
    ttft_ms = ttst_ms = itl_ms = e2e_ms = None
    if first_ms is not None and last_ms is not None:
        ttft_ms = first_ms - arrival_ms
        e2e_ms = last_ms - arrival_ms
        if second_ms is not None:
            ttst_ms = second_ms - first_ms
        if tokens > 1:
            itl_ms = (last_ms - first_ms) / (tokens - 1)
    admissions = request.admissions
    return (
        f'{{"session_id": {_quoted(session.session_id) if is_named else "null"}, '
        f'"turn_index": {request.arrival.turn_index if is_named else "null"}, '
        f'"uuid": {_quoted(request.request_id)}, "arrival_time_ms": {arrival_ms!r}, "dispatched_at_ms": null, '
        f'"first_admit_ms": {_text(request.first_admit_ms)}, "terminal_time_ms": {_text(request.terminal_ms)}, '
        f'"first_token_ms": {_text(first_ms)}, "last_token_ms": {_text(last_ms)}, "ttft_ms": {_text(ttft_ms)}, '
        f'"ttst_ms": {_text(ttst_ms)}, "e2e_latency_ms": {_text(e2e_ms)}, "itl_ms": {_text(itl_ms)}, '
        f'"input_length": {request.input_tokens}, "requested_output_length": {request.output_limit}, '
        f'"output_length": {tokens}, "reused_input_tokens": {request.reused}, '
        f'"prefill_worker_idx": {_text(request.prefill_worker)}, '
        f'"decode_worker_idx": {_text(request.decode_worker)}, '
        f'"prefill_admit_ms": {_text(request.prefill_admit_ms)}, "source_held_ms": {_text(request.held_ms)}, '
        f'"destination_reserved_ms": {_text(request.reserved_ms)}, '
        f'"destination_activated_ms": {_text(request.activated_ms)}, '
        f'"decode_admit_ms": {_text(request.decode_admit_ms)}, "source_released_ms": {_text(request.released_ms)}, '
        f'"decode_reused_input_tokens": {_text(request.decode_reused)}, '
        f'"prefill_route_overlap_tokens": {_text(request.prefill_overlap_tokens)}, '
        f'"decode_route_overlap_tokens": {_text(request.decode_overlap_tokens)}, '
        f'"routing_history": [{", ".join([_routing(routing, request) for routing in request.routings])}], '
        f'"admission_history": {_admissions(admissions)}, '
        f'"admission_count": {len(admissions)}, "readmission_count": {_readmissions(admissions)}, '
        f'"pressure_record_ordinals": {request.pressures or "[]"}, '
        f'"terminal_status": "{request.status}", '
        f'"failure": {"null" if request.failure is None else _quoted(request.failure)}}}'
    )


def _text(value: float | None) -> str:
    return "null" if value is None else repr(value)


def _routing(routing: Routing, request: SimulatedRequest) -> str:
    pool, worker, queued_ms, released_ms, overlap, best = routing
    wait_ms = 0.0 if queued_ms is None or released_ms is None else released_ms - queued_ms
    tokens = request.prefill_overlap_tokens if pool == "prefill" else request.decode_overlap_tokens
    regret = None if overlap is None or best is None else best - overlap
    return (
        f'{{"pool": "{pool}", "outcome": "{"immediate" if queued_ms is None else "queued"}", '
        f'"queue_entered_at_ms": {_text(queued_ms)}, "released_at_ms": {_text(released_ms)}, '
        f'"queue_wait_ms": {wait_ms!r}, "logical_worker_id": {worker}, "scheduler_id": {worker}, "dp_rank": 0, '
        f'"reported_overlap_tokens": {_text(tokens)}, "selected_overlap_blocks": {_text(overlap)}, '
        f'"best_available_overlap_blocks": {_text(best)}, "overlap_regret_blocks": {_text(regret)}}}'
    )


def _admissions(admissions: Sequence[Admitted]) -> str:
    seen = {"prefill": 0, "decode": 0}
    parts = []
    for ordinal, (pool, at_ms, reused) in enumerate(admissions):
        in_pool = seen[pool]
        seen[pool] = in_pool + 1
        parts.append(
            f'{{"admission_ordinal": {ordinal}, "pool_admission_ordinal": {in_pool}, "pool": "{pool}", '
            f'"at_ms": {at_ms!r}, "reused_input_tokens": {reused}, '
            f'"is_readmission": {"true" if in_pool else "false"}}}'
        )
    return "[" + ", ".join(parts) + "]"


def _readmissions(admissions: Sequence[Admitted]) -> int:
    """Admissions beyond the first one in each pool."""
    if len(admissions) < 3:
        return int(len(admissions) == 2 and admissions[0].pool == admissions[1].pool)
    pools = [admitted.pool for admitted in admissions]
    return sum(max(0, pools.count(pool) - 1) for pool in ("prefill", "decode"))
