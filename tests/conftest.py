"""Fixtures that the whole suite shares."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing


@pytest.fixture
def trio_run() -> Callable[..., Any]:
    """Run an async function under Trio with a clock that jumps as soon as every task waits.

    Real sockets look idle to that clock: pass ``clock=None`` to run a test that uses them on real time.
    """

    def run(function: Callable[..., Awaitable[Any]], *arguments: Any, clock: Any = "autojump") -> Any:
        if clock == "autojump":
            clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(function, *arguments, clock=clock)

    return run
