"""Handoffs between real engines over real sockets: who owns what when it fails, and that nothing is left."""

import pytest
import trio
from live_engines import fixture_request, fixture_settings, probe_drained, read_all, running_engine
from live_handoffs import LivePair, PreparedSide, live_pair, run_real

from handoff.engines.boundary import ControlCall, ControlReply
from handoff.engines.engine_errors import RegistrationUsed, RouteTaken
from handoff.engines.live_boundary import live_handoff_boundary
from handoff.engines.signals import Signal
from handoff.journal.coordinator import ACCEPTED, APPLIED, NOOP
from handoff.journal.terms import ObserverName
from handoff.journal.vocabulary import ActionName, EngineType, FactName, HandoffId, OutcomeName, Side, WorkerRole

CANCEL_SOURCE = ControlCall(ActionName.CANCEL_SOURCE)
CANCEL_DESTINATION = ControlCall(ActionName.CANCEL_DESTINATION)
RESERVE = ControlCall(ActionName.RESERVE_DESTINATION)
ACTIVATE = ControlCall(ActionName.ACTIVATE_DESTINATION)
H1 = HandoffId("h1")


async def assert_reusable_and_drained(pair: LivePair, number: int) -> None:
    """Both engines are idle, take the handoff's name again, and have all of their blocks."""
    handoff_id = pair.identity(number).handoff_id
    for engine in (pair.source, pair.destination):
        with trio.fail_after(2):
            await engine.wait_idle()
        if pair.engine_type is EngineType.VLLM:  # SGLang counts what it could evict as well; the probe decides
            assert engine.metrics.active_blocks == 0
        _control, events = engine.register_handoff(handoff_id)
        events.close()
        assert await probe_drained(engine)
    assert pair.permits.available == 1


def close(*sides: PreparedSide) -> None:
    for side in sides:
        side.stream.close()
        side.boundary.close()


# -- the boundary -----------------------------------------------------------------------------------------------------


def test_destination_cleanup_abandons_an_unsubmitted_registration() -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(worker_role=WorkerRole.DECODE)) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            control, events = engine.register_handoff(H1)
            boundary = live_handoff_boundary(control, events, registration)
            reply = await boundary.execute(CANCEL_DESTINATION)
            assert (reply.outcome, reply.raw) == (APPLIED, NOOP)
            with trio.fail_after(1):
                assert not await stream.cancel()
            await engine.wait_idle()
            assert engine.metrics.active_blocks == 0
            again, again_stream = engine.prepare_request(fixture_request("r1", 1))
            again.close()
            again_stream.close()
            boundary.close()
            _control, again_events = engine.register_handoff(H1)
            again_events.close()

    run_real(main)


def test_the_boundary_submits_once_and_keeps_the_raw_result_of_a_cancel() -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(worker_role=WorkerRole.DECODE)) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 4))
            boundary = live_handoff_boundary(*engine.register_handoff(H1), registration)
            reply = await boundary.execute(RESERVE)
            assert (reply.outcome, reply.raw) == (ACCEPTED, None)
            with pytest.raises(RegistrationUsed, match="more than once"):
                await boundary.execute(RESERVE)
            event = await boundary.next_event()
            assert event is not None
            assert event.transferable_prompt_tokens == 8
            first = await boundary.execute(CANCEL_DESTINATION)
            second = await boundary.execute(CANCEL_DESTINATION)
            assert [(first.outcome, first.raw), (second.outcome, second.raw)] == [(APPLIED, None), (APPLIED, NOOP)]
            gone = await boundary.execute(ACTIVATE)
            assert (gone.outcome.name, gone.raw) == (OutcomeName.FAILED, NOOP)
            stream.close()
            boundary.close()
            assert await boundary.next_event() is None

    run_real(main)


# -- whole handoffs ---------------------------------------------------------------------------------------------------


