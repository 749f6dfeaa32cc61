"""Runs the destination's side of a handoff on a connection to the source; see `session_driver`."""

from collections.abc import Mapping
from typing import ClassVar

from handoff.engines.boundary import EngineBoundary
from handoff.engines.connection import BootstrapConnection
from handoff.engines.destination_session import DestinationSession
from handoff.engines.session_context import SessionContext
from handoff.engines.session_driver import SessionDriver
from handoff.engines.session_rows import (
    CancelRequested,
    CleanupReplied,
    ControlReplied,
    DeadlineFired,
    FactObserved,
    LifecycleEnded,
    ShutdownRequested,
    TimerFired,
)
from handoff.engines.signals import HandoffResult, Signal
from handoff.journal.vocabulary import ActionName, Seq, Side


class DestinationDriver(SessionDriver):
    """Drives one destination session."""

    side: ClassVar[Side] = Side.DESTINATION
    cleanup_action: ClassVar[ActionName] = ActionName.CANCEL_DESTINATION
    ranks: ClassVar[Mapping[type, int]] = {
        ShutdownRequested: 0,
        CancelRequested: 1,
        DeadlineFired: 2,
        TimerFired: 2,
        ControlReplied: 3,
        CleanupReplied: 3,
        FactObserved: 4,
        LifecycleEnded: 4,
    }


async def run_destination_session(
    connection: BootstrapConnection,
    boundary: EngineBoundary,
    context: SessionContext,
    *,
    cancel: Signal | None = None,
    label: str = "destination",
    cause: Seq | None = None,
) -> HandoffResult:
    """Run a destination session to its end, its cleanup included.

    Args:
        connection: made by `connect_to_prefill`; it is closed when this returns.
        boundary: the destination's engine.
        context: journal, clock, limits, and the shutdown signal.
        cancel: set when the request is canceled.
        label: a name for people.
        cause: the row that made the session begin.

    Returns:
        success, or an error; Trio's cancellation goes on only after cleanup.
    """
    registration = connection.registration
    handoff = context.handoff_number(connection.identity, registration.order, registration.engine_type)
    machine = DestinationSession(connection.identity.handoff_id, context.session_timeout_ms)
    driver = DestinationDriver(
        machine,
        context,
        connection,
        boundary,
        cancel=Signal() if cancel is None else cancel,
        handoff=handoff,
        label=label,
    )
    await driver.run(cause)
    return driver.result
