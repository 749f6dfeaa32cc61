"""Waits between consecutive tokens, kept by runs instead of by tokens.

A report wants the distribution of every wait of every *completed* request: millions of numbers. But in a run of
decode passes all requests of the batch wait equally, and what they wait follows from the run's first load, the
batch's size and the number of passes. So the log holds runs, each request knows which stretch of the log it was in,
and only when it completes is that stretch counted, by one mark at each of its ends. A request that does not complete
leaves no trace.

Waits outside of that pattern (a pass that also prefilled, a request back from preemption) are single entries.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from handoff.engines.timing_model import DecodeTimes

_SINGLE = -1


class GapLog:
    """The waits of one engine.

    Attributes:
        position: number of entries so far; a request notes it when it joins the batch and when it leaves.
    """

    def __init__(self, times: DecodeTimes) -> None:
        self.times = times
        self._loads = array("q")
        self._batches = array("q")
        self._passes = array("q")
        self._single_ms = array("d")
        self._marks: dict[int, int] = defaultdict(int)
        self._own: dict[float, int] = defaultdict(int)

    @property
    def position(self) -> int:
        """Number of entries so far."""
        return len(self._loads)

    def add_run(self, load_tokens: int, batch: int, passes: int) -> None:
        """A run of pure decode passes; the load is the one before its first token."""
        self._loads.append(load_tokens)
        self._batches.append(batch)
        self._passes.append(passes)

    def add_pass(self, gap_ms: float) -> None:
        """One pass of another duration, for every request of the batch."""
        self._loads.append(_SINGLE)
        self._batches.append(len(self._single_ms))
        self._passes.append(1)
        self._single_ms.append(gap_ms)

    def count_stretch(self, start: int, stop: int) -> None:
        """A request that was in the batch from entry `start` up to `stop` has completed."""
        self._marks[start] += 1
        self._marks[stop] -= 1

    def count_single(self, gap_ms: float) -> None:
        """A wait of a completed request that no entry holds."""
        self._own[gap_ms] += 1

    def weighted(self) -> Iterator[tuple[float, int]]:
        """Every wait in ms with how often it was counted, grouped; in no useful order, but always in the same."""
        yield from self._own.items()
        by_batch: dict[int, dict[int, int]] = {}
        weight = 0
        for index, load in enumerate(self._loads):
            weight += self._marks.get(index, 0)
            if weight == 0:
                continue
            if load == _SINGLE:
                yield self._single_ms[self._batches[index]], weight
                continue
            batch = self._batches[index]
            ends = by_batch.setdefault(batch, defaultdict(int))
            ends[load] += weight
            ends[load + batch * self._passes[index]] -= weight
        for batch, ends in by_batch.items():
            yield from self._weighted_of_batch(batch, ends)

    def _weighted_of_batch(self, batch: int, ends: dict[int, int]) -> Iterator[tuple[float, int]]:
        """Counts for loads of one batch size: loads of a run lie `batch` apart, so each residue is summed alone."""
        by_residue: dict[int, list[int]] = {}
        for load in ends:
            by_residue.setdefault(load % batch, []).append(load)
        for loads in by_residue.values():
            loads.sort()
            counts = list(accumulate(map(ends.__getitem__, loads)))
            for load, following, count in zip(loads, loads[1:], counts, strict=False):
                if count:
                    steps = (following - load) // batch
                    for gap_ms in self.times.run_ms(load, batch, steps):
                        yield gap_ms, count
