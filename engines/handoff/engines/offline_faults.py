"""Faults in virtual time: what goes wrong between a coordinator and those who answer it, without a wire.

The same plan as live, at four of its places. *Action*: not carried out, late, twice, or refused. *Outcome* and
*fact*: never told, late, told twice, or a failure instead. *Request*: its handoff's first action never begins,
begins late, or the handoff fails or is canceled at once. Faults of the wire (frames, crashes, disconnections,
timeouts) need sessions and are refused before a run begins.

Nothing here times out, so a lost answer ends as a stall: the request that waits for it is failed, and cleanup runs.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from handoff.engines.faults import FaultPlan
from handoff.engines.offline_runtime import OfflineRuntime
from handoff.engines.scenario import Fault, FaultDeed, FaultPlace
from handoff.engines.simulated_request import SimulatedRequest
from handoff.journal.coordinator import Action, CoordinatorError, EarlyFact, Fact, Outcome, failed
from handoff.journal.vocabulary import FactName, HandoffId, TerminalStatus


class FaultyRuntime(OfflineRuntime):
    """An offline runtime in which a plan's faults strike. Takes the plan before the arguments of `OfflineRuntime`."""

    def __init__(self, plan: FaultPlan, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._plan = plan
        self._early: dict[HandoffId, list[Fact]] = {}
        self._carry_out = {name: self._interceptable(carry_out) for name, carry_out in self._carry_out.items()}

    def _strike(self, place: FaultPlace, name: str, request: SimulatedRequest) -> Fault | None:
        fault = self._plan.strike(place, (name,), request.number + 1)
        if fault is not None and self._logs:
            self._log(f"fault:{fault.on}:{fault.do}", request)
        return fault

    def _interceptable(
        self, carry_out: Callable[[SimulatedRequest, Action], None]
    ) -> Callable[[SimulatedRequest, Action], None]:
        def intercepted(request: SimulatedRequest, action: Action) -> None:
            place, name = FaultPlace.ACTION, action.name.value
            if action.id == 0:
                fault = self._strike(FaultPlace.REQUEST, "", request) or self._strike(place, name, request)
            else:
                fault = self._strike(place, name, request)
            self._inflict(
                fault,
                request,
                lambda: carry_out(request, action),
                lambda message: self._offer_outcome(request, action, failed(message)),
            )

        return intercepted

    def _tell_outcome(self, request: SimulatedRequest, action: Action, outcome: Outcome) -> None:
        self._inflict(
            self._strike(FaultPlace.OUTCOME, action.name.value, request),
            request,
            lambda: self._offer_outcome(request, action, outcome),
            lambda message: self._offer_outcome(request, action, failed(message)),
        )

    def _tell_fact(self, request: SimulatedRequest, fact: Fact) -> None:
        self._inflict(
            self._strike(FaultPlace.FACT, fact.name.value, request),
            request,
            lambda: self._offer_fact(request, fact),
            lambda message: self._fail(request, message),
        )

    def _offer_outcome(self, request: SimulatedRequest, action: Action, outcome: Outcome) -> None:
        """Tell an outcome, then the facts that came before it; of a refused one nothing more comes."""
        with suppress(CoordinatorError):
            super()._tell_outcome(request, action, outcome)
        for fact in self._early.pop(request.handoff_id, ()):
            self._offer_fact(request, fact)

    def _offer_fact(self, request: SimulatedRequest, fact: Fact) -> None:
        """Tell a fact, or keep it until the answer that it depends on has come."""
        try:
            super()._tell_fact(request, fact)
        except EarlyFact:
            self._early.setdefault(request.handoff_id, []).append(fact)

    def _fail(self, request: SimulatedRequest, message: str) -> None:
        request.failure = message
        self._offer_fact(request, Fact(FactName.FAILED, request.handoff_id))

    def _inflict(
        self, fault: Fault | None, request: SimulatedRequest, go_on: Callable[[], None], fail: Callable[[str], None]
    ) -> None:
        """Do to a thing that passes what the fault says, or let it go on."""
        match None if fault is None else fault.do:
            case FaultDeed.DROP:
                return
            case FaultDeed.DELAY:
                assert fault is not None
                self._later(fault.delay_ms, request, go_on)
            case FaultDeed.DUPLICATE:
                go_on()
                go_on()
            case FaultDeed.FAIL:
                assert fault is not None
                request.failure = fault.message
                request.set_status(TerminalStatus.FAILED, self.now_ms)
                fail(fault.message)
            case FaultDeed.CANCEL:
                self._offer_fact(request, Fact(FactName.CANCELED, request.handoff_id))
                go_on()
            case _:
                go_on()
