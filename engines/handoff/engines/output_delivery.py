"""Hands output to clients once the rows that tell of it are durable, in order, without holding up the engine.

What an engine's steps put here waits together: one wait for the last row of all, then everything is delivered. So a
slow disk makes batches larger and clients later, and nothing else.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import trio
from attrs import define, field

from handoff.engines.engine_actor import Output, StreamEnd, StreamStart, TokenRun
from handoff.engines.engine_routes import OutputBatch, RequestRoute
from handoff.journal.port import JournalFailed, JournalPort
from handoff.journal.vocabulary import Seq

Batches = list[tuple[RequestRoute, OutputBatch]]


@define(eq=False)
class OutputDelivery:
    """The output of one engine on its way to its clients.

    Attributes:
        journal: where the rows are.
        deliver: called with each batch.
        on_delivered: called after some were.
        on_lost: called when the rows can never be durable; what waited is dropped.
    """

    journal: JournalPort
    deliver: Callable[[RequestRoute, OutputBatch], None]
    on_delivered: Callable[[], None]
    on_lost: Callable[[JournalFailed], None]
    _waiting: deque[tuple[Seq, Batches]] = field(factory=deque, init=False)
    _closed: bool = field(default=False, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)

    def put(self, last_row: Seq, batches: Batches) -> None:
        """Deliver these once `last_row` is durable."""
        self._waiting.append((last_row, batches))
        self._changed.set()

    def close(self) -> None:
        """Let `run` end when everything was delivered."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Deliver until closed."""
        while True:
            while self._waiting:
                await self._deliver_waiting()
            if self._closed:
                return
            self._changed = trio.Event()
            await self._changed.wait()

    async def _deliver_waiting(self) -> None:
        count, last_row = len(self._waiting), self._waiting[-1][0]
        try:
            await self.journal.durable(last_row)
        except JournalFailed as error:
            self._waiting.clear()
            self.on_lost(error)
            return
        for _ in range(count):
            for route, batch in self._waiting.popleft()[1]:
                self.deliver(route, batch)
        self.on_delivered()


def batches_of(
    output: Sequence[Output], requests: Mapping[int, RequestRoute], rows: Mapping[int, Seq], tokens_row: Seq
) -> Batches:
    """One batch for each request that got something, in the order in which they got it first.

    Args:
        output: of one step.
        requests: the requests that somebody reads, by number; admissions are noted there.
        rows: the rows that tell of ends.
        tokens_row: the row that tells of tokens.
    """
    counts: dict[int, tuple[int, bool, bool, float]] = {}
    for item in output:
        tokens = counts[item.request][0] if item.request in counts else 0
        match item:
            case StreamStart():
                if item.request in requests:
                    requests[item.request].cached_tokens = item.reused_tokens
            case TokenRun():
                counts[item.request] = (tokens + item.count, False, False, item.until_ms)
            case StreamEnd():
                counts[item.request] = (tokens, True, item.rejected, item.at_ms)
    return [
        (requests[number], OutputBatch(*count, rows.get(number, tokens_row)))
        for number, count in counts.items()
        if number in requests
    ]
