"""Steps a machine that nobody waits for: one reading of the clock, one step, one group of rows.

Machines whose effects only concern tasks of the same process (permits, routing) need no loop of their own; whoever
brings an input steps them on the spot. Their effects are seen by actors of the same journal alone, whose own rows
come later and cannot be durable earlier, so nothing waits here.
"""

from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field

from handoff.engines.clock import RunClock
from handoff.journal.port import ActorHandle, JournalPort
from handoff.journal.step import Entry, Machine, crashed
from handoff.journal.vocabulary import Seq


class Configured(Machine, Protocol):
    """A machine that can say what it was built from."""

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row."""
        ...


M = TypeVar("M", bound=Configured)


@define
class StepWriter(Generic[M]):
    """A machine with its place in the journal.

    Attributes:
        machine: what decides.
        label: a name for people.
    """

    machine: M
    label: str
    journal: JournalPort
    clock: RunClock
    _actor: ActorHandle = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._actor = self.journal.start_actor(
            self.machine.SLOTS, self.label, self.machine.config(), self.clock.now_ms()
        )

    def offer(self, value: Any, cause: Seq | None = None) -> list[tuple[Entry, Seq]]:
        """Give the machine an input; its effects with the numbers of their rows."""
        at_ms = self.clock.now_ms()
        try:
            step = self.machine.step(value, at_ms)
        except Exception:
            self.journal.append(self._actor, crashed(value), at_ms, cause)
            raise
        first = self.journal.append(self._actor, step, at_ms, cause)
        return [(entry, Seq(first + index)) for index, entry in enumerate(step.entries) if index]
