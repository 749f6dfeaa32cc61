"""Exhaustive exploration of the coordinator: every state that an alphabet of inputs can reach."""

import functools
import operator
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from attrs import frozen

from handoff.journal.coordinator import (
    ACCEPTED,
    ADMITTED_OUTCOMES,
    APPLIED,
    NOOP,
    SCHEDULED,
    SUBMITTED,
    Action,
    Coordinator,
    CoordinatorError,
    Fact,
    Mode,
    Outcome,
    failed,
)
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionId,
    FactName,
    HandoffId,
    HandoffOrder,
    TimingMode,
)

HANDOFF = HandoffId("h1")
TIMING = TransferTiming(TimingMode.FULL_PROMPT, 8, 1_000_000, 1.0)
INVALID_TIMING = TransferTiming(TimingMode.FULL_PROMPT, 8, 1_000_000, -1.0)

Input = tuple[ActionId, Outcome] | Fact | None
"""An outcome, a fact, or None for another start."""
Alphabet = Callable[[Coordinator], Iterator[Input]]

SOURCE_HELD = Fact(FactName.SOURCE_HELD, HANDOFF, TIMING)
DESTINATION_RESERVED = Fact(FactName.DESTINATION_RESERVED, HANDOFF, None, 4)
TRANSFER_COMPLETED = Fact(FactName.TRANSFER_COMPLETED, HANDOFF)
FAILURES = tuple(Fact(name, HANDOFF) for name in (FactName.FAILED, FactName.TIMED_OUT, FactName.CANCELED))
PROGRESS = (SOURCE_HELD, DESTINATION_RESERVED, TRANSFER_COMPLETED)
EVERY_OUTCOME = (SUBMITTED, ACCEPTED, SCHEDULED, APPLIED, NOOP, failed("one"), failed("two"))


def acknowledged(coordinator: Coordinator) -> tuple[bool, bool, bool]:
    """Whether each of `PROGRESS` may lawfully follow."""
    return (coordinator.source_submitted, coordinator.destination_accepted, coordinator.transfer_scheduled)


def issued(coordinator: Coordinator) -> tuple[bool, bool, bool]:
    """Whether the action behind each of `PROGRESS` was issued."""
    return (coordinator.submit_issued, coordinator.reserve_issued, coordinator.transfer_issued)


def answers(coordinator: Coordinator, *, failures: bool) -> Iterator[Input]:
    """Every admitted outcome of each unanswered action, and the repeated outcome of each answered one."""
    for action_id, name in coordinator.issued.items():
        if action_id in coordinator.outcomes:
            yield action_id, coordinator.outcomes[action_id]
            continue
        admitted = sorted(ADMITTED_OUTCOMES[name])
        yield from ((action_id, Outcome(outcome)) for outcome in (admitted if failures else admitted[:1]))
        if failures:
            yield action_id, failed("one")


def happy(coordinator: Coordinator) -> Iterator[Input]:
    yield None
    yield from answers(coordinator, failures=False)
    yield from (fact for fact, lawful in zip(PROGRESS, acknowledged(coordinator), strict=True) if lawful)


def lawful(coordinator: Coordinator) -> Iterator[Input]:
    yield None
    yield from answers(coordinator, failures=True)
    yield from (fact for fact, allowed in zip(PROGRESS, acknowledged(coordinator), strict=True) if allowed)
    yield from FAILURES


def lawful_with_early_facts(coordinator: Coordinator) -> Iterator[Input]:
    yield from lawful(coordinator)
    for fact, asked, answered in zip(PROGRESS, issued(coordinator), acknowledged(coordinator), strict=True):
        if asked and not answered:
            yield fact


def adversarial(coordinator: Coordinator) -> Iterator[Input]:
    yield None
    for action_id in range(coordinator.next_action_id + 1):
        yield from ((ActionId(action_id), outcome) for outcome in EVERY_OUTCOME)
    yield from PROGRESS
    yield from FAILURES
    yield Fact(FactName.SOURCE_HELD, HANDOFF, INVALID_TIMING)
    yield Fact(FactName.CANCELED, HandoffId("another"))


