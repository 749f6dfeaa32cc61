"""Small live runs: a cluster of engines, a few requests, a journal in memory, on a clock that runs fast."""

from collections.abc import Sequence
from typing import Any

import trio
import trio.testing
from attrs import evolve, frozen

from handoff.engines.record import Recording, RecordReport
from handoff.engines.scenario import Fault, Scenario, parse_scenario
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.workload import Session, SessionSource, Turn
from handoff.journal.event import Event
from handoff.journal.port import MemoryJournal

SMALL = """
[scenario]
name = "small"
seed = 5
[workload]
max_in_flight = {in_flight}
[workload.synthetic]
input_tokens = 64
output_tokens = 4
request_count = {requests}
request_rate = 1.0
[cluster]
engine_type = "{engine_type}"
num_prefill_workers = {workers}
num_decode_workers = {workers}
router_mode = "{router_mode}"
[engine]
block_size = 16
num_gpu_blocks = 512
max_num_seqs = 16
speedup_ratio = 100.0
[prefill]
kv_transfer_bandwidth = 1.0
kv_bytes_per_token = 10000
kv_transfer_timing_mode = "{timing_mode}"
[live]
session_timeout_ms = {session_timeout_ms}
rendezvous_timeout_ms = {session_timeout_ms}
"""


@frozen
class LiveRun:
    """What a run left behind."""

    report: RecordReport
    events: tuple[Event, ...]
    requests: tuple[SimulatedRequest, ...]
    empty: tuple[bool, ...]
    free_permits: tuple[int, ...]


def small_scenario(faults: Sequence[Fault] = (), **changes: Any) -> Scenario:
    """Four requests over one pair of engines, unless told otherwise."""
    values = {
        "in_flight": 4,
        "requests": 4,
        "engine_type": "vllm",
        "workers": 1,
        "router_mode": "round_robin",
        "timing_mode": "full_prompt",
        "session_timeout_ms": 10_000.0,
    }
    text = SMALL.format(**(values | changes)).replace("max_in_flight = None\n", "")
    return evolve(parse_scenario(text), faults=tuple(faults))


def sessions(requests: int, turns: int = 1, gap_ms: float = 10.0) -> list[Session]:
    """Conversations whose turns share their prefix with the turn before."""
    return [
        Session(f"session-{number}", number * gap_ms, [_turn(number, turn) for turn in range(turns)], number=number)
        for number in range(requests)
    ]


def _turn(session: int, turn: int) -> Turn:
    blocks = 2 * (turn + 2)
    return Turn(16 * blocks, 4, [session * 100 + block for block in range(blocks)])


async def run_scenario(
    scenario: Scenario, workload: Sequence[Session], journal: Any, *, in_flight: int | None = 4, **options: Any
) -> tuple[Recording, RecordReport, list[SimulatedRequest]]:
    """Record a scenario on sessions of our own; block ids are names."""
    requests: list[SimulatedRequest] = []
    source = SessionSource(workload, in_flight)
    recording = Recording(
        scenario, journal, source, lambda turn: turn.blocks, sink=requests.append, interrupted_by=(), **options
    )
    return recording, await recording.run(), requests


def record_in_memory(
    scenario: Scenario, workload: Sequence[Session], *, in_flight: int | None = 4, rate: float | None = 50.0
) -> LiveRun:
    """Record into memory, on a clock that runs `rate` times as fast as the world's (None: real time)."""
    journal = MemoryJournal()

    async def main() -> LiveRun:
        recording, report, requests = await run_scenario(scenario, workload, journal, in_flight=in_flight)
        workers = [*recording.cluster.prefill, *recording.cluster.decode]
        empty = tuple(worker.engine.driver.machine.core.is_empty for worker in workers)
        free = tuple(worker.permits.available for worker in workers)
        return LiveRun(report, tuple(journal.events), tuple(requests), empty, free)

    clock = None if rate is None else trio.testing.MockClock(rate=rate)
    return trio.run(main, clock=clock)
