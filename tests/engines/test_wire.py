"""The transport's format: what is written is read back, and what cannot be is refused and stays refused."""

import json
import struct
from typing import Any

import pytest
from handoff_fakes import SOURCE_FIRST, identity_of
from hypothesis import given
from hypothesis import strategies as st

from handoff.engines.identity import (
    MAX_RANK,
    MAX_ROOM,
    HandoffIdentity,
    InvalidIdentity,
    ParticipantRegistration,
)
from handoff.engines.wire import (
    END_OF_STREAM,
    MAX_PAYLOAD,
    NEED_DATA,
    PREAMBLE,
    PeerBrokeFormat,
    PeerChangedIdentity,
    Registration,
    UnsendableMessage,
    Wire,
    WireEvent,
)
from handoff.engines.wire_messages import MAX_U64, Message
from handoff.journal.terms import WireName
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionName,
    EngineType,
    FactName,
    HandoffId,
    HandoffOrder,
    OutcomeName,
    RequestId,
    TimingMode,
)

IDENTITY = identity_of(1, 2)

u64 = st.integers(0, MAX_U64)
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
handoff_ids = st.uuids().map(lambda each: HandoffId(str(each)))
foreign = st.none() | handoff_ids.filter(lambda each: each != IDENTITY.handoff_id)
timings = st.builds(TransferTiming, st.sampled_from(TimingMode), u64, st.none() | u64, st.none() | finite)
identities = st.builds(
    HandoffIdentity, handoff_ids, st.integers(0, MAX_ROOM), st.uuids().map(lambda each: RequestId(str(each)))
)
registrations = st.builds(
    ParticipantRegistration, st.sampled_from(HandoffOrder), st.sampled_from(EngineType), st.integers(0, MAX_RANK)
)
messages = st.one_of(
    st.sampled_from([WireName.REGISTERED, WireName.COMPLETE, WireName.OVERLOADED]).map(Message),
    st.builds(
        lambda action_id, action, other: Message(WireName.ACTION, action_id=action_id, action=action, handoff_id=other),
        u64,
        st.sampled_from([each for each in ActionName if each is not ActionName.START_TRANSFER]),
        foreign,
    ),
    st.builds(
        lambda action_id, delay_ms: Message(
            WireName.ACTION, action_id=action_id, action=ActionName.START_TRANSFER, delay_ms=delay_ms
        ),
        u64,
        finite,
    ),
    st.builds(
        lambda action_id, outcome: Message(WireName.ACTION_ACK, action_id=action_id, outcome=outcome),
        u64,
        st.sampled_from([each for each in OutcomeName if each is not OutcomeName.FAILED]),
    ),
    st.builds(
        lambda action_id, text: Message(
            WireName.ACTION_ACK, action_id=action_id, outcome=OutcomeName.FAILED, message=text
        ),
        u64,
        texts,
    ),
    st.builds(
        lambda timing, other: Message(
            WireName.FACT, fact=FactName.SOURCE_HELD, transfer_timing=timing, handoff_id=other
        ),
        timings,
        foreign,
    ),
    st.builds(
        lambda tokens: Message(WireName.FACT, fact=FactName.DESTINATION_RESERVED, transferable_prompt_tokens=tokens),
        u64,
    ),
    st.sampled_from([FactName.TRANSFER_COMPLETED, FactName.FAILED, FactName.TIMED_OUT, FactName.CANCELED]).map(
        lambda fact: Message(WireName.FACT, fact=fact)
    ),
    st.builds(lambda text: Message(WireName.ABORT, message=text), texts),
    st.builds(lambda text: Message(WireName.PROTOCOL_ERROR, message=text), texts),
)


def registered() -> tuple[Wire, Wire]:
    """Both ends of a registered connection."""
    client, server = Wire.client(IDENTITY), Wire.server()
    server.receive_data(client.register(SOURCE_FIRST))
    assert server.next_event() == Registration(IDENTITY, SOURCE_FIRST)
    return client, server


def everything(wire: Wire) -> list[WireEvent]:
    """All events that the bytes received so far give."""
    events: list[WireEvent] = []
    while True:
        event = wire.next_event()
        if event is NEED_DATA:
            return events
        events.append(event)
        if event is END_OF_STREAM:
            return events


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def payload(message: Any, identity: Any = None) -> bytes:
    whole = {"identity": identity or {**IDENTITY_JSON}, "message": message}
    return json.dumps(whole).encode()


IDENTITY_JSON = {"handoff_id": IDENTITY.handoff_id, "bootstrap_room": 17, "request_id": IDENTITY.request_id}


