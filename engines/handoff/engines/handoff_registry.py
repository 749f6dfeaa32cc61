"""The handoffs that are registered with one engine: who may command, and who hears of the facts.

A handoff's name can be registered once at a time. Closing a registration's events frees the name, but the
registration lives on while its control is held or a command of it runs: until another takes the name it is the
*newest*, and may still clean up.
"""

import weakref

from attrs import define, field

from handoff.engines.engine_errors import CommandRunning, EarlierRegistration, RouteTaken
from handoff.engines.engine_routes import FACT_CAPACITY, HandoffRegistration, PendingCommand
from handoff.engines.engine_rows import EngineAnswered, EngineLifecycle, EngineOrder
from handoff.journal.vocabulary import HandoffId, Seq

_FOR_OPEN = frozenset({EngineOrder.SUBMIT_PREFILL, EngineOrder.RESERVE_DESTINATION})
_Key = tuple[int | None, HandoffId | None]


@define(eq=False)
class HandoffRegistry:
    """Registrations by name, and by what rows call their handoff."""

    _open: dict[HandoffId, HandoffRegistration] = field(factory=dict, init=False)
    _newest: "weakref.WeakValueDictionary[HandoffId, HandoffRegistration]" = field(
        factory=weakref.WeakValueDictionary, init=False
    )
    _by_key: dict[_Key, HandoffRegistration] = field(factory=dict, init=False)

    @property
    def open(self) -> tuple[HandoffRegistration, ...]:
        """Registrations whose events are wanted."""
        return tuple(self._open.values())

    def add(self, handoff_id: HandoffId, handoff: int | None) -> HandoffRegistration:
        """Register a handoff.

        Raises:
            RouteTaken, CommandRunning: it cannot be.
        """
        if handoff_id in self._open:
            raise RouteTaken(handoff_id)
        earlier = self._newest.get(handoff_id)
        if earlier is not None and earlier.commands:
            raise CommandRunning(handoff_id)
        registration = HandoffRegistration(handoff_id, handoff)
        self._open[handoff_id] = self._newest[handoff_id] = registration
        self._by_key[_key(registration)] = registration
        return registration

    def close(self, registration: HandoffRegistration) -> None:
        """Nobody wants the registration's events any more; its name is free."""
        registration.open = False
        registration.readable.set()
        if self._open.get(registration.handoff_id) is registration:
            del self._open[registration.handoff_id]
        self._forget_if_idle(registration)

    def is_newest(self, registration: HandoffRegistration) -> bool:
        """Whether no later registration has taken the name."""
        return self._newest.get(registration.handoff_id) is registration

    def check(self, registration: HandoffRegistration, name: EngineOrder) -> None:
        """Whether a registration may give this command.

        Raises:
            EarlierRegistration: it may not.
        """
        if not self.is_newest(registration) or (name in _FOR_OPEN and not registration.open):
            raise EarlierRegistration(registration.handoff_id)

    def queue(self, registration: HandoffRegistration, pending: PendingCommand) -> bool:
        """Put a command behind those that were given before; whether it is the first."""
        registration.commands.append(pending)
        self._by_key[_key(registration)] = registration
        return len(registration.commands) == 1

    def answered(self, answer: EngineAnswered) -> tuple[HandoffRegistration, PendingCommand]:
        """Take the command that this is the answer to off its queue."""
        registration = self._by_key[answer.handoff, answer.handoff_id]
        pending = registration.commands.popleft()
        self._forget_if_idle(registration)
        return registration, pending

    def tell(self, fact: EngineLifecycle, row: Seq) -> None:
        """Hand a fact to whoever wants it."""
        registration = self._by_key.get((fact.handoff, fact.handoff_id))
        if registration is not None and registration.open and len(registration.facts) < FACT_CAPACITY:
            registration.facts.append((fact, row))
            registration.readable.set()

    def unanswered(self) -> tuple[PendingCommand, ...]:
        """Every command that waits for its answer."""
        return tuple(pending for registration in self._by_key.values() for pending in registration.commands)

    def _forget_if_idle(self, registration: HandoffRegistration) -> None:
        idle = not registration.open and not registration.commands
        if idle and self._by_key.get(_key(registration)) is registration:
            del self._by_key[_key(registration)]


def _key(registration: HandoffRegistration) -> _Key:
    """How rows name the handoff: by its number, or else by its name."""
    if registration.handoff is None:
        return None, registration.handoff_id
    return registration.handoff, None
