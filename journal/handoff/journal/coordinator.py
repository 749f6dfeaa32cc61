"""The coordinator: a pure machine that orders one handoff and owns nothing else.

A handoff moves the KV cache of one prompt from a *source* (prefill engine) to a *destination* (decode engine).
The coordinator decides what is asked of whom, and when. It is told of **outcomes** (the answer to one action,
matched by action id) and **facts** (observations matched by handoff id), and answers with the **actions** to
carry out next. It never waits and knows no clock, engine or socket.

Three sub-machines are coupled by a few rules:

* the source:       asked -> submitted -> held -> released or canceled
* the destination:  asked -> accepted -> reserved -> activated, or canceled
* the transfer:     issued -> scheduled -> completed

While the handoff is *active*, `NEXT_STEPS` says what comes next: the first row whose condition holds is taken,
and after any accepted input at most one can. At most one ordinary action is therefore outstanding at a time.
The two orders differ in one thing: who is asked first, and so whose fact unlocks the other.

A failure fact, or a failed outcome of an ordinary action, turns the handoff to *cleaning up*, for good. An
action that was issued may have been applied even if its answer never came, so every side that was ever asked is
canceled, once; a side that was never asked is left alone. When each asked side has been cleaned, the handoff
completes as canceled. A cancel that fails is never repeated here: its owner stays uncleaned until the driver,
or an operator, settles it.

What was rejected: retrying cancels (a driver knows better when), comparing a repeated fact's payload with the
first one (the first wins; the journal keeps both), and undoing a recorded outcome of the wrong kind. That last
one is the price of matching the deployed system: **facts are atomic, outcomes are not**. A refused fact leaves
no trace, while an outcome of the wrong kind stays recorded, so that the right one is then a conflict.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from attrs import define, field, frozen

from handoff.journal.transfer_timing import (
    InvalidTransferTiming,
    TransferTiming,
    validate_transfer_timing,
)
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    Completion,
    FactName,
    HandoffId,
    HandoffOrder,
    OutcomeName,
    Verdict,
)


class Action(NamedTuple):
    """One issued action.

    Attributes:
        id: its number within the handoff, from 0.
        name: what is ordered.
        handoff_id: for which handoff.
        delay_ms: the transfer's duration in ms; only with ``start_transfer``.
    """

    id: ActionId
    name: ActionName
    handoff_id: HandoffId
    delay_ms: float | None = None


class Outcome(NamedTuple):
    """The answer to one action; equality of failures includes their message."""

    name: OutcomeName
    message: str | None = None


SUBMITTED = Outcome(OutcomeName.SUBMITTED)
ACCEPTED = Outcome(OutcomeName.ACCEPTED)
SCHEDULED = Outcome(OutcomeName.SCHEDULED)
APPLIED = Outcome(OutcomeName.APPLIED)
NOOP = Outcome(OutcomeName.NOOP)


def failed(message: str) -> Outcome:
    """A failed outcome with its text."""
    return Outcome(OutcomeName.FAILED, message)


@frozen
class Fact:
    """An observation of one handoff.

    Attributes:
        name: what was observed.
        handoff_id: of which handoff.
        transfer_timing: with ``source_held`` only.
        transferable_prompt_tokens: with ``destination_reserved`` only: tokens that the destination lacks.
    """

    name: FactName
    handoff_id: HandoffId
    transfer_timing: TransferTiming | None = None
    transferable_prompt_tokens: int | None = None

    def __attrs_post_init__(self) -> None:
        if (self.name is FactName.SOURCE_HELD) is (self.transfer_timing is None):
            raise ValueError(f"fact {self.name}: a transfer timing belongs to source_held, and only to it")
        if (self.name is FactName.DESTINATION_RESERVED) is (self.transferable_prompt_tokens is None):
            raise ValueError(f"fact {self.name}: a token count belongs to destination_reserved, and only to it")


class Mode(StrEnum):
    """How far a handoff's life has come."""

    ACTIVE = "active"
    CLEANING_UP = "cleaning_up"
    COMPLETE = "complete"


class CoordinatorError(Exception):
    """A refused input. `verdict` is what the journal records of it."""

    verdict = Verdict.INVALID
    code = "coordinator_error"


@define
class ForeignHandoff(CoordinatorError):
    """A fact of another handoff; nothing changed."""

    code = "foreign_handoff"
    expected: HandoffId
    actual: HandoffId

    def __str__(self) -> str:
        return f"fact belongs to handoff {self.actual}, this coordinator to {self.expected}"


@define
class EarlyFact(CoordinatorError):
    """A fact before the acknowledgement it depends on; nothing changed, it may be offered again."""

    code = "early_fact"
    fact: FactName
    awaited: str

    def __str__(self) -> str:
        return f"{self.fact} before {self.awaited}"


