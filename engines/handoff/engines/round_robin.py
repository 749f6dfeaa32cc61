"""Spreads requests over a pool in turn."""

from collections.abc import Sequence


class RoundRobin:
    """One counter a pool; it is kept when workers come and go."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def choose(self, active: Sequence[int]) -> int:
        """The next of the active workers, whose ids ascend."""
        index = self._next % len(active)
        self._next = index + 1
        return active[index]
