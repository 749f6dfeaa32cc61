"""Runs the source's side of a handoff, from a registration and a connection to the answer of its request.

The request is answered last: after the permit came back and the manager has retired the handoff. See `session_driver`.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from attrs import evolve, frozen

from handoff.engines.boundary import ControlReply, EngineBoundary
from handoff.engines.connection import BootstrapConnection
from handoff.engines.identity import HandoffIdentity
from handoff.engines.interception import InterceptionPoint
from handoff.engines.session_context import SessionContext
from handoff.engines.session_driver import SessionDriver
from handoff.engines.session_rows import (
    CancelRequested,
    ControlCalled,
    DeadlineFired,
    FactObserved,
    LifecycleEnded,
    ObserverEvent,
    ShutdownRequested,
    WireReceived,
)
from handoff.engines.signals import HandoffCompletion, HandoffResult, Signal
from handoff.engines.source_session import SourceSession
from handoff.journal.coordinator import failed
from handoff.journal.terms import ObserverName, WireName
from handoff.journal.vocabulary import ActionName, EngineType, HandoffOrder, OutcomeName, Seq, Side


class SessionPermit(Protocol):
    """A place in a worker, given back when the handoff has ended."""

    def release(self) -> None:
        """Give the place back; once is enough."""
        ...


@frozen
class SourceRegistration:
    """A source that wants to meet its destination.

    Attributes:
        identity, order, engine_type: what the destination must agree with. boundary: the source's engine. completion:
        answered once, when everything is over. cancel: set when the request is canceled. observer: told of each step
        of the normalized lifecycle, at once; the ``send_nowait`` of a memory channel will do. permit: the place in
        the worker, given back before the completion is answered. label: a name for people.
    """

    identity: HandoffIdentity
    order: HandoffOrder
    engine_type: EngineType
    boundary: EngineBoundary
    completion: HandoffCompletion
    cancel: Signal
    observer: Callable[[ObserverName], object] | None = None
    permit: SessionPermit | None = None
    label: str = "source"

    def answer(self, result: HandoffResult) -> None:
        """Give the permit back and answer the request."""
        if self.permit is not None:
            self.permit.release()
        self.completion.deliver(result)


class SourceDriver(SessionDriver):
    """Drives one source session."""

    side: ClassVar[Side] = Side.SOURCE
    cleanup_action: ClassVar[ActionName] = ActionName.CANCEL_SOURCE
    ranks: ClassVar[Mapping[type, int]] = {
        ShutdownRequested: 0,
        CancelRequested: 1,
        DeadlineFired: 2,
        FactObserved: 3,
        LifecycleEnded: 3,
    }

    observer: Callable[[ObserverName], object] | None = None

    def _notify(self, event: ObserverEvent) -> None:
        observer = self.observer
        if observer is None:
            return
        try:
            observer(event.name)
        except Exception:  # noqa: BLE001 - whoever only looks must not harm what it looks at
            self.observer = None

    async def _receive(self, received: WireReceived, row: Seq | None) -> None:
        """Let an acknowledgement pass as the outcome that it is."""
        action = None if received.action_id is None else self._ordered.get(received.action_id)
        if received.name is not WireName.ACTION_ACK or action is None:
            self._post(received, row)
            return
        copies, failure = await self.faults.let_pass(InterceptionPoint.OUTCOME, action)
        if failure is not None:
            received, row = evolve(received, outcome=OutcomeName.FAILED, message=failure), None
        for _ in range(copies):
            self._post(received, row)

    async def _reply(self, called: ControlCalled, reply: ControlReply) -> None:
        """Let an answer of the engine pass as the outcome that it is."""
        copies, failure = await self.faults.let_pass(InterceptionPoint.OUTCOME, called.name)
        if failure is not None:
            reply = ControlReply(failed(failure))
        for _ in range(copies):
            await super()._reply(called, reply)


async def run_source_session(
    registration: SourceRegistration,
    connection: BootstrapConnection,
    context: SessionContext,
    *,
    cause: Seq | None = None,
    on_ended: Callable[[Seq | None, HandoffResult], None] | None = None,
) -> HandoffResult:
    """Run a source session to its end, its cleanup included, and answer its request.

    Args:
        registration: the source.
        connection: to the destination; it is closed when this returns.
        context: journal, clock, limits, and the shutdown signal.
        cause: the row that paired the two.
        on_ended: told of the row that ended the session (None: it died without one), before the request is answered.

    Returns:
        success, or an error; Trio's cancellation goes on only after cleanup.
    """
    identity = registration.identity
    handoff = context.handoff_number(identity, registration.order, registration.engine_type)
    machine = SourceSession(identity.handoff_id, context.session_timeout_ms, registration.order)
    driver = SourceDriver(
        machine,
        context,
        connection,
        registration.boundary,
        cancel=registration.cancel,
        handoff=handoff,
        label=registration.label,
    )
    driver.observer = registration.observer
    try:
        await driver.run(cause)
    finally:
        if on_ended is not None:
            on_ended(driver.ended_row, driver.result)
        registration.answer(driver.result)
    return driver.result
