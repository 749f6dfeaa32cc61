"""Destinations register over real sockets, and nothing a peer does reaches further than its own connection."""

import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from handoff_fakes import DESTINATION_FIRST, SOURCE_FIRST, identity_of

from handoff.engines.bootstrap import (
    BootstrapServer,
    BootstrapServerConfig,
    IncomingTaken,
    bootstrap_address,
    connect_to_prefill,
)
from handoff.engines.connection import BootstrapConnection, TransportLost
from handoff.engines.signals import Signal
from handoff.engines.wire import PREAMBLE, PeerChangedIdentity, UnsendableMessage, Wire
from handoff.engines.wire_messages import OVERLOADED, REGISTERED, Message
from handoff.journal.terms import WireName

Incoming = trio.MemoryReceiveChannel[BootstrapConnection]
LOOPBACK = "127.0.0.1"
IDENTITY = identity_of(80_001, 80_000)


def serving(
    scenario: Callable[[BootstrapServer, Incoming], Awaitable[None]], config: BootstrapServerConfig | None = None
) -> None:
    """Run a scenario against a server on the loopback, in real time, and shut the server down afterwards."""

    async def run() -> None:
        shutdown = Signal()
        server = BootstrapServer(0, shutdown, config, host=LOOPBACK)
        incoming = server.take_incoming()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                await scenario(server, incoming)
                shutdown.set()
                await server.wait_closed()
                async for left in incoming:
                    await left.aclose()

    trio.run(run)


async def dial(server: BootstrapServer, *parts: bytes) -> trio.SocketStream:
    """A client that sends whatever it likes."""
    stream = await trio.open_tcp_stream(LOOPBACK, server.port)
    for part in parts:
        await stream.send_all(part)
    return stream


async def server_closes(stream: trio.SocketStream) -> bool:
    with trio.fail_after(2):
        try:
            return await stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True


def registration_bytes() -> bytes:
    return Wire.client(IDENTITY).register(SOURCE_FIRST)


async def registered(server: BootstrapServer, incoming: Incoming) -> tuple[BootstrapConnection, BootstrapConnection]:
    """A connection that made it: the server's end and the client's."""
    client = await connect_to_prefill(LOOPBACK, server.port, IDENTITY, SOURCE_FIRST)
    return await incoming.receive(), client


def nothing_incoming(incoming: Incoming) -> bool:
    return incoming.statistics().current_buffer_used == 0


def test_bootstrap_address_preserves_ipv6_literals() -> None:
    assert bootstrap_address("::1", 8000) == "[::1]:8000"
    assert bootstrap_address("[::1]", 8000) == "[::1]:8000"
    assert bootstrap_address("127.0.0.1", 8000) == "127.0.0.1:8000"
    assert bootstrap_address("prefill-0", 8000) == "prefill-0:8000"


def test_a_registered_connection_carries_messages_both_ways() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        source, destination = await registered(server, incoming)
        assert source.identity == IDENTITY
        assert source.registration == SOURCE_FIRST
        assert source.outgoing == destination.incoming
        assert source.incoming == destination.outgoing
        await source.send(REGISTERED)
        assert await destination.receive() == REGISTERED
        assert not source.peer_closed_now()
        abort = Message(WireName.ABORT, message="no longer wanted")
        await destination.send(abort)
        await destination.aclose()
        assert await source.receive() == abort
        assert await source.receive() is None
        assert source.peer_closed_now()
        await source.aclose()

    serving(scenario)


def test_clients_reach_a_server_on_all_interfaces_by_either_family() -> None:
    async def run() -> None:
        shutdown = Signal()
        server = BootstrapServer(0, shutdown)
        incoming = server.take_incoming()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                hosts = [LOOPBACK, "[::1]", "::1"] if socket.has_dualstack_ipv6() else [LOOPBACK]
                for host in hosts:
                    destination = await connect_to_prefill(host, server.port, IDENTITY, SOURCE_FIRST)
                    source = await incoming.receive()
                    assert source.outgoing == destination.incoming
                    await destination.aclose()
                    await source.aclose()
                shutdown.set()

    trio.run(run)


def test_the_peers_end_is_seen_without_waiting_and_by_waiting() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        source, destination = await registered(server, incoming)
        early = Message(WireName.ABORT, message="early")
        await destination.send(early)
        await destination.aclose()
        await source.wait_peer_closed()
        assert source.peer_closed_now()
        assert await source.receive() == early
        assert await source.receive() is None
        await source.aclose()

    serving(scenario)


def test_send_rejects_oversized_frame_before_codec_allocation() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        source, destination = await registered(server, incoming)
        with pytest.raises(UnsendableMessage, match="outside"):
            await destination.send(Message(WireName.ABORT, message="x" * 65_536))
        await destination.send(Message(WireName.ABORT, message="x"))
        assert await source.receive() == Message(WireName.ABORT, message="x")
        await destination.aclose()
        await source.aclose()

    serving(scenario)


def test_bad_magic_never_enters_the_incoming_queue() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        stream = await dial(server, b"NOPE", PREAMBLE[4:])
        assert await server_closes(stream)
        assert nothing_incoming(incoming)
        await stream.aclose()

    serving(scenario)


