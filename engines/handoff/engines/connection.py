"""One connection between a destination and a source: the codec of `wire` on a stream.

One task receives and one task sends; a session's reader and writer are those tasks. Every send has a limit of 30 s, a
receive has none, since only the session knows for how long silence is lawful. A peer that closes or resets, a stream
that breaks and bytes that are no frames all end as a `TransportError` or a `WireError`; nothing else comes out.
"""

import socket
from collections.abc import Hashable
from typing import Any

import trio
from attrs import define, field

from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.wire import END_OF_STREAM, MAX_FRAME, NEED_DATA, PeerBrokeFormat, Registration, Wire
from handoff.engines.wire_messages import Message

SEND_LIMIT_S = 30.0
_RECEIVE_BYTES = 16_384


class TransportError(Exception):
    """The connection is of no more use."""


class TransportLost(TransportError):
    """The stream broke: reset by the peer, or closed on our side."""


class TransportTimeout(TransportError):
    """The peer, or the network, took too long.

    Attributes:
        what: what was attempted.
        limit_s: how long it was attempted, in s.
    """

    def __init__(self, what: str, limit_s: float) -> None:
        self.what = what
        self.limit_s = limit_s
        super().__init__(f"{what} took more than {limit_s:g} s")


@define(eq=False)
class BootstrapConnection:
    """A registered connection.

    Attributes:
        registration: what the destination said of itself.
        outgoing, incoming: names of the two directions; equal at both ends, so that two sessions in one process can
            tell that the frame which one receives is the one that the other sent.
    """

    _stream: trio.abc.Stream
    _wire: Wire
    registration: ParticipantRegistration
    outgoing: Hashable
    incoming: Hashable
    _half_sent: bool = field(default=False, init=False)

    @classmethod
    def on(cls, stream: trio.abc.Stream, wire: Wire, registration: ParticipantRegistration) -> "BootstrapConnection":
        """A connection on a socket's stream, its directions named by the addresses of its ends."""
        outgoing, incoming = direction_names(stream)
        return cls(stream, wire, registration, outgoing, incoming)

    @property
    def identity(self) -> HandoffIdentity:
        """Which handoff the connection is for."""
        assert self._wire.identity is not None
        return self._wire.identity

    async def send(self, message: Message) -> None:
        """Send one message; it is sent when this returns.

        Raises:
            UnsendableMessage: the message does not fit into a frame; nothing was sent.
            TransportLost, TransportTimeout: it may have been sent in part, and nothing can be sent after it.
        """
        await self.send_bytes(self._wire.send(message))

    def encode(self, message: Message) -> bytes:
        """The frame of a message, for `send_bytes`.

        Raises:
            UnsendableMessage: the message does not fit into a frame.
        """
        return self._wire.send(message)

    async def send_bytes(self, data: bytes) -> None:
        """Send whole frames. After a failed or canceled attempt the stream stands inside a frame and takes no more.

        Raises:
            TransportLost, TransportTimeout: see `send`.
        """
        if self._half_sent:
            raise TransportLost("an earlier frame was sent in part")
        self._half_sent = True
        await send_within_limit(self._stream, data)
        self._half_sent = False

    async def receive(self) -> Message | None:
        """The next message, or None when the peer closed its end between two frames.

        Raises:
            WireError: the peer sent something that cannot be.
            TransportLost: the stream broke.
        """
        while True:
            event = self._wire.next_event()
            if isinstance(event, Message):
                return event
            if event is END_OF_STREAM:
                return None
            assert event is NEED_DATA, "a registration is received once, by the server"
            await self._read()

    async def wait_peer_closed(self) -> None:
        """Wait until the peer closes its end; what it sends meanwhile is kept for `receive`.

        Raises:
            PeerBrokeFormat: it sent more than one frame before it was answered.
            TransportLost: the stream broke.
        """
        while not self._wire.end_received:
            if self._wire.buffered > MAX_FRAME:
                raise PeerBrokeFormat("the peer went on before its registration was answered")
            await self._read()

    def peer_closed_now(self) -> bool:
        """Whether the peer has closed its end, as far as can be told without waiting.

        Raises:
            OSError: the connection is broken.
        """
        if self._wire.end_received:
            return True
        assert isinstance(self._stream, trio.SocketStream)
        return socket_at_end(self._stream)

    async def aclose(self) -> None:
        """Close the connection. What was sent before is still delivered."""
        await self._stream.aclose()

    async def cut(self) -> None:
        """Close the connection at once, whatever is under way."""
        await trio.aclose_forcefully(self._stream)

    async def _read(self) -> None:
        self._wire.receive_data(await receive_or_lose(self._stream))


def socket_at_end(stream: trio.SocketStream) -> bool:
    """Look at the socket without taking anything from it: is the end of the stream next?"""
    with socket.fromfd(stream.socket.fileno(), stream.socket.family, stream.socket.type) as peeked:
        try:
            return peeked.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False


def direction_names(stream: trio.abc.Stream) -> tuple[Hashable, Hashable]:
    """Names of what leaves and of what arrives here; anything but a socket gets names that nobody else has."""
    if not isinstance(stream, trio.SocketStream):
        return object(), object()
    try:
        own, peer = (_plain(address) for address in (stream.socket.getsockname(), stream.socket.getpeername()))
    except OSError:  # the peer is gone already
        return object(), object()
    return (own, peer), (peer, own)


def _plain(address: Any) -> tuple[str, int]:
    """An address the same way at both ends: a dual-stack socket sees IPv4 peers in IPv6 clothes."""
    return address[0].removeprefix("::ffff:"), address[1]


async def send_within_limit(stream: trio.abc.Stream, data: bytes) -> None:
    """Send all of `data`.

    Raises:
        TransportLost: the stream broke.
        TransportTimeout: it took more than 30 s.
    """
    try:
        with trio.move_on_after(SEND_LIMIT_S) as limit:
            await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
        raise TransportLost(f"sending failed: {error}") from error
    if limit.cancelled_caught:
        raise TransportTimeout("sending a frame", SEND_LIMIT_S)


async def receive_or_lose(stream: trio.abc.Stream) -> bytes:
    """What has arrived, at least a byte; nothing at the end of the stream.

    Raises:
        TransportLost: the stream broke.
    """
    try:
        return bytes(await stream.receive_some(_RECEIVE_BYTES))
    except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
        raise TransportLost(f"receiving failed: {error}") from error


async def receive_registration(stream: trio.abc.Stream) -> BootstrapConnection:
    """The server's half of the beginning: read the preamble and the registration.

    Raises:
        WireError: the client sent something else, or closed.
        TransportLost: the stream broke.
    """
    wire = Wire.server()
    while True:
        event = wire.next_event()
        if isinstance(event, Registration):
            return BootstrapConnection.on(stream, wire, event.registration)
        wire.receive_data(await receive_or_lose(stream))
