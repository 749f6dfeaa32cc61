"""The live engine's public surface: requests, streams, handoff registrations, shutdown."""

import gc
import itertools
from typing import Any

import pytest
import trio
import trio.testing
from live_engines import (
    fixture_request,
    fixture_settings,
    probe_drained,
    read_all,
    running_engine,
    wait_until,
)

from handoff.engines.engine_errors import (
    CommandRunning,
    EarlierRegistration,
    EmptyOutput,
    EngineFailed,
    EngineGone,
    ForeignRegistration,
    NotRunning,
    RegistrationUsed,
    RequestActive,
    RouteTaken,
)
from handoff.engines.engine_rows import EngineOrder
from handoff.engines.engine_settings import InvalidSetting
from handoff.engines.live_engine import LiveEngine, LiveEngineConfig, LiveRequest
from handoff.journal.port import MemoryJournal
from handoff.journal.vocabulary import EngineType, FactName, HandoffId, OutcomeName, RequestId, WorkerRole

H1 = HandoffId("h1")
ENGINES = [EngineType.VLLM, EngineType.SGLANG]


def test_retained_handoff_control_does_not_keep_engine_alive(trio_run: Any) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            engine = LiveEngine.start(nursery, fixture_settings())
            control, events = engine.register_handoff(H1)
            del engine
            gc.collect()
            with trio.fail_after(1):
                assert await events.recv() is None
            with pytest.raises(EngineGone, match="engine no longer exists"):
                control.order(EngineOrder.CANCEL_SOURCE)

    trio_run(main)


def test_dropping_prepared_registration_closes_route_and_allows_id_reuse(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings()) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            assert engine.active_request_count == 1
            registration.close()
            assert await stream.recv() is None
            assert engine.active_request_count == 0
            again, again_stream = engine.prepare_request(fixture_request("r1", 1))
            again.close()
            assert await again_stream.recv() is None

    trio_run(main)


def test_a_forgotten_registration_is_closed_when_it_is_collected(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings()) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            del registration
            gc.collect()
            with trio.fail_after(1):
                assert await stream.recv() is None
            assert engine.active_request_count == 0

    trio_run(main)


@pytest.mark.parametrize("engine_type", ENGINES)
def test_typed_handoff_routes_output_and_lifecycle_for_supported_engines(
    trio_run: Any, engine_type: EngineType
) -> None:
    async def source() -> None:
        async with running_engine(fixture_settings(engine_type, WorkerRole.PREFILL)) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 1, token=41))
            control, events = engine.register_handoff(H1)
            with pytest.raises(RouteTaken, match="already has a lifecycle route"):
                engine.register_handoff(H1)
            answer = await control.order(EngineOrder.SUBMIT_PREFILL, registration).wait()
            assert answer.outcome is OutcomeName.SUBMITTED
            (signal,) = await read_all(stream)
            assert (signal.token_id, signal.completed, signal.handoff_delay_ms) == (41, True, 8.0)
            fact = await events.recv()
            assert fact is not None
            assert fact[0].name is FactName.SOURCE_HELD
            assert (await control.order(EngineOrder.RELEASE_SOURCE).wait()).outcome is OutcomeName.APPLIED
            assert (await control.order(EngineOrder.RELEASE_SOURCE).wait()).outcome is OutcomeName.NOOP
            await engine.shutdown()
            assert await events.recv() is None

    async def destination() -> None:
        async with running_engine(fixture_settings(engine_type, WorkerRole.DECODE)) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            control, events = engine.register_handoff(H1)
            answer = await control.order(EngineOrder.RESERVE_DESTINATION, registration).wait()
            assert answer.outcome is OutcomeName.ACCEPTED
            fact = await events.recv()
            assert fact is not None
            assert fact[0].name is FactName.DESTINATION_RESERVED
            assert fact[0].transferable_prompt_tokens == 8
            assert (await control.order(EngineOrder.ACTIVATE_DESTINATION).wait()).outcome is OutcomeName.APPLIED
            (signal,) = await read_all(stream)
            assert (signal.token_id, signal.completed) == (42, True)
            await engine.shutdown()
            assert await events.recv() is None

    trio_run(source)
    trio_run(destination)


def test_dropping_reserved_destination_releases_scheduler_capacity(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(worker_role=WorkerRole.DECODE)) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            control, events = engine.register_handoff(H1)
            await control.order(EngineOrder.RESERVE_DESTINATION, registration).wait()
            assert await events.recv() is not None
            stream.close()
            await engine.wait_idle()
            assert engine.metrics.active_blocks == 0
            assert (await control.order(EngineOrder.CANCEL_DESTINATION).wait()).outcome is OutcomeName.NOOP

    trio_run(main)


