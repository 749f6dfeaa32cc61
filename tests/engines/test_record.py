"""Recorded runs: every request ends, nothing is left, and every journal replays, on a mock clock and on a real one."""

import pytest
from live_runs import record_in_memory, sessions, small_scenario
from recorded_steps import replay_of

from handoff.journal.terms import EndState
from handoff.journal.vocabulary import TerminalStatus

ENGINES_AND_MODES = [
    (engine_type, mode) for engine_type in ("vllm", "sglang") for mode in ("full_prompt", "destination_missing")
]


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
    report = replay_of(run.events)
    assert report.agrees, report.divergences[0].sentence
    assert not report.unended
    assert not report.skipped
    assert all(tally.re_executed for tally in report.actors)
