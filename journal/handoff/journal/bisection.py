"""Which one change of one input turns a good handoff into a bad one.

Two handoffs of the same kind ended differently. Their coordinators took two sequences of inputs; the edits that lead
from one to the other (an input left out, put in, put elsewhere, or given another value) are tried on the good sequence
one at a time, by executing the coordinator on it anew; what it orders then and did not order before is answered as it
was in the bad one. The first single edit after which the coordinator ends as the bad one did is the answer; if none
does alone, the shortest run of edits from the front.

What was rejected: changing whole rows of sessions. Their order is the world's; the coordinator is where order decides.
"""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum

from attrs import evolve, frozen

from handoff.journal.chronicle import Chronicle, Role
from handoff.journal.coordinator import CANCELS, Coordinator, CoordinatorError, Fact, Outcome
from handoff.journal.coordinator_actor import CoordinatorInput, FactOffered, HandoffStarted, OutcomeOffered
from handoff.journal.row_codec import UnreadableRow, decode
from handoff.journal.terms import ActorKind
from handoff.journal.vocabulary import ActionId, ActionName, HandoffId, HandoffOrder


class EditKind(StrEnum):
    """What is done to the good sequence."""

    LEFT_OUT = "left_out"
    PUT_IN = "put_in"
    CHANGED = "changed"
    MOVED = "moved"


@frozen
class Edit:
    """One change of one input.

    Attributes:
        kind: what is done.
        place: at which place of the good sequence, from 0.
        old, new: the input before and after; None where there is none.
        seq_good, seq_bad: the rows that it is about.
        to: for a moved input, the place it goes to.
    """

    kind: EditKind
    place: int
    old: CoordinatorInput | None
    new: CoordinatorInput | None
    seq_good: int | None = None
    seq_bad: int | None = None
    to: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case EditKind.LEFT_OUT:
                return f"{_word(self.old)} is left out"
            case EditKind.PUT_IN:
                return f"{_word(self.new)} comes in at place {self.place + 1}"
            case EditKind.CHANGED:
                return f"{_word(self.old)} becomes {_word(self.new)}"
            case EditKind.MOVED:
                return f"{_word(self.old)} comes at place {(self.to or 0) + 1} instead of {self.place + 1}"


@frozen
class Ending:
    """How a coordinator ended: its mode, its completion, and what it refused."""

    mode: str
    completion: str | None
    refusals: tuple[str, ...]


@frozen
class Bisection:
    """The answer.

    Attributes:
        good, bad: how the two ended.
        edits: the change, or the shortest run of changes, that turns the one into the other; empty if none does.
        tried: how many sequences were executed.
    """

    good: Ending
    bad: Ending
    edits: tuple[Edit, ...]
    tried: int


class NothingToBisect(ValueError):
    """Two handoffs that cannot be bisected; the text says why."""


def bisect_handoffs(good: Chronicle, bad: Chronicle) -> Bisection:
    """The smallest change among the inputs of `good` that makes it end as `bad` did.

    Raises:
        NothingToBisect: both ended alike, one has no coordinator, or their orders differ.
    """
    if good.order is None or good.order is not bad.order:
        raise NothingToBisect("both handoffs must have a coordinator of the same order")
    inputs, others = _inputs(good), _inputs(bad)
    told = (value for _, value in others if isinstance(value, OutcomeOffered) and value.name in CANCELS)
    answers = {value.name: value for value in told if value.name is not None}
    ending, target = (_ending(good.order, [value for _, value in each], {}) for each in (inputs, others))
    if ending == target:
        raise NothingToBisect(f"both ended alike: {ending.mode}, {ending.completion}")
    edits = _edits(inputs, others)
    plain = [value for _, value in inputs]
    tried = 0
    for edit in edits:
        tried += 1
        if _alike(_ending(good.order, _apply(plain, (edit,)), answers), target):
            return Bisection(ending, target, (edit,), tried)
    script = [edit for edit in edits if edit.kind is not EditKind.MOVED]
    for count in range(2, len(script) + 1):
        tried += 1
        if _alike(_ending(good.order, _apply(plain, script[:count]), answers), target):
            return Bisection(ending, target, tuple(script[:count]), tried)
    return Bisection(ending, target, (), tried)


def _alike(one: Ending, other: Ending) -> bool:
    return (one.mode, one.completion) == (other.mode, other.completion)


