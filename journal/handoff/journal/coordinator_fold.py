"""One coordinator being folded: it takes its recorded inputs, and owes the effects that its journal has yet to show.

Most rows are of three plain sorts: an outcome and a fact that are applied, and an action. `Fold.quick` takes those as
they are stored, without making an `Event` of them; whatever it does not take, or does not agree with, is left to the
slow way, which explains. It may try a fact that is then refused, since refused and ignored facts change nothing.
"""

from collections import deque
from typing import Any

from attrs import define, field

from handoff.journal.coordinator import ADMITTED_OUTCOMES, Action, Coordinator, CoordinatorError, Fact, Outcome
from handoff.journal.coordinator_actor import FactOffered, HandoffStarted, OutcomeOffered
from handoff.journal.event import Event
from handoff.journal.row_codec import UnreadableRow, decode
from handoff.journal.terms import TERM_CODE, ActorKind, Kind
from handoff.journal.vocabulary import OutcomeName, Verdict

_OUTCOMES = {name.value: Outcome(name) for name in OutcomeName}
_BY_CODE = {TERM_CODE[name]: outcome for name, outcome in _OUTCOMES.items()}
_ACTION_ISSUED = TERM_CODE[Kind.ACTION_ISSUED]
_OUTCOME_APPLIED = TERM_CODE[Kind.OUTCOME_APPLIED]
_FACT_APPLIED = TERM_CODE[Kind.FACT_APPLIED]
_APPLIED = TERM_CODE[Verdict.APPLIED]
_KIND, _NAME, _ACTION_ID, _OUTCOME, _VERDICT, _PAYLOAD = 9, 10, 11, 12, 13, 18
_FACTS_KEPT = 4096

Owed = Action | CoordinatorError


@define
class FactCache:
    """Decoded facts: prompts of one length are timed alike, so the same text comes again and again."""

    _facts: dict[tuple[int | None, str | None], FactOffered] = field(factory=dict)

    def get(self, name: int, payload: str | None) -> FactOffered | None:
        """The fact of a stored row, if one like it was decoded before."""
        return self._facts.get((name, payload))

    def decode(self, event: Event) -> Any:
        """The input that a row holds.

        Raises:
            UnreadableRow: the row does not fit its kind.
        """
        offered = decode(event, ActorKind.COORDINATOR)
        if isinstance(offered, FactOffered):
            if len(self._facts) >= _FACTS_KEPT:
                self._facts.clear()
            self._facts[TERM_CODE[offered.name], event.payload_json] = offered
        return offered


@define(eq=False)
class Fold:
    """One coordinator, and the effects that its journal still has to show.

    Attributes:
        actor: its number.
        core: the coordinator.
        observed: whether somebody else wrote its rows down, as they came.
        label: a name for people.
        owed: effects that it gave and that no row has shown yet, in order.
        last_input, last_seq: its latest input, and its latest row.
        diverged: whether it diverged already, so that its later rows say nothing.
    """

    actor: int
    core: Coordinator
    observed: bool
    label: str
    owed: deque[Owed] = field(factory=deque)
    last_input: int | None = None
    last_seq: int | None = None
    diverged: bool = False

    @property
    def name(self) -> str:
        """What to call it in a sentence."""
        return f"coordinator {self.actor}" + (f" ({self.label})" if self.label else "")

    def quick(self, row: tuple[Any, ...], facts: FactCache) -> bool:
        """Take a stored row if it is of a plain sort and agrees; False leaves everything as it was."""
        kind = row[_KIND]
        if self.diverged:
            return False
        if kind == _ACTION_ISSUED:
            taken = self._quick_action(row)
        elif row[_VERDICT] != _APPLIED or (self.owed and not self.observed):
            return False
        elif kind == _OUTCOME_APPLIED:
            taken = self._quick_outcome(row)
        elif kind == _FACT_APPLIED:
            taken = self._quick_fact(row, facts)
        else:
            return False
        if taken:
            self.last_seq = row[0]
        return taken

    def _quick_action(self, row: tuple[Any, ...]) -> bool:
        action = self.owed[0] if self.owed else None
        if (
            type(action) is not Action
            or row[_ACTION_ID] != action.id
            or row[_NAME] != TERM_CODE[action.name]
            or row[_VERDICT] is not None
            or row[_PAYLOAD] != (None if action.delay_ms is None else f'{{"delay_ms":{action.delay_ms!r}}}')
        ):
            return False
        self.owed.popleft()
        return True

    def _quick_outcome(self, row: tuple[Any, ...]) -> bool:
        core, action_id, outcome = self.core, row[_ACTION_ID], _BY_CODE.get(row[_OUTCOME])
        action_name = core.issued.get(action_id)
        if outcome is None or action_name is None or action_id in core.outcomes or row[_PAYLOAD] is not None:
            return False
        if outcome.name not in ADMITTED_OUTCOMES[action_name]:
            return False
        self.owed.extend(core.on_outcome(action_id, outcome))
        self.last_input = row[0]
        return True

    def _quick_fact(self, row: tuple[Any, ...], facts: FactCache) -> bool:
        offered, core = facts.get(row[_NAME], row[_PAYLOAD]), self.core
        if offered is None or offered.handoff_id is not None:
            return False
        fact = Fact(offered.name, core.handoff_id, offered.transfer_timing, offered.transferable_prompt_tokens)
        try:
            actions = core.on_fact(fact)
        except CoordinatorError:
            return False
        if core.verdict is not Verdict.APPLIED:
            return False
        self.owed.extend(actions)
        self.last_input = row[0]
        return True

    def take(self, event: Event, facts: FactCache) -> Verdict:
        """Feed the coordinator its next recorded input; what it answers is owed from then on.

        Raises:
            UnreadableRow: the row does not fit its kind.
        """
        core = self.core
        try:
            if event.kind == "handoff_started" and event.payload_json is None:
                actions = core.start()
            elif event.payload_json is None and event.outcome is not None and event.action_id is not None:
                actions = core.on_outcome(event.action_id, _OUTCOMES[event.outcome])
            else:
                actions = self._offer(event, facts)
        except CoordinatorError as error:
            self.owed.append(error)
            return core.verdict
        except UnreadableRow:
            raise
        except Exception:  # noqa: BLE001 - whatever a machine raises, the journal says that it crashed
            return Verdict.CRASHED
        self.owed.extend(actions)
        return core.verdict

    def _offer(self, event: Event, facts: FactCache) -> tuple[Action, ...]:
        match facts.decode(event):
            case HandoffStarted():
                return self.core.start()
            case OutcomeOffered() as offered:
                return self.core.on_outcome(offered.action_id, Outcome(offered.outcome, offered.message))
            case FactOffered() as offered:
                handoff_id = self.core.handoff_id if offered.handoff_id is None else offered.handoff_id
                timing, tokens = offered.transfer_timing, offered.transferable_prompt_tokens
                return self.core.on_fact(Fact(offered.name, handoff_id, timing, tokens))
            case other:
                raise UnreadableRow(event.seq, f"{type(other).__name__} is no input of a coordinator")
