"""One report for a handoff, whichever surface it ran on: live engines over TCP, or the offline runtime.

The two surfaces share the machines but not the drivers, so the same handoff must look the same from outside: the same
lifecycle in the same order, the same tokens, blocks published once and only at the activation, and nothing left behind.
The arrival order of the two sides, the timing mode and scheduling noise must not show.
"""

from attrs import define, frozen

from handoff.journal.terms import ObserverName
from handoff.journal.vocabulary import EngineType, HandoffOrder, order_for_engine

_ENDING = (ObserverName.DESTINATION_ACTIVATED, ObserverName.SOURCE_RELEASED, ObserverName.COMPLETED)
LIFECYCLES: dict[HandoffOrder, tuple[ObserverName, ...]] = {
    HandoffOrder.SOURCE_FIRST: (
        ObserverName.SOURCE_HELD,
        ObserverName.DESTINATION_ACCEPTED,
        ObserverName.DESTINATION_RESERVED,
        *_ENDING,
    ),
    HandoffOrder.DESTINATION_FIRST: (
        ObserverName.DESTINATION_ACCEPTED,
        ObserverName.DESTINATION_RESERVED,
        ObserverName.SOURCE_HELD,
        *_ENDING,
    ),
}
"""The lifecycle of a healthy handoff, by order."""


@define
class NotConformant(Exception):
    """A report breaks a demand.

    Attributes:
        field: the first field that does.
        expected: what is demanded, in plain words.
        actual: what the report holds.
    """

    field: str
    expected: str
    actual: object

    def __str__(self) -> str:
        return f"{self.field} is {self.actual!r}: expected {self.expected}"


@frozen
class NormalizedStoredTiming:
    """When the destination published blocks of the prompt.

    Attributes:
        before_activation: blocks stored before the activation; a reservation must publish nothing.
        on_activation: blocks stored with it.
        repeated_activation_hashes_after_activation: of those, how many were stored again later.
    """

    before_activation: int
    on_activation: int
    repeated_activation_hashes_after_activation: int


@frozen
class NormalizedHandoffConformance:
    """What a handoff looked like from outside.

    Attributes:
        engine_type, order: of the set-up.
        lifecycle: the observed steps, in order.
        source_output_tokens, destination_output_tokens: tokens that each side's stream gave.
        completed_requests: ends that the destination's stream gave.
        destination_stored: when blocks were published.
        source_drained, destination_drained: whether each engine had all of its blocks afterwards.
        driver_drained: whether no permit, route, booking or queued action was left.
    """

    engine_type: EngineType
    order: HandoffOrder
    lifecycle: tuple[ObserverName, ...]
    source_output_tokens: int
    destination_output_tokens: int
    completed_requests: int
    destination_stored: NormalizedStoredTiming
    source_drained: bool
    destination_drained: bool
    driver_drained: bool

    def validate(self) -> None:
        """Check every demand, in the order of the fields.

        Raises:
            NotConformant: naming the first one that is broken.
            ValueError: the engine type supports no handoff.
        """
        order = order_for_engine(self.engine_type)
        stored = self.destination_stored
        demands: tuple[tuple[bool, str, str, object], ...] = (
            (self.order is order, "order", str(order), str(self.order)),
            (self.lifecycle == LIFECYCLES[order], "lifecycle", ", ".join(LIFECYCLES[order]), self.lifecycle),
            (self.source_output_tokens == 1, "source_output_tokens", "1", self.source_output_tokens),
            (self.destination_output_tokens == 2, "destination_output_tokens", "2", self.destination_output_tokens),
            (self.completed_requests == 1, "completed_requests", "1", self.completed_requests),
            (stored.before_activation == 0, "before_activation", "0", stored.before_activation),
            (stored.on_activation > 0, "on_activation", "more than 0", stored.on_activation),
            (
                stored.repeated_activation_hashes_after_activation == 0,
                "repeated_activation_hashes_after_activation",
                "0",
                stored.repeated_activation_hashes_after_activation,
            ),
            (self.source_drained, "source_drained", "true", self.source_drained),
            (self.destination_drained, "destination_drained", "true", self.destination_drained),
            (self.driver_drained, "driver_drained", "true", self.driver_drained),
        )
        for holds, field, expected, actual in demands:
            if not holds:
                raise NotConformant(field, expected, actual)
