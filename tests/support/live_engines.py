"""The engines of the conformance fixture, and what tests do with them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import evolve
from recorded_steps import assert_replays

from handoff.engines.engine_core import KvEvent, KvEventKind
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.live_engine import LiveEngine, LiveEngineConfig, LiveRequest
from handoff.engines.offline_conformance import conformance_settings
from handoff.engines.request_stream import OutputSignal, RequestStream
from handoff.journal.port import MemoryJournal
from handoff.journal.vocabulary import EngineType, RequestId, TimingMode, WorkerRole

PROMPT = tuple(range(8))
PLANNED_TOKEN = 42


def fixture_settings(
    engine_type: EngineType = EngineType.VLLM,
    worker_role: WorkerRole = WorkerRole.AGGREGATED,
    timing_mode: TimingMode = TimingMode.FULL_PROMPT,
    **changes: Any,
) -> EngineSettings:
    """The engine of the conformance fixture, with changes."""
    return evolve(conformance_settings(engine_type, worker_role, timing_mode), **changes)


def fixture_request(request_id: str | None, output_tokens: int, token: int = PLANNED_TOKEN) -> LiveRequest:
    """Eight prompt tokens, and planned output."""
    name = None if request_id is None else RequestId(request_id)
    return LiveRequest(PROMPT, output_token_ids=(token,) * output_tokens, request_id=name)


@asynccontextmanager
async def running_engine(settings: EngineSettings, config: LiveEngineConfig | None = None) -> AsyncIterator[LiveEngine]:
    """An engine that is shut down at the end; then its rows must replay."""
    config = config or LiveEngineConfig()
    async with trio.open_nursery() as nursery:
        engine = LiveEngine.start_with_config(nursery, settings, config)
        yield engine
        await engine.shutdown()
    assert isinstance(config.journal, MemoryJournal)
    assert_replays(config.journal)


async def read_all(stream: RequestStream) -> list[OutputSignal]:
    """Every signal up to the end."""
    return [signal async for signal in stream]


async def wait_until(engine: LiveEngine, condition: Callable[[], bool]) -> None:
    """Wait for a condition on an engine, looking whenever it changes."""
    with trio.fail_after(2):
        while not condition():
            changed = engine.driver.changed
            if condition():
                break
            await changed.wait()


async def probe_drained(engine: LiveEngine) -> bool:
    """Whether a request that needs 63 of 64 blocks completes, so that nothing is leaked."""
    request = LiveRequest(range(10_000, 10_252), output_token_ids=(PLANNED_TOKEN,))
    with trio.fail_after(2), await engine.submit(request) as stream:
        signals = await read_all(stream)
        await engine.wait_idle()
    return bool(signals) and signals[-1].completed and not signals[-1].rejected


def stored_names(events: list[KvEvent]) -> list[int]:
    """Take all events off a list; the names of the blocks that were stored."""
    names = [name for event in events if event.kind is KvEventKind.STORED for name in event.block_names]
    events.clear()
    return names
