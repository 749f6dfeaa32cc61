"""What passes brought that has no row of its own: tokens and cache events, counted and digested.

A digest covers, in order, each pass's end, who got a token in it, and each cache event whole, so a replay that
recomputes them compares everything, while the log keeps one short row for all passes between two things that others
see.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from handoff.engines.engine_core import KvEvent, KvEventKind
from handoff.engines.engine_rows import EngineTokens

_WORD = (1 << 64) - 1


@define
class TokenTally:
    """The row of tokens in the making.

    Attributes:
        from_ms: model time of the first pass's start.
    """

    from_ms: float
    _until_ms: float = field(init=False)
    _passes: int = field(default=0, init=False)
    _tokens: int = field(default=0, init=False)
    _stored: int = field(default=0, init=False)
    _removed: int = field(default=0, init=False)
    _digest: Any = field(factory=lambda: hashlib.blake2b(digest_size=8), init=False)

    def __attrs_post_init__(self) -> None:
        self._until_ms = self.from_ms

    @property
    def is_worth_a_row(self) -> bool:
        """Whether there is anything but passes without tokens."""
        return bool(self._tokens or self._stored or self._removed)

    def add_pass(self, end_ms: float, passes: int, numbers: Sequence[int]) -> None:
        """A run of passes ended; in each of them these requests got a token."""
        self._passes += passes
        self._until_ms = end_ms
        self._tokens += len(numbers) * passes
        self._digest.update(struct.pack(f"<dqq{len(numbers)}q", end_ms, passes, len(numbers), *numbers))

    def add_kv_events(self, events: Iterable[KvEvent]) -> None:
        """Blocks entered or left the prefix cache."""
        for event in events:
            stored = event.kind is KvEventKind.STORED
            if stored:
                self._stored += len(event.block_names)
            else:
                self._removed += len(event.block_names)
            parent = 0 if event.parent is None else event.parent
            words = (event.event_id, stored, parent, *event.block_names)
            self._digest.update(b"".join((word & _WORD).to_bytes(8, "little") for word in words))

    def row(self, active_blocks: int) -> EngineTokens:
        """The row."""
        return EngineTokens(
            self._passes, self._tokens, self._stored, self._removed, active_blocks,
            self._digest.hexdigest(), self.from_ms, self._until_ms,
        )  # fmt: skip
