"""Whatever strikes a session, and wherever: each side ends, gives up what it held, and its rows replay."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define
from handoff_fakes import (
    SCHEDULES,
    IdealEngine,
    OneFault,
    SemanticBoundary,
    identity_of,
    run_scheduled,
    unmodelled_timing,
)
from handoff_pair import LIFECYCLE as EXPECTED_LIFECYCLE
from handoff_pair import HandoffPair, kinds_of, prefill_worker, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_steps import assert_replays

from handoff.engines.boundary import ControlCall
from handoff.engines.interception import PASS, FaultKind, InterceptionPoint, Interference
from handoff.engines.session_machine import SessionMachine
from handoff.engines.source_session import SourceSession
from handoff.journal.coordinator import ACCEPTED, APPLIED
from handoff.journal.declarations import FaultInjected
from handoff.journal.port import JournalFailed, MemoryJournal
from handoff.journal.terms import ObserverName
from handoff.journal.vocabulary import ActionName, HandoffId, HandoffOrder, Seq

schedules = pytest.mark.parametrize("schedule", range(SCHEDULES))

PLACES = [
    (InterceptionPoint.ACTION, "submit_prefill"),
    (InterceptionPoint.ACTION, "reserve_destination"),
    (InterceptionPoint.ACTION, "activate_destination"),
    (InterceptionPoint.ACTION, "release_source"),
    (InterceptionPoint.ACTION, "start_transfer"),
    (InterceptionPoint.ACTION, "complete"),
    (InterceptionPoint.OUTCOME, "submit_prefill"),
    (InterceptionPoint.OUTCOME, "reserve_destination"),
    (InterceptionPoint.OUTCOME, "activate_destination"),
    (InterceptionPoint.OUTCOME, "release_source"),
    (InterceptionPoint.FACT, "source_held"),
    (InterceptionPoint.FACT, "destination_reserved"),
    (InterceptionPoint.FACT, "transfer_completed"),
    (InterceptionPoint.FRAME, "registered"),
    (InterceptionPoint.FRAME, "action"),
    (InterceptionPoint.FRAME, "action_ack"),
    (InterceptionPoint.FRAME, "fact"),
    (InterceptionPoint.FRAME, "complete"),
]
DEEDS = [do for do in FaultKind if do is not FaultKind.PASS]
CRASHES = {FaultKind.CRASH_SOURCE: "source", FaultKind.CRASH_DESTINATION: "destination"}


@define
class WrittenFault:
    """Strikes once and leaves the row that a plan's fault leaves."""

    fault: OneFault
    journal: MemoryJournal

    def intercept(self, point: InterceptionPoint, name: str, handoff_id: HandoffId) -> Interference:
        before = len(self.fault.struck)
        struck = self.fault.intercept(point, name, handoff_id)
        if len(self.fault.struck) > before:
            self.journal.annotate(FaultInjected(f"{point}:{name}", struck.do), 0.0, handoff=1)
        return struck


@define
class SeveralFaults:
    """The first that strikes."""

    faults: list[WrittenFault]

    def intercept(self, point: InterceptionPoint, name: str, handoff_id: HandoffId) -> Interference:
        for fault in self.faults:
            struck = fault.intercept(point, name, handoff_id)
            if struck is not PASS:
                return struck
        return PASS


@pytest.mark.parametrize("schedule", range(3))
@pytest.mark.parametrize("do", DEEDS)
@pytest.mark.parametrize(("point", "name"), PLACES, ids=[f"{point}:{name}" for point, name in PLACES])
def test_every_fault_at_every_place_ends_both_sides_and_replays(
    schedule: int, do: FaultKind, point: InterceptionPoint, name: str
) -> None:
    journal = MemoryJournal()
    fault = OneFault(point, name, Interference(do, delay_ms=5.0))

    async def scenario() -> None:
        async with prefill_worker(journal, interceptor=WrittenFault(fault, journal)) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            source, destination = await pair.both_end()
            assert fault.struck
            assert pair.permits.available == 1
            crashed = CRASHES.get(do)
            if crashed != "source":
                assert not pair.source_engine.held
            if crashed != "destination" and not destination.ok:
                assert not pair.destination_engine.held
            if do is FaultKind.DELAY:
                assert source.ok
                assert destination.ok
            number = pair.context.numbers.get(pair.identity.handoff_id)
            assert number is not None
            assert not pair.manager.machine.is_active(number)

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@settings(max_examples=150, deadline=None)
@given(
    st.random_module(),
    st.integers(0, 2**32),
    st.sampled_from(HandoffOrder),
    st.lists(
        st.tuples(
            st.sampled_from(PLACES),
            st.builds(Interference, st.sampled_from(DEEDS), st.sampled_from([0.0, 1.0, 7.5, 9.0, 2500.0])),
        ),
        max_size=3,
    ),
    st.none() | st.sampled_from([0.0, 0.5, 8.0, 1999.0, 2000.0]),
    st.booleans(),
)
def test_any_faults_under_any_schedule_leave_nothing_behind(
    randomness: object,
    schedule: int,
    order: HandoffOrder,
    faults: list[tuple[tuple[InterceptionPoint, str], Interference]],
    cancel_at_ms: float | None,
    slow: bool,
) -> None:
    journal = MemoryJournal()
    crashes = [interference.do for _place, interference in faults if interference.do in CRASHES]
    planned = SeveralFaults([WrittenFault(OneFault(*place, interference), journal) for place, interference in faults])

    async def scenario() -> None:
        async with prefill_worker(journal, interceptor=planned, order=order) as (nursery, pair):
            pair.source_engine.timing = unmodelled_timing(8.0 if slow else None)
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            if cancel_at_ms is not None:
                nursery.start_soon(cancel_later, pair, cancel_at_ms)
            source, destination = await pair.both_end()
            assert pair.permits.available == 1
            if FaultKind.CRASH_SOURCE not in crashes:
                assert not pair.source_engine.held
            if FaultKind.CRASH_DESTINATION not in crashes and not destination.ok:
                assert not pair.destination_engine.held
            if source.ok and not crashes:
                assert pair.observed == EXPECTED_LIFECYCLE[order]

    run_scheduled(schedule, scenario)
    assert_replays(journal)


