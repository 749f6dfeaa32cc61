"""Rows of a witness: what somebody else's program says it saw, recorded and never re-executed.

A journal of another system may hold facts without the actions they belong to. No coordinator can be folded over such
rows, so they are a witness's: they keep names, times and what else was said, and have no verdict, since nobody of ours
took them.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from handoff.journal.coordinator_actor import FactOffered, OutcomeOffered
from handoff.journal.row_codec import row
from handoff.journal.terms import ActorKind, Kind
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionId, ActionName, FactName, OutcomeName

_WITNESS = (ActorKind.WITNESS,)


@row(Kind.FACT_OBSERVED, actors=_WITNESS)
@frozen
class FactSeen:
    """A fact of a handoff was seen; the fields are those of `coordinator_actor.FactOffered`."""

    name: FactName
    transfer_timing: TransferTiming | None = None
    transferable_prompt_tokens: int | None = None
    rank: int | None = None
    rank_count: int | None = None
    generation: int | None = None
    extra: Mapping[str, Any] | None = None


@row(Kind.CONTROL_REPLIED, actors=_WITNESS)
@frozen
class OutcomeSeen:
    """An answer to an action that nobody was seen to order; fields as in `coordinator_actor.OutcomeOffered`."""

    action_id: ActionId | None
    outcome: OutcomeName
    name: ActionName | None = None
    message: str | None = None
    synthesised: bool = False
    extra: Mapping[str, Any] | None = None


def seen_by_witness(content: OutcomeOffered | FactOffered) -> OutcomeSeen | FactSeen:
    """An outcome (id -1: it said none) or a fact as a witness's row has it."""
    if isinstance(content, FactOffered):
        return FactSeen(
            content.name, content.transfer_timing, content.transferable_prompt_tokens, content.rank,
            content.rank_count, content.generation, content.extra,
        )  # fmt: skip
    action_id = content.action_id if content.action_id >= 0 else None
    return OutcomeSeen(
        action_id, OutcomeName(content.outcome), content.name, content.message, content.synthesised, content.extra
    )
