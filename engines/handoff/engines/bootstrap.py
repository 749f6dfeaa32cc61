"""Where destinations meet sources: the bootstrap server of a prefill worker, and the client that connects to it.

The server reads the preamble and the registration of each connection and queues it for the source handoff manager. It
owns no handoff. What a peer can do to it is bounded:

* `max_pending_connections` connections register at once, and as many wait in the queue;
* each has `registration_timeout_ms` for its registration, so a silent or slow one gives its place back;
* when all places are taken, one further connection at a time is read and told that the server is overloaded, and the
  ones beyond that are closed without a word;
* bad bytes, an early end or a reset end that one connection, in silence: there is nobody to answer.

Shutdown ends half-open registrations at once; connections in the queue belong to whoever takes them from there.

The client connects, sends preamble and registration, and does not wait for an answer: that may take as long as the
source needs to arrive. Connecting and sending may take 30 s each. It never tries twice.
"""

import socket
from collections.abc import Awaitable, Callable

import trio
from attrs import field, frozen

from handoff.engines.connection import (
    BootstrapConnection,
    TransportError,
    TransportLost,
    TransportTimeout,
    receive_registration,
    send_within_limit,
)
from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.signals import Signal
from handoff.engines.wire import Wire, WireError
from handoff.engines.wire_messages import OVERLOADED

CONNECT_LIMIT_S = 30.0
_PAUSE_AFTER_ACCEPT_ERROR_S = 0.01
_BACKLOG = 1024


class IncomingTaken(Exception):
    """The queue of registered connections was given out before; it has one reader."""


