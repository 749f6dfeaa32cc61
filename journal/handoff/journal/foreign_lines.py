"""What a line of another system says, checked and typed; `event_lines` describes the form.

Reading is tolerant to fields that it does not know, which are kept, and exact about those that it does: a word outside
the vocabulary, a number that is text or a time that is missing refuses the line, with a sentence that says what would
be right. Figures that the coordinator needs and other systems do not print (a hold's transfer timing, a reservation's
token count) may be absent; then they are taken as "costs no time" and the value says so in ``extra["inferred"]``.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from attrs import frozen

from handoff.journal.coordinator_actor import ActionIssued, FactOffered, OutcomeOffered
from handoff.journal.declarations import FaultInjected, Foreign, HandoffOpened, Note, Resource, SourceDeclared
from handoff.journal.event_lines import LineRefused, subject_of
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    EngineType,
    FactName,
    HandoffOrder,
    OutcomeName,
    Side,
    TimingMode,
)

_INFINITY = float("inf")
Word = TypeVar("Word", bound=StrEnum)
Content = (
    HandoffOpened
    | ActionIssued
    | OutcomeOffered
    | FactOffered
    | Resource
    | FaultInjected
    | Note
    | SourceDeclared
    | Foreign
)


@frozen
class ForeignLine:
    """One line of another system.

    Attributes:
        content: what it says; `ActionIssued.action_id` and `OutcomeOffered.action_id` are -1 when it names none.
        handoff: the handoff it names, or None.
        source: the source whose row it is, or None.
        at_ms: its time on its source's clock; for a `SourceDeclared` without one, None.
        at_min_ms, at_max_ms: between which it lies, where the line says so.
        extra: fields that the content has no place for.
    """

    content: Content
    handoff: str | None
    source: str | None
    at_ms: float | None
    at_min_ms: float | None
    at_max_ms: float | None
    extra: Mapping[str, Any]


def read_foreign(fields: Mapping[str, Any]) -> ForeignLine:
    """What a line says.

    Raises:
        LineRefused: a known field has a value that it cannot have, or the line has no time.
    """
    common = _common(fields)
    if common is not None:
        return common
    rest = dict(fields)
    at_ms = _number(rest, "at_ms")
    at_min_ms = _number(rest, "at_min_ms") if "at_min_ms" in rest else None
    at_max_ms = _number(rest, "at_max_ms") if "at_max_ms" in rest else None
    handoff = _text(rest, "handoff")
    rest["handoff"] = handoff
    subject = subject_of(rest)
    if subject is None:
        declares = "source" in rest and handoff is None and at_ms is None
        content: Content = _source(rest) if declares else _foreign(rest)
    else:
        content = _READERS[subject](rest)
    rest.pop("handoff", None)
    source = None if isinstance(content, SourceDeclared) else _text(rest, "source")
    if at_ms is None and at_min_ms is not None and at_max_ms is not None:
        at_ms = (at_min_ms + at_max_ms) / 2
    if at_ms is None and not isinstance(content, SourceDeclared):
        raise LineRefused("it has no at_ms, and not both of at_min_ms and at_max_ms")
    if handoff is None and isinstance(content, HandoffOpened | ActionIssued | OutcomeOffered | FactOffered):
        raise LineRefused("it belongs to a handoff and names none; add handoff")
    return ForeignLine(content, handoff, source, at_ms, at_min_ms, at_max_ms, rest)


_NOTHING: Mapping[str, Any] = {}
_known: dict[tuple[str, Any, Any], Content] = {}
"""Contents that a line with nothing but a word and a number has, by subject, word and number."""


def _common(fields: Mapping[str, Any]) -> ForeignLine | None:
    """The line if it is one of the few that logs are full of: an action, outcome or fact with nothing else to say."""
    at_ms, handoff = fields.get("at_ms"), fields.get("handoff")
    if type(at_ms) is not float or type(handoff) is not str or not -_INFINITY < at_ms < _INFINITY:
        return None
    number = fields.get("id")
    if len(fields) == 4 and type(number) is int:
        subject = "outcome" if "outcome" in fields else "action" if "action" in fields else None
    else:
        subject = "fact" if len(fields) == 3 and "fact" in fields else None
    if subject is None or type(fields[subject]) is not str:
        return None
    key = (subject, fields[subject], number)
    content = _known.get(key)
    if content is None:
        if len(_known) >= _MOST_KNOWN:
            return None
        rest = {subject: fields[subject], "handoff": handoff, **({} if number is None else {"id": number})}
        content = _known[key] = _READERS[subject](rest)
    return ForeignLine(content, handoff, None, at_ms, None, None, _NOTHING)


_MOST_KNOWN = 1024


def _open(rest: dict[str, Any]) -> HandoffOpened:
    opened = rest.pop("open")
    if not isinstance(opened, dict):
        raise LineRefused(f'open must be an object such as {{"order": "source_first"}}, not {opened!r}')
    said = {**{key: rest.pop(key) for key in ("attempt", "parent_request", "room", "request") if key in rest}, **opened}
    room = said.pop("room", None)
    if room is not None and (isinstance(room, bool) or not isinstance(room, int | str)):
        raise LineRefused(f"room must be a whole number or text, not {room!r}")
    return HandoffOpened(
        handoff_id=rest.get("handoff") or "",
        order=_word(said, "order", HandoffOrder),
        engine_type=_word(said, "engine_type", EngineType),
        request=_text(said, "request"),
        room=None if room is None else str(room),
        attempt=_whole(said, "attempt"),
        parent_request=_text(said, "parent_request"),
        extra=_joined(said, rest),
    )


def _action(rest: dict[str, Any]) -> ActionIssued:
    name = _required(rest, "action", ActionName)
    action_id = _whole(rest, "id")
    return ActionIssued(ActionId(-1 if action_id is None else action_id), name, _number(rest, "delay_ms"))


def _outcome(rest: dict[str, Any]) -> OutcomeOffered:
    action_id = _whole(rest, "id")
    return OutcomeOffered(
        action_id=ActionId(-1 if action_id is None else action_id),
        outcome=_required(rest, "outcome", OutcomeName),
        name=_word(rest, "of" if "of" in rest else "action", ActionName),
        message=_text(rest, "message"),
        synthesised=_flag(rest, "synthesised"),
        extra=_taken(rest),
    )


def _fact(rest: dict[str, Any]) -> FactOffered:
    name = _required(rest, "fact", FactName)
    timing = _timing(rest) if name is FactName.SOURCE_HELD else None
    tokens = _whole(rest, "transferable_prompt_tokens") if name is FactName.DESTINATION_RESERVED else None
    inferred = []
    if name is FactName.SOURCE_HELD and timing is None:
        timing = TransferTiming(TimingMode.FULL_PROMPT, 0)
        inferred.append("transfer_timing")
    if name is FactName.DESTINATION_RESERVED and tokens is None:
        tokens = 0
        inferred.append("transferable_prompt_tokens")
    if inferred:
        rest["inferred"] = inferred
    return FactOffered(
        name,
        timing,
        tokens,
        rank=_whole(rest, "rank"),
        rank_count=_whole(rest, "rank_count"),
        generation=rest.pop("generation") if type(rest.get("generation")) is int else None,
        extra=_taken(rest),
    )


def _timing(rest: dict[str, Any]) -> TransferTiming | None:
    said = rest.pop("transfer_timing", None)
    if said is None:
        return None
    if not isinstance(said, dict):
        raise LineRefused(f"transfer_timing must be an object, not {said!r}")
    figures = tuple(said.values())
    if tuple(said) == _TIMING_KEYS and tuple(map(type, figures)) == _TIMING_TYPES and figures in _known_timings:
        return _known_timings[figures]
    whole, said = said, dict(said)
    mode = _required(said, "mode", TimingMode)
    tokens = _whole(said, "full_prompt_tokens")
    timing = TransferTiming(mode, tokens or 0, _whole(said, "kv_bytes_per_token"), _number(said, "bandwidth_gb_s"))
    if said:
        rest["transfer_timing_extra"] = said
    elif tuple(whole) == _TIMING_KEYS and len(_known_timings) < _MOST_KNOWN:
        _known_timings[figures] = timing
    return timing


_TIMING_KEYS = ("mode", "full_prompt_tokens", "kv_bytes_per_token", "bandwidth_gb_s")
_TIMING_TYPES = (str, int, int, float)
_known_timings: dict[tuple[Any, ...], TransferTiming] = {}


def _resource(rest: dict[str, Any]) -> Resource:
    name = rest.pop("resource")
    if not isinstance(name, str):
        raise LineRefused(f'resource must be text such as "source_held", not {name!r}')
    blocks = rest.pop("blocks", None)
    if blocks is not None and not (isinstance(blocks, list) and all(type(block) is int for block in blocks)):
        raise LineRefused(f"blocks must be a list of whole numbers, not {blocks!r}")
    return Resource(
        resource=name,
        blocks=None if blocks is None else tuple(blocks),
        count=_whole(rest, "count"),
        side=_word(rest, "side", Side),
        lease_deadline_ms=_number(rest, "lease_deadline_ms"),
        rank=_whole(rest, "rank"),
        rank_count=_whole(rest, "rank_count"),
        generation=rest.pop("generation") if type(rest.get("generation")) is int else None,
        extra=_taken(rest),
    )


def _fault(rest: dict[str, Any]) -> FaultInjected:
    do = rest.pop("fault")
    return FaultInjected(
        on=_text(rest, "on"),
        do=str(do),
        side=_word(rest, "side", Side),
        delay_ms=_number(rest, "delay_ms"),
        extra=_taken(rest),
    )


def _error(rest: dict[str, Any]) -> Note:
    return Note(f"error: {rest.pop('error')}")


def _source(rest: dict[str, Any]) -> SourceDeclared:
    observes = rest.pop("observes", None)
    if observes is not None and not (isinstance(observes, list) and all(isinstance(kind, str) for kind in observes)):
        raise LineRefused(f"observes must be a list of words, not {observes!r}")
    resolution_ms = _number(rest, "resolution_ms")
    if resolution_ms is not None and resolution_ms < 0.0:
        raise LineRefused(f"resolution_ms must be at least 0, not {resolution_ms}")
    return SourceDeclared(
        source=_text(rest, "source") or "",
        role=_word(rest, "role", Side),
        engine_type=_word(rest, "engine_type", EngineType),
        engine_version=_text(rest, "engine_version"),
        clock=_text(rest, "clock"),
        resolution_ms=resolution_ms,
        observes=None if observes is None else tuple(observes),
        extra=_taken(rest),
    )


def _foreign(rest: dict[str, Any]) -> Foreign:
    source = rest.pop("source", None)
    rest.pop("handoff")
    whole = dict(rest)
    rest.clear()
    if source is not None:
        rest["source"] = source
    return Foreign(whole)


_READERS: dict[str, Callable[[dict[str, Any]], Content]] = {
    "open": _open,
    "fault": _fault,
    "error": _error,
    "resource": _resource,
    "fact": _fact,
    "outcome": _outcome,
    "action": _action,
}


def _taken(rest: dict[str, Any]) -> Mapping[str, Any] | None:
    """Everything that is left of a line but what every line may have, moved into the value's ``extra``."""
    if len(rest) == 1 and "handoff" in rest:
        return None
    extra = {key: rest.pop(key) for key in list(rest) if key not in ("handoff", "source")}
    return extra or None


