"""The whole state space of the coordinator: counts, invariants, and where it can get stuck."""

from collections import Counter

import attrs
import pytest
from coordinator_model import (
    HANDOFF,
    Exploration,
    adversarial,
    clone,
    executions,
    explore,
    happy,
    lawful,
    lawful_with_early_facts,
    offer,
    state_of,
)

from handoff.journal.coordinator import (
    CANCELS,
    NEXT_STEPS,
    CleanupFailed,
    Coordinator,
    CoordinatorError,
    EarlyFact,
    Mode,
)
from handoff.journal.vocabulary import ActionName, Completion, FactName, HandoffOrder, OutcomeName

both_orders = pytest.mark.parametrize("order", list(HandoffOrder))

REGIMES = {
    "happy": (happy, True, 9, (8, 0, 1), 48, 8, 0),
    "lawful": (lawful, True, 172, (8, 154, 10), 2_213, 459, 85),
    "lawful, early facts": (lawful_with_early_facts, True, 172, (8, 154, 10), 2_271, 459, 85),
    "adversarial": (adversarial, True, 1_981, (27, 1_944, 10), 106_036, 5_453, 1_755),
    "adversarial, not started": (adversarial, False, 1_984, (28, 1_944, 12), 106_105, 5_458, 1_755),
}


@both_orders
@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_has_the_counted_states_and_transitions(order: HandoffOrder, regime: str) -> None:
    alphabet, started, states, modes, tried, changing, stuck = REGIMES[regime]
    exploration = explore(order, alphabet, started=started)
    assert len(exploration.states) == states
    assert exploration.modes() == modes
    assert len(exploration.transitions) == tried
    assert exploration.changing() == changing
    assert len(exploration.stuck()) == stuck


@both_orders
def test_lawful_executions_number_1514_and_the_longest_shortest_path_is_11(order: HandoffOrder) -> None:
    exploration = explore(order, lawful)
    assert executions(exploration) == 1_514
    assert max(exploration.distances.values()) == 11


@pytest.mark.parametrize(
    ("order", "source", "destination", "both"),
    [(HandoffOrder.SOURCE_FIRST, 33, 39, 13), (HandoffOrder.DESTINATION_FIRST, 30, 42, 13)],
)
def test_every_stuck_lawful_state_holds_a_failed_cancel(
    order: HandoffOrder, source: int, destination: int, both: int
) -> None:
    wedged = Counter(failed_cancels(state) for state in explore(order, lawful).stuck())
    assert wedged == {
        (ActionName.CANCEL_SOURCE,): source,
        (ActionName.CANCEL_DESTINATION,): destination,
        (ActionName.CANCEL_DESTINATION, ActionName.CANCEL_SOURCE): both,
    }


def failed_cancels(state: Coordinator) -> tuple[ActionName, ...]:
    return tuple(
        sorted(
            name
            for action_id, name in state.issued.items()
            if name in CANCELS and action_id in state.outcomes and state.outcomes[action_id].name is OutcomeName.FAILED
        )
    )


@both_orders
def test_exactly_three_early_facts_raise_and_they_change_nothing(order: HandoffOrder) -> None:
    transitions = explore(order, lawful_with_early_facts).transitions
    refused = [transition for transition in transitions if isinstance(transition.answer, EarlyFact)]
    assert {transition.answer.fact for transition in refused} == {
        FactName.SOURCE_HELD,
        FactName.DESTINATION_RESERVED,
        FactName.TRANSFER_COMPLETED,
    }
    assert len(refused) == 3
    assert not any(transition.changed for transition in refused)
    others = {type(t.answer) for t in transitions if isinstance(t.answer, CoordinatorError)} - {EarlyFact}
    assert others == {CleanupFailed}


@both_orders
def test_only_one_completed_state_is_a_success(order: HandoffOrder) -> None:
    completed = [state.completion for state in explore(order, lawful).states.values() if state.is_complete]
    assert Counter(completed) == {Completion.SUCCESS: 1, Completion.CANCELED: 9}


@pytest.fixture(scope="module", params=list(HandoffOrder))
def adversarial_exploration(request: pytest.FixtureRequest) -> Exploration:
    return explore(request.param, adversarial)


