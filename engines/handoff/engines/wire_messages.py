"""The messages of the bootstrap transport, and their JSON.

The JSON is externally tagged: a message with contents is an object with one key, its name; a message without is its
name alone. Names of messages, actions, outcomes, facts, orders and roles are written in capitals (``ActionAck``),
those of engine types and timing modes in snake case. Every field must be there, no other may be, and each must be what
it claims to be: a boolean is no number, a number that JSON cannot carry is refused before it is sent, and ``NaN`` or a
name that occurs twice is refused when it is read.

Actions and facts name their handoff a second time, inside the message. A `Message` keeps that name only where it
differs from the connection's, which is what the receiving session has to notice.
"""

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from attrs import frozen

from handoff.engines.identity import (
    MAX_RANK,
    MAX_ROOM,
    HandoffIdentity,
    ParticipantRegistration,
    ParticipantRole,
    canonical_uuid,
)
from handoff.journal.terms import WireName
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    EngineType,
    FactName,
    HandoffId,
    HandoffOrder,
    OutcomeName,
    RequestId,
    TimingMode,
)

MAX_U64 = (1 << 64) - 1


@frozen
class Message:
    """One message. Which fields a message has depends on its name; all others are None.

    Attributes:
        name: which message it is.
        action_id: of ``action`` and ``action_ack``.
        action: what is ordered; of ``action``.
        delay_ms: of an ``action`` that starts a transfer.
        outcome: of ``action_ack``.
        fact: of ``fact``.
        transfer_timing: of a ``fact`` that a source is held.
        transferable_prompt_tokens: of a ``fact`` that a destination is reserved.
        message: the text of ``abort``, ``protocol_error`` and of a failed outcome.
        handoff_id: the handoff that an ``action`` or ``fact`` names, when it is not the connection's.
    """

    name: WireName
    action_id: ActionId | None = None
    action: ActionName | None = None
    delay_ms: float | None = None
    outcome: OutcomeName | None = None
    fact: FactName | None = None
    transfer_timing: TransferTiming | None = None
    transferable_prompt_tokens: int | None = None
    message: str | None = None
    handoff_id: HandoffId | None = None


REGISTERED = Message(WireName.REGISTERED)
COMPLETE = Message(WireName.COMPLETE)
OVERLOADED = Message(WireName.OVERLOADED)


def protocol_error(text: str) -> Message:
    """Tells the peer that it did something that cannot be."""
    return Message(WireName.PROTOCOL_ERROR, message=text)


class MalformedMessage(ValueError):
    """Bytes that are no message, or a message that JSON cannot carry; the text says where and what."""


# -- writing --------------------------------------------------------------------------------------------------------

E = TypeVar("E", bound=StrEnum)


def _tag(word: StrEnum) -> str:
    return "".join(part.capitalize() for part in word.value.split("_"))


def _tags(words: type[E]) -> dict[str, E]:
    return {_tag(word): word for word in words}


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_json(value: Any) -> bytes:
    """Compact UTF-8.

    Raises:
        MalformedMessage: a number is not finite, or a text is no Unicode.
    """
    try:
        return _encoder.encode(value).encode()
    except ValueError as error:  # a UnicodeEncodeError is one
        raise MalformedMessage(f"a message cannot be written as JSON: {error}") from error


def identity_to_json(identity: HandoffIdentity) -> dict[str, Any]:
    """The part of a frame that says whose it is."""
    return {
        "handoff_id": identity.handoff_id,
        "bootstrap_room": identity.bootstrap_room,
        "request_id": identity.request_id,
    }


def registration_to_json(registration: ParticipantRegistration) -> dict[str, Any]:
    """The first message of a connection."""
    contents = {
        "role": _tag(registration.role),
        "dp_rank": registration.dp_rank,
        "order": _tag(registration.order),
        "engine_type": registration.engine_type.value,
    }
    return {_tag(WireName.REGISTER): contents}


def message_to_json(message: Message, own: HandoffId) -> Any:
    """Any later message; `own` is the connection's handoff.

    Raises:
        ValueError: it is a registration, or lacks a field that its name demands.
    """
    tag = _tag(message.name)
    match message.name:
        case WireName.REGISTERED | WireName.COMPLETE | WireName.OVERLOADED:
            return tag
        case WireName.ACTION:
            return {tag: {"id": _given(message.action_id), "action": _action_to_json(message, own)}}
        case WireName.ACTION_ACK:
            outcome = _tag(_given(message.outcome))
            failed = message.outcome is OutcomeName.FAILED
            return {
                tag: {
                    "action_id": _given(message.action_id),
                    "outcome": {outcome: message.message or ""} if failed else outcome,
                }
            }
        case WireName.FACT:
            return {tag: _fact_to_json(message, own)}
        case WireName.ABORT | WireName.PROTOCOL_ERROR:
            return {tag: message.message or ""}
        case WireName.REGISTER:
            raise ValueError("a registration is sent once, with the preamble")