def test_stale_handoff_control_cannot_mutate_a_replacement_registration(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(worker_role=WorkerRole.DECODE)) as engine:
            stale, stale_events = engine.register_handoff(H1)
            stale_events.close()
            control, events = engine.register_handoff(H1)
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            await control.order(EngineOrder.RESERVE_DESTINATION, registration).wait()
            with pytest.raises(EarlierRegistration, match="earlier registration"):
                stale.order(EngineOrder.CANCEL_DESTINATION)
            events.close()
            with pytest.raises(EarlierRegistration):
                control.order(EngineOrder.RESERVE_DESTINATION)
            assert (await control.order(EngineOrder.CANCEL_DESTINATION).wait()).outcome is OutcomeName.APPLIED
            assert await stream.recv() is None

    trio_run(main)


def test_late_request_cancellation_cannot_cancel_a_reused_handoff_id(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(worker_role=WorkerRole.DECODE)) as engine:
            old, old_stream = engine.prepare_request(fixture_request("old", 1))
            control, events = engine.register_handoff(H1)
            await control.order(EngineOrder.RESERVE_DESTINATION, old).wait()
            await control.order(EngineOrder.ACTIVATE_DESTINATION).wait()
            await engine.wait_idle()
            events.close()
            new, new_stream = engine.prepare_request(fixture_request("new", 1))
            new_control, new_events = engine.register_handoff(H1)
            await new_control.order(EngineOrder.RESERVE_DESTINATION, new).wait()
            assert await new_events.recv() is not None
            old_stream.close()
            await trio.testing.wait_all_tasks_blocked()
            assert engine.metrics.active_blocks == 2
            assert (await new_control.order(EngineOrder.CANCEL_DESTINATION).wait()).outcome is OutcomeName.APPLIED
            assert await new_stream.recv() is None

    trio_run(main)


def test_duplicate_request_id_does_not_replace_the_original_stream(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings()) as engine:
            stream = await engine.submit(fixture_request("r1", 2))
            with pytest.raises(RequestActive, match="already active"):
                engine.prepare_request(fixture_request("r1", 1))
            assert [signal.token_id for signal in await read_all(stream)] == [42, 42]

    trio_run(main)


def test_empty_effective_output_is_rejected_before_anything_is_registered(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings()) as engine:
            for request in (LiveRequest((1, 2), 0), LiveRequest((1, 2), 5, output_token_ids=())):
                with pytest.raises(EmptyOutput, match="at least one output token"):
                    engine.prepare_request(request)
            assert engine.active_request_count == 0

    trio_run(main)


def test_dropping_an_active_request_cleans_up_its_blocks(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(speedup_ratio=1.0, decode_speedup_ratio=1.0)) as engine:
            stream = await engine.submit(fixture_request("r1", 100))
            assert await stream.recv() is not None
            assert engine.metrics.running == 1
            stream.close()
            await engine.wait_idle()
            assert engine.metrics.active_blocks == 0

    trio_run(main)


def test_a_forgotten_stream_cancels_its_request_when_it_is_collected(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(speedup_ratio=1.0, decode_speedup_ratio=1.0)) as engine:
            stream = await engine.submit(fixture_request("r1", 100))
            assert await stream.recv() is not None
            del stream
            gc.collect()
            await engine.wait_idle()
            assert engine.metrics.active_blocks == 0

    trio_run(main)


def test_canceling_a_running_request_ends_its_stream(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(speedup_ratio=1.0, decode_speedup_ratio=1.0)) as engine:
            stream = await engine.submit(fixture_request("r1", 100))
            assert await stream.recv() is not None
            assert await engine.cancel(RequestId("r1"))
            assert not any(signal.completed for signal in await read_all(stream))
            assert not await engine.cancel(RequestId("r1"))
            assert not await stream.cancel()
            assert await probe_drained(engine)

    trio_run(main)


def test_full_output_stream_is_cancelled_without_blocking_others(trio_run: Any) -> None:
    async def main() -> None:
        settings = fixture_settings(speedup_ratio=1.0, decode_speedup_ratio=1.0)
        passes: list[object] = []  # an engine whose passes are watched delivers after each of them
        async with running_engine(settings, LiveEngineConfig(metrics_sink=passes.append)) as engine:
            slow = await engine.submit(fixture_request("slow", 40))
            fast = await engine.submit(fixture_request("fast", 40))
            assert len([signal async for signal in fast if signal.token_id is not None]) == 40
            await wait_until(engine, lambda: engine.active_request_count == 0)
            received = await read_all(slow)
            assert len(received) == 8
            assert not received[-1].completed
            assert await probe_drained(engine)

    trio_run(main)


def test_a_batch_of_tokens_is_read_one_signal_at_a_time(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings()) as engine:
            stream = await engine.submit(LiveRequest(range(8), 200))
            signals = await read_all(stream)
            assert [signal.token_id for signal in signals] == list(range(200))
            assert [signal.completed for signal in signals] == [False] * 199 + [True]
            assert all(before.at_ms <= after.at_ms for before, after in itertools.pairwise(signals))

    trio_run(main)


