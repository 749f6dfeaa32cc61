"""One request inside a scheduler: how far it is, and when its tokens came.

While a request decodes in the steady batch (see `decode_batch`), its length is not stored but follows from the
batch's step counter; `tokens` is then stale until the batch gives it back.
"""

from collections.abc import Sequence

from handoff.engines.block_names import generated_base
from handoff.engines.engine_core import EndKind, EngineRequest, RequestEnd
from handoff.engines.token_gaps import GapLog
from handoff.journal.vocabulary import HandoffId, RequestId


class TokenSequence:
    """A request's progress.

    Attributes:
        request: what was submitted.
        limit: output tokens after which it is complete.
        tokens: length of the known sequence, prompt and output.
        names: names of its complete blocks, as far as they are known.
        source_of: the handoff that will hold it when it completes.
        destination_of: the handoff that it decodes for.
        offset, order, finish_step, in_batch: its place in the steady batch.
        first_ms, second_ms, last_ms: when tokens became visible.
    """

    __slots__ = (
        "destination_of", "finish_step", "first_ms", "gap_start", "in_batch", "last_ms", "limit", "names",
        "offset", "order", "own_gaps", "prompt_tokens", "request", "request_id", "second_ms", "source_of",
        "stretches", "tokens",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, limit: int) -> None:
        self.request = request
        self.request_id: RequestId = request.request_id
        self.prompt_tokens = request.prompt_tokens
        self.limit = limit
        self.tokens = request.prompt_tokens
        self.names: Sequence[int] = request.block_names
        self.source_of: HandoffId | None = None
        self.destination_of: HandoffId | None = None
        self.offset = 0
        self.order = -1
        self.finish_step = 0
        self.in_batch = False
        self.first_ms: float | None = None
        self.second_ms: float | None = None
        self.last_ms: float | None = None
        self.gap_start = -1
        self.stretches: list[tuple[int, int]] | None = None
        self.own_gaps: list[float] | None = None

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return self.tokens - self.prompt_tokens

    @property
    def is_complete(self) -> bool:
        """Whether it has all its output."""
        return self.tokens - self.prompt_tokens >= self.limit

    def names_to(self, complete_blocks: int) -> Sequence[int]:
        """The names of its first blocks, generated ones included; call only for blocks that are complete."""
        known = len(self.names)
        if complete_blocks > known:
            base = generated_base(self.request_id)
            self.names = [*self.names, *range(base + known, base + complete_blocks)]
        names = self.names
        return names if len(names) == complete_blocks else names[:complete_blocks]

    def add_token(self, at_ms: float) -> None:
        """Take one token outside of the steady batch; a wait since the one before is its own."""
        self.tokens += 1
        if self.last_ms is not None:
            self.add_own_gap(at_ms - self.last_ms)
        self.note_token(at_ms)

    def add_own_gap(self, gap_ms: float) -> None:
        """A wait that no entry of the gap log holds."""
        if self.own_gaps is None:
            self.own_gaps = []
        self.own_gaps.append(gap_ms)

    def note_token(self, at_ms: float) -> None:
        """Note a token's time only."""
        if self.first_ms is None:
            self.first_ms = at_ms
        elif self.second_ms is None:
            self.second_ms = at_ms
        self.last_ms = at_ms

    def leave_stretch(self, position: int) -> None:
        """It left the steady batch at this entry of the gap log."""
        if self.gap_start >= 0:
            if self.stretches is None:
                self.stretches = []
            self.stretches.append((self.gap_start, position))
            self.gap_start = -1

    def count_gaps(self, log: GapLog) -> None:
        """It completed: its waits count."""
        if self.gap_start >= 0:
            log.count_stretch(self.gap_start, log.position)
        for start, stop in self.stretches or ():
            log.count_stretch(start, stop)
        for gap_ms in self.own_gaps or ():
            log.count_single(gap_ms)

    def end(self, kind: EndKind) -> RequestEnd:
        """Its end, or its progress so far."""
        return RequestEnd(
            self.request_id,
            kind,
            self.tokens - self.prompt_tokens,
            self.first_ms,
            self.second_ms,
            self.last_ms,
        )