def _positive(_owner: object, attribute: object, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{getattr(attribute, 'name', 'value')} must be positive, not {value}")


@frozen
class BootstrapServerConfig:
    """The bounds of a server.

    Attributes:
        max_pending_connections: connections that register at once, and as many again that wait to be taken.
        registration_timeout_ms: how long a connection may take to register, in ms.

    Raises:
        ValueError: on creation with anything that is not positive.
    """

    max_pending_connections: int = field(default=256, validator=_positive)
    registration_timeout_ms: float = field(default=30_000.0, validator=_positive)


async def _always_room() -> None:
    """The room of a server that journals nothing."""


class BootstrapServer:
    """Accepts destinations. Start it with ``await nursery.start(server.run)``; then `port` is known.

    Args:
        port: where to listen; 0 picks a free port.
        shutdown: ends the server.
        config: its bounds.
        host: the address to listen on; None for all interfaces.
        room: awaited before each accept, to let a journal catch up.
        on_overloaded: told of each registered connection that had to be turned away.

    Attributes:
        registering: connections that have not registered yet.
    """

    def __init__(
        self,
        port: int,
        shutdown: Signal,
        config: BootstrapServerConfig | None = None,
        *,
        host: str | None = None,
        room: Callable[[], Awaitable[None]] = _always_room,
        on_overloaded: Callable[[BootstrapConnection], None] | None = None,
    ) -> None:
        self.port = port
        self.on_overloaded = on_overloaded
        self._host = host
        self._shutdown = shutdown
        self._config = config if config is not None else BootstrapServerConfig()
        self._room = room
        self.registering = 0
        self._overload_reply_running = False
        self._queue, incoming = trio.open_memory_channel[BootstrapConnection](self._config.max_pending_connections)
        self._incoming: trio.MemoryReceiveChannel[BootstrapConnection] | None = incoming
        self._closed = trio.Event()

    def take_incoming(self) -> trio.MemoryReceiveChannel[BootstrapConnection]:
        """The queue of registered connections; it ends when the server does.

        Raises:
            IncomingTaken: somebody has it already.
        """
        if self._incoming is None:
            raise IncomingTaken
        incoming, self._incoming = self._incoming, None
        return incoming

    async def wait_closed(self) -> None:
        """Wait until the server was shut down and every registration has ended."""
        await self._closed.wait()

    async def run(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, report the port as started, and serve until shutdown.

        Raises:
            OSError: the address cannot be listened on.
        """
        try:
            async with await _listen(self._host, self.port) as listener, self._queue:
                self.port = listener.socket.getsockname()[1]
                task_status.started(self.port)
                async with trio.open_nursery() as nursery:
                    withdraw = self._shutdown.subscribe(nursery.cancel_scope.cancel)
                    try:
                        await self._accept_all(listener, nursery)
                    finally:
                        withdraw()
        finally:
            self._closed.set()

    async def _accept_all(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            await self._room()
            try:
                stream = await listener.accept()
            except OSError:  # out of descriptors, or the peer is gone: neither concerns the others
                await trio.sleep(_PAUSE_AFTER_ACCEPT_ERROR_S)
                continue
            if self.registering < self._config.max_pending_connections:
                self.registering += 1
                nursery.start_soon(self._register, stream)
            elif not self._overload_reply_running:
                self._overload_reply_running = True
                nursery.start_soon(self._turn_away, stream)
            else:
                await trio.aclose_forcefully(stream)

    async def _register(self, stream: trio.SocketStream) -> None:
        """Read one registration and queue its connection."""
        queued = False
        try:
            connection = await self._read(stream)
            if connection is None:
                return
            try:
                self._queue.send_nowait(connection)
                queued = True
            except trio.WouldBlock:
                await self._overloaded(connection)
            except trio.BrokenResourceError:  # nobody takes connections any more
                return
        finally:
            self.registering -= 1
            if not queued:
                await trio.aclose_forcefully(stream)

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        """Read one registration only to say that there is no place for it."""
        try:
            connection = await self._read(stream)
            if connection is not None:
                await self._overloaded(connection)
        finally:
            self._overload_reply_running = False
            await trio.aclose_forcefully(stream)

    async def _read(self, stream: trio.SocketStream) -> BootstrapConnection | None:
        """The registered connection, or None when the peer broke the format, closed, or took too long."""
        with trio.move_on_after(self._config.registration_timeout_ms / 1000.0):
            try:
                return await receive_registration(stream)
            except (WireError, TransportError):
                return None
        return None

    async def _overloaded(self, connection: BootstrapConnection) -> None:
        if self.on_overloaded is not None:
            self.on_overloaded(connection)
        try:
            await connection.send(OVERLOADED)
        except TransportError:
            return  # the peer did not wait for the answer


async def _listen(host: str | None, port: int) -> trio.SocketListener:
    if host is not None:
        family, kind, protocol, _, address = (
            await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )[0]
        listening = trio.socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            await listening.bind(address)
        except BaseException:
            listening.close()
            raise
        listening.listen(_BACKLOG)
        return trio.SocketListener(listening)
    if socket.has_dualstack_ipv6():
        both = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    else:
        both = socket.create_server(("", port), backlog=_BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(both))


def bootstrap_address(host: str, port: int) -> str:
    """An address as people write it; an IPv6 literal gets brackets, once.

    Example:
        >>> bootstrap_address("::1", 80), bootstrap_address("[::1]", 80)
        ('[::1]:80', '[::1]:80')
    """
    bare = _bare(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


async def connect_to_prefill(
    host: str, port: int, identity: HandoffIdentity, registration: ParticipantRegistration
) -> BootstrapConnection:
    """Connect to a prefill worker's bootstrap server and register; its answer comes through `receive`.

    Args:
        host: name or address; IPv6 literals with or without brackets.
        port: of the bootstrap server.
        identity: the handoff.
        registration: what to say of ourselves.

    Raises:
        TransportLost: there is nobody, or the stream broke.
        TransportTimeout: a step took more than 30 s.
    """
    stream = None
    try:
        with trio.move_on_after(CONNECT_LIMIT_S):
            stream = await trio.open_tcp_stream(_bare(host), port)
    except OSError as error:
        raise TransportLost(f"cannot connect to {bootstrap_address(host, port)}: {error}") from error
    if stream is None:
        raise TransportTimeout(f"connecting to {bootstrap_address(host, port)}", CONNECT_LIMIT_S)
    return await _introduce(stream, identity, registration)


async def _introduce(
    stream: trio.SocketStream, identity: HandoffIdentity, registration: ParticipantRegistration
) -> BootstrapConnection:
    wire = Wire.client(identity)
    try:
        await send_within_limit(stream, wire.register(registration))
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return BootstrapConnection.on(stream, wire, registration)
