"""Both sides of a handoff driven together: what reaches whom, who cleans up, and what the log holds of it."""

from typing import Any

import pytest
import trio
import trio.testing
from handoff_fakes import (
    DESTINATION_FIRST,
    SCHEDULES,
    SOURCE_FIRST,
    IdealEngine,
    SemanticBoundary,
    connection_pair,
    identity_of,
    run_scheduled,
    unmodelled_timing,
)
from handoff_pair import LIFECYCLE, HandoffPair, kinds_of, prefill_worker, rows_of, tcp_pair
from recorded_steps import assert_replays

from handoff.engines.boundary import ControlCall, destination_reserved, source_held
from handoff.engines.connection import BootstrapConnection
from handoff.engines.destination_driver import run_destination_session
from handoff.engines.manager import SourceAdmissionFailed
from handoff.engines.session_context import SessionContext
from handoff.engines.signals import HandoffCompletion, HandoffResult
from handoff.engines.source_driver import SourceRegistration
from handoff.engines.wire import Registration, Wire
from handoff.engines.wire_messages import COMPLETE, OVERLOADED, REGISTERED, Message
from handoff.journal.coordinator import ACCEPTED, APPLIED, NOOP, SUBMITTED, failed
from handoff.journal.port import MemoryJournal
from handoff.journal.terms import ObserverName, WireName
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionName, FactName, HandoffOrder, OutcomeName, TimingMode

schedules = pytest.mark.parametrize("schedule", range(SCHEDULES))
orders = pytest.mark.parametrize("order", HandoffOrder)


@schedules
@orders
@pytest.mark.parametrize("mode", TimingMode)
@pytest.mark.parametrize("first", ["source", "destination"])
def test_a_handoff_succeeds_in_either_order_of_arrival(
    schedule: int, order: HandoffOrder, mode: TimingMode, first: str
) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        timing = TransferTiming(mode, 8, 1_000_000, 1.0)
        async with prefill_worker(journal, order=order, source_engine=IdealEngine(timing)) as (nursery, pair):
            if first == "source":
                pair.register_source()
                await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
                nursery.start_soon(pair.run_destination)
            else:
                nursery.start_soon(pair.run_destination)
                await pair.manager.wait_for_pending_destination(pair.identity.handoff_id)
                pair.register_source()
            source, destination = await pair.both_end()
            assert source.ok
            assert destination.ok
            assert pair.observed == LIFECYCLE[order]
            assert pair.permits.available == 1
            assert pair.source_engine.calls == [ActionName.SUBMIT_PREFILL, ActionName.RELEASE_SOURCE]
            assert pair.destination_engine.calls == [ActionName.RESERVE_DESTINATION, ActionName.ACTIVATE_DESTINATION]

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    received = rows_of(journal, "wire_received")
    assert received
    assert all(row.cause is not None for row in received)
    assert len(received) == len(rows_of(journal, "wire_sent")) == len(rows_of(journal, "wire_flushed"))


