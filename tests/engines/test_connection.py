"""A connection on any stream: bounded sends, whole frames, and one kind of error for whatever breaks."""

import pytest
import trio
import trio.testing
from handoff_fakes import SOURCE_FIRST, connection_pair, identity_of, run_scheduled

from handoff.engines.connection import BootstrapConnection, TransportLost, TransportTimeout
from handoff.engines.wire import MAX_FRAME, PeerBrokeFormat, Wire
from handoff.engines.wire_messages import COMPLETE, REGISTERED, Message
from handoff.journal.terms import WireName

IDENTITY = identity_of(81_001, 81_000)
LONG = Message(WireName.ABORT, message="x" * 60_000)


def lockstep_connection() -> tuple[BootstrapConnection, trio.abc.Stream]:
    """A connection whose peer must take every byte before a send returns, and the peer's bare end."""
    own, peer = trio.testing.lockstep_stream_pair()
    return BootstrapConnection(own, Wire.client(IDENTITY), SOURCE_FIRST, object(), object()), peer


def test_a_peer_that_never_reads_costs_a_send_thirty_seconds_and_all_later_ones_nothing() -> None:
    async def scenario() -> None:
        connection, _peer = lockstep_connection()
        with pytest.raises(TransportTimeout, match="30 s"):
            await connection.send(COMPLETE)
        assert trio.current_time() == 30.0
        with pytest.raises(TransportLost, match="in part"):
            await connection.send(COMPLETE)
        assert trio.current_time() == 30.0

    run_scheduled(0, scenario)


def test_a_send_that_was_canceled_half_way_lets_nothing_follow() -> None:
    async def scenario() -> None:
        connection, _peer = lockstep_connection()
        with trio.move_on_after(1):
            await connection.send(LONG)
        with pytest.raises(TransportLost, match="in part"):
            await connection.send(COMPLETE)

    run_scheduled(0, scenario)


def test_a_closed_stream_is_lost_for_sending_and_receiving() -> None:
    async def scenario() -> None:
        source, destination = connection_pair(IDENTITY, SOURCE_FIRST)
        await source.cut()
        with pytest.raises(TransportLost, match="sending failed"):
            await source.send(REGISTERED)
        with pytest.raises(TransportLost, match="receiving failed"):
            await source.receive()
        with pytest.raises(TransportLost, match="sending failed"):
            await destination.send(COMPLETE)
        assert await destination.receive() is None

    run_scheduled(0, scenario)


def test_a_peer_that_talks_before_it_was_answered_is_bounded() -> None:
    async def scenario() -> None:
        source, destination = connection_pair(IDENTITY, SOURCE_FIRST)
        await destination.send(LONG)
        await destination.send(LONG)
        with pytest.raises(PeerBrokeFormat, match="before its registration was answered"):
            await source.wait_peer_closed()
        assert source._wire.buffered > MAX_FRAME

    run_scheduled(0, scenario)


def test_what_a_peer_said_while_it_waited_is_not_lost() -> None:
    async def scenario() -> None:
        source, destination = connection_pair(IDENTITY, SOURCE_FIRST)
        with trio.move_on_after(1) as watched:
            await destination.send(LONG)
            await source.wait_peer_closed()
        assert watched.cancelled_caught
        assert await source.receive() == LONG

    run_scheduled(0, scenario)
