"""The coordinator's published behaviour, test by test, and its table against random histories."""

import math

import pytest
from coordinator_model import EVERY_OUTCOME, HANDOFF, TIMING, explore, lawful
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from handoff.journal.coordinator import (
    ACCEPTED,
    ADMITTED_OUTCOMES,
    APPLIED,
    NOOP,
    SCHEDULED,
    SUBMITTED,
    Action,
    ConflictingOutcome,
    Coordinator,
    CoordinatorError,
    EarlyFact,
    Fact,
    ForeignHandoff,
    InvalidOutcome,
    InvalidTiming,
    Mode,
    Outcome,
    UnknownAction,
    failed,
)
from handoff.journal.transfer_timing import (
    InvalidTransferTiming,
    TransferTiming,
    transfer_timeout_delay,
    validate_transfer_delay,
)
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    Completion,
    EngineType,
    FactName,
    HandoffId,
    HandoffOrder,
    OutcomeName,
    TimingMode,
    Verdict,
    order_for_engine,
)

A = ActionName
both_orders = pytest.mark.parametrize("order", list(HandoffOrder))


def held(timing: TransferTiming = TIMING, handoff: HandoffId = HANDOFF) -> Fact:
    return Fact(FactName.SOURCE_HELD, handoff, timing)


def reserved(tokens: int = 4) -> Fact:
    return Fact(FactName.DESTINATION_RESERVED, HANDOFF, None, tokens)


def fact(name: FactName) -> Fact:
    return Fact(name, HANDOFF)


TRANSFERRED = fact(FactName.TRANSFER_COMPLETED)

HAPPY_PATH = {
    HandoffOrder.SOURCE_FIRST: (
        (SUBMITTED, None), (held(), A.RESERVE_DESTINATION), (ACCEPTED, None), (reserved(), A.START_TRANSFER),
        (SCHEDULED, None), (TRANSFERRED, A.ACTIVATE_DESTINATION), (APPLIED, A.RELEASE_SOURCE), (APPLIED, A.COMPLETE),
    ),
    HandoffOrder.DESTINATION_FIRST: (
        (ACCEPTED, None), (reserved(), A.SUBMIT_PREFILL), (SUBMITTED, None), (held(), A.START_TRANSFER),
        (SCHEDULED, None), (TRANSFERRED, A.ACTIVATE_DESTINATION), (APPLIED, A.RELEASE_SOURCE), (APPLIED, A.COMPLETE),
    ),
}  # fmt: skip


def driven(order: HandoffOrder, steps: int) -> Coordinator:
    """A started coordinator after so many inputs of the happy path (phase A1 is 0 steps)."""
    coordinator = Coordinator(HANDOFF, order)
    (action,) = coordinator.start()
    for value, _ in HAPPY_PATH[order][:steps]:
        answer = coordinator.on_fact(value) if isinstance(value, Fact) else coordinator.on_outcome(action.id, value)
        action = answer[0] if answer else action
    return coordinator


def names(actions: tuple[Action, ...]) -> list[ActionName]:
    return [action.name for action in actions]


CANCEL_BOTH = [A.CANCEL_SOURCE, A.CANCEL_DESTINATION]


def finish_cleanup(coordinator: Coordinator, outcome: Outcome = NOOP) -> None:
    pending = [action_id for action_id, name in coordinator.unanswered() if name in CANCEL_BOTH]
    for action_id in pending[:-1]:
        assert coordinator.on_outcome(action_id, outcome) == ()
    assert names(coordinator.on_outcome(pending[-1], outcome)) == [A.COMPLETE]
    assert coordinator.completion is Completion.CANCELED
    for action_id in pending:
        assert coordinator.on_outcome(action_id, outcome) == ()


@both_orders
def test_backend_orders_reach_the_same_safe_completion_sequence(order: HandoffOrder) -> None:
    coordinator = Coordinator(HANDOFF, order)
    first = A.SUBMIT_PREFILL if order is HandoffOrder.SOURCE_FIRST else A.RESERVE_DESTINATION
    (action,) = coordinator.start()
    assert (action.id, action.name) == (0, first)
    timing = TransferTiming(TimingMode.FULL_PROMPT, 1, 2_500_000, 1.0)
    issued = [action]
    for value, expected in HAPPY_PATH[order]:
        if isinstance(value, Fact):
            offered = held(timing) if value.name is FactName.SOURCE_HELD else value
            answer = coordinator.on_fact(offered)
        else:
            answer = coordinator.on_outcome(issued[-1].id, value)
        assert names(answer) == ([] if expected is None else [expected])
        issued.extend(answer)
    assert [action.id for action in issued] == [0, 1, 2, 3, 4, 5]
    assert [action.delay_ms for action in issued if action.name is A.START_TRANSFER] == [2.5]
    assert coordinator.completion is Completion.SUCCESS
    assert coordinator.on_outcome(ActionId(4), APPLIED) == ()
    assert coordinator.verdict is Verdict.LATE


