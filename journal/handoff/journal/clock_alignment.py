"""How far clocks are apart, from rows that cause one another.

Two rows, the first of which causes the second, were seen on clocks *i* and *j*. With the offsets that move each clock
to the common time, the cause cannot lie after its effect:

    cause_min(i) + offset(i) <= effect_max(j) + offset(j)

So every pair bounds a difference of two offsets from one side. All bounds together are a system of difference
constraints; its tightest consequences are the shortest paths between clocks (Floyd and Warshall; there are few clocks).
An offset takes the middle of its bounds, and keeps them: whoever compares two rows of different clocks later must know
how much is certain. With a bound on one side only, the offset is the value nearest to zero that the bound allows. If
no offsets satisfy all pairs (a negative cycle), a clock drifted or was set; the middle is then the least bad value, and
the alignment says that it is not consistent.
"""

from collections.abc import Iterable
from itertools import product

from attrs import Factory, define

from handoff.journal.declarations import ClockAligned

_UNBOUNDED = float("inf")


@define
class PairBounds:
    """The bounds that pairs of causing rows put on the clocks' differences.

    Attributes:
        upper: by (i, j), the largest value that offset(i) - offset(j) may have, in ms.
        pairs: by clock, how many pairs it takes part in.
    """

    upper: dict[tuple[str, str], float] = Factory(dict)
    pairs: dict[str, int] = Factory(dict)

    def add(self, cause_clock: str, cause_min_ms: float, effect_clock: str, effect_max_ms: float) -> None:
        """Take one pair: the cause was not before `cause_min_ms`, its effect not after `effect_max_ms`."""
        key = (cause_clock, effect_clock)
        bound = effect_max_ms - cause_min_ms
        if bound < self.upper.get(key, _UNBOUNDED):
            self.upper[key] = bound
        for clock in key:
            self.pairs[clock] = self.pairs.get(clock, 0) + 1


def align(clocks: Iterable[str], reference: str, bounds: PairBounds) -> tuple[ClockAligned, ...]:
    """The offset of every clock but the reference, in order of their names.

    Args:
        clocks: names of all clocks.
        reference: the clock whose times stay as they are.
        bounds: what the pairs say.
    """
    names = sorted({*clocks, reference})
    upper = {(i, j): 0.0 if i == j else bounds.upper.get((i, j), _UNBOUNDED) for i, j in product(names, names)}
    for via, i, j in product(names, names, names):
        longer = upper[i, via] + upper[via, j]
        upper[i, j] = min(upper[i, j], longer)
    consistent = all(upper[name, name] >= 0.0 for name in names)
    return tuple(
        _aligned(name, reference, upper, bounds.pairs.get(name, 0), consistent) for name in names if name != reference
    )


def _aligned(
    clock: str, reference: str, upper: dict[tuple[str, str], float], pairs: int, consistent: bool
) -> ClockAligned:
    high = upper[clock, reference]
    low = -upper[reference, clock]
    if high < low:
        low, high = high, low
    bounded_low, bounded_high = low > -_UNBOUNDED, high < _UNBOUNDED
    nearest_to_zero = max(low, 0.0) if bounded_low else min(high, 0.0)
    offset = (low + high) / 2 if bounded_low and bounded_high else nearest_to_zero
    return ClockAligned(
        clock=clock,
        reference=reference,
        offset_ms=offset,
        low_ms=low if bounded_low else None,
        high_ms=high if bounded_high else None,
        pairs=pairs,
        consistent=consistent,
    )