def test_active_handoff_shutdown_releases_scheduler_and_session_ownership() -> None:
    async def main() -> None:
        async with live_pair() as pair:
            identity = pair.identity(1)
            seen = {name: trio.Event() for name in ObserverName}
            pair.observed.append(lambda name: seen[name].set())
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 2)
            completion = pair.register(identity, source)
            session = pair.run_destination(await pair.connect(identity), destination)
            with trio.fail_after(2):
                await seen[ObserverName.SOURCE_HELD].wait()
                await seen[ObserverName.DESTINATION_RESERVED].wait()
            pair.context.shutdown.set()
            with trio.fail_after(5):
                assert not (await completion.wait()).ok
                assert not (await session.wait()).ok
                await pair.manager.wait_closed()
                await pair.server.wait_closed()
            with trio.fail_after(2):
                await source.stream.cancel()
                await destination.stream.cancel()
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


@pytest.mark.parametrize("engine_type", [EngineType.VLLM, EngineType.SGLANG])
def test_active_source_request_cancellation_runs_exact_cleanup(engine_type: EngineType) -> None:
    async def main() -> None:
        async with live_pair(engine_type) as pair:
            identity, cancel, reserved = pair.identity(1), Signal(), trio.Event()

            def observe(name: ObserverName) -> None:
                if name is ObserverName.DESTINATION_RESERVED:
                    reserved.set()

            pair.observed.append(observe)
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 2)
            completion = pair.register(identity, source, cancel=cancel)
            session = pair.run_destination(await pair.connect(identity), destination)
            await reserved.wait()
            cancel.set()
            with trio.fail_after(1):
                result = await completion.wait()
            assert result.error is not None
            assert "source request was canceled" in result.error
            assert not (await session.wait()).ok
            called = [event.name for event in pair.journal.events if event.kind == "control_called"]
            assert called.count("cancel_source") == 1
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


def test_source_lifecycle_channel_closure_runs_exact_cleanup() -> None:
    async def main() -> None:
        async with live_pair() as pair:
            identity = pair.identity(1)
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 2)
            completion = pair.register(identity, source)
            source.boundary.close()
            session = pair.run_destination(await pair.connect(identity), destination)
            result = await completion.wait()
            assert result.error is not None
            assert "source lifecycle channel closed" in result.error
            assert not (await session.wait()).ok
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


@pytest.mark.parametrize(
    ("engine_type", "until"),
    [
        (EngineType.VLLM, ObserverName.DESTINATION_RESERVED),
        (EngineType.VLLM, ObserverName.DESTINATION_ACTIVATED),
        (EngineType.SGLANG, ObserverName.DESTINATION_ACTIVATED),
    ],
)
def test_destination_disconnect_cleans_reserved_and_activated_ownership(
    engine_type: EngineType, until: ObserverName
) -> None:
    async def main() -> None:
        async with live_pair(engine_type, decode_speedup_ratio=0.01) as pair:
            identity, reached = pair.identity(1), trio.Event()
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 16)

            def observe(name: ObserverName) -> None:
                if name is until:
                    pair.context.crashes.crash(identity.handoff_id, Side.SOURCE)
                    reached.set()

            pair.observed.append(observe)
            completion = pair.register(identity, source)
            session = pair.run_destination(await pair.connect(identity), destination)
            await reached.wait()
            assert not (await session.wait()).ok
            assert not (await completion.wait()).ok
            reply = await destination.boundary.execute(CANCEL_DESTINATION)
            assert reply.raw == NOOP
            await source.boundary.execute(CANCEL_SOURCE)  # the source died without cleaning up: its worker does
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


@pytest.mark.parametrize("action", [ActionName.RESERVE_DESTINATION, ActionName.ACTIVATE_DESTINATION])
def test_lost_reserve_or_activation_ack_cleans_ambiguous_destination_ownership(action: ActionName) -> None:
    async def main() -> None:
        async with live_pair(decode_speedup_ratio=0.01) as pair:
            identity = pair.identity(1)
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 16)
            connection = await pair.connect(identity)
            execute = destination.boundary.execute

            async def execute_and_lose(call: ControlCall) -> ControlReply:
                if call.action is action:
                    await connection.cut()
                return await execute(call)

            losing = PreparedSide(destination.stream, destination.boundary)
            losing.boundary.execute = execute_and_lose  # type: ignore[method-assign]
            completion = pair.register(identity, source)
            session = pair.run_destination(connection, losing)
            assert not (await session.wait()).ok
            assert not (await completion.wait()).ok
            reply = await execute(CANCEL_DESTINATION)
            assert reply.raw == NOOP
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


