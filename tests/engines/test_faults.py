"""Planned faults strike what they name, at most once a handoff, whatever the order in which handoffs pass."""

from collections.abc import Sequence

import pytest
import trio

from handoff.engines.clock import RunClock
from handoff.engines.faults import FaultPlan, PlannedFaults
from handoff.engines.interception import PASS, FaultKind, InterceptionPoint
from handoff.engines.scenario import Fault, FaultPlace
from handoff.journal.port import MemoryJournal
from handoff.journal.vocabulary import HandoffId


def test_a_fault_of_one_handoff_strikes_it_once_and_no_other() -> None:
    plan = FaultPlan([Fault("outcome:activate_destination", "drop", handoff=3)], seed=1)
    names = ("activate_destination",)
    assert plan.strike(FaultPlace.OUTCOME, names, 2) is None
    assert plan.strike(FaultPlace.ACTION, names, 3) is None
    assert plan.strike(FaultPlace.OUTCOME, ("release_source",), 3) is None
    assert plan.strike(FaultPlace.OUTCOME, names, 3) is plan.faults[0]
    assert plan.strike(FaultPlace.OUTCOME, names, 3) is None


def test_the_first_fault_of_the_file_that_fits_strikes() -> None:
    plan = FaultPlan([Fault("request", "cancel"), Fault("request", "delay", delay_ms=5.0)], seed=1)
    assert [plan.strike(FaultPlace.REQUEST, (), 1) for _ in range(3)] == [*plan.faults, None]


def strikes(order: Sequence[int], seed: int) -> set[int]:
    plan = FaultPlan([Fault("fact:source_held", "drop", probability=0.3)], seed)
    return {ordinal for ordinal in order if plan.strike(FaultPlace.FACT, ("source_held",), ordinal) is not None}


@pytest.mark.parametrize("seed", range(5))
def test_chance_depends_on_the_seed_and_the_handoff_and_never_on_the_order(seed: int) -> None:
    ordinals = range(1, 201)
    struck = strikes(ordinals, seed)
    assert struck == strikes(list(reversed(ordinals)), seed)
    assert 30 <= len(struck) <= 90
    assert struck != strikes(ordinals, seed + 1)


def test_a_strike_leaves_a_row_for_people() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        plan = FaultPlan(
            [Fault("frame:fact", "delay", delay_ms=50.0), Fault("request", "fail", message="full")], seed=1
        )
        faults = PlannedFaults(plan, journal, RunClock(), {HandoffId("a"): (1, 7)})
        delayed = faults.intercept(InterceptionPoint.FRAME, "fact", HandoffId("a"))
        assert (delayed.do, delayed.delay_ms) == (FaultKind.DELAY, 50.0)
        assert faults.intercept(InterceptionPoint.FRAME, "fact", HandoffId("a")) is PASS
        assert faults.intercept(InterceptionPoint.FRAME, "fact", HandoffId("unknown")) is PASS
        assert faults.intercept(InterceptionPoint.REQUEST, "", HandoffId("a")).message == "full"
        assert [(event.kind, event.handoff, event.payload["do"]) for event in journal.events] == [
            ("fault", 7, "delay"),
            ("fault", 7, "fail"),
        ]

    trio.run(main)