def test_the_active_rules_are_at_a_fixpoint_after_every_input(adversarial_exploration: Exploration) -> None:
    for state in adversarial_exploration.states.values():
        if state.mode is Mode.ACTIVE:
            assert not any(applies(state) for applies, _ in NEXT_STEPS)


def test_lists_hold_at_most_two_actions_and_only_the_cancels_pair_up(
    adversarial_exploration: Exploration,
) -> None:
    for transition in adversarial_exploration.transitions:
        if isinstance(transition.answer, CoordinatorError):
            continue
        names = [action.name for action in transition.answer]
        assert len(names) <= 1 or names == [ActionName.CANCEL_SOURCE, ActionName.CANCEL_DESTINATION]


def test_no_ordinary_action_is_issued_in_cleanup_and_none_after_completion(
    adversarial_exploration: Exploration,
) -> None:
    for transition in adversarial_exploration.transitions:
        if isinstance(transition.answer, CoordinatorError):
            continue
        names = {action.name for action in transition.answer}
        if transition.before.is_complete:
            assert not names
        elif transition.after.mode is Mode.CLEANING_UP:
            assert names <= CANCELS


def test_ids_rise_by_one_and_a_life_has_at_most_eight_actions(adversarial_exploration: Exploration) -> None:
    for transition in adversarial_exploration.transitions:
        if isinstance(transition.answer, CoordinatorError):
            continue
        ids = [action.id for action in transition.answer]
        assert ids == list(range(transition.before.next_action_id, transition.after.next_action_id))
        assert transition.after.next_action_id <= 8


def test_each_action_is_issued_only_when_its_ground_is_laid(adversarial_exploration: Exploration) -> None:
    for transition in adversarial_exploration.transitions:
        if isinstance(transition.answer, CoordinatorError):
            continue
        after = transition.after
        for action in transition.answer:
            match action.name:
                case ActionName.START_TRANSFER:
                    assert after.source_held
                    assert after.destination_reserved
                    assert action.delay_ms is not None
                    assert action.delay_ms >= 0.0
                case ActionName.ACTIVATE_DESTINATION:
                    assert after.transfer_completed
                case ActionName.RELEASE_SOURCE:
                    assert after.activation_applied
                case ActionName.COMPLETE if after.completion is Completion.SUCCESS:
                    assert after.activation_applied
                    assert not after.cancel_source_issued
                    assert not after.cancel_destination_issued
                case ActionName.COMPLETE:
                    assert after.source_cleaned or not after.submit_issued
                    assert after.destination_cleaned or not after.reserve_issued


def test_facts_that_raise_leave_no_trace_and_repeated_inputs_do_nothing(
    adversarial_exploration: Exploration,
) -> None:
    for transition in adversarial_exploration.transitions:
        if isinstance(transition.answer, CoordinatorError):
            if not isinstance(transition.value, tuple):
                assert not transition.changed
            continue
        again = clone(transition.after)
        assert offer(again, transition.value) == ()
        assert state_of(again) == state_of(transition.after)


def test_a_wrong_kind_of_outcome_stays_recorded(adversarial_exploration: Exploration) -> None:
    spoiled = [
        transition
        for transition in adversarial_exploration.transitions
        if isinstance(transition.answer, CoordinatorError)
        and transition.changed
        and not isinstance(transition.answer, CleanupFailed)
    ]
    assert spoiled
    for transition in spoiled:
        action_id, outcome = transition.value
        assert transition.after.outcomes[action_id] == outcome
        flags = attrs.asdict(transition.before, recurse=False, filter=attrs.filters.exclude("outcomes", "verdict"))
        assert flags == attrs.asdict(
            transition.after, recurse=False, filter=attrs.filters.exclude("outcomes", "verdict")
        )


@both_orders
def test_a_start_after_an_early_cancel_still_asks_the_first_participant(order: HandoffOrder) -> None:
    exploration = explore(order, adversarial, started=False)
    late_starts = [
        transition
        for transition in exploration.transitions
        if transition.value is None and transition.before.is_complete and transition.changed
    ]
    assert len(late_starts) == 1
    (transition,) = late_starts
    assert transition.before.handoff_id == HANDOFF
    assert len(transition.answer) == 1
