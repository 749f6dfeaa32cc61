"""What the log keeps of a prompt: its length, its limit and the names of its blocks, never its tokens.

Block names of a trace mostly count upwards, so a row keeps them as runs: ``(first, count, first, count, ...)``. A
12,000-token prompt of a trace becomes a handful of numbers, and a prompt of hashed tokens pays one more number a
block.

Several row values share the three fields `prompt_tokens` (at least 1), `max_output_tokens` (at least 0) and
`block_runs`, so that one can inherit them from another.
"""

from collections.abc import Iterable, Sequence
from itertools import chain


def to_runs(names: Iterable[int]) -> tuple[int, ...]:
    """Names as runs of consecutive numbers.

    >>> to_runs([0, 14, 15, 16])
    (0, 1, 14, 3)
    """
    runs: list[int] = []
    for name in names:
        if runs and runs[-2] + runs[-1] == name:
            runs[-1] += 1
        else:
            runs += (name, 1)
    return tuple(runs)


def from_runs(runs: Sequence[int]) -> tuple[int, ...]:
    """The inverse of `to_runs`.

    >>> from_runs((0, 1, 14, 3))
    (0, 14, 15, 16)
    """
    return tuple(
        chain.from_iterable(range(first, first + count) for first, count in zip(runs[::2], runs[1::2], strict=True))
    )
