"""The driver of the rendezvous where the world is in its way: slow goodbyes, a journal that fails, tear-down."""

from typing import Any

import pytest
import trio
import trio.testing
from handoff_fakes import SCHEDULES, SOURCE_FIRST, SemanticBoundary, connection_pair, identity_of, run_scheduled
from handoff_pair import HandoffPair, kinds_of, prefill_worker, rows_of
from recorded_steps import assert_replays

from handoff.engines.connection import BootstrapConnection
from handoff.engines.identity import HandoffIdentity
from handoff.engines.manager import _Waiting
from handoff.engines.wire import Registration, Wire
from handoff.engines.wire_messages import OVERLOADED
from handoff.journal.port import JournalFailed, MemoryJournal
from handoff.journal.terms import WireName
from handoff.journal.vocabulary import Seq

schedules = pytest.mark.parametrize("schedule", range(SCHEDULES))


def deaf_connection(identity: HandoffIdentity) -> tuple[BootstrapConnection, trio.abc.Stream]:
    """The source's end of a connection whose peer takes nothing until it is asked to."""
    own, peer = trio.testing.lockstep_stream_pair()
    wire = Wire.server()
    wire.receive_data(Wire.client(identity).register(SOURCE_FIRST))
    assert isinstance(wire.next_event(), Registration)
    return BootstrapConnection(own, wire, SOURCE_FIRST, object(), object()), peer


@schedules
def test_goodbyes_that_nobody_takes_are_bounded_in_number_and_time(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal, rendezvous_timeout_ms=3_600_000.0) as (_nursery, pair):
            pair.register_source()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
            peers = []
            for number in (1, 2):
                connection, peer = deaf_connection(identity_of(82_000 + number, 82_100 + number))
                peers.append(peer)
                pair.arrivals.send_nowait(connection)
                await trio.testing.wait_all_tasks_blocked()
            assert await peers[1].receive_some(1) == b""  # closed at once, without a word
            await trio.sleep(31)
            assert "rejection_sent" in kinds_of(journal)

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    assert len(rows_of(journal, "rejection_dropped")) == 1
    (sent,) = rows_of(journal, "rejection_sent")
    assert "30 s" in sent.payload["message"]


