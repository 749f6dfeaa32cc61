"""The clock of a run: the only module that reads one.

A run's times are ms since it began, read from Trio's clock, so that a test's mock clock drives everything. A driver
reads it once for each input and gives the very same number to the machine and to the row.
"""

import math

import trio


class RunClock:
    """Milliseconds since the run began.

    Args:
        start_ms: what it shows at its creation: 0 for a new run, where the journal's times stopped for a resumed one.
    """

    __slots__ = ("_origin_s",)

    def __init__(self, start_ms: float = 0.0) -> None:
        self._origin_s = trio.current_time() - start_ms / 1000.0  # noqa: TID251 - the one place

    def now_ms(self) -> float:
        """The time since the run began, in ms."""
        return (trio.current_time() - self._origin_s) * 1000.0  # noqa: TID251 - the one place

    def trio_time_s(self, at_ms: float) -> float:
        """The first Trio time at which `now_ms` is at least `at_ms`, for the deadline of a cancel scope.

        The two conversions round differently; a sleeper that woke up a rounding error early would find nothing due and,
        on a mock clock, sleep until the same moment again, for ever.
        """
        time_s = self._origin_s + at_ms / 1000.0
        while (time_s - self._origin_s) * 1000.0 < at_ms:
            time_s = math.nextafter(time_s, math.inf)
        return time_s

    def move_on_at(self, at_ms: float) -> trio.CancelScope:
        """A cancel scope that ends at a moment of the run; infinity never comes."""
        return trio.CancelScope(deadline=math.inf if at_ms == math.inf else self.trio_time_s(at_ms))

    async def sleep_until_ms(self, at_ms: float) -> None:
        """Sleep until `now_ms` is at least `at_ms`; for a moment that has passed this is one checkpoint."""
        await trio.sleep_until(self.trio_time_s(at_ms))