@define
class InvalidTiming(CoordinatorError):
    """A hold whose transfer timing cannot be scheduled; nothing changed, a valid one may follow."""

    code = "invalid_timing"
    cause: InvalidTransferTiming

    def __str__(self) -> str:
        return str(self.cause)


@define
class UnknownAction(CoordinatorError):
    """An outcome for an id that was never issued."""

    verdict = Verdict.UNKNOWN
    code = "unknown_action"
    action_id: ActionId

    def __str__(self) -> str:
        return f"unknown handoff action {self.action_id}"


@define
class ConflictingOutcome(CoordinatorError):
    """A second, different outcome for one action; the first stays."""

    verdict = Verdict.CONFLICTING
    code = "conflicting_outcome"
    action_id: ActionId
    first: Outcome
    second: Outcome

    def __str__(self) -> str:
        return f"conflicting outcome for handoff action {self.action_id}: {self.first.name}, then {self.second.name}"


@define
class InvalidOutcome(CoordinatorError):
    """An outcome of a kind that its action does not admit. It stays recorded."""

    code = "invalid_outcome"
    action_id: ActionId
    action: ActionName
    outcome: Outcome

    def __str__(self) -> str:
        return f"invalid handoff action outcome {self.outcome.name} for {self.action}"


@define
class CleanupFailed(CoordinatorError):
    """A cancel answered with a failure. It stays recorded and cannot be acknowledged any more."""

    code = "cleanup_failed"
    action_id: ActionId
    action: ActionName
    message: str | None

    def __str__(self) -> str:
        return f"handoff cleanup action {self.action_id} ({self.action}) failed: {self.message}"


_APPLIED_OR_NOOP = frozenset({OutcomeName.APPLIED, OutcomeName.NOOP})

ADMITTED_OUTCOMES: dict[ActionName, frozenset[OutcomeName]] = {
    ActionName.SUBMIT_PREFILL: frozenset({OutcomeName.SUBMITTED}),
    ActionName.RESERVE_DESTINATION: frozenset({OutcomeName.ACCEPTED}),
    ActionName.START_TRANSFER: frozenset({OutcomeName.SCHEDULED}),
    ActionName.ACTIVATE_DESTINATION: frozenset({OutcomeName.APPLIED}),
    ActionName.RELEASE_SOURCE: _APPLIED_OR_NOOP,
    ActionName.CANCEL_SOURCE: _APPLIED_OR_NOOP,
    ActionName.CANCEL_DESTINATION: _APPLIED_OR_NOOP,
    ActionName.COMPLETE: frozenset(),
}
"""Which outcomes, other than ``failed``, acknowledge which action."""

CANCELS = frozenset({ActionName.CANCEL_SOURCE, ActionName.CANCEL_DESTINATION})
FAILURE_FACTS = frozenset({FactName.FAILED, FactName.TIMED_OUT, FactName.CANCELED})

_AWAIT_A_FACT = frozenset({ActionName.SUBMIT_PREFILL, ActionName.RESERVE_DESTINATION, ActionName.START_TRANSFER})
"""Their acknowledgement admits a fact, and only that fact can lead to a next step."""

_ACKNOWLEDGED_FLAG: dict[ActionName, str] = {
    ActionName.SUBMIT_PREFILL: "source_submitted",
    ActionName.RESERVE_DESTINATION: "destination_accepted",
    ActionName.START_TRANSFER: "transfer_scheduled",
    ActionName.ACTIVATE_DESTINATION: "activation_applied",
    ActionName.RELEASE_SOURCE: "source_cleaned",
    ActionName.CANCEL_SOURCE: "source_cleaned",
    ActionName.CANCEL_DESTINATION: "destination_cleaned",
}