@schedules
def test_a_late_destination_is_told_why(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            first = pair.connect()
            await pair.manager.wait_for_pending_destination(pair.identity.handoff_id)
            answer = await pair.connect().receive()
            assert answer is not None
            assert answer.name is WireName.PROTOCOL_ERROR
            assert answer.message == "duplicate destination participant"
            await first.aclose()
            await pair.manager.wait_for_retired(pair.identity.handoff_id)
            answer = await pair.connect().receive()
            assert answer is not None
            assert "already active or retired" in (answer.message or "")

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_a_pending_pair_of_strangers_is_told_at_shutdown(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal, max_sessions=2) as (_nursery, pair):
            pair.register_source()
            stranger = HandoffPair(pair.manager, pair.arrivals, pair.permits, identity=identity_of(83_001, 83_000))
            connection = stranger.connect()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
            await pair.manager.wait_for_pending_destination(stranger.identity.handoff_id)
            pair.context.shutdown.set()
            assert "shutting down" in ((await pair.completion.wait()).error or "")
            answer = await connection.receive()
            assert answer is not None
            assert "shutting down" in (answer.message or "")
            assert await connection.receive() is None

    run_scheduled(schedule, scenario)
    assert_replays(journal)


@schedules
def test_a_destination_that_the_server_turned_away_leaves_its_waiting_source_alone(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            pair.register_source()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
            connection, _destination = connection_pair(pair.identity, SOURCE_FIRST)
            pair.manager.note_overloaded(connection)
            await trio.testing.wait_all_tasks_blocked()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
            pair.context.shutdown.set()
            assert "shutting down" in ((await pair.completion.wait()).error or "")

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    (full,) = rows_of(journal, "queue_full")
    assert full.payload["side"] == "destination"


@schedules
def test_a_destination_that_the_server_turned_away_leaves_a_row(schedule: int) -> None:
    journal = MemoryJournal()

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            connection, _destination = connection_pair(identity_of(84_001, 84_000), SOURCE_FIRST)
            pair.manager.note_overloaded(connection)
            await connection.send(OVERLOADED)

    run_scheduled(schedule, scenario)
    assert_replays(journal)
    (full,) = rows_of(journal, "queue_full")
    assert full.payload["side"] == "destination"


class StoppedJournal(MemoryJournal):
    """Has room and commits until it is stopped; then it waits, and fails if told so."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = False
        self.failure: JournalFailed | None = None

    async def durable(self, seq: Seq) -> None:
        await self.room()

    async def room(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.stopped:
            await trio.sleep_forever()


def with_stopped_journal(schedule: int, scenario: Any) -> StoppedJournal:
    journal = StoppedJournal()
    run_scheduled(schedule, scenario, journal)
    return journal


@schedules
@pytest.mark.parametrize("both", [True, False], ids=["paired", "rejected"])
def test_what_waits_for_the_journal_is_settled_when_the_manager_is_torn_down(schedule: int, both: bool) -> None:
    pairs: list[HandoffPair] = []

    async def scenario(journal: StoppedJournal) -> None:
        with trio.CancelScope() as program:
            async with prefill_worker(journal, max_sessions=2) as (nursery, pair):
                pairs.append(pair)
                pair.register_source()
                await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
                stopper = HandoffPair(pair.manager, pair.arrivals, pair.permits, identity=identity_of(85_001, 85_000))
                pair.arrivals.send_nowait(connection_pair(stopper.identity, SOURCE_FIRST)[0])
                await pair.manager.wait_for_pending_destination(stopper.identity.handoff_id)
                if both:
                    nursery.start_soon(pair.run_destination)
                else:
                    pair.source_cancel.set()
                journal.stopped = True
                await trio.testing.wait_all_tasks_blocked()
                program.cancel()
                await trio.lowlevel.checkpoint()

    journal = with_stopped_journal(schedule, scenario)
    (pair,) = pairs
    assert pair.completion.result is not None
    assert not pair.completion.result.ok
    assert pair.permits.available == 2
    assert not pair.source_engine.held
    assert_replays(journal)


@schedules
def test_a_journal_that_fails_lets_nobody_in_any_more(schedule: int) -> None:
    async def scenario(journal: StoppedJournal) -> None:
        async with prefill_worker(journal, source_engine=SemanticBoundary()) as (_nursery, pair):
            await trio.testing.wait_all_tasks_blocked()
            pair.register_source()
            await pair.manager.wait_for_pending_source(pair.identity.handoff_id)
            journal.failure = JournalFailed(journal.last_seq, OSError("no space left on device"))
            pair.source_cancel.set()
            result = await pair.completion.wait()
            assert "canceled before rendezvous" in (result.error or "")
            await pair.manager.wait_closed()
            assert pair.context.shutdown.is_set

    with_stopped_journal(schedule, scenario)


@schedules
def test_a_tear_down_that_overtakes_the_watchers_release_leaves_no_session_waiting(schedule: int) -> None:
    """A pair is found, and all is torn down before the watcher of its connection has run: both cancel it at once."""
    journal = MemoryJournal()
    connection, _peer = deaf_connection(identity_of(83_001, 83_101))

    async def scenario() -> None:
        async with prefill_worker(journal) as (_nursery, pair):
            waiting = _Waiting(destination=connection, watch=trio.CancelScope())
            assert waiting.watch is not None
            async with trio.open_nursery() as torn_down:
                torn_down.start_soon(pair.manager._watch, waiting, waiting.watch, 1)
                await trio.testing.wait_all_tasks_blocked()
                waiting.stop_watching()
                torn_down.cancel_scope.cancel()
            assert waiting.unwatched.is_set()

    run_scheduled(schedule, scenario)


@schedules
def test_a_manager_that_is_torn_down_takes_no_connection_that_nobody_would_close(schedule: int) -> None:
    journal = MemoryJournal()
    connection, _peer = deaf_connection(identity_of(84_001, 84_101))

    async def scenario() -> None:
        async with prefill_worker(journal) as (nursery, pair):
            nursery.cancel_scope.cancel()
        await pair.manager.wait_closed()
        with pytest.raises(trio.BrokenResourceError):
            pair.arrivals.send_nowait(connection)

    run_scheduled(schedule, scenario)