@both_orders
@pytest.mark.parametrize(
    ("mode", "tokens", "delay_ms"),
    [
        (TimingMode.FULL_PROMPT, 4, 8.0),
        (TimingMode.DESTINATION_MISSING, 4, 4.0),
        (TimingMode.DESTINATION_MISSING, 0, 0.0),
    ],
)
def test_timing_mode_selects_full_or_destination_missing_footprint(
    order: HandoffOrder, mode: TimingMode, tokens: int, delay_ms: float
) -> None:
    coordinator = driven(order, 1)
    timing = TransferTiming(mode, 8, 1_000_000, 1.0)
    if order is HandoffOrder.SOURCE_FIRST:
        (reserve,) = coordinator.on_fact(held(timing))
        coordinator.on_outcome(reserve.id, ACCEPTED)
        (transfer,) = coordinator.on_fact(reserved(tokens))
    else:
        (submit,) = coordinator.on_fact(reserved(tokens))
        coordinator.on_outcome(submit.id, SUBMITTED)
        (transfer,) = coordinator.on_fact(held(timing))
    assert transfer == Action(ActionId(2), A.START_TRANSFER, HANDOFF, delay_ms)


@both_orders
def test_full_destination_hit_keeps_zero_delay_transfer_transition(order: HandoffOrder) -> None:
    coordinator = Coordinator(HANDOFF, order)
    coordinator.start()
    timing = TransferTiming(TimingMode.DESTINATION_MISSING, 8, 1_000_000, 1.0)
    source_first = order is HandoffOrder.SOURCE_FIRST
    inputs = [(SUBMITTED, held(timing)), (ACCEPTED, reserved(0))]
    transfer: tuple[Action, ...] = ()
    for number, (outcome, observed) in enumerate(inputs if source_first else reversed(inputs)):
        coordinator.on_outcome(ActionId(number), outcome)
        transfer = coordinator.on_fact(observed)
    assert transfer == (Action(ActionId(2), A.START_TRANSFER, HANDOFF, 0.0),)
    assert coordinator.on_outcome(ActionId(2), SCHEDULED) == ()
    assert names(coordinator.on_fact(TRANSFERRED)) == [A.ACTIVATE_DESTINATION]


def test_cancellation_cleans_actions_that_may_have_been_applied() -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 2)
    assert names(coordinator.on_fact(fact(FactName.CANCELED))) == CANCEL_BOTH
    assert coordinator.on_outcome(ActionId(1), ACCEPTED) == ()
    finish_cleanup(coordinator)


@pytest.mark.parametrize(
    ("order", "failure"),
    [(HandoffOrder.SOURCE_FIRST, FactName.TIMED_OUT), (HandoffOrder.DESTINATION_FIRST, FactName.FAILED)],
)
def test_lost_activation_ack_is_cleaned_on_failure_or_timeout(order: HandoffOrder, failure: FactName) -> None:
    coordinator = driven(order, 6)
    assert names(coordinator.on_fact(fact(failure))) == CANCEL_BOTH
    assert coordinator.on_outcome(ActionId(3), APPLIED) == ()
    finish_cleanup(coordinator)


def test_invalid_same_handoff_ordering_is_rejected() -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 0)
    with pytest.raises(EarlyFact):
        coordinator.on_fact(held())
    coordinator.on_outcome(ActionId(0), SUBMITTED)
    with pytest.raises(EarlyFact):
        coordinator.on_fact(TRANSFERRED)
    assert coordinator.verdict is Verdict.INVALID
    assert names(coordinator.on_fact(held())) == [A.RESERVE_DESTINATION]


@pytest.mark.parametrize("bandwidth_gb_s", [-1.0, 0.0, math.nan, math.inf])
def test_invalid_transfer_timing_is_rejected_before_scheduling(bandwidth_gb_s: float) -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 1)
    for bytes_per_token in (1_000_000, None):
        timing = TransferTiming(TimingMode.FULL_PROMPT, 8, bytes_per_token, bandwidth_gb_s)
        with pytest.raises(InvalidTiming, match="invalid handoff transfer bandwidth"):
            coordinator.on_fact(held(timing))
    assert names(coordinator.on_fact(held())) == [A.RESERVE_DESTINATION]


def test_a_bandwidth_that_makes_the_delay_infinite_is_rejected() -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 1)
    timing = TransferTiming(TimingMode.DESTINATION_MISSING, 8, 1_000_000, 5e-324)
    with pytest.raises(InvalidTiming, match="invalid handoff transfer delay"):
        coordinator.on_fact(held(timing))


