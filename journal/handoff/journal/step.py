"""One step of a machine: an input, what became of it, and the effects it has.

Whatever decides is a machine: it takes one input and the time at which a driver read the clock for it, and answers
with a step. Whatever waits is a driver: it appends the step to the journal as one group of rows, waits until the
group is durable if others can see an effect, and carries the effects out in order.

A machine may own sub-machines (a source session owns the coordinator). Their inputs and effects appear as entries of
the same step under their own slot, so that each actor's rows can be re-executed alone. Slot 0 is the machine itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from attrs import Factory, define, frozen

from handoff.journal.terms import ActorKind
from handoff.journal.vocabulary import Verdict


@frozen
class Entry:
    """One future row of a step.

    Attributes:
        value: an instance of a class registered with `row_codec.row`.
        verdict: what became of an input; None marks an effect.
        cause: index of the causing entry in the same step; None for the head, whose cause the driver knows, and for
            effects that follow from the head.
        slot: which actor it belongs to: 0 the machine itself, then its sub-machines in their declared order.
    """

    value: Any
    verdict: Verdict | None = None
    cause: int | None = None
    slot: int = 0


@frozen
class Step:
    """What a machine answered; `entries[0]` is the input itself."""

    entries: tuple[Entry, ...]

    @property
    def verdict(self) -> Verdict:
        """What became of the input."""
        verdict = self.entries[0].verdict
        assert verdict is not None
        return verdict

    @property
    def effects(self) -> tuple[Any, ...]:
        """The values of the machine's own effects, in order."""
        return tuple(entry.value for entry in self.entries if entry.verdict is None and entry.slot == 0)


@define
class StepBuilder:
    """Collects the entries of one step, the input first."""

    entries: list[Entry] = Factory(list)

    def add(self, value: Any, *, verdict: Verdict | None = None, cause: int | None = None, slot: int = 0) -> int:
        """Append an entry and give its index, for entries that it causes."""
        self.entries.append(Entry(value, verdict, cause, slot))
        return len(self.entries) - 1

    def finish(self, verdict: Verdict) -> Step:
        """The step, with the verdict of its input set."""
        head = self.entries[0]
        self.entries[0] = Entry(head.value, verdict)
        return Step(tuple(self.entries))


class Machine(Protocol):
    """A pure decider. Same inputs at the same times give the same steps."""

    SLOTS: ClassVar[tuple[ActorKind, ...]]
    """The actor kinds of slot 0 and of each sub-machine."""

    def step(self, value: Any, at_ms: float) -> Step:
        """Take one input that the driver saw at `at_ms` (ms since the run's start)."""
        ...


MachineFactory = Callable[[Mapping[str, Any]], Machine]
"""Builds a machine from the configuration that its `actor_started` row stored."""


def crashed(value: Any) -> Step:
    """The step of an input on which the machine raised."""
    return Step((Entry(value, Verdict.CRASHED),))
