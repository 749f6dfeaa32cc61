"""The live handoff's own acceptance tests, as far as they need no engine (behaviour of the seed's driver tests)."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from handoff_fakes import (
    DESTINATION_FIRST,
    SCHEDULES,
    SOURCE_FIRST,
    Permits,
    SemanticBoundary,
    connection_pair,
    handoff_uuid,
    identity_of,
    nothing_received,
    run_scheduled,
    unmodelled_timing,
)
from recorded_steps import assert_replays

from handoff.engines.boundary import destination_reserved, source_held
from handoff.engines.connection import BootstrapConnection
from handoff.engines.destination_driver import run_destination_session
from handoff.engines.manager import SourceHandoffManager
from handoff.engines.session_context import SessionContext
from handoff.engines.signals import HandoffCompletion, HandoffResult, Signal
from handoff.engines.source_driver import SourceRegistration, run_source_session
from handoff.engines.wire_messages import COMPLETE, REGISTERED, Message
from handoff.journal.coordinator import ACCEPTED, APPLIED, SUBMITTED, Coordinator
from handoff.journal.port import MemoryJournal
from handoff.journal.terms import WireName
from handoff.journal.transfer_timing import TransferTiming, transfer_timeout_delay
from handoff.journal.vocabulary import (
    ActionName,
    FactName,
    HandoffOrder,
    OutcomeName,
    TimingMode,
)

schedules = pytest.mark.parametrize("schedule", range(SCHEDULES))


def test_timeout_delay_resolves_at_the_mode_specific_boundary() -> None:
    full = TransferTiming(TimingMode.FULL_PROMPT, 8, 1_000_000, 1.0)
    assert transfer_timeout_delay(full, None) == (True, 8.0)
    missing = TransferTiming(TimingMode.DESTINATION_MISSING, 8, 1_000_000, 1.0)
    assert transfer_timeout_delay(missing, None) == (False, None)
    assert transfer_timeout_delay(missing, 4) == (True, 4.0)


async def ends(results: list[HandoffResult], run: Callable[..., Any], *arguments: Any) -> None:
    results.append(await run(*arguments))


class Destination:
    """A destination session that runs while the test plays the source."""

    def __init__(self, nursery: trio.Nursery, handoff: int, request: int, journal: MemoryJournal) -> None:
        self.source, connection = connection_pair(identity_of(handoff, request), DESTINATION_FIRST)
        self.engine = SemanticBoundary()
        self.cancel = Signal()
        self.results: list[HandoffResult] = []
        self.ended = trio.Event()
        context = SessionContext(journal, session_timeout_ms=2000.0)
        nursery.start_soon(self._run, connection, context)

    async def _run(self, connection: BootstrapConnection, context: SessionContext) -> None:
        self.results.append(await run_destination_session(connection, self.engine, context, cancel=self.cancel))
        self.ended.set()

    async def reserve(self, handoff: int) -> Message:
        """Order a reservation as a fresh coordinator of that handoff would."""
        await self.source.send(REGISTERED)
        (action,) = Coordinator(handoff_uuid(handoff), HandoffOrder.DESTINATION_FIRST).start()
        named = None if action.handoff_id == self.source.identity.handoff_id else action.handoff_id
        order = Message(WireName.ACTION, action_id=action.id, action=action.name, handoff_id=named)
        await self.source.send(order)
        return order


@schedules
def test_destination_ack_precedes_an_early_reservation_fact(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            destination = Destination(nursery, 70_001, 70_000, journal)
            order = await destination.reserve(70_001)
            invocation = await destination.engine.called(ActionName.RESERVE_DESTINATION)
            await destination.engine.emit(destination_reserved(4)).wait()
            assert await nothing_received(destination.source)
            invocation.answer(ACCEPTED)
            assert await destination.source.receive() == Message(
                WireName.ACTION_ACK, action_id=order.action_id, outcome=OutcomeName.ACCEPTED
            )
            assert await destination.source.receive() == Message(
                WireName.FACT, fact=FactName.DESTINATION_RESERVED, transferable_prompt_tokens=4
            )
            destination.cancel.set()
            (await destination.engine.called(ActionName.CANCEL_DESTINATION)).answer(APPLIED)
            await destination.ended.wait()
            assert destination.results[0].error is not None

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_destination_rejects_an_action_for_another_handoff(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            destination = Destination(nursery, 70_101, 70_100, journal)
            order = await destination.reserve(70_102)
            answer = await destination.source.receive()
            assert answer is not None
            assert (answer.name, answer.action_id) == (WireName.ACTION_ACK, order.action_id)
            assert answer.outcome is OutcomeName.FAILED
            assert answer.message is not None
            assert "does not match bootstrap handoff" in answer.message
            assert destination.engine.uncalled()
            assert not destination.ended.is_set()
            destination.cancel.set()
            (await destination.engine.called(ActionName.CANCEL_DESTINATION)).answer(APPLIED)
            await destination.ended.wait()
            assert not destination.results[0].ok

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_premature_complete_waits_for_destination_cleanup(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            destination = Destination(nursery, 71_001, 71_000, journal)
            await destination.reserve(71_001)
            (await destination.engine.called(ActionName.RESERVE_DESTINATION)).answer(ACCEPTED)
            destination.engine.emit(destination_reserved(4))
            assert (await destination.source.receive()) is not None
            assert (await destination.source.receive()) is not None
            await destination.source.send(COMPLETE)
            cleanup = await destination.engine.called(ActionName.CANCEL_DESTINATION)
            with trio.move_on_after(0.02) as waited:
                await destination.ended.wait()
            assert waited.cancelled_caught
            cleanup.answer(APPLIED)
            await destination.ended.wait()
            assert not destination.results[0].ok

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_source_held_waits_for_submit_outcome_before_progressing(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        identity = identity_of(72_001, 72_000)
        connection, destination = connection_pair(identity, SOURCE_FIRST)
        engine, cancel, permits = SemanticBoundary(), Signal(), Permits()
        completion = HandoffCompletion()
        registration = SourceRegistration(
            identity,
            SOURCE_FIRST.order,
            SOURCE_FIRST.engine_type,
            engine,
            completion,
            cancel,
            permit=permits.take(),
        )
        context = SessionContext(journal, session_timeout_ms=2000.0)
        results: list[HandoffResult] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends, results, run_source_session, registration, connection, context)
            assert await destination.receive() == REGISTERED
            submit = await engine.called(ActionName.SUBMIT_PREFILL)
            await engine.emit(source_held(unmodelled_timing())).wait()
            assert await nothing_received(destination)
            submit.answer(SUBMITTED)
            assert await destination.receive() == Message(
                WireName.FACT, fact=FactName.SOURCE_HELD, transfer_timing=unmodelled_timing()
            )
            cancel.set()
            (await engine.called(ActionName.CANCEL_SOURCE)).answer(APPLIED)
            assert not (await completion.wait()).ok
        assert not results[0].ok
        assert permits.available == 1

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_pending_source_cancellation_releases_session_permit(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        _incoming, incoming = trio.open_memory_channel[BootstrapConnection](1)
        context = SessionContext(journal, session_timeout_ms=1000.0, rendezvous_timeout_ms=30_000.0)
        manager = SourceHandoffManager(incoming, 1, context)
        identity = identity_of(73_001, 73_002, room=18)
        cancel, permits, completion = Signal(), Permits(), HandoffCompletion()
        async with trio.open_nursery() as nursery:
            await nursery.start(manager.run)
            manager.try_register(
                SourceRegistration(
                    identity,
                    SOURCE_FIRST.order,
                    SOURCE_FIRST.engine_type,
                    SemanticBoundary(),
                    completion,
                    cancel,
                    permit=permits.take(),
                )
            )
            await manager.wait_for_pending_source(identity.handoff_id)
            cancel.set()
            with trio.fail_after(0.1):
                assert not (await completion.wait()).ok
            await manager.wait_for_retired(identity.handoff_id)
            assert permits.available == 1
            context.shutdown.set()
            await manager.wait_closed()

    run_scheduled(schedule, scenario)
    assert_replays(journal)
