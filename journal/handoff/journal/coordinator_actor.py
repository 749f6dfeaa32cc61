"""The coordinator as an actor of the log: its inputs and effects as rows.

The decisions are all in `coordinator`; here they only get names, verdicts and an order. A refused input leaves a
`coordinator_error` row behind it, so that a reader sees the reason and replay compares it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import define, field, frozen

from handoff.journal.coordinator import Action, Coordinator, CoordinatorError, Fact, Outcome
from handoff.journal.row_codec import row
from handoff.journal.step import Step, StepBuilder
from handoff.journal.terms import ActorKind, Kind
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    FactName,
    HandoffId,
    HandoffOrder,
    OutcomeName,
    Verdict,
)

_COORDINATOR = (ActorKind.COORDINATOR,)


@row(Kind.HANDOFF_STARTED)
@frozen
class HandoffStarted:
    """The coordinator was started."""


@row(
    {
        Verdict.APPLIED: Kind.OUTCOME_APPLIED,
        Verdict.DUPLICATE: Kind.OUTCOME_DUPLICATE,
        Verdict.CONFLICTING: Kind.OUTCOME_CONFLICT,
        Verdict.INVALID: Kind.OUTCOME_INVALID,
        Verdict.UNKNOWN: Kind.OUTCOME_UNKNOWN,
        Verdict.LATE: Kind.OUTCOME_LATE,
    },
    actors=_COORDINATOR,
)
@frozen
class OutcomeOffered:
    """An answer to an action was given to the coordinator.

    Attributes:
        name: the action's name where the giver knew it, for readers; decisions rest on the id alone.
        message: the text of a failure.
        synthesised: whether a driver invented it, for instance because the peer is gone.
        extra: further fields of another system, kept as they were.
    """

    action_id: ActionId
    outcome: OutcomeName
    name: ActionName | None = None
    message: str | None = None
    synthesised: bool = False
    extra: Mapping[str, Any] | None = None


@row(
    {
        Verdict.APPLIED: Kind.FACT_APPLIED,
        Verdict.DUPLICATE: Kind.FACT_IGNORED,
        Verdict.IGNORED_IN_CLEANUP: Kind.FACT_IGNORED,
        Verdict.LATE: Kind.FACT_IGNORED,
        Verdict.INVALID: Kind.FACT_IGNORED,
    },
    actors=_COORDINATOR,
)
@frozen
class FactOffered:
    """A fact was given to the coordinator.

    Attributes:
        handoff_id: only when the fact names another handoff than the actor's.
        rank, rank_count: which of how many ranks saw it, from 0, where one fact has several.
        generation: of the engine process that saw it.
        extra: further fields of another system, kept as they were.
    """

    name: FactName
    transfer_timing: TransferTiming | None = None
    transferable_prompt_tokens: int | None = None
    handoff_id: HandoffId | None = None
    rank: int | None = None
    rank_count: int | None = None
    generation: int | None = None
    extra: Mapping[str, Any] | None = None


CoordinatorInput = HandoffStarted | OutcomeOffered | FactOffered


@row(Kind.ACTION_ISSUED)
@frozen
class ActionIssued:
    """The coordinator ordered an action; `delay_ms` comes with ``start_transfer`` only."""

    action_id: ActionId
    name: ActionName
    delay_ms: float | None = None


@row(Kind.COORDINATOR_ERROR)
@frozen
class CoordinatorRefused:
    """The coordinator refused its input: a stable code, and a sentence."""

    code: str
    message: str


@define
class CoordinatorActor:
    """Feeds a `Coordinator` and writes down what it answers."""

    SLOTS: ClassVar[tuple[ActorKind, ...]] = _COORDINATOR

    core: Coordinator
    last_error: CoordinatorError | None = field(default=None, init=False)

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> "CoordinatorActor":
        """The machine that an `actor_started` row with this configuration describes."""
        return cls(Coordinator(HandoffId(config["handoff_id"]), HandoffOrder(config["order"])))

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row."""
        return {"handoff_id": self.core.handoff_id, "order": self.core.order.value}

    def step(self, value: CoordinatorInput, at_ms: float) -> Step:
        """Take one input as an actor of its own."""
        del at_ms  # a coordinator knows no time
        builder = StepBuilder()
        self.offer(value, builder)
        return builder.finish(self.core.verdict)

    def offer(
        self, value: CoordinatorInput, builder: StepBuilder, *, slot: int = 0, cause: int | None = None
    ) -> tuple[tuple[int, Action], ...]:
        """Take one input and add its rows to a step.

        Args:
            value: the input.
            builder: the step being built; the input is added first, then each effect, caused by the input.
            slot: the coordinator's slot in the step.
            cause: index of the entry that the input follows from.

        Returns:
            each issued action with the index of its row; `last_error` holds the refusal, if it was one.
        """
        self.last_error = None
        actions: tuple[Action, ...] = ()
        try:
            actions = self._take(value)
        except CoordinatorError as error:
            self.last_error = error
        head = builder.add(value, verdict=self.core.verdict, cause=cause, slot=slot)
        if self.last_error is not None:
            builder.add(CoordinatorRefused(self.last_error.code, str(self.last_error)), cause=head, slot=slot)
        return tuple(
            (builder.add(ActionIssued(action.id, action.name, action.delay_ms), cause=head, slot=slot), action)
            for action in actions
        )

    def _take(self, value: CoordinatorInput) -> tuple[Action, ...]:
        match value:
            case HandoffStarted():
                return self.core.start()
            case OutcomeOffered():
                return self.core.on_outcome(value.action_id, Outcome(value.outcome, value.message))
            case FactOffered():
                handoff_id = self.core.handoff_id if value.handoff_id is None else value.handoff_id
                fact = Fact(value.name, handoff_id, value.transfer_timing, value.transferable_prompt_tokens)
                return self.core.on_fact(fact)
