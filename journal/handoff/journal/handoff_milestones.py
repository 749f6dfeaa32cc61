"""The moments in a handoff's life that cause one another, as bits, so that many handoffs fit in memory.

A moment is an action, an action's outcome, a fact, or an annotation of ownership. `NEEDS` says which moments lie
before which, whatever the engines do; it orders lines of several sources where their clocks cannot, and it gives
the pairs of rows from which the clocks' offsets are estimated.
"""

from collections.abc import Mapping
from typing import Any

from handoff.journal.vocabulary import ActionName, FactName, HandoffOrder

_WORDS = (
    *(f"action:{name.value}" for name in ActionName),
    *(f"outcome:{name.value}" for name in ActionName),
    *(f"fact:{name.value}" for name in FactName),
    "resource:source_held",
    "resource:destination_blocks",
    "resource:source_freed",
    "resource:destination_freed",
    "resource:destination_finished",
)
BIT: dict[str, int] = {word: 1 << place for place, word in enumerate(_WORDS)}
"""The bit of each moment, such as ``action:submit_prefill``."""


_MOMENTS = ("action", "fact", "resource")


def _bits(*words: str) -> int:
    bits = 0
    for word in words:
        bits |= BIT[word]
    return bits


_BOTH_ORDERS: dict[int, int] = {
    **{BIT[f"outcome:{name.value}"]: BIT[f"action:{name.value}"] for name in ActionName},
    BIT["fact:source_held"]: _bits("outcome:submit_prefill", "action:submit_prefill", "resource:source_held"),
    BIT["fact:destination_reserved"]: _bits(
        "outcome:reserve_destination", "action:reserve_destination", "resource:destination_blocks"
    ),
    BIT["fact:transfer_completed"]: _bits("outcome:start_transfer", "action:start_transfer"),
    BIT["action:start_transfer"]: _bits("fact:source_held", "fact:destination_reserved"),
    BIT["action:activate_destination"]: _bits("fact:transfer_completed"),
    BIT["action:release_source"]: _bits("outcome:activate_destination"),
    BIT["action:complete"]: _bits("outcome:release_source", "outcome:cancel_source", "outcome:cancel_destination"),
    BIT["resource:source_held"]: _bits("action:submit_prefill"),
    BIT["resource:destination_blocks"]: _bits("action:reserve_destination"),
    BIT["resource:destination_freed"]: _bits("action:cancel_destination"),
    BIT["resource:destination_finished"]: _bits("action:activate_destination", "outcome:activate_destination"),
}

NEEDS: dict[HandoffOrder, dict[int, int]] = {
    HandoffOrder.SOURCE_FIRST: {**_BOTH_ORDERS, BIT["action:reserve_destination"]: _bits("fact:source_held")},
    HandoffOrder.DESTINATION_FIRST: {**_BOTH_ORDERS, BIT["action:submit_prefill"]: _bits("fact:destination_reserved")},
}
"""For each moment the moments that lie before it, in a handoff of each order."""

CERTAIN: tuple[tuple[int, int], ...] = (
    *((BIT[f"action:{name.value}"], BIT[f"outcome:{name.value}"]) for name in ActionName),
    (BIT["action:submit_prefill"], BIT["resource:source_held"]),
    (BIT["action:submit_prefill"], BIT["fact:source_held"]),
    (BIT["action:reserve_destination"], BIT["resource:destination_blocks"]),
    (BIT["action:reserve_destination"], BIT["fact:destination_reserved"]),
    (BIT["action:start_transfer"], BIT["fact:transfer_completed"]),
    (BIT["fact:source_held"], BIT["action:start_transfer"]),
    (BIT["fact:destination_reserved"], BIT["action:start_transfer"]),
    (BIT["fact:transfer_completed"], BIT["action:activate_destination"]),
    (BIT["outcome:activate_destination"], BIT["action:release_source"]),
)
"""Pairs of which the first causes the second in every history, faulty ones too: what clocks are aligned by."""


def bit_of(fields: Mapping[str, Any], actions: Mapping[int, str], subject: str | None) -> int:
    """The moment that a foreign line tells of, or 0.

    Args:
        fields: the line.
        actions: the names of the handoff's actions by id, as far as they were seen.
        subject: what the line is about, see `event_lines.subject_of`.
    """
    if subject == "outcome":
        named = fields.get("of") or fields.get("action") or actions.get(fields.get("id", -1))
        return BIT.get(f"outcome:{named}", 0)
    if subject in _MOMENTS:
        return BIT.get(f"{subject}:{fields[subject]}", 0)
    return 0
