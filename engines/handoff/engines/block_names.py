"""Names of KV blocks: integers that are equal exactly where the tokens up to the block's end are equal.

Three sources of names:

* tokens, in live use: a chain of 64-bit digests, each over its parent's digest and its own tokens;
* a trace, in virtual time: the trace names blocks of its own size by numbers, and stands for a prompt in which the
  block named `h` is one token repeated. Two engine blocks are equal when they cover the same stretches of the same
  trace blocks after the same prefix. `TraceNames` numbers them in order of first appearance;
* nothing, for generated tokens: they never meet anybody else's, so `generated_base` gives each request its own range.

Where the sizes agree and every trace block always has the same block before it, the trace's own numbers already are
names, and nothing is interned.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence

from handoff.engines.workload import Turn

_WORD = struct.Struct("<Q")
_NO_PARENT = 0
_INDEX_ROOM = 1 << 24


def block_names(tokens: Sequence[int], block_size: int) -> tuple[int, ...]:
    """The names of a prompt's complete blocks.

    Args:
        tokens: token ids, each in 0 .. 2**32 - 1.
        block_size: tokens of a block.

    Returns:
        ``len(tokens) // block_size`` integers in 0 .. 2**64 - 1.
    """
    names = []
    parent = _NO_PARENT
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = tokens[start : start + block_size]
        content = _WORD.pack(parent) + struct.pack(f"<{block_size}I", *block)
        parent = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        names.append(parent)
    return tuple(names)


def generated_base(request_id: str) -> int:
    """The first of a range of names for one request's generated blocks: base + block index."""
    word = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")
    return word - word % _INDEX_ROOM


class TraceNames:
    """Derives engine block names from the block ids of a trace.

    Args:
        trace_block_size: tokens of a trace block.
        engine_block_size: tokens of an engine block (a page, for SGLang).
    """

    def __init__(self, trace_block_size: int, engine_block_size: int) -> None:
        self.trace_block_size = trace_block_size
        self.engine_block_size = engine_block_size
        self._interned: dict[tuple[int, object], int] = {}
        self._ids_are_names = False

    def trust_ids(self) -> None:
        """Use the trace's ids as names if the sizes agree; each id is known to follow always the same one."""
        self._ids_are_names = self.trace_block_size == self.engine_block_size

    def adopt_ids(self, prompts: Iterable[Sequence[int]]) -> bool:
        """Use the trace's ids as names, if the sizes agree and each id always follows the same one.

        Args:
            prompts: the block ids of every prompt that will be named.

        Returns:
            Whether the ids were adopted. Call before anything is named.
        """
        if self.trace_block_size != self.engine_block_size or self._interned:
            return False
        parents: dict[int, int | None] = {}
        for ids in prompts:
            before = [None, *ids[:-1]]
            if list(map(parents.setdefault, ids, before)) != before:
                return False
        self._ids_are_names = True
        return True

    def of_turn(self, turn: Turn) -> Sequence[int]:
        """The names of the complete engine blocks of a turn's prompt."""
        return self.names(turn.blocks, turn.prompt_tokens)

    def names(self, trace_blocks: Sequence[int], prompt_tokens: int) -> Sequence[int]:
        """The names of the complete engine blocks of a prompt.

        Args:
            trace_blocks: the prompt's trace block ids, enough to cover it.
            prompt_tokens: its length.
        """
        size = self.engine_block_size
        complete = prompt_tokens // size
        if self._ids_are_names:
            return trace_blocks if len(trace_blocks) == complete else trace_blocks[:complete]
        interned = self._interned
        parent = -1
        result = []
        if size == self.trace_block_size:
            contents: Iterable[object] = trace_blocks[:complete]
        elif self.trace_block_size % size == 0:
            each = self.trace_block_size // size
            contents = [block for block in trace_blocks for _ in range(each)][:complete]
        else:
            contents = [self._content(trace_blocks, index * size) for index in range(complete)]
        for content in contents:
            parent = interned.setdefault((parent, content), len(interned))
            result.append(parent)
        return result

    def _content(self, trace_blocks: Sequence[int], start: int) -> object:
        """What the engine block at `start` holds: stretches of (trace block id, tokens), equal neighbours merged."""
        end = start + self.engine_block_size
        stretches: list[tuple[int, int]] = []
        while start < end:
            block = trace_blocks[start // self.trace_block_size]
            stop = min(end, (start // self.trace_block_size + 1) * self.trace_block_size)
            length = stop - start
            if stretches and stretches[-1][0] == block:
                length += stretches.pop()[1]
            stretches.append((block, length))
            start = stop
        return stretches[0][0] if len(stretches) == 1 else tuple(stretches)