@define(eq=False)
class Coordinator:
    """Orders the actions of one handoff.

    Each of `start`, `on_outcome` and `on_fact` returns the actions to carry out now, in order: none, one, or the
    pair of cancels. `verdict` then tells what became of the input. A refused input raises a `CoordinatorError`,
    whose `verdict` is set likewise.

    Example:
        >>> coordinator = Coordinator(HandoffId("h1"), HandoffOrder.SOURCE_FIRST)
        >>> [action.name.value for action in coordinator.start()]
        ['submit_prefill']
        >>> coordinator.on_outcome(ActionId(0), SUBMITTED)
        ()
    """

    handoff_id: HandoffId
    order: HandoffOrder
    mode: Mode = field(default=Mode.ACTIVE, init=False)
    completion: Completion | None = field(default=None, init=False)
    verdict: Verdict = field(default=Verdict.APPLIED, init=False)
    started: bool = field(default=False, init=False)

    submit_issued: bool = field(default=False, init=False)
    source_submitted: bool = field(default=False, init=False)
    source_held: bool = field(default=False, init=False)
    transfer_timing: TransferTiming | None = field(default=None, init=False)
    release_issued: bool = field(default=False, init=False)
    cancel_source_issued: bool = field(default=False, init=False)
    source_cleaned: bool = field(default=False, init=False)

    reserve_issued: bool = field(default=False, init=False)
    destination_accepted: bool = field(default=False, init=False)
    destination_reserved: bool = field(default=False, init=False)
    transferable_prompt_tokens: int | None = field(default=None, init=False)
    activation_issued: bool = field(default=False, init=False)
    activation_applied: bool = field(default=False, init=False)
    cancel_destination_issued: bool = field(default=False, init=False)
    destination_cleaned: bool = field(default=False, init=False)

    transfer_issued: bool = field(default=False, init=False)
    transfer_scheduled: bool = field(default=False, init=False)
    transfer_completed: bool = field(default=False, init=False)

    next_action_id: int = field(default=0, init=False)
    issued: dict[ActionId, ActionName] = field(factory=dict, init=False)
    outcomes: dict[ActionId, Outcome] = field(factory=dict, init=False)

    @property
    def is_complete(self) -> bool:
        """Whether ``complete`` was issued (which does not mean that it was carried out)."""
        return self.mode is Mode.COMPLETE

    def unanswered(self) -> tuple[tuple[ActionId, ActionName], ...]:
        """The issued actions without an outcome, by id; empty once complete."""
        return tuple(item for item in self.issued.items() if item[0] not in self.outcomes)

    # -- inputs ---------------------------------------------------------------------------------------

    def start(self) -> tuple[Action, ...]:
        """Ask the first participant. Idempotent."""
        if self.started:
            return self._answer(Verdict.DUPLICATE)
        self.started = True
        self.verdict = Verdict.APPLIED
        if self.order is HandoffOrder.SOURCE_FIRST:
            return self._submit_prefill()
        return self._reserve_destination()

    def on_outcome(self, action_id: ActionId, outcome: Outcome) -> tuple[Action, ...]:
        """Take the answer to an issued action.

        Raises:
            UnknownAction: the id was never issued.
            ConflictingOutcome: the action already has another outcome.
            InvalidOutcome: the action does not admit this kind of outcome (it stays recorded).
            CleanupFailed: a cancel failed (it stays recorded).
        """
        if self.mode is Mode.COMPLETE:
            return self._answer(Verdict.LATE)
        action = self.issued.get(action_id)
        if action is None:
            raise self._refusal(UnknownAction(action_id))
        previous = self.outcomes.get(action_id)
        if previous is not None:
            if previous != outcome:
                raise self._refusal(ConflictingOutcome(action_id, previous, outcome))
            return self._answer(Verdict.DUPLICATE)
        self.outcomes[action_id] = outcome
        self.verdict = Verdict.APPLIED
        if outcome.name is OutcomeName.FAILED:
            if action in CANCELS:
                raise self._refusal(CleanupFailed(action_id, action, outcome.message))
            return self._begin_cleanup()
        if outcome.name not in ADMITTED_OUTCOMES[action]:
            raise self._refusal(InvalidOutcome(action_id, action, outcome))
        setattr(self, _ACKNOWLEDGED_FLAG[action], True)
        if action in _AWAIT_A_FACT and self.mode is Mode.ACTIVE:
            return ()
        return self._advance()

    def on_fact(self, fact: Fact) -> tuple[Action, ...]:
        """Take an observation.

        A fact that raises changed nothing. Facts after the handoff turned to cleanup, or completed, are
        ignored; so is a repeated one, even with another payload.

        Raises:
            ForeignHandoff: the fact belongs to another handoff; checked in every mode.
            EarlyFact: it precedes the acknowledgement that it depends on.
            InvalidTiming: a hold's transfer timing is not usable.
        """
        if fact.handoff_id != self.handoff_id:
            raise self._refusal(ForeignHandoff(self.handoff_id, fact.handoff_id))
        if self.mode is not Mode.ACTIVE:
            cleaning = self.mode is Mode.CLEANING_UP
            return self._answer(Verdict.IGNORED_IN_CLEANUP if cleaning else Verdict.LATE)
        self.verdict = Verdict.APPLIED
        match fact.name:
            case FactName.SOURCE_HELD:
                if self.source_held:
                    return self._answer(Verdict.DUPLICATE)
                self._hold_source(fact)
            case FactName.DESTINATION_RESERVED:
                if self.destination_reserved:
                    return self._answer(Verdict.DUPLICATE)
                if not self.destination_accepted:
                    raise self._refusal(EarlyFact(fact.name, "its reservation was accepted"))
                self.destination_reserved = True
                self.transferable_prompt_tokens = fact.transferable_prompt_tokens
            case FactName.TRANSFER_COMPLETED:
                if self.transfer_completed:
                    return self._answer(Verdict.DUPLICATE)
                if not self.transfer_scheduled:
                    raise self._refusal(EarlyFact(fact.name, "its transfer was scheduled"))
                self.transfer_completed = True
            case FactName.FAILED | FactName.TIMED_OUT | FactName.CANCELED:
                return self._begin_cleanup()
        return self._advance()

    # -- rules ----------------------------------------------------------------------------------------

    def _hold_source(self, fact: Fact) -> None:
        if not self.source_submitted:
            raise self._refusal(EarlyFact(fact.name, "its prefill was acknowledged"))
        assert fact.transfer_timing is not None
        try:
            validate_transfer_timing(fact.transfer_timing)
        except InvalidTransferTiming as error:
            raise self._refusal(InvalidTiming(error)) from error
        self.source_held = True
        self.transfer_timing = fact.transfer_timing

    def _advance(self) -> tuple[Action, ...]:
        if self.mode is Mode.CLEANING_UP:
            return self._advance_cleanup()
        for applies, step in NEXT_STEPS:
            if applies(self):
                return step(self)
        return ()

    def _begin_cleanup(self) -> tuple[Action, ...]:
        self.mode = Mode.CLEANING_UP
        return self._advance_cleanup()

    def _advance_cleanup(self) -> tuple[Action, ...]:
        cancels = []
        if self.submit_issued and not self.cancel_source_issued and not self.source_cleaned:
            self.cancel_source_issued = True
            cancels.append(self._issue(ActionName.CANCEL_SOURCE))
        if self.reserve_issued and not self.cancel_destination_issued and not self.destination_cleaned:
            self.cancel_destination_issued = True
            cancels.append(self._issue(ActionName.CANCEL_DESTINATION))
        if cancels:
            return tuple(cancels)
        source_settled = self.source_cleaned or not self.submit_issued
        destination_settled = self.destination_cleaned or not self.reserve_issued
        if source_settled and destination_settled:
            return self._complete()
        return ()

    # -- steps ----------------------------------------------------------------------------------------

    def _submit_prefill(self) -> tuple[Action, ...]:
        self.submit_issued = True
        return (self._issue(ActionName.SUBMIT_PREFILL),)

    def _reserve_destination(self) -> tuple[Action, ...]:
        self.reserve_issued = True
        return (self._issue(ActionName.RESERVE_DESTINATION),)

    def _start_transfer(self) -> tuple[Action, ...]:
        assert self.transfer_timing is not None
        assert self.transferable_prompt_tokens is not None
        self.transfer_issued = True
        delay_ms = self.transfer_timing.delay_ms(self.transferable_prompt_tokens)
        return (self._issue(ActionName.START_TRANSFER, 0.0 if delay_ms is None else delay_ms),)

    def _activate_destination(self) -> tuple[Action, ...]:
        self.activation_issued = True
        return (self._issue(ActionName.ACTIVATE_DESTINATION),)

    def _release_source(self) -> tuple[Action, ...]:
        self.release_issued = True
        return (self._issue(ActionName.RELEASE_SOURCE),)

    def _complete(self) -> tuple[Action, ...]:
        self.completion = Completion.CANCELED if self.mode is Mode.CLEANING_UP else Completion.SUCCESS
        self.mode = Mode.COMPLETE
        action = self._issue(ActionName.COMPLETE)
        self.issued.clear()
        self.outcomes.clear()
        return (action,)

    def _issue(self, name: ActionName, delay_ms: float | None = None) -> Action:
        action_id = ActionId(self.next_action_id)
        self.next_action_id += 1
        self.issued[action_id] = name
        return Action(action_id, name, self.handoff_id, delay_ms)

    def _answer(self, verdict: Verdict) -> tuple[Action, ...]:
        self.verdict = verdict
        return ()

    def _refusal(self, error: CoordinatorError) -> CoordinatorError:
        self.verdict = error.verdict
        return error


NEXT_STEPS: tuple[tuple[Callable[[Coordinator], bool], Callable[[Coordinator], tuple[Action, ...]]], ...] = (
    (
        lambda c: c.order is HandoffOrder.SOURCE_FIRST and c.source_held and not c.reserve_issued,
        Coordinator._reserve_destination,
    ),
    (
        lambda c: c.order is HandoffOrder.DESTINATION_FIRST and c.destination_reserved and not c.submit_issued,
        Coordinator._submit_prefill,
    ),
    (
        lambda c: c.source_held and c.destination_reserved and not c.transfer_issued,
        Coordinator._start_transfer,
    ),
    (lambda c: c.transfer_completed and not c.activation_issued, Coordinator._activate_destination),
    (lambda c: c.activation_applied and not c.release_issued, Coordinator._release_source),
    (lambda c: c.source_cleaned, Coordinator._complete),
)
"""What comes next while active: the first row whose condition holds. In this mode a source is only ever cleaned
by its release, which follows the activation: from then on the destination's KV belongs to the decode."""