@pytest.mark.parametrize(
    "sent",
    [
        b"DMHF" + struct.pack("<HH", 2, 0),
        b"DMHF" + struct.pack("<HH", 1, 1),
        PREAMBLE + struct.pack("<I", 1) + b"{",
        PREAMBLE + struct.pack("<I", 65_537),
        PREAMBLE + struct.pack("<I", 0),
    ],
    ids=["version 2", "flags 1", "one byte", "too long", "empty"],
)
def test_invalid_headers_and_frames_never_enter_session_ownership(sent: bytes) -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        stream = await dial(server, sent)
        assert await server_closes(stream)
        assert nothing_incoming(incoming)
        await stream.aclose()

    serving(scenario)


def test_changed_identity_is_rejected_after_registration() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        stream = await dial(server, registration_bytes())
        source = await incoming.receive()
        other = Wire.client(identity_of(80_001, 80_000, room=18))
        await stream.send_all(other.send(Message(WireName.ABORT, message="of another room")))
        with pytest.raises(PeerChangedIdentity, match="changed session identity"):
            await source.receive()
        await source.aclose()
        await stream.aclose()

    serving(scenario)


def test_first_frame_must_be_registration() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        stream = await dial(server, PREAMBLE, Wire.client(IDENTITY).send(REGISTERED))
        assert await server_closes(stream)
        assert nothing_incoming(incoming)
        await stream.aclose()

    serving(scenario)


def test_full_incoming_queue_returns_overloaded() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        turned_away: list[BootstrapConnection] = []
        server.on_overloaded = turned_away.append
        first = await connect_to_prefill(LOOPBACK, server.port, IDENTITY, SOURCE_FIRST)
        while nothing_incoming(incoming):
            await trio.lowlevel.checkpoint()
        second = await connect_to_prefill(LOOPBACK, server.port, identity_of(80_003, 80_002), DESTINATION_FIRST)
        with trio.fail_after(1):
            assert await second.receive() == OVERLOADED
            assert await second.receive() is None
        assert [connection.identity for connection in turned_away] == [identity_of(80_003, 80_002)]
        await first.aclose()
        await second.aclose()

    serving(scenario, BootstrapServerConfig(max_pending_connections=1))


def test_half_open_registration_saturation_returns_overloaded() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        silent = await dial(server)
        second = await connect_to_prefill(LOOPBACK, server.port, IDENTITY, SOURCE_FIRST)
        with trio.fail_after(1):
            assert await second.receive() == OVERLOADED
        assert nothing_incoming(incoming)
        await silent.aclose()
        await second.aclose()

    serving(scenario, BootstrapServerConfig(max_pending_connections=1))


def test_beyond_the_one_overload_reply_connections_are_closed_without_a_word() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        streams = [await dial(server) for _ in range(3)]
        assert await server_closes(streams[2])
        for stream in streams:
            await stream.aclose()

    serving(scenario, BootstrapServerConfig(max_pending_connections=1))


def test_a_registration_that_takes_too_long_gives_its_place_back() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        slow = await dial(server, PREAMBLE[:5])
        assert await server_closes(slow)
        source, destination = await registered(server, incoming)
        for stream in (slow, source, destination):
            await stream.aclose()

    serving(scenario, BootstrapServerConfig(max_pending_connections=1, registration_timeout_ms=30.0))


def test_shutdown_closes_half_open_registration() -> None:
    async def run() -> None:
        shutdown = Signal()
        server = BootstrapServer(0, shutdown, host=LOOPBACK)
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                silent = await dial(server, PREAMBLE)
                while not server.registering:
                    await trio.lowlevel.checkpoint()
                shutdown.set()
                with trio.fail_after(1):
                    assert await server_closes(silent)
                await server.wait_closed()
                await silent.aclose()

    trio.run(run)


def test_a_reset_of_one_connection_harms_no_other() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        for sent in (b"", PREAMBLE, registration_bytes()[:-3], registration_bytes()):
            stream = await dial(server, *([sent] if sent else []))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await stream.aclose()
        healthy = identity_of(80_005, 80_004)
        destination = await connect_to_prefill(LOOPBACK, server.port, healthy, SOURCE_FIRST)
        while (source := await incoming.receive()).identity != healthy:
            await source.aclose()
        await source.send(REGISTERED)
        assert await destination.receive() == REGISTERED
        await source.aclose()
        await destination.aclose()

    serving(scenario)


def test_an_accept_error_pauses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = trio.SocketListener.accept
    failures = [OSError(24, "too many open files"), OSError(103, "software caused connection abort")]

    async def failing(listener: trio.SocketListener) -> trio.SocketStream:
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", failing)

    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        source, destination = await registered(server, incoming)
        assert failures == []
        await source.aclose()
        await destination.aclose()

    serving(scenario)


def test_nagles_delay_is_off_at_both_ends() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        source, destination = await registered(server, incoming)
        for connection in (source, destination):
            stream: Any = connection._stream
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await connection.aclose()

    serving(scenario)


def test_the_queue_has_one_reader() -> None:
    async def scenario(server: BootstrapServer, incoming: Incoming) -> None:
        with pytest.raises(IncomingTaken):
            server.take_incoming()

    serving(scenario)


@pytest.mark.parametrize("field", ["max_pending_connections", "registration_timeout_ms"])
def test_bounds_must_be_positive(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        BootstrapServerConfig(**{field: 0})


def test_nobody_to_connect_to_is_a_transport_error() -> None:
    async def run() -> None:
        with socket.create_server((LOOPBACK, 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(TransportLost, match=f"{LOOPBACK}:{port}"):
            await connect_to_prefill(LOOPBACK, port, IDENTITY, SOURCE_FIRST)

    trio.run(run)