def _action_to_json(message: Message, own: HandoffId) -> Any:
    contents: dict[str, Any] = {"handoff_id": message.handoff_id or own}
    if message.action is ActionName.START_TRANSFER:
        contents["delay_ms"] = _given(message.delay_ms)
    return {_tag(_given(message.action)): contents}


def _fact_to_json(message: Message, own: HandoffId) -> Any:
    contents: dict[str, Any] = {"handoff_id": message.handoff_id or own}
    if message.fact is FactName.SOURCE_HELD:
        timing = _given(message.transfer_timing)
        contents["transfer_timing"] = {
            "mode": timing.mode.value,
            "full_prompt_tokens": timing.full_prompt_tokens,
            "kv_bytes_per_token": timing.kv_bytes_per_token,
            "bandwidth_gb_s": timing.bandwidth_gb_s,
        }
    elif message.fact is FactName.DESTINATION_RESERVED:
        contents["transferable_prompt_tokens"] = _given(message.transferable_prompt_tokens)
    return {_tag(_given(message.fact)): contents}


T = TypeVar("T")


def _given(value: T | None) -> T:
    if value is None:
        raise ValueError("the message lacks a field that its name demands")
    return value


# -- reading --------------------------------------------------------------------------------------------------------

_MESSAGES = _tags(WireName)
_ACTIONS = _tags(ActionName)
_OUTCOMES = _tags(OutcomeName)
_FACTS = _tags(FactName)
_ORDERS = _tags(HandoffOrder)
_ROLES = _tags(ParticipantRole)
_ENGINES = {word.value: word for word in EngineType}
_MODES = {word.value: word for word in TimingMode}


def from_json(payload: bytes) -> tuple[Mapping[str, Any], Any]:
    """The two halves of a frame, still as JSON: whose it is, and the message.

    Raises:
        MalformedMessage: the payload is not UTF-8, not JSON, or not an object with exactly these two.
    """
    try:
        frame = _decoder.decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"a frame is not JSON: {error}") from error
    _object(frame, "frame", "identity", "message")
    return frame["identity"], frame["message"]


def identity_from_json(value: Any) -> HandoffIdentity:
    """Whose a frame is.

    Raises:
        MalformedMessage: it is not an identity.
    """
    _object(value, "identity", "handoff_id", "bootstrap_room", "request_id")
    return HandoffIdentity(
        HandoffId(_uuid(value["handoff_id"], "handoff_id")),
        _integer(value["bootstrap_room"], "bootstrap_room", MAX_ROOM),
        RequestId(_uuid(value["request_id"], "request_id")),
    )


def registration_from_json(value: Any) -> ParticipantRegistration:
    """The first message of a connection.

    Raises:
        MalformedMessage: it is not a registration.
    """
    name, contents = _tagged(value, "message", _MESSAGES)
    if name is not WireName.REGISTER:
        raise MalformedMessage(f"the first message must be Register, not {_tag(name)}")
    _object(contents, "Register", "role", "dp_rank", "order", "engine_type")
    return ParticipantRegistration(
        _word(contents["order"], "order", _ORDERS),
        _word(contents["engine_type"], "engine_type", _ENGINES),
        _integer(contents["dp_rank"], "dp_rank", MAX_RANK),
        _word(contents["role"], "role", _ROLES),
    )


def message_from_json(value: Any, own: HandoffId) -> Message:
    """Any message after the registration; a second registration is read and has no contents.

    Raises:
        MalformedMessage: it is not a message.
    """
    name, contents = _tagged(value, "message", _MESSAGES)
    match name:
        case WireName.REGISTERED | WireName.COMPLETE | WireName.OVERLOADED:
            _unit(contents, name)
            return Message(name)
        case WireName.REGISTER:
            registration_from_json(value)
            return Message(name)
        case WireName.ACTION:
            _object(contents, "Action", "id", "action")
            return _action_from_json(ActionId(_integer(contents["id"], "id", MAX_U64)), contents["action"], own)
        case WireName.ACTION_ACK:
            _object(contents, "ActionAck", "action_id", "outcome")
            outcome, text = _outcome_from_json(contents["outcome"])
            action_id = ActionId(_integer(contents["action_id"], "action_id", MAX_U64))
            return Message(name, action_id=action_id, outcome=outcome, message=text)
        case WireName.FACT:
            return _fact_from_json(contents, own)
        case WireName.ABORT | WireName.PROTOCOL_ERROR:
            return Message(name, message=_text(contents, _tag(name)))


