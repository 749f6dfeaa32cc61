"""Permits at work: taken at once or refused with the reason, and given back exactly once."""

from typing import Any

import pytest
import trio
from recorded_steps import assert_replays

from handoff.engines.clock import RunClock
from handoff.engines.permit_pool import AlreadyInside, NoPermit, PermitPool
from handoff.engines.step_writer import StepWriter
from handoff.journal.port import MemoryJournal


def test_a_worker_that_is_full_refuses_with_its_limit_and_a_permit_comes_back_once() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        pool = PermitPool(1, "prefill-0", journal, RunClock())
        permit = pool.take(1)
        with pytest.raises(NoPermit, match="handoff session limit reached: 1 of 1 inside"):
            pool.take(2)
        with pytest.raises(AlreadyInside):
            pool.take(1)
        permit.release("session ended")
        permit.release("once more")
        assert (pool.available, pool.inside) == (1, ())
        second = pool.take(2)
        pool.close()
        with pytest.raises(NoPermit, match="shutting down"):
            pool.take(3)
        second.release()
        kinds = [event.kind for event in journal.events]
        assert kinds.count("permit_taken") == kinds.count("permit_returned") == 2
        assert_replays(journal)

    trio.run(main)


def test_an_input_on_which_a_machine_raises_is_journaled_before_the_error_goes_on() -> None:
    class Broken:
        SLOTS = ()

        def config(self) -> dict[str, Any]:
            return {}

        def step(self, value: Any, at_ms: float) -> Any:
            raise ZeroDivisionError(value, at_ms)

    async def main() -> None:
        journal = MemoryJournal()
        pool = PermitPool(1, "prefill-0", journal, RunClock())
        writer: StepWriter[Any] = pool._writer
        writer.machine = Broken()
        with pytest.raises(ZeroDivisionError):
            pool.take(1)
        assert (journal.events[-1].kind, journal.events[-1].verdict) == ("permit_requested", "crashed")

    trio.run(main)