@schedules
def test_a_handoff_succeeds_over_tcp_and_replays(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        with trio.fail_after(10):
            async with tcp_pair(journal) as (nursery, pair):
                pair.register_source()
                nursery.start_soon(pair.run_destination, pair.connection)
                source, destination = await pair.both_end()
                assert source.ok
                assert destination.ok

    run_scheduled(schedule, scenario, real_time=True)
    assert_replays(journal)
    assert all(row.cause is not None for row in rows_of(journal, "wire_received"))


@schedules
def test_the_request_is_answered_when_its_permit_is_free_and_its_handoff_retired(schedule: int) -> None:
    """An immediate retry with another handoff id is never refused for want of the predecessor's place."""
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            assert (await pair.completion.wait()).ok
            assert pair.permits.available == 1
            number = pair.context.numbers.get(pair.identity.handoff_id)
            assert number is not None
            assert pair.manager.machine.is_retired(number)
            assert not pair.manager.machine.is_active(number)
            await pair.destination_ended.wait()
            retry = HandoffPair(pair.manager, pair.arrivals, pair.permits, identity=identity_of(75_003, 75_002))
            retry.register_source()
            nursery.start_soon(retry.run_destination)
            assert (await retry.completion.wait()).ok
            await retry.destination_ended.wait()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    kinds = [event.kind for event in journal.events]
    assert kinds.index("session_ended") < kinds.index("retired")


@schedules
def test_destination_reservation_ack_precedes_an_early_lifecycle_fact(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        source, connection = connection_pair(identity_of(70_001, 70_000), DESTINATION_FIRST)
        engine, results = SemanticBoundary(), []
        context = SessionContext(journal, session_timeout_ms=2000.0)

        async def session() -> None:
            results.append(await run_destination_session(connection, engine, context))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(session)
            await source.send(REGISTERED)
            await source.send(Message(WireName.ACTION, action_id=0, action=ActionName.RESERVE_DESTINATION))
            reserve = await engine.called(ActionName.RESERVE_DESTINATION)
            await engine.emit(destination_reserved(4)).wait()
            reserve.answer(ACCEPTED)
            names = [(await source.receive()).name, (await source.receive()).name]  # type: ignore[union-attr]
            assert names == [WireName.ACTION_ACK, WireName.FACT]
            await source.send(Message(WireName.ACTION, action_id=3, action=ActionName.ACTIVATE_DESTINATION))
            (await engine.called(ActionName.ACTIVATE_DESTINATION)).answer(APPLIED)
            answer = await source.receive()
            assert answer == Message(WireName.ACTION_ACK, action_id=3, outcome=OutcomeName.APPLIED)
            await source.send(COMPLETE)
        assert results == [HandoffResult()]
        assert engine.uncalled()

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_source_held_waits_for_submit_outcome_before_progressing(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        engine = SemanticBoundary()
        async with prefill_worker(journal, source_engine=engine) as (_nursery, pair):
            pair.register_source()
            destination = pair.connect()
            assert await destination.receive() == REGISTERED
            submit = await engine.called(ActionName.SUBMIT_PREFILL)
            await engine.emit(source_held(unmodelled_timing())).wait()
            submit.answer(SUBMITTED)
            fact = await destination.receive()
            assert fact == Message(WireName.FACT, fact=FactName.SOURCE_HELD, transfer_timing=unmodelled_timing())
            order = await destination.receive()
            assert order == Message(WireName.ACTION, action_id=1, action=ActionName.RESERVE_DESTINATION)
            await destination.send(Message(WireName.ACTION_ACK, action_id=1, outcome=OutcomeName.ACCEPTED))
            reserved = Message(WireName.FACT, fact=FactName.DESTINATION_RESERVED, transferable_prompt_tokens=1)
            await destination.send(reserved)
            activate = await destination.receive()
            assert activate == Message(WireName.ACTION, action_id=3, action=ActionName.ACTIVATE_DESTINATION)
            await destination.send(Message(WireName.ACTION_ACK, action_id=3, outcome=OutcomeName.APPLIED))
            (await engine.called(ActionName.RELEASE_SOURCE)).answer(APPLIED)
            assert await destination.receive() == COMPLETE
            assert (await pair.completion.wait()).ok
            assert pair.permits.available == 1

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_active_source_request_cancellation_runs_exact_cleanup(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (nursery, pair):
            pair.destination_engine.silent_on = frozenset({ActionName.RESERVE_DESTINATION})
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            while not pair.observed:
                await trio.testing.wait_all_tasks_blocked()
            pair.source_cancel.set()
            with trio.fail_after(1):
                source, destination = await pair.both_end()
            assert "source request was canceled" in (source.error or "")
            assert not destination.ok
            assert pair.source_engine.calls == [ActionName.SUBMIT_PREFILL, ActionName.CANCEL_SOURCE]
            assert not pair.source_engine.held
            assert pair.permits.available == 1

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert {"cancel_requested", "stop_children", "cleanup_started", "cleanup_finished"} <= kinds_of(journal)


@schedules
def test_source_lifecycle_channel_closure_runs_exact_cleanup(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (nursery, pair):
            pair.register_source()
            pair.source_engine.emit(None)
            nursery.start_soon(pair.run_destination)
            source, destination = await pair.both_end()
            assert "source lifecycle channel closed" in (source.error or "")
            assert not destination.ok
            assert pair.source_engine.calls[-1] is ActionName.CANCEL_SOURCE
            assert pair.source_engine.calls.count(ActionName.CANCEL_SOURCE) == 1
            assert pair.permits.available == 1

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_bootstrap_rendezvous_rejects_backend_mismatch_before_scheduler_ownership(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            pair.register_source()
            source_end, destination = connection_pair(pair.identity, DESTINATION_FIRST)
            pair.arrivals.send_nowait(source_end)
            answer = await destination.receive()
            assert answer is not None
            assert answer.name is WireName.PROTOCOL_ERROR
            assert "identity or backend mismatch" in (answer.message or "")
            assert "identity or backend mismatch" in ((await pair.completion.wait()).error or "")
            assert pair.source_engine.calls == []
            assert pair.permits.available == 1
            await pair.manager.wait_for_retired(pair.identity.handoff_id)

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    differs = {row.payload["differs"] for row in rows_of(journal, "rejected")}
    assert differs == {"order"}


@schedules
@pytest.mark.parametrize("until", [ActionName.RESERVE_DESTINATION, ActionName.ACTIVATE_DESTINATION])
@pytest.mark.parametrize("answered", [True, False], ids=["acknowledged", "lost ack"])
@orders
def test_destination_cleans_up_whatever_it_may_own_when_the_source_disappears(
    schedule: int, until: ActionName, answered: bool, order: HandoffOrder
) -> None:
    """Reserved, activated, or asked for either without the source ever hearing the answer."""
    journal = MemoryJournal()

    async def scenario() -> None:
        registration = SOURCE_FIRST if order is HandoffOrder.SOURCE_FIRST else DESTINATION_FIRST
        source, connection = connection_pair(identity_of(70_001, 70_000), registration)
        engine, results = IdealEngine(), []
        context = SessionContext(journal, session_timeout_ms=2000.0)

        async def session() -> None:
            results.append(await run_destination_session(connection, engine, context))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(session)
            await source.send(REGISTERED)
            for number, action in enumerate((ActionName.RESERVE_DESTINATION, ActionName.ACTIVATE_DESTINATION)):
                await source.send(Message(WireName.ACTION, action_id=number, action=action))
                if action is until and not answered:
                    break
                answer = await source.receive()
                assert answer is not None
                assert answer.action_id == number
                if action is until:
                    break
                await source.receive()
            await source.aclose()
        assert not results[0].ok
        assert not engine.held
        assert await engine.execute(ControlCall(ActionName.CANCEL_DESTINATION)) != APPLIED

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert {"peer_closed", "cleanup_finished"} <= kinds_of(journal)


@schedules
def test_bootstrap_session_deadline_counts_transfer_delay_once(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        timing = unmodelled_timing(120.0)
        engine = IdealEngine(timing, silent_on=frozenset({ActionName.RELEASE_SOURCE}))
        async with prefill_worker(journal, session_timeout_ms=40.0, source_engine=engine) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            started = trio.current_time()
            source, _destination = await pair.both_end()
            assert source.error == "handoff session timed out"
            assert trio.current_time() - started == pytest.approx(0.160)

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    moved = [row.payload["expires_ms"] for row in rows_of(journal, "deadline_moved")]
    assert moved == [160.0, 160.0]


@schedules
def test_cleanup_ack_can_wait_beyond_the_rendezvous_timeout(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        engine = SemanticBoundary()
        async with prefill_worker(journal, session_timeout_ms=40_000.0, source_engine=engine) as (_nursery, pair):
            pair.register_source()
            destination = pair.connect()
            await engine.called(ActionName.SUBMIT_PREFILL)
            pair.source_cancel.set()
            cleanup = await engine.called(ActionName.CANCEL_SOURCE)
            await trio.sleep(31)
            assert pair.completion.result is None
            cleanup.answer(APPLIED)
            assert not (await pair.completion.wait()).ok
            assert await destination.receive() == REGISTERED
            abort = await destination.receive()
            assert abort == Message(WireName.ABORT, message="source request was canceled")

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert [row.outcome for row in rows_of(journal, "cleanup_finished")] == ["applied"]


@schedules
def test_a_cleanup_that_is_never_answered_ends_at_its_limit_and_says_so(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        silent = frozenset({ActionName.SUBMIT_PREFILL, ActionName.CANCEL_SOURCE})
        async with prefill_worker(journal, source_engine=IdealEngine(silent_on=silent)) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            started = trio.current_time()
            source, _destination = await pair.both_end()
            assert source.error == "handoff session timed out"
            assert trio.current_time() - started == pytest.approx(32.0)
            assert pair.permits.available == 1

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert len(rows_of(journal, "cleanup_timed_out")) == 1


@schedules
def test_a_failed_cleanup_is_told(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        engine = IdealEngine(answers={ActionName.CANCEL_SOURCE: [failed("scheduler stuck")]})
        async with prefill_worker(journal, source_engine=engine) as (nursery, pair):
            pair.source_engine.emit(None)
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            await pair.both_end()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    finished = [row for row in rows_of(journal, "cleanup_finished") if row.name == "cancel_source"]
    assert [(row.outcome, row.payload["message"]) for row in finished] == [("failed", "scheduler stuck")]


@schedules
def test_pending_source_cancellation_releases_session_capacity_before_rendezvous_timeout(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            pair.register_source()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
            pair.source_cancel.set()
            result = await pair.completion.wait()
            assert "canceled before rendezvous" in (result.error or "")
            assert pair.permits.available == 1
            assert pair.source_engine.calls == []

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_rendezvous_timeout_retires_the_session_id(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        limits = {"rendezvous_timeout_ms": 1000.0, "session_timeout_ms": 10_000.0}
        async with prefill_worker(journal, **limits) as (_nursery, pair):  # type: ignore[arg-type]
            pair.register_source()
            result = await pair.completion.wait()
            assert trio.current_time() == pytest.approx(1.0)
            assert "rendezvous timed out" in (result.error or "")
            assert pair.permits.available == 1
            pair.completion = HandoffCompletion()
            pair.register_source()
            assert "retired" in ((await pair.completion.wait()).error or "")
            await trio.sleep(12.6)
            pair.completion = HandoffCompletion()
            pair.register_source()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_pending_destination_disconnect_is_retired_without_rendezvous_timeout(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            destination = pair.connect()
            await pair.manager.wait_for_pending_destination(pair.identity.handoff_id)
            await destination.aclose()
            await pair.manager.wait_for_retired(pair.identity.handoff_id)
            assert trio.current_time() == 0.0
            pair.register_source()
            assert "retired" in ((await pair.completion.wait()).error or "")
            assert pair.permits.available == 1

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_active_shutdown_joins_sessions_after_exact_cleanup(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (nursery, pair):
            pair.source_engine.timing = unmodelled_timing(500.0)
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            while ObserverName.DESTINATION_RESERVED not in pair.observed:
                await trio.testing.wait_all_tasks_blocked()
            assert pair.source_engine.held
            assert pair.destination_engine.held
            pair.context.shutdown.set()
            await pair.manager.wait_closed()
            source, destination = await pair.both_end()
            assert not source.ok
            assert not destination.ok
            assert not pair.source_engine.held
            assert not pair.destination_engine.held
            assert pair.permits.available == 1

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    kinds = [event.kind for event in journal.events]
    assert kinds.index("shutdown_requested") < kinds.index("cleanup_started")
    assert "timer_canceled" in kinds


@schedules
def test_expired_source_session_deadline_still_cleans_held_ownership(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal, session_timeout_ms=100.0) as (_nursery, pair):
            pair.register_source()
            destination = pair.connect()
            with trio.fail_after(2):
                result = await pair.completion.wait()
            assert result.error == "handoff session timed out"
            assert not pair.source_engine.held
            assert await pair.source_engine.execute(ControlCall(ActionName.CANCEL_SOURCE)) != APPLIED
            await destination.aclose()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert "deadline_fired" in kinds_of(journal)


@schedules
def test_expired_destination_session_deadline_still_cleans_reserved_ownership(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        source, connection = connection_pair(identity_of(70_001, 70_000), DESTINATION_FIRST)
        engine = IdealEngine()
        context = SessionContext(journal, session_timeout_ms=100.0)
        await source.send(REGISTERED)
        await source.send(Message(WireName.ACTION, action_id=0, action=ActionName.RESERVE_DESTINATION))
        with trio.fail_after(2):
            result = await run_destination_session(connection, engine, context)
        assert not result.ok
        assert engine.calls == [ActionName.RESERVE_DESTINATION, ActionName.CANCEL_DESTINATION]
        assert not engine.held

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_a_destination_that_nobody_answers_gives_up_after_its_registration_limit(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        _source, connection = connection_pair(identity_of(70_001, 70_000), SOURCE_FIRST)
        engine = IdealEngine()
        result = await run_destination_session(connection, engine, SessionContext(journal))
        assert trio.current_time() == pytest.approx(30.0)
        assert "ended before completion" in (result.error or "")
        assert engine.calls == [ActionName.CANCEL_DESTINATION]

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_a_failed_activation_lets_the_coordinator_cancel_both_sides(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        engine = IdealEngine(answers={ActionName.ACTIVATE_DESTINATION: [failed("the reservation is gone")]})
        async with prefill_worker(journal, destination_engine=engine) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            source, destination = await pair.both_end()
            assert source.error == "handoff canceled"
            assert "handoff canceled" in (destination.error or "")
            assert pair.source_engine.calls == [ActionName.SUBMIT_PREFILL, ActionName.CANCEL_SOURCE]
            assert engine.calls.count(ActionName.CANCEL_DESTINATION) == 2
            assert not pair.source_engine.held
            assert not engine.held

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    ended = {row.payload.get("message") for row in rows_of(journal, "session_ended", "completion_delivered")}
    assert "handoff canceled" in ended


@schedules
def test_a_failed_submission_after_an_early_hold_is_an_error_with_one_cancel(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        engine = SemanticBoundary()
        async with prefill_worker(journal, source_engine=engine) as (_nursery, pair):
            pair.register_source()
            destination = pair.connect()
            submit = await engine.called(ActionName.SUBMIT_PREFILL)
            await engine.emit(source_held(unmodelled_timing())).wait()
            submit.answer(RuntimeError("the scheduler refused"))
            (await engine.called(ActionName.CANCEL_SOURCE)).answer(APPLIED)
            result = await pair.completion.wait()
            assert "was not submitted" in (result.error or "")
            await destination.aclose()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert "the scheduler refused" in [row.payload.get("message") for row in rows_of(journal, "control_replied")]


@schedules
def test_a_release_that_found_nothing_is_journaled_raw(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (nursery, pair):
            pair.register_source()
            nursery.start_soon(pair.run_destination)
            while ObserverName.DESTINATION_RESERVED not in pair.observed:
                await trio.testing.wait_all_tasks_blocked()
            pair.source_engine.held = False
            source, _destination = await pair.both_end()
            assert source.ok

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    (released,) = (row for row in rows_of(journal, "control_replied") if row.name == "release_source")
    assert (released.outcome, released.payload) == (NOOP.name, {"mapped": "applied"})


@schedules
def test_arrivals_beyond_the_limit_are_turned_away_and_not_retired(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            pair.register_source()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
            other = HandoffPair(pair.manager, pair.arrivals, pair.permits, identity=identity_of(75_005, 75_006))
            assert await other.connect().receive() == OVERLOADED
            pair.permits.available += 1
            other.register_source()
            assert "limit reached" in ((await other.completion.wait()).error or "")
            duplicate = HandoffPair(pair.manager, pair.arrivals, pair.permits)
            duplicate.register_source()
            assert "duplicate source participant" in ((await duplicate.completion.wait()).error or "")
            assert pair.completion.result is None

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    reasons = [row.payload["reason"] for row in rows_of(journal, "rejected")]
    assert reasons == ["limit_reached", "limit_reached", "duplicate", "shutting_down"]


@schedules
def test_registrations_beyond_the_queue_fail_at_once_and_the_queued_are_answered_at_shutdown(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            pairs = [
                HandoffPair(pair.manager, pair.arrivals, pair.permits, identity=identity_of(76_000 + n, 76_100 + n))
                for n in range(3)
            ]
            pair.permits.available = 4
            await trio.testing.wait_all_tasks_blocked()
            pairs[0].register_source()  # goes to the one who waits for it
            pairs[1].register_source()  # waits
            with pytest.raises(SourceAdmissionFailed, match="source admission failed"):
                pairs[2].register_source()
            pair.context.shutdown.set()
            assert "shutting down" in ((await pairs[0].completion.wait()).error or "")
            result = await pairs[1].completion.wait()
            assert "limit reached" in (result.error or "") or "shutting down" in (result.error or "")
            await pair.manager.wait_closed()
            with pytest.raises(SourceAdmissionFailed, match="shutting down"):
                pairs[2].register_source()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert {"queue_full", "rejected"} <= kinds_of(journal)


@schedules
def test_an_observer_that_raises_harms_nothing(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (nursery, pair):

            def broken(name: ObserverName) -> None:
                raise RuntimeError(name)

            pair.manager.try_register(
                SourceRegistration(
                    pair.identity,
                    pair.order,
                    pair.registration.engine_type,
                    pair.source_engine,
                    pair.completion,
                    pair.source_cancel,
                    observer=broken,
                )
            )
            nursery.start_soon(pair.run_destination)
            source, destination = await pair.both_end()
            assert source.ok
            assert destination.ok

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_an_idle_manager_writes_nothing_and_wakes_for_nothing(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal, rendezvous_timeout_ms=3_600_000.0) as (_nursery, pair):
            pair.register_source()
            pair.connect()
            await pair.manager.wait_for_active(pair.identity.handoff_id)
            pair.source_cancel.set()
            await pair.completion.wait()
            await trio.testing.wait_all_tasks_blocked()
            rows = len(journal.events)
            await trio.sleep(1.5)
            assert len(journal.events) == rows

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
@orders
def test_two_processes_keep_two_journals_that_replay_each_alone(schedule: int, order: HandoffOrder) -> None:
    """Frames from another process have no row to be caused by, and are stored whole."""
    journals = MemoryJournal(), MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journals[0], order=order) as (nursery, pair):
            pair.register_source()
            elsewhere = SessionContext(journals[1], session_timeout_ms=2000.0)
            results: list[HandoffResult] = []

            async def other_process(connection: BootstrapConnection) -> None:
                results.append(await run_destination_session(connection, pair.destination_engine, elsewhere))

            nursery.start_soon(other_process, pair.connect())
            assert (await pair.completion.wait()).ok
            await trio.testing.wait_all_tasks_blocked()
            assert results == [HandoffResult()]

    run_scheduled(schedule, scenario)
    for journal in journals:
        assert_replays(journal)
        received = rows_of(journal, "wire_received")
        assert received
        assert all(row.cause is None for row in received)


@schedules
def test_a_peer_that_breaks_the_format_ends_the_session_and_nothing_else(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            pair.register_source()
            destination = pair.connect()
            assert await destination.receive() == REGISTERED
            await destination.send_bytes(b"\xff\xff\xff\xff")
            result = await pair.completion.wait()
            assert "outside" in (result.error or "")
            assert not pair.source_engine.held
            await destination.aclose()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert "transport_error" in kinds_of(journal)


@schedules
def test_a_peer_that_never_reads_holds_a_session_no_longer_than_its_limits(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            own, peer = trio.testing.lockstep_stream_pair()
            wire = Wire.server()
            wire.receive_data(Wire.client(pair.identity).register(pair.registration))
            assert isinstance(wire.next_event(), Registration)
            pair.register_source()
            pair.arrivals.send_nowait(BootstrapConnection(own, wire, pair.registration, object(), object()))
            result = await pair.completion.wait()
            assert result.error == "handoff session timed out"
            assert trio.current_time() <= 32.0
            assert not pair.source_engine.held
            assert pair.permits.available == 1
            await peer.aclose()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert "wire_failed" in kinds_of(journal)


def every_minimum_kind() -> set[str]:
    """What a log of live handoffs must be able to show, as far as sessions and rendezvous write it."""
    return {
        "pending", "paired", "rejected", "retired", "session_started", "deadline_set", "deadline_moved",
        "deadline_fired", "action_issued", "control_called", "control_replied", "wire_sent", "wire_flushed",
        "wire_received", "fact_observed", "fact_kept", "fact_applied", "fact_ignored", "outcome_applied",
        "cancel_requested", "shutdown_requested", "peer_closed", "transport_error", "cleanup_started",
        "cleanup_finished", "cleanup_timed_out", "completion_delivered", "observer_event", "session_ended",
    }  # fmt: skip


def test_every_minimum_kind_of_row_has_a_class() -> None:
    from handoff.journal.row_codec import row_classes  # noqa: PLC0415 - registration is by import

    registered: set[str] = set()
    for spec in row_classes():
        kinds: Any = spec.kinds
        registered.update([kinds.value] if isinstance(kinds, str) else {kind.value for kind in kinds.values()})
    assert every_minimum_kind() <= registered
