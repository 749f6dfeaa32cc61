"""Recorded runs: every request ends, nothing is left, and every journal replays, on a mock clock and on a real one."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, evolve
from live_runs import LiveRun, record_in_memory, run_scenario, sessions, small_scenario
from recorded_steps import replay_of

from handoff.engines.record import Recording, RecordReport
from handoff.engines.scenario import Scenario
from handoff.engines.workload import Session, SessionSource, Turn
from handoff.journal.port import JournalFailed, MemoryJournal
from handoff.journal.terms import EndState
from handoff.journal.vocabulary import Seq, TerminalStatus

ENGINES_AND_MODES = [
    (engine_type, mode) for engine_type in ("vllm", "sglang") for mode in ("full_prompt", "destination_missing")
]


def assert_replays_whole(run: LiveRun) -> None:
    """Every row follows from the inputs, every actor was re-executed, and every session ended."""
    report = replay_of(run.events)
    assert report.agrees, report.divergences[0].sentence
    assert not report.unended
    assert not report.skipped
    assert all(tally.re_executed for tally in report.actors)


@pytest.mark.parametrize("rate", [20.0, None], ids=["mock clock", "real clock"])
@pytest.mark.parametrize(("engine_type", "timing_mode"), ENGINES_AND_MODES)
def test_a_run_completes_leaves_nothing_and_replays(engine_type: str, timing_mode: str, rate: float | None) -> None:
    scenario = small_scenario(engine_type=engine_type, timing_mode=timing_mode, workers=2)
    run = record_in_memory(scenario, sessions(12), rate=rate)
    assert run.report.state is EndState.FINISHED
    assert run.report.all_succeeded
    assert run.report.statuses[TerminalStatus.COMPLETED] == 12
    assert all(run.empty)
    assert run.free_permits == (16,) * 4
    assert_replays_whole(run)


def test_cache_aware_routing_follows_the_prefill_workers_caches_and_replays() -> None:
    scenario = small_scenario(router_mode="kv_router", workers=2)
    run = record_in_memory(scenario, sessions(6, turns=3), in_flight=3)
    assert run.report.all_succeeded
    kinds = Counter(event.kind for event in run.events)
    assert kinds["cache_changed"] > 0
    assert kinds["prefill_ended"] == 18
    later_turns = [request for request in run.requests if request.arrival.turn_index]
    assert any(request.prefill_overlap_tokens for request in later_turns)
    assert_replays_whole(run)


def test_turns_follow_each_other_and_reuse_their_prefix() -> None:
    run = record_in_memory(small_scenario(), sessions(2, turns=3), in_flight=None)
    assert run.report.all_succeeded
    for number in range(2):
        turns = [request for request in run.requests if request.arrival.session.number == number]
        assert [turn.arrival.turn_index for turn in turns] == [0, 1, 2]
        for before, after in pairwise(turns):
            assert before.terminal_ms is not None
            assert before.terminal_ms <= after.arrival_ms
        assert turns[2].reused > 0
    assert_replays_whole(run)


def test_a_request_without_a_permit_fails_at_once_and_says_so() -> None:
    scenario = small_scenario()
    one_at_a_time = {
        "prefill": evolve(scenario.prefill, max_num_seqs=1),
        "decode": evolve(scenario.decode, max_num_seqs=1),  # so that none of the refused ones crowds the server
    }
    run = record_in_memory(evolve(scenario, **one_at_a_time), sessions(4), in_flight=4)
    refused = [request for request in run.requests if request.status is TerminalStatus.FAILED]
    assert refused
    assert all("handoff session limit reached" in (request.failure or "") for request in refused)
    assert run.report.statuses[TerminalStatus.COMPLETED] == 4 - len(refused)
    assert all(run.empty)
    assert_replays_whole(run)


TOO_LARGE = Turn(16 * 600, 4, tuple(range(600)))
NO_OUTPUT = Turn(64, 0, (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("engine_type", "turn", "status", "reason"),
    [
        ("vllm", NO_OUTPUT, TerminalStatus.FAILED, "at least one output token"),
        ("sglang", NO_OUTPUT, TerminalStatus.FAILED, "at least one output token"),
        ("vllm", TOO_LARGE, TerminalStatus.REJECTED, "it can never run there"),
        ("sglang", TOO_LARGE, TerminalStatus.FAILED, "handoff canceled"),
    ],
    ids=["vllm, no output", "sglang, no output", "vllm, larger than the pool", "sglang, larger than the pool"],
)
def test_a_request_that_can_never_run_ends_and_harms_nobody(
    engine_type: str, turn: Turn, status: TerminalStatus, reason: str
) -> None:
    impossible = Session("impossible", 0.0, [turn], number=100)
    run = record_in_memory(small_scenario(engine_type=engine_type), [impossible, *sessions(3)])
    (first,) = [request for request in run.requests if request.arrival.session is impossible]
    others = [request for request in run.requests if request is not first]
    assert first.status is status
    assert reason in (first.failure or "")
    assert [request.status for request in others] == [TerminalStatus.COMPLETED] * 3
    assert all(run.empty)
    assert run.free_permits == (16, 16)
    assert_replays_whole(run)


def test_arrivals_after_the_time_limit_are_not_sent() -> None:
    scenario = small_scenario()
    scenario = evolve(scenario, workload=evolve(scenario.workload, max_sim_time_ms=250.0))
    run = record_in_memory(scenario, sessions(6, gap_ms=100.0), in_flight=None)
    assert run.report.handoffs == 3
    assert run.report.all_succeeded
    assert run.report.state is EndState.FINISHED


def test_names_of_handoffs_requests_and_rooms_follow_from_the_seed() -> None:
    def names(seed: int) -> list[object]:
        run = record_in_memory(evolve(small_scenario(), seed=seed), sessions(3))
        return [event.payload for event in run.events if event.kind == "handoff_opened"]

    assert names(1) == names(1) != names(2)


class LosingJournal(MemoryJournal):
    """A journal whose disk fails after a number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    async def durable(self, seq: Seq) -> None:
        await trio.lowlevel.checkpoint()
        if self.last_seq > self.rows:
            raise JournalFailed(self.rows, OSError("the disk is gone"))

    async def room(self) -> None:
        await self.durable(Seq(self.last_seq))


