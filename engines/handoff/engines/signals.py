"""Cancel and shutdown as inputs, and the answer that a request waits for.

Trio's cancellation tears a task down. A handoff that is canceled must not be torn down: it has to clean up and to say
how it ended. So a client's cancel and a worker's shutdown are signals that sessions take as inputs.
"""

from collections.abc import Callable

import trio
from attrs import frozen


class Signal:
    """Something that happens once, and stays happened."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    @property
    def is_set(self) -> bool:
        """Whether it happened."""
        return self._event.is_set()

    def set(self) -> None:
        """Make it happen: call everybody who subscribed, in the order of subscription, and wake everybody who waits."""
        if self._event.is_set():
            return
        self._event.set()
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()

    async def wait(self) -> None:
        """Wait until it happens."""
        await self._event.wait()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once when it happens (now, if it happened already).

        Returns:
            a function that withdraws the subscription.
        """
        if self._event.is_set():
            callback()
            return _nothing
        number = self._next
        self._next += 1
        self._callbacks[number] = callback
        return lambda: self._callbacks.pop(number, None) and None


def _nothing() -> None:
    """Withdraw a subscription that was served already."""


@frozen
class HandoffResult:
    """How a handoff ended for one participant.

    Attributes:
        error: None for success, else what went wrong.
    """

    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.error is None


class HandoffCompletion:
    """The one answer that the request behind a source registration gets. The first answer stays."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self.result: HandoffResult | None = None

    def deliver(self, result: HandoffResult) -> None:
        """Give the answer; a second one is ignored."""
        if self.result is None:
            self.result = result
            self._event.set()

    async def wait(self) -> HandoffResult:
        """Wait for the answer."""
        await self._event.wait()
        assert self.result is not None
        return self.result
