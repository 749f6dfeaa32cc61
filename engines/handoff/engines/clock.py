"""The run's clock: the only module that reads time.

Times of a run are milliseconds since it started, on Trio's clock, so a test that installs a mock clock drives the whole run.
A driver reads `now_ms` once for a step and gives the same number to the machine and to the row.
"""

import math

import trio


class RunClock:
    """Milliseconds since a moment on Trio's clock.

    Args:
        start_s: Trio time of the run's time 0; None for now.
    """

    __slots__ = ("_start_s",)

    def __init__(self, start_s: float | None = None) -> None:
        self._start_s = trio.current_time() if start_s is None else start_s  # noqa: TID251 - the one place

    def now_ms(self) -> float:
        """Milliseconds since the run started."""
        return (trio.current_time() - self._start_s) * 1000.0  # noqa: TID251 - the one place

    def deadline(self, at_ms: float) -> float:
        """The first Trio time at which `now_ms` is at least `at_ms`.

        The two conversions round differently; a sleeper that woke up a rounding error early would find nothing due and, on
        a mock clock, sleep until the same moment again, for ever.
        """
        deadline_s = self._start_s + at_ms / 1000.0
        while (deadline_s - self._start_s) * 1000.0 < at_ms:
            deadline_s = math.nextafter(deadline_s, math.inf)
        return deadline_s

    async def sleep_until_ms(self, at_ms: float) -> None:
        """Sleep until `now_ms` is at least `at_ms`."""
        await trio.sleep_until(self.deadline(at_ms))