def _action_from_json(action_id: ActionId, value: Any, own: HandoffId) -> Message:
    action, contents = _tagged(value, "action", _ACTIONS)
    if action is ActionName.START_TRANSFER:
        _object(contents, "StartTransfer", "handoff_id", "delay_ms")
        delay_ms = _number(contents["delay_ms"], "delay_ms")
    else:
        _object(contents, _tag(action), "handoff_id")
        delay_ms = None
    return Message(
        WireName.ACTION,
        action_id=action_id,
        action=action,
        delay_ms=delay_ms,
        handoff_id=_foreign(contents["handoff_id"], own),
    )


def _outcome_from_json(value: Any) -> tuple[OutcomeName, str | None]:
    outcome, contents = _tagged(value, "outcome", _OUTCOMES)
    if outcome is OutcomeName.FAILED:
        return outcome, _text(contents, "Failed")
    _unit(contents, outcome)
    return outcome, None


def _fact_from_json(value: Any, own: HandoffId) -> Message:
    fact, contents = _tagged(value, "fact", _FACTS)
    timing, tokens = None, None
    match fact:
        case FactName.SOURCE_HELD:
            _object(contents, "SourceHeld", "handoff_id", "transfer_timing")
            timing = _timing_from_json(contents["transfer_timing"])
        case FactName.DESTINATION_RESERVED:
            _object(contents, "DestinationReserved", "handoff_id", "transferable_prompt_tokens")
            tokens = _integer(contents["transferable_prompt_tokens"], "transferable_prompt_tokens", MAX_U64)
        case FactName.TRANSFER_COMPLETED | FactName.FAILED | FactName.TIMED_OUT | FactName.CANCELED:
            _object(contents, _tag(fact), "handoff_id")
    return Message(
        WireName.FACT,
        fact=fact,
        transfer_timing=timing,
        transferable_prompt_tokens=tokens,
        handoff_id=_foreign(contents["handoff_id"], own),
    )


def _timing_from_json(value: Any) -> TransferTiming:
    _object(value, "transfer_timing", "mode", "full_prompt_tokens", "kv_bytes_per_token", "bandwidth_gb_s")
    bytes_per_token, bandwidth_gb_s = value["kv_bytes_per_token"], value["bandwidth_gb_s"]
    return TransferTiming(
        _word(value["mode"], "mode", _MODES),
        _integer(value["full_prompt_tokens"], "full_prompt_tokens", MAX_U64),
        None if bytes_per_token is None else _integer(bytes_per_token, "kv_bytes_per_token", MAX_U64),
        None if bandwidth_gb_s is None else _number(bandwidth_gb_s, "bandwidth_gb_s"),
    )


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return read


_decoder = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
_UNIT = object()
"""Stands for the contents of a message without contents."""


def _tagged(value: Any, where: str, words: Mapping[str, E]) -> tuple[E, Any]:
    if isinstance(value, str):
        return _word(value, where, words), _UNIT
    if not isinstance(value, dict) or len(value) != 1:
        raise MalformedMessage(f"{where} must be a name or an object with one name")
    ((tag, contents),) = value.items()
    return _word(tag, where, words), contents


def _word(value: Any, where: str, words: Mapping[str, E]) -> E:
    word = words.get(value) if isinstance(value, str) else None
    if word is None:
        raise MalformedMessage(f"{where} cannot be {_shown(value)}")
    return word


def _object(value: Any, where: str, *keys: str) -> None:
    if not isinstance(value, dict):
        raise MalformedMessage(f"{where} must be an object")
    if value.keys() != set(keys):
        raise MalformedMessage(f"{where} must have exactly the fields {', '.join(keys)}")


def _unit(contents: Any, word: StrEnum) -> None:
    if contents is not _UNIT:
        raise MalformedMessage(f"{_tag(word)} has no contents")


def _integer(value: Any, where: str, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise MalformedMessage(f"{where} must be an integer from 0 to {limit}, not {_shown(value)}")
    return value


def _number(value: Any, where: str) -> float:
    if type(value) is int and abs(value) <= MAX_U64:
        return float(value)
    if type(value) is float and math.isfinite(value):
        return value
    raise MalformedMessage(f"{where} must be a finite number, not {_shown(value)}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise MalformedMessage(f"{where} must be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedMessage(f"{where} is no Unicode text") from error
    return value


def _uuid(value: Any, where: str) -> str:
    if not isinstance(value, str) or not canonical_uuid(value):
        raise MalformedMessage(f"{where} must be a UUID in lower case with hyphens, not {_shown(value)}")
    return value


def _foreign(value: Any, own: HandoffId) -> HandoffId | None:
    """The handoff that a message names, or None when it is the connection's own."""
    return None if value == own else HandoffId(_uuid(value, "handoff_id"))


def _shown(value: Any) -> str:
    """What a peer sent, short enough for an error."""
    return repr(value)[:80]
