"""Machines at work in a replay, as many as fit: each sits on a seat, and the one that was idle longest gives way.

An actor's machine is built from the configuration in its `actor_started` row. A journal may hold millions of actors,
most of which ended long ago, so a seat is given up when the room is full. If a row comes for an actor without a seat,
its machine is built again and takes the actor's earlier inputs anew: always right, and rare enough not to matter.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from handoff.journal.event_source import ActorDeclaration, EventSource
from handoff.journal.step import Machine, MachineFactory
from handoff.journal.terms import ActorKind


@define(eq=False)
class Seat:
    """An actor being re-executed.

    Attributes:
        actor: its number; its sub-machines have the numbers that follow.
        kind: which machine it is an instance of.
        label: a name for people.
        handoff: the handoff it serves alone, or None.
        machine: the machine, or None when its actor's rows are only read.
        last_at_ms: time of its latest row.
        last_seq: number of its latest row that re-execution confirmed.
        diverged: whether it diverged already, so that its later rows say nothing.
    """

    actor: int
    kind: ActorKind
    label: str
    handoff: int | None
    machine: Machine | None
    last_at_ms: float = float("-inf")
    last_seq: int | None = None
    diverged: bool = False

    @property
    def slots(self) -> tuple[ActorKind, ...]:
        """The kinds of the actor and of its sub-machines."""
        return (self.kind,) if self.machine is None else self.machine.SLOTS

    @property
    def name(self) -> str:
        """What to call it in a sentence."""
        return f"{self.kind.value} {self.actor}" + (f" ({self.label})" if self.label else "")


@define
class Seats:
    """The seats of a replay.

    Attributes:
        source: where declarations of actors without a seat are looked up.
        machines: how the machine of each kind is built; kinds that are absent are only read.
        catch_up: takes the actor's inputs before a row anew, on a machine just built.
        room: how many seats there are.
    """

    source: EventSource
    machines: Mapping[ActorKind, MachineFactory]
    catch_up: Callable[[Seat, int], None]
    room: int = 8192
    _taken: OrderedDict[int, Seat] = field(factory=OrderedDict, init=False)
    _diverged: set[int] = field(factory=set, init=False)

    def take(self, declared: ActorDeclaration) -> Seat:
        """Build the machine of a new actor and seat it.

        Raises:
            Exception: whatever the factory raises on a configuration that it does not understand.
        """
        # an observed actor's rows were written down by somebody else, as they came: no step of ours has that shape
        own = declared.parent is None and not declared.config.get("observed")
        factory = self.machines.get(declared.kind) if own else None
        machine = None if factory is None else factory(declared.config)
        seat = Seat(declared.actor, declared.kind, declared.label, declared.handoff, machine)
        self._taken[declared.actor] = seat
        if len(self._taken) > self.room:
            _, left = self._taken.popitem(last=False)
            if left.diverged:
                self._diverged.add(left.actor)
        return seat

    def of(self, actor: int, before: int) -> Seat:
        """The seat of an actor that was declared before row `before`.

        Raises:
            LookupError: there is no such actor.
        """
        seat = self._taken.get(actor)
        if seat is not None:
            self._taken.move_to_end(actor)
            return seat
        seat = self.take(self.source.actor(actor))
        seat.diverged = actor in self._diverged
        if not seat.diverged:
            self.catch_up(seat, before)
        return seat

    def kind_of(self, actor: int) -> ActorKind:
        """Which machine an actor is an instance of, seated or not."""
        seat = self._taken.get(actor)
        return self.source.actor(actor).kind if seat is None else seat.kind


_UNSET: Any = object()


@define
class RecentValues:
    """Values of recent rows, by number, for inputs that take their content from their cause."""

    room: int = 65536
    _values: dict[int, Any] = field(factory=dict, init=False)
    _order: list[int] = field(factory=list, init=False)

    def keep(self, seq: int, value: Any) -> None:
        """Remember the value of a row."""
        if len(self._order) >= 2 * self.room:
            for old in self._order[: self.room]:
                self._values.pop(old, None)
            del self._order[: self.room]
        self._values[seq] = value
        self._order.append(seq)

    def get(self, seq: int) -> Any | None:
        """The value of a row, or None if it is not remembered."""
        value = self._values.get(seq, _UNSET)
        return None if value is _UNSET else value
