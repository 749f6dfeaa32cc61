"""What a session has yet to hear, in the order in which it must hear it.

Several inputs may be ready at once. Each has a rank, and the lowest rank is taken first: a shutdown before a frame, a
deadline before the reply that came too late for it. Within a rank, first come is first served.

Timers are part of the inbox, since a timer that is due must be ranked with everything else that is ready. Whoever
takes an input lets due timers ripen first; one task (`keep_time`) merely wakes the taker when the earliest is due. A
session's timers mostly move later, so that task sleeps nearly all the time, and a wait for an input is the wait for
one event.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from attrs import define, field, frozen

from handoff.engines.clock import RunClock
from handoff.journal.terms import TimerName
from handoff.journal.vocabulary import Seq


@frozen
class Arrived:
    """An input, the row of another actor that it is an effect of, and when the driver read the clock for it."""

    value: Any
    cause: Seq | None
    at_ms: float


@frozen
class _Timer:
    expires_ms: float
    fire: Callable[[], None]


@define(eq=False)
class Inbox:
    """The inputs of one session.

    Attributes:
        clock: the run's clock.
        ranks: how many ranks there are.
    """

    clock: RunClock
    ranks: int
    _queues: tuple[deque[tuple[Any, Seq | None]], ...] = field(init=False)
    _timers: dict[TimerName, _Timer] = field(factory=dict, init=False)
    _woken: trio.Event | None = field(default=None, init=False)
    _drained: trio.Event | None = field(default=None, init=False)
    _alarm_ms: float = field(default=math.inf, init=False)
    _sooner: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._queues = tuple(deque() for _ in range(self.ranks))

    def post(self, rank: int, value: Any, cause: Seq | None = None) -> None:
        """Add an input."""
        self._queues[rank].append((value, cause))
        self.wake()

    def wake(self) -> None:
        """Let whoever takes look again."""
        if self._woken is not None:
            self._woken.set()

    def arm(self, name: TimerName, expires_ms: float, fire: Callable[[], None]) -> None:
        """Call `fire`, which posts, when the time has come; replaces the timer of that name."""
        self._timers[name] = _Timer(expires_ms, fire)
        if expires_ms < self._alarm_ms:
            self._sooner.set()

    def disarm(self, name: TimerName) -> None:
        """Forget a timer."""
        self._timers.pop(name, None)

    def disarm_all(self) -> None:
        """Forget all timers."""
        self._timers.clear()

    def fire_now(self, *names: TimerName) -> None:
        """Fire the first of these timers that is armed, ahead of its time."""
        for name in names:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.fire()
                return

    def take_ready(self) -> Arrived | None:
        """The next input that is ready, or None."""
        at_ms = self.clock.now_ms()
        self._ripen(at_ms)
        for queue in self._queues:
            if queue:
                value, cause = queue.popleft()
                if self._drained is not None:
                    self._drained.set()
                    self._drained = None
                return Arrived(value, cause, at_ms)
        return None

    async def take(self, stop: Callable[[], bool]) -> Arrived | None:
        """Wait for the next input; None as soon as `stop` says so."""
        while not stop():
            arrived = self.take_ready()
            if arrived is not None:
                return arrived
            self._woken = trio.Event()
            await self._woken.wait()
            self._woken = None
        return None

    async def keep_time(self) -> None:
        """Wake whoever takes whenever a timer is due, for ever."""
        rung_ms = -math.inf
        while True:
            self._sooner = trio.Event()
            later = (timer.expires_ms for timer in self._timers.values() if timer.expires_ms > rung_ms)
            self._alarm_ms = min(later, default=math.inf)
            with self.clock.move_on_at(self._alarm_ms) as sleep:
                await self._sooner.wait()
            if sleep.cancelled_caught:
                rung_ms = self._alarm_ms
                self.wake()

    async def wait_room(self, rank: int, limit: int) -> None:
        """Wait until fewer than `limit` inputs of a rank wait."""
        while len(self._queues[rank]) >= limit:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()

    def _ripen(self, at_ms: float) -> None:
        due = sorted((timer.expires_ms, name) for name, timer in self._timers.items() if timer.expires_ms <= at_ms)
        for _expires_ms, name in due:
            self._timers.pop(name).fire()