@pytest.mark.parametrize("rows", [1, 200, 500])
def test_a_lost_journal_stops_the_run_and_everything_is_cleaned_up_all_the_same(rows: int) -> None:
    async def main() -> None:
        recording, report, _requests = await run_scenario(small_scenario(), sessions(30), LosingJournal(rows))
        assert report.state is EndState.INTERRUPTED
        assert report.reason is not None
        assert "the disk is gone" in report.reason
        assert report.handoffs < 30
        assert report.inside == ()
        for worker in (*recording.cluster.prefill, *recording.cluster.decode):
            assert worker.engine.driver.machine.core.is_empty

    trio.run(main, clock=trio.testing.MockClock(rate=50.0))


@define
class StoppingJournal(MemoryJournal):
    """Stops the run while it waits for room, as a signal might."""

    recording: Any = None

    async def room(self) -> None:
        cluster = getattr(self.recording, "cluster", None)
        if cluster is not None:  # the workers ask for room before they are a cluster
            cluster.stop("SIGTERM")


def recording_of(scenario: Scenario, workload: list[Session], journal: Any) -> Recording:
    source = SessionSource(workload, None)
    return Recording(scenario, journal, source, lambda turn: turn.blocks, interrupted_by=())


def test_a_stop_while_waiting_for_room_lets_nothing_arrive() -> None:
    journal = StoppingJournal()
    journal.recording = recording_of(small_scenario(), sessions(4), journal)
    report = trio.run(journal.recording.run)
    assert report.state is EndState.INTERRUPTED
    assert "handoff_opened" not in {event.kind for event in journal.events}


def test_a_stop_ends_what_a_router_still_queues() -> None:
    scenario = small_scenario(router_mode="kv_router")
    queueing = evolve(scenario.cluster.kv_router, router_queue_threshold=0.0)
    scenario = evolve(scenario, cluster=evolve(scenario.cluster, kv_router=queueing))
    journal = MemoryJournal()

    def count(kind: str) -> int:
        return sum(event.kind == kind for event in journal.events)

    async def main() -> RecordReport:
        recording = recording_of(scenario, sessions(4, gap_ms=0.0), journal)

        async def stop() -> None:
            while count("request_arrived") < 4:
                await trio.lowlevel.checkpoint()
            recording.cluster.stop("SIGTERM")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            return await recording.run()

    report = trio.run(main)
    assert report.state is EndState.INTERRUPTED
    assert not report.inside
    assert count("request_routed") < count("request_arrived") == count("request_ended") == 4
