"""Somebody else's coordinator, folded beside what is seen of it.

Another system's actions, outcomes and facts arrive one by one, and nobody says which led to which. A coordinator of
ours is given the outcomes and facts as they come; it says what became of each and which actions it would have ordered
then. An action that the other system did issue is caused by the input whose fold ordered it. Nothing that was seen is
changed by this: the fold adds verdicts, causes, and ids and delays that the other system did not print.
"""

from collections.abc import Sequence

from attrs import define, field

from handoff.journal.coordinator import Action, Coordinator, CoordinatorError, Fact, Outcome
from handoff.journal.coordinator_actor import ActionIssued, CoordinatorRefused, FactOffered, OutcomeOffered
from handoff.journal.port import ActorHandle
from handoff.journal.vocabulary import ActionId, ActionName, Verdict


@define(eq=False)
class ObservedCoordinator:
    """The fold of one observed handoff, and which input ordered which action.

    Attributes:
        actor: whose rows these are.
        core: the coordinator of ours.
    """

    actor: ActorHandle
    core: Coordinator
    _issued: int = field(default=0, init=False)
    _took_input: bool = field(default=False, init=False)
    _ordered_by: dict[int, int] = field(factory=dict, init=False)
    _delays_ms: dict[int, float] = field(factory=dict, init=False)

    def issue(self, content: ActionIssued) -> tuple[ActionIssued, int | None]:
        """An action that was seen (id -1: it said none), and the row of the input that ordered it, where known."""
        if not self._took_input and not self.core.started:
            self.note_orders(self.core.start(), None)
        action_id = content.action_id if content.action_id >= 0 else ActionId(self._issued)
        self._issued = action_id + 1
        delay_ms = content.delay_ms
        if delay_ms is None and content.name is ActionName.START_TRANSFER:
            delay_ms = self._delays_ms.get(action_id, 0.0)
        return ActionIssued(action_id, content.name, delay_ms), self._ordered_by.pop(action_id, None)

    def offer(
        self, content: OutcomeOffered | FactOffered
    ) -> tuple[OutcomeOffered | FactOffered, Verdict, CoordinatorRefused | None, Sequence[Action]]:
        """Fold an outcome (id -1: it said none) or a fact that was seen.

        Returns:
            the value for the row, its verdict, the refusal if it was one, and the actions it orders; give the latter to
            `note_orders` once the row has a number.
        """
        if isinstance(content, OutcomeOffered) and content.action_id < 0:
            content = self._identified(content)
        actions: Sequence[Action] = ()
        refusal = None
        try:
            if isinstance(content, OutcomeOffered):
                actions = self.core.on_outcome(content.action_id, Outcome(content.outcome, content.message))
            else:
                actions = self.core.on_fact(
                    Fact(
                        content.name, self.core.handoff_id, content.transfer_timing, content.transferable_prompt_tokens
                    )
                )
        except CoordinatorError as error:
            refusal = CoordinatorRefused(error.code, str(error))
        self._took_input = True
        return content, self.core.verdict, refusal, actions

    def _identified(self, content: OutcomeOffered) -> OutcomeOffered:
        """An outcome without an id answers the oldest unanswered action (of its name, if it has one)."""
        unanswered = [number for number, name in self.core.unanswered() if content.name in (None, name)]
        return OutcomeOffered(
            unanswered[0] if unanswered else ActionId(self.core.next_action_id), content.outcome, content.name,
            content.message, content.synthesised, {**(content.extra or {}), "inferred": ["id"]},
        )  # fmt: skip

    def note_orders(self, actions: Sequence[Action], seq: int | None) -> None:
        """Remember which row ordered these actions."""
        for action in actions:
            if seq is not None:
                self._ordered_by[action.id] = seq
            if action.delay_ms is not None:
                self._delays_ms[action.id] = action.delay_ms