async def cancel_later(pair: HandoffPair, at_ms: float) -> None:
    await pair.context.clock.sleep_until_ms(at_ms)
    pair.source_cancel.set()


@schedules
def test_a_lost_activation_acknowledgement_lets_the_deadline_cancel_a_healthy_decode(schedule: int) -> None:
    journal = MemoryJournal()
    lost = OneFault(InterceptionPoint.OUTCOME, "activate_destination", Interference(FaultKind.DROP))

    async def scenario() -> None:
        async with prefill_worker(journal, interceptor=lost) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            source, destination = await pair.both_end()
            assert source.error == "handoff session timed out"
            assert not destination.ok
            assert pair.destination_engine.calls[-1] is ActionName.CANCEL_DESTINATION

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert ObserverName.DESTINATION_ACTIVATED not in {row.name for row in rows_of(journal, "observer_event")}
    sent = [row for row in rows_of(journal, "wire_sent") if row.name == "action_ack"]
    received = [row for row in rows_of(journal, "wire_received") if row.name == "action_ack"]
    assert len(sent) == len(received) + 1


@schedules
def test_a_crashed_source_writes_nothing_more_and_its_peer_cleans_up(schedule: int) -> None:
    journal = MemoryJournal()
    crash = OneFault(InterceptionPoint.FACT, "transfer_completed", Interference(FaultKind.CRASH_SOURCE))

    async def scenario() -> None:
        async with prefill_worker(journal, interceptor=crash) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            source, destination = await pair.both_end()
            assert "crashed" in (source.error or "")
            assert not destination.ok
            assert pair.source_engine.held
            assert not pair.destination_engine.held

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    (ended,) = (row for row in rows_of(journal, "session_ended") if row.name == "error" and row.verdict is None)
    (left,) = (row for row in rows_of(journal, "session_ended") if row.verdict is not None)
    assert left.cause is None
    assert ended.actor != left.actor


@schedules
@pytest.mark.parametrize("until", [ObserverName.SOURCE_HELD, ObserverName.DESTINATION_RESERVED])
def test_tearing_the_program_down_cleans_both_sides_behind_a_shield(schedule: int, until: ObserverName) -> None:
    journal = MemoryJournal()
    pairs: list[HandoffPair] = []

    async def scenario() -> None:
        with trio.CancelScope() as program:
            async with prefill_worker(journal) as (nursery, pair):
                pairs.append(pair)
                pair.register_source()
                nursery.start_soon(pair.run_destination)
                while until not in pair.observed:
                    await trio.testing.wait_all_tasks_blocked()
                program.cancel()
                await trio.lowlevel.checkpoint()
        assert program.cancelled_caught

    run_scheduled(schedule, scenario)
    (pair,) = pairs
    assert_replays(journal)
    assert not pair.source_engine.held
    assert not pair.destination_engine.held
    assert pair.permits.available == 1
    assert pair.completion.result is not None
    assert not pair.completion.result.ok
    assert {"torn_down", "cleanup_finished"} <= kinds_of(journal)


@schedules
def test_a_pending_source_is_answered_when_its_manager_is_torn_down(schedule: int) -> None:
    journal = MemoryJournal()
    pairs: list[HandoffPair] = []

    async def scenario() -> None:
        with trio.CancelScope() as program:
            async with prefill_worker(journal) as (_nursery, pair):
                pairs.append(pair)
                pair.register_source()
                if schedule % 2:
                    await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
                program.cancel()
                await trio.lowlevel.checkpoint()

    run_scheduled(schedule, scenario)
    assert pairs[0].completion.result is not None
    assert pairs[0].permits.available == 1
    assert_replays(journal)


