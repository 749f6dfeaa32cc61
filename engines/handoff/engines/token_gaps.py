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
from collections.abc import Iterator, Sequence
from itertools import compress, pairwise
from operator import lt

from handoff.engines.timing_model import DecodeTimes

_SINGLE = -1


class GapLog:
    """The waits of one engine.

    Attributes:
        position: number of entries so far; a request notes it when it joins the batch and when it leaves.
    """

    def __init__(self, times: DecodeTimes) -> None:
        self.times = times
        self.position = 0
        self._entries = array("q")
        """Three numbers each: load, batch, passes; or `_SINGLE`, an index into the single waits, 1."""
        self._single_ms = array("d")
        self._marks: dict[int, int] = defaultdict(int)
        self._own: dict[float, int] = defaultdict(int)

    def add_run(self, load_tokens: int, batch: int, passes: int) -> None:
        """A run of pure decode passes; the load is the one before its first token."""
        self._entries.extend((load_tokens, batch, passes))
        self.position += 1

    def add_pass(self, gap_ms: float) -> None:
        """One pass of another duration, for every request of the batch."""
        self._entries.extend((_SINGLE, len(self._single_ms), 1))
        self._single_ms.append(gap_ms)
        self.position += 1

    def count_stretch(self, start: int, stop: int) -> None:
        """A request that was in the batch from entry `start` up to `stop` has completed."""
        self._marks[start] += 1
        self._marks[stop] -= 1

    def count_single(self, gap_ms: float) -> None:
        """A wait of a completed request that no entry holds."""
        self._own[gap_ms] += 1

    def _fold(self, by_batch: dict[int, dict[int, int]], singles: dict[float, int]) -> None:
        """Add the counted waits: runs as count changes by batch size and load, the rest by value."""
        for gap_ms, count in self._own.items():
            singles[gap_ms] += count
        weight = 0
        marks = self._marks
        entries = self._entries
        for index in range(self.position):
            weight += marks.get(index, 0)
            if not weight:
                continue
            load, batch, passes = entries[3 * index : 3 * index + 3]
            if load == _SINGLE:
                singles[self._single_ms[batch]] += weight
            else:
                changes = by_batch[batch]
                changes[load] += weight
                changes[load + batch * passes] -= weight


def counted_gaps(logs: Sequence[GapLog]) -> tuple[list[float], list[int]]:
    """Every wait of the logs in ms, ascending and without repetition, and how often each was counted."""
    by_batch: dict[int, dict[int, int]] = defaultdict(_counts)
    counted: dict[float, int] = defaultdict(int)
    for log in logs:
        log._fold(by_batch, counted)
    if not by_batch:
        return _ascending(counted)
    times = logs[0].times
    if times.depends_on_load_only:
        counts = [0] * max(max(changes) for changes in by_batch.values())
        for batch, changes in by_batch.items():
            for load, steps, count in _stretches(batch, changes):
                for one in range(load, load + batch * steps, batch):
                    counts[one] += count
        durations = times.run_ms(0, 1, len(counts))
        values = list(compress(durations, counts))
        if not counted and all(map(lt, values, values[1:])):
            return values, list(filter(None, counts))
        for gap_ms, count in zip(values, filter(None, counts), strict=True):
            counted[gap_ms] += count
    else:
        for batch, changes in by_batch.items():
            for load, steps, count in _stretches(batch, changes):
                for gap_ms in times.run_ms(load, batch, steps):
                    counted[gap_ms] += count
    return _ascending(counted)


def _ascending(counted: dict[float, int]) -> tuple[list[float], list[int]]:
    values = sorted(counted)
    return values, [counted[value] for value in values]


def _counts() -> dict[int, int]:
    return defaultdict(int)


def _stretches(batch: int, changes: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of loads with equal counts: (first load, steps, count).

    The loads of a run lie `batch` apart, so loads of each residue are swept by themselves.
    """
    by_residue: dict[int, list[int]] = defaultdict(list)
    for load in changes:
        by_residue[load % batch].append(load)
    for loads in by_residue.values():
        loads.sort()
        count = 0
        for load, following in pairwise(loads):
            count += changes[load]
            if count:
                yield load, (following - load) // batch, count
