"""What a client sees of its request: a stream of output signals, one a token, and a handle to cancel it.

What is never closed costs the engine capacity, so a stream is a context manager and has `close`. One that is
simply forgotten is closed when Python collects it; that is a safety net that needs a running event loop, and nothing
here relies on it.
"""

import weakref
from types import TracebackType
from typing import Self

import trio
from attrs import frozen

from handoff.engines.engine_driver import EngineDriver
from handoff.engines.engine_routes import OutputBatch, RequestRoute, RouteState
from handoff.journal.vocabulary import OutcomeName, RequestId, Seq


@frozen
class OutputSignal:
    """One token of a request, or its end without one.

    Attributes:
        request_id: the client's name of the request.
        token_id: the token, or None for an end without token.
        completed: whether this is the last signal.
        rejected: whether the scheduler refused the request; then it is also completed.
        handoff_delay_ms: for a source, what a transfer of the whole prompt takes, where that is modelled.
        cached_tokens: prompt tokens that were found in the cache when the request was admitted.
        at_ms: model time at which its batch of tokens was complete.
        cause: number of the row that says so.
    """

    request_id: RequestId
    token_id: int | None
    completed: bool
    rejected: bool
    handoff_delay_ms: float | None
    cached_tokens: int
    at_ms: float
    cause: Seq | None


class RequestStream:
    """A client's end: `recv` or iterate, `cancel`, `close`."""

    __slots__ = ("__weakref__", "_delivered", "_driver", "_finalizer", "_route")

    def __init__(self, driver: EngineDriver, route: RequestRoute) -> None:
        self._driver = driver
        self._route = route
        self._delivered = 0
        self._finalizer = weakref.finalize(self, driver.drop_soon, route)
        self._finalizer.atexit = False

    @property
    def request_id(self) -> RequestId:
        """The client's name of the request."""
        return self._route.request_id

    async def recv(self) -> OutputSignal | None:
        """The next signal, in order; None once the stream has ended."""
        route = self._route
        await trio.lowlevel.checkpoint_if_cancelled()
        while not route.batches:
            if route.state is RouteState.CLOSED:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return None
            route.readable = trio.Event()
            await route.readable.wait()
        return self._next_signal()

    def _next_signal(self) -> OutputSignal:
        """Take one token off the first batch."""
        route = self._route
        batch = route.batches[0]
        last = batch.tokens <= 1
        if last:
            route.batches.popleft()
        else:
            route.batches[0] = OutputBatch(batch.tokens - 1, batch.completed, batch.rejected, batch.at_ms, batch.cause)
        token_id = None
        if batch.tokens:
            index, self._delivered = self._delivered, self._delivered + 1
            token_id = route.planned[index] if index < len(route.planned) else index
        return OutputSignal(
            route.request_id, token_id, batch.completed and last, batch.rejected,
            route.handoff_delay_ms, route.cached_tokens, batch.at_ms, batch.cause,
        )  # fmt: skip

    async def ended(self) -> OutputSignal | None:
        """Read on to the end; the last signal, or None if the stream was closed before the request ended."""
        last = None
        async for signal in self:
            last = signal
        return last if last is not None and last.completed else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputSignal:
        signal = await self.recv()
        if signal is None:
            raise StopAsyncIteration
        return signal

    async def cancel(self) -> bool:
        """Ask the scheduler to drop the request, once it has it.

        Returns:
            Whether there was something to drop: False when the request ended before, or was never submitted.
        """
        return await self.cancel_route(self._driver, self._route)

    @staticmethod
    async def cancel_route(driver: EngineDriver, route: RequestRoute) -> bool:
        """See `cancel`."""
        await route.changed.wait()
        if route.state is RouteState.CLOSED:
            return False
        pending = driver.cancel(route)
        return pending is not None and (await pending.wait()).outcome is OutcomeName.APPLIED

    def close(self) -> None:
        """Stop reading: a request that has not ended is canceled in the background. Closing twice is harmless."""
        if self._finalizer.detach() is not None:
            self._driver.drop(self._route)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
