"""The bootstrap transport's format, as a codec without I/O.

A connection runs from a destination (the client) to a source's bootstrap server. The client writes a preamble of
eight bytes: ``DMHF``, the version as u16, flags as u16, both little-endian. Then frames go both ways: the length of
the payload as u32, little-endian, then that many bytes of JSON, 1 to 65,536. Each payload says whose it is and what it
says. The first frame is the client's registration, and it fixes the identity: any other identity after that is an
error.

One `Wire` is one end of one connection. What came from the socket goes in through `receive_data` (no bytes: the end of
the stream), what it means comes out of `next_event`, one event at a time; `send` turns a message into bytes:

    client: (register) -> open -> ended | broken
    server: preamble -> registration -> open -> ended | broken

An end between frames is an orderly end; inside a frame, or before the registration, it breaks the connection. Nothing
heals a broken connection: every further `next_event` raises the same error. There is no checksum, no sequence number,
no resumption and no heartbeat; TCP and the sessions' deadlines stand in for them.

The memory that a peer can make us use is bounded: an announced length is refused before a byte of that frame is kept,
and `receive_data` is given no more than the driver reads at once. How long a peer may be slow or silent is the
driver's business, since a codec knows no time.
"""

import struct
from enum import Enum
from typing import Any, Final

from attrs import define, field, frozen

from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.wire_messages import (
    MalformedMessage,
    Message,
    from_json,
    identity_from_json,
    identity_to_json,
    message_from_json,
    message_to_json,
    registration_from_json,
    registration_to_json,
    to_json,
)

MAGIC: Final = b"DMHF"
VERSION: Final = 1
FLAGS: Final = 0
MAX_PAYLOAD: Final = 65_536
_PREAMBLE: Final = struct.Struct("<4sHH")
_LENGTH: Final = struct.Struct("<I")
MAX_FRAME: Final = _LENGTH.size + MAX_PAYLOAD

PREAMBLE: Final = _PREAMBLE.pack(MAGIC, VERSION, FLAGS)


class WireError(Exception):
    """Something that the transport's format does not allow."""


class PeerBrokeFormat(WireError):
    """The peer sent something that cannot be; the connection is of no more use."""


class PeerChangedIdentity(PeerBrokeFormat):
    """A frame names another handoff, room or request than the registration did.

    Attributes:
        expected: what the registration named.
        actual: what the frame names.
    """

    def __init__(self, expected: HandoffIdentity, actual: HandoffIdentity) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"peer changed session identity from {expected} to {actual}")


class UnsendableMessage(WireError):
    """Our own message cannot be put into a frame; nothing was sent."""


class NeedData(Enum):
    """Nothing can be said until more bytes come."""

    NEED_DATA = "need_data"


class EndOfStream(Enum):
    """The peer closed its end between two frames."""

    END_OF_STREAM = "end_of_stream"


NEED_DATA = NeedData.NEED_DATA
END_OF_STREAM = EndOfStream.END_OF_STREAM


@frozen
class Registration:
    """The first frame: who connects, and for which handoff."""

    identity: HandoffIdentity
    registration: ParticipantRegistration


WireEvent = Registration | Message | NeedData | EndOfStream


class _State(Enum):
    PREAMBLE = "preamble"
    REGISTRATION = "registration"
    OPEN = "open"
    ENDED = "ended"
    BROKEN = "broken"