@pytest.mark.parametrize("delay_ms", [-1.0, math.nan, math.inf])
def test_a_delay_that_is_not_finite_and_positive_is_rejected(delay_ms: float) -> None:
    validate_transfer_delay(None)
    validate_transfer_delay(0.0)
    with pytest.raises(InvalidTransferTiming, match="invalid handoff transfer delay"):
        validate_transfer_delay(delay_ms)


@both_orders
def test_timeout_before_initial_ack_cleans_only_the_issued_owner(order: HandoffOrder) -> None:
    coordinator = driven(order, 0)
    source_first = order is HandoffOrder.SOURCE_FIRST
    expected = A.CANCEL_SOURCE if source_first else A.CANCEL_DESTINATION
    assert names(coordinator.on_fact(fact(FactName.TIMED_OUT))) == [expected]
    assert coordinator.on_outcome(ActionId(0), SUBMITTED if source_first else ACCEPTED) == ()
    finish_cleanup(coordinator)


def test_destination_first_unacknowledged_prefill_is_cleaned_as_ambiguous_ownership() -> None:
    coordinator = driven(HandoffOrder.DESTINATION_FIRST, 2)
    assert names(coordinator.on_fact(fact(FactName.CANCELED))) == CANCEL_BOTH
    assert coordinator.on_outcome(ActionId(1), SUBMITTED) == ()
    finish_cleanup(coordinator)


@both_orders
def test_timeout_after_transfer_is_scheduled_cleans_both_owners(order: HandoffOrder) -> None:
    coordinator = driven(order, 5)
    assert names(coordinator.on_fact(fact(FactName.TIMED_OUT))) == CANCEL_BOTH
    finish_cleanup(coordinator)


@both_orders
def test_lost_source_release_ack_still_runs_ambiguous_cleanup(order: HandoffOrder) -> None:
    coordinator = driven(order, 7)
    assert names(coordinator.on_fact(fact(FactName.CANCELED))) == CANCEL_BOTH
    assert coordinator.on_outcome(ActionId(4), APPLIED) == ()
    assert names(coordinator.on_outcome(ActionId(6), NOOP)) == [A.COMPLETE]
    assert coordinator.completion is Completion.CANCELED


def test_duplicates_are_idempotent_but_conflicts_are_rejected() -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 0)
    assert coordinator.start() == ()
    assert coordinator.verdict is Verdict.DUPLICATE
    assert coordinator.on_outcome(ActionId(0), SUBMITTED) == ()
    assert coordinator.on_outcome(ActionId(0), SUBMITTED) == ()
    assert coordinator.verdict is Verdict.DUPLICATE
    with pytest.raises(ConflictingOutcome) as conflict:
        coordinator.on_outcome(ActionId(0), APPLIED)
    assert (conflict.value.first, conflict.value.second) == (SUBMITTED, APPLIED)
    assert coordinator.verdict is Verdict.CONFLICTING
    coordinator.on_fact(held())
    assert coordinator.on_fact(held(TransferTiming(TimingMode.FULL_PROMPT, 99))) == ()
    assert coordinator.transfer_timing == TIMING
    with pytest.raises(ForeignHandoff):
        coordinator.on_fact(held(handoff=HandoffId("another")))


def test_the_foreign_handoff_is_refused_in_every_mode() -> None:
    for state in explore(HandoffOrder.SOURCE_FIRST, lawful).states.values():
        with pytest.raises(ForeignHandoff):
            state.on_fact(held(handoff=HandoffId("another")))


def test_an_unknown_action_is_refused() -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 0)
    with pytest.raises(UnknownAction, match="unknown handoff action 7"):
        coordinator.on_outcome(ActionId(7), SUBMITTED)
    assert coordinator.verdict is Verdict.UNKNOWN


def test_activation_noop_is_invalid_and_spoils_the_right_outcome() -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 6)
    with pytest.raises(InvalidOutcome):
        coordinator.on_outcome(ActionId(3), NOOP)
    with pytest.raises(ConflictingOutcome):
        coordinator.on_outcome(ActionId(3), APPLIED)
    assert names(coordinator.on_fact(fact(FactName.FAILED))) == CANCEL_BOTH


def test_a_failed_release_cancels_both_sides_the_healthy_decode_too() -> None:
    coordinator = driven(HandoffOrder.SOURCE_FIRST, 7)
    assert names(coordinator.on_outcome(ActionId(4), failed("engine lost"))) == CANCEL_BOTH


@both_orders
@pytest.mark.parametrize("failure", [FactName.FAILED, FactName.TIMED_OUT, FactName.CANCELED])
def test_a_failure_before_the_start_completes_at_once(order: HandoffOrder, failure: FactName) -> None:
    coordinator = Coordinator(HANDOFF, order)
    assert names(coordinator.on_fact(fact(failure))) == [A.COMPLETE]
    assert coordinator.completion is Completion.CANCELED