def offer(coordinator: Coordinator, value: Input) -> tuple[Action, ...] | CoordinatorError:
    """What the coordinator answers; a refusal is returned."""
    try:
        if value is None:
            return coordinator.start()
        if isinstance(value, Fact):
            return coordinator.on_fact(value)
        return coordinator.on_outcome(*value)
    except CoordinatorError as error:
        return error


_FIELDS = tuple(field.name for field in attrs.fields(Coordinator))
_DECIDING = operator.attrgetter(*(name for name in _FIELDS if name not in ("verdict", "issued", "outcomes")))


def state_of(coordinator: Coordinator) -> tuple[Any, ...]:
    """Everything that decides what the coordinator will do."""
    return _DECIDING(coordinator), tuple(coordinator.issued.items()), tuple(sorted(coordinator.outcomes.items()))


def clone(coordinator: Coordinator) -> Coordinator:
    twin = Coordinator(coordinator.handoff_id, coordinator.order)
    for name in _FIELDS:
        setattr(twin, name, getattr(coordinator, name))
    twin.issued = dict(coordinator.issued)
    twin.outcomes = dict(coordinator.outcomes)
    return twin


@frozen
class Transition:
    before: Coordinator
    value: Input
    answer: tuple[Action, ...] | CoordinatorError
    after: Coordinator
    edge: tuple[tuple[Any, ...], tuple[Any, ...]]

    @property
    def changed(self) -> bool:
        return self.edge[0] != self.edge[1]


@frozen
class Exploration:
    """Every reachable state, every transition tried, and the distance of each state from the first."""

    states: dict[tuple[Any, ...], Coordinator]
    distances: dict[tuple[Any, ...], int]
    transitions: list[Transition]

    def modes(self) -> tuple[int, int, int]:
        counts = Counter(state.mode for state in self.states.values())
        return counts[Mode.ACTIVE], counts[Mode.CLEANING_UP], counts[Mode.COMPLETE]

    def changing(self) -> int:
        return sum(transition.changed for transition in self.transitions)

    def stuck(self) -> list[Coordinator]:
        """The states from which no completed state can be reached."""
        before: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for transition in self.transitions:
            before.setdefault(transition.edge[1], []).append(transition.edge[0])
        live = {key for key, state in self.states.items() if state.is_complete}
        frontier = list(live)
        while frontier:
            for key in before.get(frontier.pop(), ()):
                if key not in live:
                    live.add(key)
                    frontier.append(key)
        return [state for key, state in self.states.items() if key not in live]


@functools.cache
def explore(order: HandoffOrder, alphabet: Alphabet, *, started: bool = True) -> Exploration:
    """Breadth-first over every input of the alphabet in every state."""
    first = Coordinator(HANDOFF, order)
    if started:
        first.start()
    states = {state_of(first): first}
    distances = {state_of(first): 0}
    transitions = []
    queue = deque([first])
    while queue:
        state = queue.popleft()
        key = state_of(state)
        for value in alphabet(state):
            after = clone(state)
            answer = offer(after, value)
            reached = state_of(after)
            transitions.append(Transition(state, value, answer, after, (key, reached)))
            if reached not in states:
                states[reached] = after
                distances[reached] = distances[key] + 1
                queue.append(after)
    return Exploration(states, distances, transitions)


def executions(exploration: Exploration) -> int:
    """How many distinct paths of state-changing inputs lead from the first state to one where none is left."""
    successors: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {key: [] for key in exploration.states}
    for transition in exploration.transitions:
        if transition.changed:
            successors[transition.edge[0]].append(transition.edge[1])
    counts: dict[tuple[Any, ...], int] = {}
    for key in sorted(successors, key=lambda state: -exploration.distances[state]):
        _count(key, successors, counts)
    return counts[next(iter(exploration.states))]


def _count(key: tuple[Any, ...], successors: dict[Any, list[Any]], counts: dict[Any, int]) -> int:
    if key not in counts:
        counts[key] = sum(_count(after, successors, counts) for after in successors[key]) or 1
    return counts[key]
