"""Many timers, one task: whatever shall be called later waits in a heap, in the order of its time."""

import heapq
import itertools
from collections.abc import Callable

import trio
from attrs import define, field

from handoff.engines.clock import RunClock


@define(eq=False)
class PendingTimer:
    """A call that is due at a moment of the run."""

    _call: Callable[[], None] | None

    def cancel(self) -> None:
        """Never make the call."""
        self._call = None

    def fire(self) -> None:
        """Make the call, unless it was canceled."""
        call, self._call = self._call, None
        if call is not None:
            call()


@define(eq=False)
class TimerHeap:
    """Calls in the order of their time; equal times in the order of their arming. `run` makes them."""

    clock: RunClock
    _heap: list[tuple[float, int, PendingTimer]] = field(factory=list, init=False)
    _order: "itertools.count[int]" = field(factory=itertools.count, init=False)
    _sooner: trio.Event = field(factory=trio.Event, init=False)

    def arm(self, expires_ms: float, call: Callable[[], None]) -> PendingTimer:
        """Make a call at a moment of the run (ms since it began)."""
        timer = PendingTimer(call)
        heapq.heappush(self._heap, (expires_ms, next(self._order), timer))
        if self._heap[0][2] is timer:
            self._sooner.set()
        return timer

    async def run(self) -> None:
        """Make every call at its time, for ever."""
        while True:
            now_ms = self.clock.now_ms()
            while self._heap and self._heap[0][0] <= now_ms:
                heapq.heappop(self._heap)[2].fire()
            self._sooner = trio.Event()
            if self._heap:
                with self.clock.move_on_at(self._heap[0][0]):
                    await self._sooner.wait()
            else:
                await self._sooner.wait()