class SlowJournal(MemoryJournal):
    """Commits nothing until it is told to, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = trio.Event()
        self.failure: JournalFailed | None = None
        self.waited_for: list[Seq] = []

    async def durable(self, seq: Seq) -> None:
        self.waited_for.append(seq)
        await self.opened.wait()
        if self.failure is not None:
            raise self.failure


def with_slow_journal(schedule: int, scenario: Callable[[SlowJournal], Any]) -> SlowJournal:
    journals: list[SlowJournal] = []

    async def run() -> None:
        journal = SlowJournal()
        journals.append(journal)
        await scenario(journal)

    run_scheduled(schedule, run)
    return journals[0]


@schedules
def test_nothing_is_done_that_others_see_before_its_rows_are_durable(schedule: int) -> None:
    async def scenario(journal: SlowJournal) -> None:
        async with prefill_worker(journal) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            await trio.testing.wait_all_tasks_blocked()
            assert "paired" in kinds_of(journal)
            assert "session_started" not in {row.kind for row in journal.events if row.cause is not None}
            assert pair.source_engine.calls == []
            assert journal.waited_for
            journal.opened.set()
            source, _destination = await pair.both_end()
            assert source.ok

    assert_replays(with_slow_journal(schedule, scenario))


@schedules
def test_effects_that_were_not_begun_are_named_when_the_session_is_torn_down(schedule: int) -> None:
    async def scenario(journal: SlowJournal) -> None:
        with trio.CancelScope() as program:
            async with prefill_worker(journal) as (nursery, pair):
                journal.opened.set()
                pair.destination_engine = SemanticBoundary()
                pair.register_source()
                nursery.start_soon(pair.run_destination)
                reserve = await pair.destination_engine.called(ActionName.RESERVE_DESTINATION)
                journal.opened = trio.Event()
                reserve.answer(ACCEPTED)
                await trio.testing.wait_all_tasks_blocked()
                program.cancel()
                journal.opened.set()
                with trio.CancelScope(shield=True):
                    (await pair.destination_engine.called(ActionName.CANCEL_DESTINATION)).answer(APPLIED)

    journal = with_slow_journal(schedule, scenario)
    assert_replays(journal)
    uncarried = [row.cause for row in rows_of(journal, "not_carried_out")]
    assert [journal.events[cause - 1].kind for cause in uncarried if cause is not None] == ["wire_sent"]


@schedules
def test_a_failed_journal_stops_new_actions_and_cleanup_goes_on_without_rows(schedule: int) -> None:
    async def scenario(journal: SlowJournal) -> None:
        async with prefill_worker(journal) as (nursery, pair):
            journal.opened.set()
            pair.destination_engine = SemanticBoundary()
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            reserve = await pair.destination_engine.called(ActionName.RESERVE_DESTINATION)
            journal.failure = JournalFailed(journal.last_seq, OSError("no space left on device"))
            reserve.answer(ACCEPTED)
            (await pair.destination_engine.called(ActionName.CANCEL_DESTINATION)).answer(APPLIED)
            source, destination = await pair.both_end()
            assert not source.ok
            assert "journal" in (destination.error or "")
            assert not pair.source_engine.held
            assert pair.permits.available == 1

    with_slow_journal(schedule, scenario)


@schedules
def test_a_machine_that_raises_is_journaled_and_ends_its_own_session_alone(
    schedule: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = MemoryJournal()
    ordinary = SourceSession._observe_engine

    def broken(machine: SourceSession, fact: Any) -> Any:
        if machine.handoff_id.endswith("0009"):
            raise ZeroDivisionError("a bug")
        return ordinary(machine, fact)

    monkeypatch.setattr(SourceSession, "_observe_engine", broken)

    async def scenario() -> None:
        async with prefill_worker(journal, max_sessions=2) as (nursery, pair):
            other = HandoffPair(pair.manager, pair.arrivals, pair.permits, identity=identity_of(0x9, 0x8))
            for each in (pair, other):
                each.register_source()
                nursery.start_soon(each.run_destination)
            source, destination = await other.both_end()
            assert "ZeroDivisionError" in (source.error or "")
            assert not destination.ok
            assert not other.source_engine.held
            source, destination = await pair.both_end()
            assert source.ok
            assert destination.ok
            assert pair.permits.available == 2

    run_scheduled(schedule, scenario)
    assert [row.verdict for row in journal.events].count("crashed") == 1
    assert_replays(journal)


@schedules
def test_a_cleanup_after_a_bug_is_bounded_too(schedule: int, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()

    def broken(machine: SessionMachine, value: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SourceSession, "_run", broken)

    async def scenario() -> None:
        silent = frozenset({ActionName.CANCEL_SOURCE})
        async with prefill_worker(journal, source_engine=IdealEngine(silent_on=silent)) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            await pair.both_end()
            assert trio.current_time() == pytest.approx(30.0, abs=1.0)
            assert await pair.destination_engine.execute(ControlCall(ActionName.CANCEL_DESTINATION)) != APPLIED

    run_scheduled(schedule, scenario)