def test_duplicate_lifecycle_route_does_not_replace_the_active_route() -> None:
    async def main() -> None:
        async with running_engine(fixture_settings(worker_role=WorkerRole.DECODE)) as engine:
            registration, stream = engine.prepare_request(fixture_request("r1", 1))
            boundary = live_handoff_boundary(*engine.register_handoff(H1), registration)
            with pytest.raises(RouteTaken):
                engine.register_handoff(H1)
            await boundary.execute(RESERVE)
            event = await boundary.next_event()
            assert event is not None
            assert event.name is FactName.DESTINATION_RESERVED
            stream.close()
            boundary.close()

    run_real(main)


def test_active_shutdown_joins_sessions_after_exact_cleanup() -> None:
    async def main() -> None:
        async with live_pair(decode_speedup_ratio=0.01) as pair:
            identity, activated = pair.identity(1), trio.Event()

            def observe(name: ObserverName) -> None:
                if name is ObserverName.DESTINATION_RESERVED:
                    activated.set()

            pair.observed.append(observe)
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 16)
            completion = pair.register(identity, source)
            session = pair.run_destination(await pair.connect(identity), destination)
            await activated.wait()
            pair.context.shutdown.set()
            await pair.manager.wait_closed()
            assert not (await completion.wait()).ok
            assert not (await session.wait()).ok
            assert (await source.boundary.execute(CANCEL_SOURCE)).raw == NOOP
            assert (await destination.boundary.execute(CANCEL_DESTINATION)).raw == NOOP
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


def test_expired_source_session_deadline_still_cleans_held_ownership() -> None:
    async def main() -> None:
        async with live_pair(session_timeout_ms=100.0, kv_transfer_bandwidth=None) as pair:
            identity = pair.identity(1)
            source = pair.prepare(pair.source, identity, 1)
            completion = pair.register(identity, source)
            connection = await pair.connect(identity)  # nobody answers there
            with trio.fail_after(2):
                result = await completion.wait()
            assert result.error is not None
            assert "timed out" in result.error
            assert (await source.boundary.execute(CANCEL_SOURCE)).raw == NOOP
            await connection.aclose()
            close(source)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


def test_expired_destination_session_deadline_still_cleans_reserved_ownership() -> None:
    async def main() -> None:
        async with live_pair(EngineType.SGLANG, session_timeout_ms=100.0) as pair:
            identity = pair.identity(1)
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 2)
            completion = pair.register(identity, source)

            async def never(_call: ControlCall) -> ControlReply:
                await trio.sleep_forever()
                raise AssertionError

            if_submitted = source.boundary.execute

            async def stalled(call: ControlCall) -> ControlReply:
                return await (never(call) if call.action is ActionName.SUBMIT_PREFILL else if_submitted(call))

            source.boundary.execute = stalled  # type: ignore[method-assign]
            session = pair.run_destination(await pair.connect(identity), destination)
            with trio.fail_after(2):
                assert not (await session.wait()).ok
            assert not (await completion.wait()).ok
            assert (await destination.boundary.execute(CANCEL_DESTINATION)).raw == NOOP
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)


def test_a_completion_is_open_when_the_sources_last_output_has_already_arrived() -> None:
    async def main() -> None:
        async with live_pair() as pair:
            identity = pair.identity(1)
            source = pair.prepare(pair.source, identity, 1)
            destination = pair.prepare(pair.destination, identity, 2)
            completion = pair.register(identity, source)
            session = pair.run_destination(await pair.connect(identity), destination)
            (signal,) = await read_all(source.stream)
            assert signal.completed
            assert completion.result is None  # the transfer alone takes 8 ms
            assert (await completion.wait()).ok
            assert (await session.wait()).ok
            assert len(await read_all(destination.stream)) == 2
            close(source, destination)
            await assert_reusable_and_drained(pair, 1)

    run_real(main)
