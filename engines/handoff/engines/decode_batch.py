"""The steady batch: requests that each get one token in every pass.

Nothing is stored per request and pass. The batch counts steps; a member's length is its `offset` plus the step
counter, so a run of passes costs what changes in it. Two heaps say when something does: the step at which a member
has all its output, and the step whose pass needs a new block for it (a *crossing*).

Members leave lazily: an entry of a heap counts only while its member is still in the batch under the same order
number. Ties are broken by that number, which is the order of joining and so the scheduler's own order.

The second half of the module is the run itself: passes after the first, whose ends are summed up one by one from the
first pass's end, as stepping would.
"""

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import reduce
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import add
from typing import Generic, TypeVar

from handoff.engines.engine_core import PassResult
from handoff.engines.token_sequence import TokenSequence

FAR = sys.maxsize

Member = TypeVar("Member", bound=TokenSequence)


def _sum_in_order(values: Sequence[float], start: float) -> float:
    return reduce(add, values, start)


def _plain_sum(values: Sequence[float], start: float) -> float:
    return sum(values, start)


# Python 3.12 made `sum` compensate its rounding, which stepping does not: use it only where it adds plainly.
sum_in_order: Callable[[Sequence[float], float], float] = (
    _plain_sum if sum([1.0, 1e100, 1.0, -1e100], 0.0) == 0.0 else _sum_in_order
)


class DecodeBatch(Generic[Member]):
    """Requests that decode in step.

    Attributes:
        step: passes so far.
        size: members.
        load_tokens: summed length of the members.
    """

    __slots__ = ("_block_size", "_crossings", "_finishes", "_next_order", "load_tokens", "size", "step")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.step = 0
        self.size = 0
        self.load_tokens = 0
        self._next_order = 0
        self._finishes: list[tuple[int, int, Member]] = []
        self._crossings: list[tuple[int, int, Member]] = []

    def join(self, member: Member, crossing_in: int) -> None:
        """Take a member in, behind all others.

        Args:
            member: a request with output left, whose `tokens` is right.
            crossing_in: after how many further passes comes the one that needs a new block for it.
        """
        member.order = self._next_order
        self._next_order += 1
        member.in_batch = True
        member.offset = member.tokens - self.step
        self.size += 1
        self.load_tokens += member.tokens
        finish = member.prompt_tokens + member.limit - member.offset
        heappush(self._finishes, (finish, member.order, member))
        if self.step + crossing_in < finish:
            heappush(self._crossings, (self.step + crossing_in, member.order, member))

    def leave(self, member: Member) -> None:
        """Let a member go; its `tokens` is right again."""
        member.in_batch = False
        member.tokens = member.offset + self.step
        self.size -= 1
        self.load_tokens -= member.tokens

    def advance(self, passes: int) -> None:
        """Every member got one token in each of so many passes."""
        self.step += passes
        self.load_tokens += self.size * passes

    def passes_to_finish(self) -> int:
        """After how many passes the next member has all its output."""
        finishes = self._finishes
        while finishes:
            step, order, member = finishes[0]
            if member.in_batch and member.order == order:
                return step - self.step
            heappop(finishes)
        return FAR

    def take_finished(self) -> list[Member]:
        """The members that have all their output, in order; they leave."""
        finished: list[Member] = []
        finishes = self._finishes
        while finishes and finishes[0][0] <= self.step:
            _, order, member = heappop(finishes)
            if member.in_batch and member.order == order:
                self.leave(member)
                finished.append(member)
        return finished

    def passes_to_crossing(self) -> int:
        """After how many passes comes the first one that needs a new block."""
        crossings = self._crossings
        while crossings:
            step, order, member = crossings[0]
            if member.in_batch and member.order == order:
                return step - self.step
            heappop(crossings)
        return FAR

    def take_crossings(self, passes: int) -> list[tuple[Member, int, int]]:
        """What the next so many passes need.

        Returns:
            (member, blocks, passes before the last of its crossings), one for each member that crosses, in the
            order of those last crossings.
        """
        horizon = self.step + passes
        size = self._block_size
        crossings = self._crossings
        taken = []
        while crossings and crossings[0][0] < horizon:
            step, order, member = heappop(crossings)
            if not member.in_batch or member.order != order:
                continue
            blocks = (horizon - 1 - step) // size + 1
            last = step + (blocks - 1) * size
            taken.append((last, order, member, blocks))
            if last + size < member.prompt_tokens + member.limit - member.offset:
                heappush(crossings, (last + size, order, member))
        taken.sort(key=_by_step_and_order)
        return [(member, blocks, last - self.step) for last, order, member, blocks in taken]

    def passes_within(self, blocks: int, passes: int) -> int:
        """How many of the next `passes` can run on so many new blocks in all."""
        size = self._block_size
        if self.size * (passes // size + 1) <= blocks:
            return passes
        heap = [entry for entry in self._crossings if entry[2].in_batch and entry[2].order == entry[1]]
        heapify(heap)
        while heap and heap[0][0] - self.step < passes:
            if blocks == 0:
                return heap[0][0] - self.step
            blocks -= 1
            step, order, member = heappop(heap)
            if step + size < member.prompt_tokens + member.limit - member.offset:
                heappush(heap, (step + size, order, member))
        return passes


def _by_step_and_order(entry: tuple[int, int, TokenSequence, int]) -> tuple[int, int]:
    return entry[:2]


class DecodeRun:
    """The passes after the first, planned but not applied."""

    __slots__ = ("durations_ms", "first_end_ms", "first_start_ms")

    def __init__(self, result: PassResult, durations_ms: Sequence[float]) -> None:
        self.first_start_ms = result.start_ms
        self.first_end_ms = result.end_ms
        self.durations_ms = durations_ms
        passes = len(durations_ms)
        result.passes = 1 + passes
        result.last_start_ms = sum_in_order(durations_ms[:-1], result.end_ms)
        result.end_ms = result.last_start_ms + durations_ms[-1]

    def cut(self, result: PassResult, at_ms: float) -> None:
        """Shorten to the first boundary at or after `at_ms`."""
        if at_ms >= result.end_ms:
            return
        if at_ms <= self.first_end_ms:
            result.passes = 1
            result.end_ms = self.first_end_ms
            result.last_start_ms = self.first_start_ms
            return
        ends = list(accumulate(self.durations_ms[: result.passes - 1], initial=self.first_end_ms))
        passes = bisect_left(ends, at_ms)
        result.passes = 1 + passes
        result.end_ms = ends[passes]
        result.last_start_ms = ends[passes - 1]
