"""One coordinator being folded: it takes its recorded inputs, and owes the effects that its journal has yet to show.

Most rows are of the two plainest sorts: an outcome that is applied, and an action without a delay. `Fold.quick` takes
those as they are stored, without making an `Event` of them; whatever it does not take, or does not agree with, is left
to the slow way, which explains.
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
_APPLIED = TERM_CODE[Verdict.APPLIED]
_KIND, _NAME, _ACTION_ID, _OUTCOME, _VERDICT, _PAYLOAD = 9, 10, 11, 12, 13, 18
_FACTS_KEPT = 4096

Owed = Action | CoordinatorError


@define
class FactCache:
    """Decoded facts: prompts of one length are timed alike, so the same text comes again and again."""

    _facts: dict[tuple[str, str | None, str | None], FactOffered] = field(factory=dict)

    def decode(self, event: Event) -> Any:
        """The input that a row holds.

        Raises:
            UnreadableRow: the row does not fit its kind.
        """
        key = (event.kind, event.name, event.payload_json)
        known = self._facts.get(key)
        if known is not None:
            return known
        offered = decode(event, ActorKind.COORDINATOR)
        if isinstance(offered, FactOffered):
            if len(self._facts) >= _FACTS_KEPT:
                self._facts.clear()
            self._facts[key] = offered
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

    def quick(self, row: tuple[Any, ...]) -> bool:
        """Take a stored row if it is of the plainest sort and agrees; False leaves everything as it was."""
        if row[_PAYLOAD] is not None or self.diverged:
            return False
        owed = self.owed
        if row[_KIND] == _ACTION_ISSUED:
            if not owed:
                return False
            action = owed[0]
            if (
                type(action) is not Action
                or action.delay_ms is not None
                or row[_ACTION_ID] != action.id
                or row[_NAME] != TERM_CODE[action.name]
                or row[_VERDICT] is not None
            ):
                return False
            owed.popleft()
            self.last_seq = row[0]
            return True
        if row[_KIND] != _OUTCOME_APPLIED or row[_VERDICT] != _APPLIED or (owed and not self.observed):
            return False
        core, action_id, outcome = self.core, row[_ACTION_ID], _BY_CODE.get(row[_OUTCOME])
        action_name = core.issued.get(action_id)
        if outcome is None or action_name is None or action_id in core.outcomes:
            return False
        if outcome.name not in ADMITTED_OUTCOMES[action_name]:
            return False
        owed.extend(core.on_outcome(action_id, outcome))
        self.last_input = self.last_seq = row[0]
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