def test_the_outcome_table_is_total() -> None:
    assert set(ADMITTED_OUTCOMES) == set(ActionName)
    assert all(OutcomeName.FAILED not in admitted for admitted in ADMITTED_OUTCOMES.values())


@pytest.mark.parametrize("name", list(FactName))
def test_a_fact_carries_exactly_the_payload_of_its_name(name: FactName) -> None:
    is_held, is_reserved = name is FactName.SOURCE_HELD, name is FactName.DESTINATION_RESERVED
    Fact(name, HANDOFF, TIMING if is_held else None, 4 if is_reserved else None)
    with pytest.raises(ValueError, match="timing"):
        Fact(name, HANDOFF, None if is_held else TIMING, 4 if is_reserved else None)
    with pytest.raises(ValueError, match="token count"):
        Fact(name, HANDOFF, TIMING if is_held else None, None if is_reserved else 4)


def test_engine_types_have_their_order_and_trtllm_has_none() -> None:
    assert order_for_engine(EngineType.VLLM) is HandoffOrder.SOURCE_FIRST
    assert order_for_engine(EngineType.SGLANG) is HandoffOrder.DESTINATION_FIRST
    with pytest.raises(ValueError, match="does not support TRT-LLM"):
        order_for_engine(EngineType.TRTLLM)


def test_timeout_delay_resolves_at_the_mode_specific_boundary() -> None:
    full = TransferTiming(TimingMode.FULL_PROMPT, 8, 1_000_000, 1.0)
    assert transfer_timeout_delay(full, None) == (True, 8.0)
    missing = TransferTiming(TimingMode.DESTINATION_MISSING, 8, 1_000_000, 1.0)
    assert transfer_timeout_delay(missing, None) == (False, None)
    assert transfer_timeout_delay(missing, 4) == (True, 4.0)
    unmodelled = TransferTiming(TimingMode.FULL_PROMPT, 8)
    assert transfer_timeout_delay(unmodelled, None) == (True, None)


@given(
    tokens=st.integers(0, 10**7),
    missing=st.integers(0, 10**7),
    bytes_per_token=st.integers(0, 10**7),
    bandwidth_gb_s=st.floats(1e-3, 1e6),
)
def test_a_valid_timing_gives_a_finite_delay_while_no_more_than_the_prompt_is_missing(
    tokens: int, missing: int, bytes_per_token: int, bandwidth_gb_s: float
) -> None:
    timing = TransferTiming(TimingMode.DESTINATION_MISSING, tokens, bytes_per_token, bandwidth_gb_s)
    delay_ms = timing.delay_ms(min(missing, tokens))
    assert delay_ms is not None
    full_ms = timing.full_prompt_delay_ms()
    assert full_ms is not None
    assert 0.0 <= delay_ms <= full_ms < math.inf


class TwinCoordinators(RuleBasedStateMachine):
    """Two coordinators given the same history answer alike, whatever the history."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Coordinator | None = None
        self.second: Coordinator | None = None

    @precondition(lambda self: self.first is None)
    @rule(order=st.sampled_from(list(HandoffOrder)))
    def open(self, order: HandoffOrder) -> None:
        self.first, self.second = Coordinator(HANDOFF, order), Coordinator(HANDOFF, order)

    @precondition(lambda self: self.first is not None)
    @rule()
    def start(self) -> None:
        self.both(lambda coordinator: coordinator.start())

    @precondition(lambda self: self.first is not None)
    @rule(action_id=st.integers(0, 8), outcome=st.sampled_from(EVERY_OUTCOME))
    def answer(self, action_id: int, outcome: Outcome) -> None:
        self.both(lambda coordinator: coordinator.on_outcome(ActionId(action_id), outcome))

    @precondition(lambda self: self.first is not None)
    @rule(
        observed=st.sampled_from(
            [held(), held(handoff=HandoffId("x")), reserved(4), reserved(0), TRANSFERRED]
            + [fact(name) for name in (FactName.FAILED, FactName.TIMED_OUT, FactName.CANCELED)]
        )
    )
    def observe(self, observed: Fact) -> None:
        self.both(lambda coordinator: coordinator.on_fact(observed))

    def both(self, give: object) -> None:
        answers = []
        for coordinator in (self.first, self.second):
            try:
                answers.append(give(coordinator))  # type: ignore[operator]
            except CoordinatorError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]

    @invariant()
    def completed_means_nothing_is_owed(self) -> None:
        if self.first is not None and self.first.mode is Mode.COMPLETE:
            assert self.first.completion is not None
            assert not self.first.outcomes


TestTwinCoordinators = TwinCoordinators.TestCase
