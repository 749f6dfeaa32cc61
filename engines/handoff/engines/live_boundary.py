"""The live engine behind the two methods that a session needs.

A session asks for actions without payload; the prepared request that a submission or a reservation takes was bound to
the boundary before. The scheduler's answers are mapped so that a session sees what its coordinator can work with:

* a release or a cancel that finds nothing is as good as one that finds something: ``applied``, with ``noop`` as the
  raw result, which goes to the journal, because the difference tells what had happened before;
* an activation that finds nothing means that the reservation is gone: ``failed``, with ``noop`` as the raw result;
* a cancel also drops a prepared request that was never used, so that its stream ends and its name is free at once.
"""

from handoff.engines.boundary import ControlCall, ControlReply, LifecycleEvent
from handoff.engines.engine_errors import RegistrationUsed
from handoff.engines.engine_routes import PendingCommand
from handoff.engines.engine_rows import EngineOrder
from handoff.engines.live_engine import LiveHandoffControl, LiveHandoffEvents, RequestRegistration
from handoff.journal.coordinator import APPLIED, NOOP, Outcome, failed
from handoff.journal.vocabulary import ActionName, OutcomeName

_TAKES_REQUEST = frozenset({ActionName.SUBMIT_PREFILL, ActionName.RESERVE_DESTINATION})
_DROPS_REQUEST = frozenset({ActionName.CANCEL_SOURCE, ActionName.CANCEL_DESTINATION})
_RESERVATION_GONE = "the reservation is gone: there was nothing to activate"


class LiveHandoffBoundary:
    """One side of one handoff at a live engine; an `EngineBoundary`."""

    def __init__(
        self, control: LiveHandoffControl, events: LiveHandoffEvents, registration: RequestRegistration
    ) -> None:
        self._control = control
        self._events = events
        self._registration = registration
        self._taken = False

    async def execute(self, call: ControlCall) -> ControlReply:
        """Carry out an action.

        Raises:
            LiveEngineError: the engine does not take the command.
        """
        pending = self._order(call)
        answer = await pending.wait()
        raw = Outcome(answer.outcome, answer.message)
        if answer.outcome is not OutcomeName.NOOP:
            return ControlReply(raw, cause=pending.answer_row)
        outcome = failed(_RESERVATION_GONE) if call.action is ActionName.ACTIVATE_DESTINATION else APPLIED
        return ControlReply(outcome, NOOP, pending.answer_row)

    async def next_event(self) -> LifecycleEvent | None:
        """The next fact; None when the engine, or the registration, is gone."""
        received = await self._events.recv()
        if received is None:
            return None
        fact, row = received
        return LifecycleEvent(fact.name, fact.transfer_timing, fact.transferable_prompt_tokens, row)

    def close(self) -> None:
        """Free the handoff's name, and a prepared request that was never used."""
        self._registration.close()
        self._events.close()

    def _order(self, call: ControlCall) -> PendingCommand:
        order = EngineOrder(call.action.value)
        registration = None
        if call.action in _TAKES_REQUEST:
            if self._taken:
                raise RegistrationUsed(self._registration.route.request_id)
            self._taken = True
            registration = self._registration
        elif call.action in _DROPS_REQUEST:
            self._registration.close()
        return self._control.order(order, registration, action_id=call.action_id, cause=call.row)


def live_handoff_boundary(
    control: LiveHandoffControl, events: LiveHandoffEvents, registration: RequestRegistration
) -> LiveHandoffBoundary:
    """Bind a prepared request to a registered handoff."""
    return LiveHandoffBoundary(control, events, registration)
