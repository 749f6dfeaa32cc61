"""Distributions as the report shows them: moments over the population, percentiles without interpolation.

A percentile is the sorted value at index ``(n - 1) * p / 100``, rounded to the nearest integer, halves up. Values may
carry counts, so that millions of equal or grouped ones cost nothing.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from attrs import frozen

PERCENTILES = {"median": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def percentile_index(count: int, percent: float) -> int:
    """The index of a percentile among `count` sorted values."""
    return math.floor((count - 1) * percent / 100.0 + 0.5)


@frozen
class Distribution:
    """Figures of one set of values; all 0 for none.

    Attributes:
        count: how many values.
        std: over the population.
        median, p75, p90, p95, p99: see `percentile_index`.
    """

    count: int = 0
    mean: float = 0.0
    min: float = 0.0
    max: float = 0.0
    median: float = 0.0
    p75: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    std: float = 0.0

    def named(self, figure: str) -> dict[str, float]:
        """The figures under their report names, such as ``p95_ttft_ms``."""
        keys = ("mean", "min", "max", *PERCENTILES, "std")
        return {f"{key}_{figure}": getattr(self, key) for key in keys}


def distribution(values: Sequence[float]) -> Distribution:
    """The distribution of plain values, in any order."""
    if not values:
        return Distribution()
    ordered = sorted(values)
    count = len(ordered)
    mean = sum(ordered) / count
    variance = sum([(value - mean) ** 2 for value in ordered]) / count
    return Distribution(
        count=count,
        mean=mean,
        min=ordered[0],
        max=ordered[-1],
        std=math.sqrt(variance),
        **{name: ordered[percentile_index(count, percent)] for name, percent in PERCENTILES.items()},
    )


def counted_distribution(values: Sequence[float], counts: Sequence[int]) -> Distribution:
    """The distribution of ascending values that occur so many times each."""
    if not values:
        return Distribution()
    upto = list(accumulate(counts))
    count = upto[-1]
    mean = sum(map(mul, values, counts)) / count
    variance = sum(map(mul, [(value - mean) ** 2 for value in values], counts)) / count
    return Distribution(
        count=count,
        mean=mean,
        min=values[0],
        max=values[-1],
        std=math.sqrt(variance),
        **{name: values[bisect_right(upto, percentile_index(count, percent))] for name, percent in PERCENTILES.items()},
    )