@define(eq=False)
class Wire:
    """One end of one connection; see the module. Make it with `client` or `server`."""

    identity: HandoffIdentity | None
    _state: _State
    _received: bytearray = field(factory=bytearray, init=False)
    _end_received: bool = field(default=False, init=False)
    _error: PeerBrokeFormat | None = field(default=None, init=False)
    _head: bytes = field(default=b"", init=False)
    _identity_json: dict[str, Any] = field(factory=dict, init=False)

    @classmethod
    def client(cls, identity: HandoffIdentity) -> "Wire":
        """The destination's end."""
        wire = cls(identity, _State.OPEN)
        wire._identify(identity)
        return wire

    @classmethod
    def server(cls) -> "Wire":
        """The source's end, before it knows who connects."""
        return cls(None, _State.PREAMBLE)

    @property
    def buffered(self) -> int:
        """Bytes received and not yet understood."""
        return len(self._received)

    @property
    def end_received(self) -> bool:
        """Whether the end of the stream was received, be it understood yet or not."""
        return self._end_received

    # -- sending --------------------------------------------------------------------------------------

    def register(self, registration: ParticipantRegistration) -> bytes:
        """The client's first bytes: the preamble and its registration."""
        return PREAMBLE + self._frame(registration_to_json(registration))

    def send(self, message: Message) -> bytes:
        """The frame of a message.

        Raises:
            UnsendableMessage: its payload is outside 1..65,536 bytes, or holds a number that is not finite.
        """
        assert self.identity is not None, "a server answers whoever registered"
        try:
            return self._frame(message_to_json(message, self.identity.handoff_id))
        except ValueError as error:
            raise UnsendableMessage(str(error)) from error

    def _frame(self, message: object) -> bytes:
        body = to_json(message)
        size = len(self._head) + len(body) + 1
        if size > MAX_PAYLOAD:
            raise UnsendableMessage(f"a payload of {size} bytes is outside 1..{MAX_PAYLOAD}")
        return b"".join((_LENGTH.pack(size), self._head, body, b"}"))

    def _identify(self, identity: HandoffIdentity) -> None:
        self.identity = identity
        self._identity_json = identity_to_json(identity)
        self._head = b'{"identity":' + to_json(self._identity_json) + b',"message":'

    # -- receiving ------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Take what came from the peer; no bytes at all mean the end of the stream."""
        if data:
            assert not self._end_received, "nothing comes after the end"
            self._received += data
        else:
            self._end_received = True

    def next_event(self) -> WireEvent:
        """What the bytes received so far say next.

        Raises:
            PeerBrokeFormat: they cannot be; every later call raises the same.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except PeerBrokeFormat as error:
            self._state, self._error = _State.BROKEN, error
            self._received.clear()
            raise
        except MalformedMessage as error:
            self._state, self._error = _State.BROKEN, PeerBrokeFormat(str(error))
            self._received.clear()
            raise self._error from error

    def _next(self) -> WireEvent:
        if self._state is _State.ENDED:
            return END_OF_STREAM
        if self._state is _State.PREAMBLE and not self._take_preamble():
            return NEED_DATA
        payload = self._take_payload()
        if not isinstance(payload, bytes):
            return payload
        whose, message = from_json(payload)
        if self.identity is not None and self._is_own(whose):
            return message_from_json(message, self.identity.handoff_id)
        identity = identity_from_json(whose)
        if self._state is _State.REGISTRATION:
            registration = registration_from_json(message)
            self._identify(identity)
            self._state = _State.OPEN
            return Registration(identity, registration)
        assert self.identity is not None
        raise PeerChangedIdentity(self.identity, identity)

    def _is_own(self, whose: Any) -> bool:
        """Whether a frame's identity is the connection's, to the type: for Python a true is a 1."""
        return whose == self._identity_json and type(whose["bootstrap_room"]) is int

    def _take_preamble(self) -> bool:
        received = bytes(self._received[: _PREAMBLE.size])
        if received != PREAMBLE[: len(received)]:
            raise PeerBrokeFormat(f"a preamble must be {PREAMBLE!r}, not {received!r}")
        if len(received) < _PREAMBLE.size:
            if self._end_received:
                raise PeerBrokeFormat("the peer closed before its registration")
            return False
        del self._received[: _PREAMBLE.size]
        self._state = _State.REGISTRATION
        return True

    def _take_payload(self) -> bytes | NeedData | EndOfStream:
        available = len(self._received)
        if available >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if not 1 <= size <= MAX_PAYLOAD:
                raise PeerBrokeFormat(f"an announced payload of {size} bytes is outside 1..{MAX_PAYLOAD}")
            if available >= _LENGTH.size + size:
                payload = bytes(self._received[_LENGTH.size : _LENGTH.size + size])
                del self._received[: _LENGTH.size + size]
                return payload
        if not self._end_received:
            return NEED_DATA
        if self._state is _State.REGISTRATION:
            raise PeerBrokeFormat("the peer closed before its registration")
        if available:
            raise PeerBrokeFormat("the peer closed inside a frame")
        self._state = _State.ENDED
        return END_OF_STREAM
