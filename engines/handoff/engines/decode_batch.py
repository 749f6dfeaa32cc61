"""The steady batch: requests that each get one token in every pass.

Nothing is stored per request and pass. The batch counts steps; a member's length is its `offset` plus the step
counter, so a run of passes costs what changes in it. Two heaps say when something does: the step at which a member
has all its output, and the step whose pass needs a new block for it (a *crossing*).

A scheduler that must also know when a block is *completed* asks for a third heap: completions come one pass before
the crossing, and count only for members that go on.

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


class _BlockSteps(Generic[Member]):
    """Steps at which members reach the next multiple of the block size, as long as they go on."""

    __slots__ = ("_block_size", "heap")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.heap: list[tuple[int, int, Member]] = []

    def add(self, step: int, member: Member, last: int) -> None:
        """The member's next step, unless it is after its `last` one."""
        if step <= last:
            heappush(self.heap, (step, member.order, member))

    def next_step(self) -> int:
        """The earliest step of a present member."""
        heap = self.heap
        while heap:
            step, order, member = heap[0]
            if member.in_batch and member.order == order:
                return step
            heappop(heap)
        return FAR

    def take(self, horizon: int, lag: int) -> list[tuple[Member, int]]:
        """Members with steps before `horizon`, and how many steps each, in the order of their last ones.

        Args:
            horizon: the first step that is not taken.
            lag: how many steps before its finish a member's last one must lie.
        """
        size = self._block_size
        heap = self.heap
        taken = []
        while heap and heap[0][0] < horizon:
            step, order, member = heappop(heap)
            if not member.in_batch or member.order != order:
                continue
            blocks = (min(horizon - 1, member.finish_step - lag) - step) // size + 1
            last = step + (blocks - 1) * size
            taken.append((last, order, member, blocks))
            self.add(last + size, member, member.finish_step - lag)
        if len(taken) > 1:
            taken.sort(key=_by_step_and_order)
        return [(member, blocks) for _, _, member, blocks in taken]


class DecodeBatch(Generic[Member]):
    """Requests that decode in step.

    Args:
        block_size: tokens of a block.
        completions: whether completed blocks are wanted besides needed ones.

    Attributes:
        step: passes so far.
        size: members.
        load_tokens: summed length of the members.
    """

    __slots__ = (
        "_block_size", "_completions", "_crossings", "_finishes", "_next_order", "load_tokens", "size", "step",
    )  # fmt: skip

    def __init__(self, block_size: int, *, completions: bool = False) -> None:
        self._block_size = block_size
        self.step = 0
        self.size = 0
        self.load_tokens = 0
        self._next_order = 0
        self._finishes: list[tuple[int, int, Member]] = []
        self._crossings: _BlockSteps[Member] = _BlockSteps(block_size)
        self._completions: _BlockSteps[Member] | None = _BlockSteps(block_size) if completions else None

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
        member.finish_step = member.prompt_tokens + member.limit - member.offset
        self.size += 1
        self.load_tokens += member.tokens
        heappush(self._finishes, (member.finish_step, member.order, member))
        crossing = self.step + crossing_in
        self._crossings.add(crossing, member, member.finish_step - 1)
        if self._completions is not None:
            completion = crossing - 1 if crossing_in else crossing - 1 + self._block_size
            self._completions.add(completion, member, member.finish_step - 2)

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
        return self._crossings.next_step() - self.step

    def take_crossings(self, passes: int) -> list[tuple[Member, int]]:
        """Which members need how many blocks in the next so many passes."""
        return self._crossings.take(self.step + passes, 1)

    def take_completions(self, passes: int) -> list[tuple[Member, int]]:
        """Which members complete how many blocks in the next so many passes, in the order of the last of each."""
        assert self._completions is not None
        if self._completions.next_step() >= self.step + passes:
            return []
        return self._completions.take(self.step + passes, 2)

    def passes_within(self, blocks: int, passes: int) -> int:
        """How many of the next `passes` can run on so many new blocks in all."""
        size = self._block_size
        if self.size * (passes // size + 1) <= blocks:
            return passes
        heap = [entry for entry in self._crossings.heap if entry[2].in_batch and entry[2].order == entry[1]]
        heapify(heap)
        while heap and heap[0][0] - self.step < passes:
            if blocks == 0:
                return heap[0][0] - self.step
            blocks -= 1
            step, order, member = heappop(heap)
            if step + size < member.finish_step:
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
        durations = self.durations_ms
        planned = result.passes - 1
        # Steps rarely get shorter, so the first one's duration says how far to look; if it misled, look at all.
        near = min(planned, int((at_ms - self.first_end_ms) / durations[0]) + 1)
        ends = list(accumulate(durations[:near], initial=self.first_end_ms))
        if ends[-1] < at_ms:
            ends = list(accumulate(durations[:planned], initial=self.first_end_ms))
        passes = bisect_left(ends, at_ms)
        result.passes = 1 + passes
        result.end_ms = ends[passes]
        result.last_start_ms = ends[passes - 1]
