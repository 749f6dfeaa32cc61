"""What journaling costs a live run: handoffs a second with 64 in flight, engines a thousand times as fast as real ones.

    python benchmarks/live.py [HANDOFFS [ROUNDS]]

Everything is in one process: two engines, a bootstrap server, TCP over loopback, and both sessions of each handoff.
The same run is measured with a journal that is synced at every commit (`full`), one that is not (`off`), and one that
does all the work up to the point where rows would be stored and discards them (`discard`). Rounds are interleaved, so
that other load of the machine strikes all alike; the best round of each counts, because load can only slow a run
down.

Goals: `full` at least 0.7 of `off`, `off` at least 0.6 of `discard`.
"""

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time

import trio
from attrs import frozen

from handoff.engines.record import Recording
from handoff.engines.scenario import Scenario, parse_scenario
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.workload import Session, SessionSource, Turn
from handoff.journal.durable_journal import Journal
from handoff.journal.port import RowStream
from handoff.journal.receipt import Durability
from handoff.journal.sync_journal import DiscardingJournal

IN_FLIGHT = 64
ALONE = 1
MODES = ("full", "off", "discard")
BLOCK = 64
SCENARIO = """
[scenario]
name = "live-benchmark"
seed = 1
[workload]
max_in_flight = 64
[workload.synthetic]
input_tokens = 512
output_tokens = 16
request_count = 1
request_rate = 1.0
[engine]
block_size = 64
speedup_ratio = 1000.0
"""


@frozen
class Measured:
    """One run.

    Attributes:
        per_s: handoffs a second of real time.
        cpu_ms: processor time of a handoff, in ms; threads included.
        p50_ms, p99_ms: from a request's arrival to the release of its source.
        rows: rows a handoff.
    """

    per_s: float
    cpu_ms: float
    p50_ms: float
    p99_ms: float
    rows: float


def sessions(handoffs: int) -> Iterator[Session]:
    """Requests with prompts of their own."""
    blocks = 512 // BLOCK
    for number in range(handoffs):
        names = range(number * blocks, (number + 1) * blocks)
        yield Session(f"request-{number}", 0.0, [Turn(512, 16, names)], number=number)


@asynccontextmanager
async def journal_for(mode: str, folder: Path) -> AsyncIterator[RowStream]:
    """A journal of this mode in a new file."""
    if mode == "discard":
        yield DiscardingJournal()
        return
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with Journal.create(Path(own) / "run.db", durability=Durability(mode)) as journal:
            yield journal


async def run(mode: str, handoffs: int, in_flight: int, folder: Path) -> Measured:
    """Record one run and measure it."""
    scenario: Scenario = parse_scenario(SCENARIO)
    requests: list[SimulatedRequest] = []
    async with journal_for(mode, folder) as journal:
        source = SessionSource(sessions(handoffs), in_flight)
        recording = Recording(
            scenario, journal, source, lambda turn: turn.blocks, sink=requests.append, interrupted_by=()
        )
        begun_s, cpu_s = perf_counter(), process_time()
        report = await recording.run()
        took_s, cpu_s = perf_counter() - begun_s, process_time() - cpu_s
    assert report.all_succeeded, report.statuses
    latencies = sorted((request.released_ms or 0.0) - request.arrival_ms for request in requests)
    middle, last = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    return Measured(handoffs / took_s, cpu_s * 1000.0 / handoffs, middle, last, report.rows / handoffs)


def measure(handoffs: int, in_flight: int, rounds: int) -> dict[str, Measured]:
    """The best of `rounds` interleaved runs of each mode."""
    with tempfile.TemporaryDirectory() as folder:
        taken: dict[str, list[Measured]] = {mode: [] for mode in MODES}
        for _ in range(rounds):
            for mode in MODES:
                taken[mode].append(trio.run(run, mode, handoffs, in_flight, Path(folder)))
    return {mode: max(runs, key=lambda measured: measured.per_s) for mode, runs in taken.items()}


def show(title: str, best: dict[str, Measured]) -> None:
    """Print a table and what journaling adds."""
    print(title)
    for mode, measured in best.items():
        print(
            f"  {mode:8} {measured.per_s:7.1f} handoffs/s  {measured.cpu_ms:6.2f} ms of processor each  "
            f"latency p50 {measured.p50_ms:6.1f} ms  p99 {measured.p99_ms:6.1f} ms  {measured.rows:.0f} rows each"
        )
    full, discard = best["full"], best["discard"]
    added = f"p50 {full.p50_ms - discard.p50_ms:+.1f} ms, p99 {full.p99_ms - discard.p99_ms:+.1f} ms"
    print(f"  journaling at full adds to a handoff: {added}")


def main(handoffs: int = 600, rounds: int = 5) -> None:
    """Measure at the given size and print."""
    crowded = measure(handoffs, IN_FLIGHT, rounds)
    show(f"live handoffs, {IN_FLIGHT} in flight, best of {rounds} interleaved runs of {handoffs}", crowded)
    full, off, discard = (crowded[mode].per_s for mode in MODES)
    print(f"  full / off     {full / off:.2f}  (goal 0.7)")
    print(f"  off / discard  {off / discard:.2f}  (goal 0.6)")
    alone = max(handoffs // 6, 20)
    show(f"live handoffs, one at a time, best of {rounds} runs of {alone}", measure(alone, ALONE, rounds))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
