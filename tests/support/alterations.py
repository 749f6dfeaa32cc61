"""Four ways to falsify a row of a journal that was read into memory."""

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum

import attrs

from handoff.journal.event import Event
from handoff.journal.vocabulary import OutcomeName, Verdict


class Alteration(StrEnum):
    """What is done to a row."""

    CHANGED_OUTCOME = "changed_outcome"
    REMOVED = "removed"
    SWAPPED = "swapped"
    CHANGED_PAYLOAD = "changed_payload"


def altered(events: Sequence[Event], index: int, alteration: Alteration) -> list[Event] | None:
    """The journal with one row falsified, or None where the row gives no hold for that.

    Numbers stay where they are: a removed row leaves a gap, and swapped rows trade their contents.
    """
    rows = list(events)
    event = rows[index]
    match alteration:
        case Alteration.CHANGED_OUTCOME:
            if event.outcome is not None:
                other = OutcomeName.NOOP if event.outcome != OutcomeName.NOOP else OutcomeName.SUBMITTED
                rows[index] = attrs.evolve(event, outcome=other.value)
            elif event.verdict is not None:
                other_verdict = Verdict.LATE if event.verdict != Verdict.LATE else Verdict.APPLIED
                rows[index] = attrs.evolve(event, verdict=other_verdict.value)
            else:
                return None
        case Alteration.REMOVED:
            del rows[index]
        case Alteration.SWAPPED:
            if index + 1 == len(rows):
                return None
            following = rows[index + 1]
            rows[index] = attrs.evolve(following, seq=event.seq)
            rows[index + 1] = attrs.evolve(event, seq=following.seq)
        case Alteration.CHANGED_PAYLOAD:
            changed = _changed_payload(event)
            if changed is None:
                return None
            rows[index] = changed
    return rows


def _changed_payload(event: Event) -> Event | None:
    if event.payload_json is None:
        return attrs.evolve(event, payload_json='{"stray":1}')
    payload = json.loads(event.payload_json)
    key, item = next(iter(payload.items()))
    payload[key] = _other(item)
    return attrs.evolve(event, payload_json=json.dumps(payload, separators=(",", ":"), ensure_ascii=False))


def _other(item: object) -> object:
    match item:
        case bool():
            return not item
        case int() | float():
            return item + 1
        case str():
            return item + "?"
        case [first, *rest]:
            return [_other(first), *rest]
        case {**entries} if entries:
            key = next(iter(entries))
            return {**entries, key: _other(entries[key])}
        case _:
            return {"stray": 1}


def alterations(events: Sequence[Event]) -> Iterator[tuple[int, Alteration, list[Event]]]:
    """Every lawful falsification of every row."""
    for index in range(len(events)):
        for alteration in Alteration:
            rows = altered(events, index, alteration)
            if rows is not None:
                yield index, alteration, rows