@given(identities, registrations)
def test_registrations_are_read_as_they_were_written(
    identity: HandoffIdentity, registration: ParticipantRegistration
) -> None:
    server = Wire.server()
    server.receive_data(Wire.client(identity).register(registration))
    assert server.next_event() == Registration(identity, registration)
    assert server.next_event() is NEED_DATA


@given(st.lists(messages, max_size=6), st.data())
def test_messages_are_read_as_they_were_written_however_the_bytes_are_cut(
    sent: list[Message], data: st.DataObject
) -> None:
    client, server = registered()
    received: list[WireEvent] = []
    stream = b"".join(client.send(message) for message in sent)
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        server.receive_data(stream[:cut])
        stream = stream[cut:]
        received += everything(server)
    server.receive_data(b"")
    assert [*received, *everything(server)] == [*sent, END_OF_STREAM]


@given(st.binary(max_size=400), st.booleans())
def test_arbitrary_bytes_give_an_error_or_nothing(noise: bytes, after_preamble: bool) -> None:
    server = Wire.server()
    server.receive_data((PREAMBLE if after_preamble else b"") + noise if noise else b"")
    try:
        events = everything(server)
    except PeerBrokeFormat as error:
        first = error
        with pytest.raises(PeerBrokeFormat) as again:
            server.next_event()
    else:
        assert events == []
        return
    assert again.value is first


@given(st.binary(min_size=1, max_size=300))
def test_arbitrary_payloads_never_become_messages_by_accident(noise: bytes) -> None:
    _client, server = registered()
    server.receive_data(frame(noise))
    with pytest.raises(PeerBrokeFormat):
        server.next_event()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*(each.value for each in WireName), "Action", "ActionAck", "Fact", "Abort"]), json_values)
def test_messages_with_other_contents_are_errors_or_messages_that_can_be_sent(tag: str, contents: Any) -> None:
    client, server = registered()
    server.receive_data(frame(payload({tag: contents})))
    try:
        event = server.next_event()
    except PeerBrokeFormat:
        return
    assert isinstance(event, Message)
    assert client.send(event)


@pytest.mark.parametrize(
    "preamble", [b"NOPE\x01\x00\x00\x00", b"DMHF\x02\x00\x00\x00", b"DMHF\x01\x00\x01\x00", b"dmhf", b"\0"]
)
def test_another_preamble_breaks_the_connection_as_soon_as_it_differs(preamble: bytes) -> None:
    server = Wire.server()
    server.receive_data(preamble)
    with pytest.raises(PeerBrokeFormat, match="preamble"):
        server.next_event()


@pytest.mark.parametrize("size", [0, MAX_PAYLOAD + 1, 0xFFFF_FFFF])
def test_an_announced_length_out_of_bounds_is_refused_before_its_payload(size: int) -> None:
    _client, server = registered()
    server.receive_data(struct.pack("<I", size))
    with pytest.raises(PeerBrokeFormat, match="outside"):
        server.next_event()
    assert server.buffered == 0