def _joined(said: dict[str, Any], rest: dict[str, Any]) -> Mapping[str, Any] | None:
    outer = _taken(rest)
    return {**(outer or {}), **said} or None


def _text(rest: dict[str, Any], name: str) -> str | None:
    item = rest.pop(name, None)
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, bool) or not isinstance(item, int):
        raise LineRefused(f"{name} must be text, not {item!r}")
    return str(item)


def _number(rest: dict[str, Any], name: str) -> float | None:
    item = rest.pop(name, None)
    if item is None:
        return None
    if type(item) is float and abs(item) < _INFINITY:
        return item
    if type(item) not in (int, float) or not abs(item) < _INFINITY:
        raise LineRefused(f"{name} must be a finite number, not {item!r}")
    return float(item)


def _whole(rest: dict[str, Any], name: str) -> int | None:
    item = rest.pop(name, None)
    if item is None:
        return None
    if type(item) is not int or item < 0:
        raise LineRefused(f"{name} must be a whole number of at least 0, not {item!r}")
    return item


def _flag(rest: dict[str, Any], name: str) -> bool:
    item = rest.pop(name, False)
    if not isinstance(item, bool):
        raise LineRefused(f"{name} must be true or false, not {item!r}")
    return item


def _word(rest: dict[str, Any], name: str, words: type[Word]) -> Word | None:
    item = rest.pop(name, None)
    if item is None:
        return None
    try:
        return words(item)
    except ValueError:
        close = get_close_matches(str(item).lower(), [word.value for word in words], n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else "it is one of " + ", ".join(word.value for word in words)
        raise LineRefused(f"{name} {item!r} is unknown; {hint}") from None


def _required(rest: dict[str, Any], name: str, words: type[Word]) -> Word:
    word = _word(rest, name, words)
    if word is None:
        raise LineRefused(f"{name} is missing")
    return word
