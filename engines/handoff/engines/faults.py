"""What goes wrong on purpose: the scenario's ``[[fault]]`` tables as a plan, and the interceptor that carries it out.

A fault names a thing (`on`), a deed (`do`), and either a handoff of the run (``handoff = 3``, counted from 1 in the
order of arrival) or every handoff. It strikes a handoff at most once. Each time the thing passes, a number is drawn
from a stream that belongs to the run's seed, the fault, the handoff and the count of such things in it, so whether a
fault strikes never depends on how handoffs interleave. If several faults fit, the first of the file strikes.

An outcome is named by the action that it answers.

Each strike leaves a `fault` row before the rows of what comes of it. Those rows are for people: no reader needs them
to find out what happened.
"""

from collections.abc import MutableMapping, Sequence

from attrs import define, field

from handoff.engines.clock import RunClock
from handoff.engines.interception import PASS, FaultKind, InterceptionPoint, Interference
from handoff.engines.scenario import Fault, FaultPlace
from handoff.engines.seeded_stream import SeededStream
from handoff.journal.declarations import FaultInjected
from handoff.journal.port import JournalPort
from handoff.journal.vocabulary import HandoffId


@define
class FaultPlan:
    """Which faults strike which handoff; pure, and the same for live and virtual time.

    Attributes:
        faults: in the order of the scenario.
        seed: of the run.
    """

    faults: Sequence[Fault]
    seed: int
    _passed: dict[tuple[int, int], int] = field(factory=dict, init=False)
    _struck: set[tuple[int, int]] = field(factory=set, init=False)

    def strike(self, place: FaultPlace, names: Sequence[str], ordinal: int) -> Fault | None:
        """The fault that strikes a thing which passes now, if any.

        Args:
            place: what kind of thing.
            names: what it is called; empty for a request.
            ordinal: the handoff's number in the run, from 1.
        """
        for index, fault in enumerate(self.faults):
            if fault.place is not place or (fault.name and fault.name not in names):
                continue
            if fault.handoff is not None and fault.handoff != ordinal:
                continue
            key = (index, ordinal)
            if key in self._struck:
                continue
            count = self._passed[key] = self._passed.get(key, 0) + 1
            draw = SeededStream(self.seed, f"fault/{index}/{ordinal}/{count}").unit()
            if draw < fault.probability:
                self._struck.add(key)
                return fault
        return None

    @property
    def never_struck(self) -> tuple[str, ...]:
        """Faults that have struck nothing, as the scenario writes them."""
        struck = {index for index, _ordinal in self._struck}
        return tuple(f"{fault.on} {fault.do}" for index, fault in enumerate(self.faults) if index not in struck)


@define
class PlannedFaults:
    """An `Interceptor` that follows a plan and writes down when it strikes.

    Attributes:
        plan: what strikes.
        journal: where the `fault` rows go.
        clock: the run's clock.
        handoffs: for each handoff id its number in the run (from 1) and in the journal.
    """

    plan: FaultPlan
    journal: JournalPort
    clock: RunClock
    handoffs: MutableMapping[HandoffId, tuple[int, int]]

    def intercept(self, point: InterceptionPoint, name: str, handoff_id: HandoffId) -> Interference:
        """What shall be done with the thing called `name` at `point`."""
        known = self.handoffs.get(handoff_id)
        if known is None:
            return PASS
        ordinal, number = known
        fault = self.plan.strike(FaultPlace(point.value), (name,), ordinal)
        if fault is None:
            return PASS
        row = FaultInjected(fault.on, fault.do.value, delay_ms=fault.delay_ms or None)
        self.journal.annotate(row, self.clock.now_ms(), handoff=number)
        return Interference(FaultKind(fault.do.value), fault.delay_ms, fault.message)
