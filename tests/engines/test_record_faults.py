"""Every fault of the table, each on a handoff of its own in a live run: all of it ends, and nothing is left behind."""

from collections import Counter

import pytest
from recorded_steps import replay_of
from struck_runs import THINGS, struck_run

from handoff.engines.scenario import FaultDeed
from handoff.journal.event import Event
from handoff.journal.terms import EndState
from handoff.journal.vocabulary import TerminalStatus


def permit_balance(events: tuple[Event, ...]) -> Counter[int | None]:
    """Permits taken less permits returned, by handoff."""
    balance: Counter[int | None] = Counter()
    for event in events:
        if event.kind == "permit_taken":
            balance[event.handoff] += 1
        elif event.kind == "permit_returned" and event.verdict == "applied":
            balance[event.handoff] -= 1
    return balance


@pytest.mark.parametrize("deed", list(FaultDeed))
@pytest.mark.parametrize("engine_type", ["vllm", "sglang"])
def test_whatever_strikes_every_handoff_ends_and_nothing_is_left(engine_type: str, deed: FaultDeed) -> None:
    run = struck_run(engine_type, deed)
    assert run.report.state is EndState.FINISHED
    assert len(run.requests) == len(THINGS) + 4
    assert [request.status for request in run.requests[-4:]] == [TerminalStatus.COMPLETED] * 4
    assert all(run.empty)
    assert run.free_permits == (16, 16)
    assert not any(permit_balance(run.events).values())
    struck = {event.payload["on"] for event in run.events if event.kind == "fault"}
    assert struck == set(THINGS)
    report = replay_of(run.events)
    assert report.agrees, report.divergences[0].sentence
    assert not report.skipped
