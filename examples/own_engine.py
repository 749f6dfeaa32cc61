"""An engine of your own, in two methods, handing a prompt's KV cache over to another one like it over TCP."""

import time

import trio

from handoff.engines.bootstrap import BootstrapServer, connect_to_prefill
from handoff.engines.boundary import ControlCall, LifecycleEvent, destination_reserved, source_held
from handoff.engines.destination_driver import run_destination_session
from handoff.engines.identity import HandoffIdentity, ParticipantRegistration
from handoff.engines.manager import SourceHandoffManager
from handoff.engines.seeded_stream import derived_uuid
from handoff.engines.session_context import SessionContext
from handoff.engines.signals import HandoffCompletion, Signal
from handoff.engines.source_driver import SourceRegistration
from handoff.journal.coordinator import ACCEPTED, APPLIED, SUBMITTED, Outcome
from handoff.journal.durable_journal import Journal
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionName, EngineType, HandoffId, RequestId, TimingMode, order_for_engine


class ToyEngine:
    """Holds every prompt at once and has room for everything."""

    def __init__(self) -> None:
        self._observed, self._events = trio.open_memory_channel[LifecycleEvent](8)

    async def execute(self, call: ControlCall) -> Outcome:  # noqa: D102 - see `EngineBoundary`
        if call.action is ActionName.SUBMIT_PREFILL:  # held at once; the transfer will take 4 ms
            self._observed.send_nowait(source_held(TransferTiming(TimingMode.FULL_PROMPT, 64, 10**6, 16.0)))
            return SUBMITTED
        if call.action is ActionName.RESERVE_DESTINATION:
            self._observed.send_nowait(destination_reserved(transferable_prompt_tokens=64))
            return ACCEPTED
        return APPLIED

    async def next_event(self) -> LifecycleEvent | None:  # noqa: D102
        return await self._events.receive()


async def main(path: str) -> None:
    identity = HandoffIdentity(HandoffId(derived_uuid(7, "handoff", 1)), 17, RequestId(derived_uuid(7, "request", 1)))
    ours = ParticipantRegistration(order_for_engine(EngineType.VLLM), EngineType.VLLM)
    async with Journal.create(path) as journal, trio.open_nursery() as nursery:
        journal.begin_run(tool="own_engine 1.0", wall_ns=time.time_ns())
        context, done, cancel = SessionContext(journal), HandoffCompletion(), Signal()
        server = BootstrapServer(0, context.shutdown, host="127.0.0.1")
        manager = SourceHandoffManager(server.take_incoming(), 8, context)
        await nursery.start(manager.run)
        await nursery.start(server.run)
        manager.try_register(SourceRegistration(identity, ours.order, ours.engine_type, ToyEngine(), done, cancel))
        connection = await connect_to_prefill("127.0.0.1", server.port, identity, ours)
        destination = await run_destination_session(connection, ToyEngine(), context)
        print("source:", (await done.wait()).ok, "destination:", destination.ok, "rows:", journal.last_seq)
        context.shutdown.set()


if __name__ == "__main__":
    trio.run(main, "own_engine.db")
