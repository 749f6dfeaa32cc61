"""Where a session's driver meets the faults of a run: the points of `interception`, and what each fault does there.

The driver asks for everything that passes. What a fault does to the thing itself comes back as an answer (how often it
goes on, whether it fails instead); what it does to the session is done here. The gate decides nothing about handoffs:
a struck session sees only inputs that the world could have brought it.
"""

from collections.abc import Awaitable, Callable

import trio
from attrs import define

from handoff.engines.connection import BootstrapConnection
from handoff.engines.interception import PASS, FaultKind, InterceptionPoint, Interference, no_faults
from handoff.engines.session_context import SessionContext
from handoff.engines.session_inbox import Inbox
from handoff.engines.session_rows import SessionInput, TimerFired, TimerSet, TransportFailed
from handoff.engines.signals import Signal
from handoff.journal.terms import TimerName
from handoff.journal.vocabulary import ActionName, FactName, HandoffId, Side


@define(eq=False)
class FaultGate:
    """The interception points of one session.

    Attributes:
        context: holds the interceptor, and the crash switches of the process.
        handoff_id: whose session it is.
        connection: what a disconnect cuts.
        cancel: what a cancel sets.
        inbox: whose deadline a timeout fires.
        post: gives the session an input.
        spawn: starts a task of the session.
    """

    context: SessionContext
    handoff_id: HandoffId
    connection: BootstrapConnection
    cancel: Signal
    inbox: Inbox
    post: Callable[[SessionInput], None]
    spawn: Callable[[Callable[[], Awaitable[None]]], None]

    async def let_pass(self, point: InterceptionPoint, name: str) -> tuple[int, str | None]:
        """Let something pass a point.

        Returns:
            how often it goes on, and the text with which it fails instead, or None.
        """
        struck = self._intercept(point, name)
        match struck.do:
            case FaultKind.PASS:
                return 1, None
            case FaultKind.DROP:
                return 0, None
            case FaultKind.DUPLICATE:
                return 2, None
            case FaultKind.FAIL:
                return 1, struck.message
            case FaultKind.DELAY:
                await self.context.clock.sleep_until_ms(self.context.clock.now_ms() + struck.delay_ms)
            case FaultKind.DISCONNECT:
                await self.connection.cut()
            case _:
                self._strike(struck.do)
                await trio.lowlevel.checkpoint_if_cancelled()
        return 1, None

    def start_transfer(self, timer: TimerSet) -> None:
        """Let the start of a transfer pass; without a data plane a transfer is the time that it takes."""
        ripe, expires_ms, copies = TimerFired(timer.name, timer.generation), timer.expires_ms, 1
        struck = self._intercept(InterceptionPoint.ACTION, ActionName.START_TRANSFER)
        match struck.do:
            case FaultKind.DROP:
                return
            case FaultKind.FAIL:
                self.post(TransportFailed(struck.message))
                return
            case FaultKind.DELAY:
                expires_ms += struck.delay_ms
            case FaultKind.DUPLICATE:
                copies = 2
            case _:
                self._strike(struck.do)

        def end() -> None:
            for _ in range(copies):
                self._end_transfer(ripe)

        self.inbox.arm(timer.name, expires_ms, end)

    def _end_transfer(self, ripe: TimerFired) -> None:
        """The transfer's timer went off, which is where a data plane would report; let that fact pass."""
        struck = self._intercept(InterceptionPoint.FACT, FactName.TRANSFER_COMPLETED)
        match struck.do:
            case FaultKind.DROP:
                return
            case FaultKind.DELAY:
                later_ms = self.context.clock.now_ms() + struck.delay_ms
                self.inbox.arm(ripe.name, later_ms, lambda: self.post(ripe))
                return
            case FaultKind.FAIL:
                self.post(TransportFailed(struck.message))
                return
            case FaultKind.DUPLICATE:
                self.post(ripe)
            case _:
                self._strike(struck.do)
        self.post(ripe)

    def _intercept(self, point: InterceptionPoint, name: str) -> Interference:
        interceptor = self.context.interceptor
        return PASS if interceptor is no_faults else interceptor.intercept(point, name, self.handoff_id)

    def _strike(self, do: FaultKind) -> None:
        """What strikes the session and not the thing that passes."""
        match do:
            case FaultKind.CRASH_SOURCE:
                self.context.crashes.crash(self.handoff_id, Side.SOURCE)
            case FaultKind.CRASH_DESTINATION:
                self.context.crashes.crash(self.handoff_id, Side.DESTINATION)
            case FaultKind.CANCEL:
                self.cancel.set()
            case FaultKind.TIMEOUT:
                self.inbox.fire_now(TimerName.SESSION_DEADLINE, TimerName.REGISTRATION_DEADLINE)
            case FaultKind.DISCONNECT:
                self.spawn(self.connection.cut)
            case FaultKind.PASS:
                pass
            case _:
                raise AssertionError(f"{do} strikes the thing, not the session")