def test_dispatcher_exit_shuts_down_admission(trio_run: Any) -> None:
    def broken_sink(_event: object) -> None:
        raise RuntimeError("nobody there")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            config = LiveEngineConfig(kv_sinks=(broken_sink,))
            engine = LiveEngine.start_with_config(nursery, fixture_settings(), config)
            stream = await engine.submit(fixture_request("r1", 1))
            await engine.driver.finished.wait()
            with pytest.raises(NotRunning, match="not running"):
                engine.prepare_request(fixture_request("r2", 1))
            with pytest.raises(NotRunning):
                engine.register_handoff(H1)
            assert engine.active_request_count == 0
            with trio.fail_after(1):
                await read_all(stream)
            with pytest.raises(EngineFailed):
                await engine.shutdown()

    trio_run(main)


def test_shutdown_surfaces_admission_forwarding_failure_every_time(trio_run: Any) -> None:
    def broken_sink(_metrics: object) -> None:
        raise RuntimeError("nobody there")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            config = LiveEngineConfig(metrics_sink=broken_sink)
            engine = LiveEngine.start_with_config(nursery, fixture_settings(), config)
            await engine.submit(fixture_request("r1", 1))
            await engine.driver.finished.wait()
            for _ in range(2):
                with pytest.raises(EngineFailed, match="nobody there"):
                    await engine.shutdown()

    trio_run(main)


def test_dropping_engine_closes_outstanding_request_streams(trio_run: Any) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            engine = LiveEngine.start(nursery, fixture_settings(speedup_ratio=1.0))
            stream = await engine.submit(fixture_request("r1", 8))
            del engine
            gc.collect()
            with trio.fail_after(1):
                assert not any(signal.completed for signal in await read_all(stream))

    trio_run(main)


def test_a_registration_is_consumed_once_and_by_its_own_engine(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings()) as engine, running_engine(fixture_settings()) as other:
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            with pytest.raises(ForeignRegistration):
                await other.submit_registration(registration)
            await engine.submit_registration(registration)
            with pytest.raises(RegistrationUsed, match="more than once"):
                await engine.submit_registration(registration)
            assert len(await read_all(stream)) == 1

    trio_run(main)


def test_shutdown_is_idempotent_and_later_calls_fail(trio_run: Any) -> None:
    async def main() -> None:
        async with running_engine(fixture_settings()) as engine:
            control, _events = engine.register_handoff(H1)
            await engine.shutdown()
            await engine.shutdown()
            with pytest.raises(NotRunning):
                await engine.submit(fixture_request("r1", 1))
            with pytest.raises(NotRunning):
                control.order(EngineOrder.CANCEL_SOURCE)

    trio_run(main)


def test_commands_of_a_handoff_are_answered_in_order_even_if_nobody_waits(trio_run: Any) -> None:
    async def main() -> None:
        settings = fixture_settings(worker_role=WorkerRole.DECODE, speedup_ratio=1.0, decode_speedup_ratio=1.0)
        async with running_engine(settings) as engine:
            other = await engine.submit(fixture_request("other", 8))
            await wait_until(engine, lambda: engine.metrics.running == 1)
            registration, _stream = engine.prepare_request(fixture_request("r1", 5))
            control, events = engine.register_handoff(H1)
            await control.order(EngineOrder.RESERVE_DESTINATION, registration).wait()
            assert await events.recv() is not None
            activate = control.order(EngineOrder.ACTIVATE_DESTINATION)
            with trio.CancelScope() as abandoned:
                abandoned.cancel()
                await activate.wait()
            assert abandoned.cancelled_caught
            cancel = control.order(EngineOrder.CANCEL_DESTINATION)
            events.close()
            with pytest.raises(CommandRunning):
                engine.register_handoff(H1)
            assert (await cancel.wait()).outcome is OutcomeName.APPLIED
            assert activate.answer is not None
            assert activate.answer.outcome is OutcomeName.APPLIED
            assert activate.answer_row is not None
            assert cancel.answer_row is not None
            assert activate.answer_row < cancel.answer_row
            await read_all(other)

    trio_run(main)


def test_invalid_settings_fail_before_an_engine_starts() -> None:
    with pytest.raises(InvalidSetting):
        fixture_settings(num_gpu_blocks=0)


def test_a_driver_that_wakes_up_late_says_so_for_people() -> None:
    clock = trio.testing.MockClock()
    journal = MemoryJournal()

    async def main() -> None:
        async with running_engine(fixture_settings(speedup_ratio=1.0), LiveEngineConfig(journal=journal)) as engine:
            stream = await engine.submit(fixture_request("r1", 1))
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(0.5)
            assert len(await read_all(stream)) == 1

    trio.run(main, clock=clock)
    (lag,) = [event for event in journal.events if event.kind == "lag"]
    assert 400.0 < lag.payload["lag_ms"] < 500.0
    assert lag.actor is None
