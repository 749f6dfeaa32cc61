"""One step taken again: the machine's answer, the rows that it becomes, and words for where they differ."""

from typing import Any

from handoff.journal.divergence import Difference, DivergenceClass, describe
from handoff.journal.event import Event, event_from_row
from handoff.journal.row_codec import encode, handoff_of
from handoff.journal.seats import Seat
from handoff.journal.step import Step, crashed


def take_again(seat: Seat, value: Any, at_ms: float) -> tuple[Step, Exception | None]:
    """The machine's answer; an input on which it raises is a step of its own."""
    assert seat.machine is not None
    try:
        return seat.machine.step(value, at_ms), None
    except Exception as error:  # noqa: BLE001 - whatever a machine raises, the journal says that it crashed
        return crashed(value), error


def rows_of(step: Step, seat: Seat, head: Event) -> list[Event]:
    """The rows that a step becomes when it is appended at the place of `head`."""
    first = head.seq
    rows = []
    for index, entry in enumerate(step.entries):
        cause = head.cause if index == 0 else None if entry.cause is None else first + entry.cause
        fields = encode(entry.value, entry.verdict, cause, caused=index == 0 and cause is not None)
        rows.append(
            event_from_row(
                (first + index, first, head.run, handoff_of(entry.value, seat.handoff), seat.actor + entry.slot,
                 head.source, head.at_ms, head.at_min_ms, head.at_max_ms, *fields)
            )
        )  # fmt: skip
    return rows


def sentence_of(seat: Seat, difference: Difference) -> str:
    """What differs, in words."""
    expected, actual = difference.expected, difference.actual
    match difference.kind:
        case DivergenceClass.MISSING:
            assert expected is not None
            return f"{seat.name} answers with {describe(expected)}, which the journal lacks"
        case DivergenceClass.EXTRA:
            assert actual is not None
            return f"the journal holds {describe(actual)}, which {seat.name} does not answer with"
        case DivergenceClass.REORDERED:
            assert expected is not None
            assert actual is not None
            return f"{seat.name} answers with {describe(expected)} before {describe(actual)}"
        case _ if expected is not None and actual is not None and expected.is_input:
            return f"{seat.name} takes {describe(expected)}; the journal holds {describe(actual)}"
        case _:
            assert expected is not None
            assert actual is not None
            return f"{seat.name} answers with {describe(expected)}; the journal holds {describe(actual)}"
