"""Every fault of the table, each on a handoff of its own in a live run: all of it ends, and nothing is left behind."""

from collections import Counter

import pytest
from live_runs import LiveRun, record_in_memory, sessions, small_scenario
from recorded_steps import replay_of

from handoff.engines.scenario import Fault, FaultDeed
from handoff.journal.event import Event
from handoff.journal.terms import EndState
from handoff.journal.vocabulary import ActionName, FactName, TerminalStatus

OURS = (FactName.SOURCE_HELD, FactName.DESTINATION_RESERVED, FactName.TRANSFER_COMPLETED)
FRAMES = ("registered", "action", "action_ack", "fact", "complete")
THINGS = (
    *(f"action:{name}" for name in ActionName if not name.startswith("cancel")),
    *(f"outcome:{name}" for name in ActionName if name not in (ActionName.COMPLETE, ActionName.START_TRANSFER)
      and not name.startswith("cancel")),
    *(f"fact:{name}" for name in OURS),
    *(f"frame:{name}" for name in FRAMES),
    "request",
)  # fmt: skip
DEADLINE_MS = 60_000.0


def struck_run(engine_type: str, deed: FaultDeed) -> LiveRun:
    """One handoff for each thing, struck by the deed, and as many healthy ones at the end."""
    delay_ms = 20.0 if deed is FaultDeed.DELAY else 0.0
    faults = [Fault(thing, deed, handoff=number, delay_ms=delay_ms) for number, thing in enumerate(THINGS, start=1)]
    scenario = small_scenario(faults, engine_type=engine_type, session_timeout_ms=DEADLINE_MS)
    return record_in_memory(scenario, sessions(len(THINGS) + 4), in_flight=8, rate=50.0)


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