def _inputs(chronicle: Chronicle) -> list[tuple[int, CoordinatorInput]]:
    found: list[tuple[int, CoordinatorInput]] = []
    for event in chronicle.events:
        if chronicle.role(event) is Role.COORDINATOR and event.verdict is not None:
            try:
                value = decode(event, ActorKind.COORDINATOR)
            except UnreadableRow:
                continue
            if isinstance(value, OutcomeOffered) and value.name is None and value.action_id in chronicle.actions:
                value = evolve(value, name=ActionName(chronicle.actions[value.action_id].name))
            if not isinstance(value, HandoffStarted):
                found.append((event.seq, value))
    return found


def _ending(
    order: HandoffOrder, inputs: Sequence[CoordinatorInput], answers: Mapping[ActionName, OutcomeOffered]
) -> Ending:
    """How a coordinator ends after some inputs, and after the answers to the cancels that are open then."""
    core = Coordinator(HandoffId("h"), order)
    core.start()
    refusals = _run(core, inputs)
    refusals += _run(core, [answers[name] for _, name in core.unanswered() if name in answers])
    return Ending(core.mode.value, None if core.completion is None else core.completion.value, tuple(refusals))


def _run(core: Coordinator, inputs: Sequence[CoordinatorInput]) -> list[str]:
    """Give a coordinator some inputs; gives the codes of those that it refused."""
    refusals = []
    for value in inputs:
        try:
            match value:
                case OutcomeOffered():
                    action_id = _answered(core, value)
                    if action_id is not None:
                        core.on_outcome(action_id, Outcome(value.outcome, value.message))
                case FactOffered():
                    fact = Fact(value.name, HandoffId("h"), value.transfer_timing, value.transferable_prompt_tokens)
                    core.on_fact(fact)
                case HandoffStarted():
                    core.start()
        except CoordinatorError as refused:
            refusals.append(refused.code)
    return refusals


def _answered(core: Coordinator, offered: OutcomeOffered) -> ActionId | None:
    """The action that an outcome answers here: after an edit the one of its name may have another number, or none."""
    if offered.name is None or core.issued.get(offered.action_id) is offered.name:
        return offered.action_id
    return next((number for number, name in core.issued.items() if name is offered.name), None)


def _edits(good: list[tuple[int, CoordinatorInput]], bad: list[tuple[int, CoordinatorInput]]) -> list[Edit]:
    """The edits that lead from one to the other; then each input moved one place, since order alone may decide."""
    a, b = [_key(value) for _, value in good], [_key(value) for _, value in bad]
    edits: list[Edit] = []
    for tag, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for offset in range(max(j - i, m - k)):
            old = good[i + offset] if i + offset < j else None
            new = bad[k + offset] if k + offset < m else None
            kind = EditKind.CHANGED if old and new else EditKind.PUT_IN if new else EditKind.LEFT_OUT
            edits.append(
                Edit(
                    kind, min(i + offset, j), None if old is None else old[1], None if new is None else new[1],
                    None if old is None else old[0], None if new is None else new[0],
                )
            )  # fmt: skip
    moves = [
        Edit(EditKind.MOVED, place, value, value, seq, None, place - 1)
        for place, (seq, value) in enumerate(good)
        if place
    ]
    return [*edits, *moves]


def _key(value: CoordinatorInput) -> str:
    return repr(evolve(value, extra=None) if isinstance(value, OutcomeOffered | FactOffered) else value)


def _apply(inputs: Sequence[CoordinatorInput], edits: Sequence[Edit]) -> list[CoordinatorInput]:
    changed = list(inputs)
    shift = 0
    for edit in edits:
        place = edit.place + shift
        match edit.kind:
            case EditKind.LEFT_OUT:
                del changed[place]
                shift -= 1
            case EditKind.PUT_IN:
                assert edit.new is not None
                changed.insert(place, edit.new)
                shift += 1
            case EditKind.CHANGED:
                assert edit.new is not None
                changed[place] = edit.new
            case EditKind.MOVED:
                assert edit.to is not None
                changed.insert(edit.to, changed.pop(place))
    return changed


def _word(value: CoordinatorInput | None) -> str:
    match value:
        case OutcomeOffered():
            return f"{value.outcome} of action {value.action_id}"
        case FactOffered():
            return str(value.name)
        case _:
            return "the start"