def test_a_payload_of_exactly_the_limit_passes() -> None:
    client, server = registered()
    overhead = len(client.send(Message(WireName.ABORT, message=""))) - 4
    longest = Message(WireName.ABORT, message="x" * (MAX_PAYLOAD - overhead))
    server.receive_data(client.send(longest))
    assert server.next_event() == longest
    with pytest.raises(UnsendableMessage, match="outside"):
        client.send(Message(WireName.ABORT, message="x" * (MAX_PAYLOAD - overhead + 1)))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_cannot_carry_are_not_sent(number: float) -> None:
    client, _server = registered()
    with pytest.raises(UnsendableMessage):
        client.send(
            Message(WireName.ACTION, action_id=2, action=ActionName.START_TRANSFER, delay_ms=number)  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_not_read(text: str) -> None:
    _client, server = registered()
    action = {"StartTransfer": {"handoff_id": IDENTITY.handoff_id, "delay_ms": 12345}}
    whole = payload({"Action": {"id": 2, "action": action}}).replace(b"12345", text.encode())
    server.receive_data(frame(whole))
    with pytest.raises(PeerBrokeFormat):
        server.next_event()


def test_a_name_that_occurs_twice_is_refused() -> None:
    _client, server = registered()
    server.receive_data(frame(payload("Complete").replace(b'"message"', b'"message": "Registered", "message"')))
    with pytest.raises(PeerBrokeFormat, match="twice"):
        server.next_event()


def test_deeply_nested_json_is_refused_and_harms_nothing() -> None:
    _client, server = registered()
    server.receive_data(frame(b"[" * MAX_PAYLOAD))
    with pytest.raises(PeerBrokeFormat):
        server.next_event()


@pytest.mark.parametrize(
    "message",
    [
        {"ActionAck": {"action_id": True, "outcome": "Accepted"}},
        {"ActionAck": {"action_id": -1, "outcome": "Accepted"}},
        {"ActionAck": {"action_id": 1 << 64, "outcome": "Accepted"}},
        {"ActionAck": {"action_id": 1.0, "outcome": "Accepted"}},
        {"ActionAck": {"action_id": 1, "outcome": "Failed"}},
        {"ActionAck": {"action_id": 1, "outcome": {"Accepted": "yes"}}},
        {"ActionAck": {"action_id": 1, "outcome": {"Failed": "\ud800"}}},
        {"ActionAck": {"action_id": 1, "outcome": "Accepted", "extra": 0}},
        {"Action": {"id": 1, "action": {"ReserveDestination": {"handoff_id": "not a UUID"}}}},
        {"Action": {"id": 1, "action": {"ReserveDestination": {}}}},
        {"Action": {"id": 1, "action": "ReserveDestination"}},
        {"Fact": {"DestinationReserved": {"handoff_id": IDENTITY.handoff_id}}},
        {"Complete": None},
        {"Complete": {}, "Registered": {}},
        {},
        [],
        None,
        "complete",
        "Abort",
    ],
    ids=repr,
)
def test_a_message_must_be_exactly_what_its_name_promises(message: Any) -> None:
    _client, server = registered()
    server.receive_data(frame(payload(message)))
    with pytest.raises(PeerBrokeFormat):
        server.next_event()


@pytest.mark.parametrize("field", ["handoff_id", "bootstrap_room", "request_id"])
def test_every_part_of_the_identity_is_compared(field: str) -> None:
    _client, server = registered()
    other = {**IDENTITY_JSON, field: 18 if field == "bootstrap_room" else str(identity_of(9, 9).handoff_id)}
    server.receive_data(frame(payload("Complete", other)))
    with pytest.raises(PeerChangedIdentity, match="changed session identity"):
        server.next_event()


@pytest.mark.parametrize("room", [17.0, "17", None])
def test_an_identity_that_only_looks_equal_is_none(room: Any) -> None:
    _client, server = registered()
    server.receive_data(frame(payload("Complete", {**IDENTITY_JSON, "bootstrap_room": room})))
    with pytest.raises(PeerBrokeFormat, match="bootstrap_room"):
        server.next_event()


def test_an_end_inside_a_frame_is_an_error_and_between_frames_is_none() -> None:
    client, server = registered()
    server.receive_data(client.send(Message(WireName.COMPLETE)))
    server.receive_data(b"")
    assert everything(server) == [Message(WireName.COMPLETE), END_OF_STREAM]
    client, server = registered()
    server.receive_data(client.send(Message(WireName.COMPLETE))[:-1])
    server.receive_data(b"")
    with pytest.raises(PeerBrokeFormat, match="inside a frame"):
        server.next_event()


@pytest.mark.parametrize("sent", [b"", PREAMBLE[:3], PREAMBLE, PREAMBLE + b"\x05"])
def test_an_end_before_the_registration_is_an_error(sent: bytes) -> None:
    server = Wire.server()
    if sent:
        server.receive_data(sent)
    server.receive_data(b"")
    with pytest.raises(PeerBrokeFormat, match="before its registration"):
        server.next_event()


def test_a_second_registration_is_a_message_without_contents() -> None:
    client, server = registered()
    server.receive_data(client.register(SOURCE_FIRST)[len(PREAMBLE) :])
    assert server.next_event() == Message(WireName.REGISTER)
    with pytest.raises(UnsendableMessage):
        client.send(Message(WireName.REGISTER))


@pytest.mark.parametrize(
    ("handoff_id", "room", "request_id"),
    [
        ("h1", 0, IDENTITY.request_id),
        (IDENTITY.handoff_id.upper(), -1, IDENTITY.request_id),
        (IDENTITY.handoff_id, MAX_ROOM + 1, IDENTITY.request_id),
        (IDENTITY.handoff_id, 0, "{" + IDENTITY.request_id + "}"),
    ],
)
def test_an_identity_that_cannot_travel_cannot_be_made(handoff_id: str, room: int, request_id: str) -> None:
    with pytest.raises(InvalidIdentity):
        HandoffIdentity(HandoffId(handoff_id), room, RequestId(request_id))
