"""A serving program of your own, in asyncio and without Trio, that records what its two engines do with a prompt.

The recorder takes lines from any thread or task. It never raises and never waits, so the program runs on whatever
happens to the journal. One of the three handoffs here forgets its hold; `handoff why asyncio_recorder.db` finds it.
"""

import asyncio

from handoff.journal.recorder import RecordedHandoff, Recorder


async def prefill(handoff: RecordedHandoff, blocks: list[int]) -> None:
    handoff.action("submit_prefill")
    handoff.outcome("submitted", of="submit_prefill")
    await asyncio.sleep(0.005)  # the engine computes
    timing = {"mode": "full_prompt", "full_prompt_tokens": 32, "kv_bytes_per_token": 131072, "bandwidth_gb_s": 25.0}
    handoff.fact("source_held", transfer_timing=timing)
    handoff.resource("source_held", blocks)


async def decode(handoff: RecordedHandoff, blocks: list[int]) -> None:
    handoff.action("reserve_destination")
    handoff.outcome("accepted", of="reserve_destination")
    handoff.fact("destination_reserved", transferable_prompt_tokens=32)
    handoff.resource("destination_blocks", blocks)
    handoff.action("start_transfer")
    handoff.outcome("scheduled", of="start_transfer")
    await asyncio.sleep(0.002)  # the blocks are copied
    handoff.fact("transfer_completed")
    handoff.action("activate_destination")
    handoff.outcome("applied", of="activate_destination")


async def serve(recorder: Recorder, number: int, *, forgets: bool) -> None:
    blocks = [2 * number, 2 * number + 1]
    handoff = recorder.handoff(f"request-{number}", order="source_first", engine_type="vllm")
    await prefill(handoff, blocks)
    await decode(handoff, blocks)
    if not forgets:
        handoff.action("release_source")
        handoff.outcome("applied", of="release_source")
        handoff.resource("source_freed", blocks)
        handoff.action("complete")


async def main() -> None:
    with Recorder.open("asyncio_recorder.db", tool="asyncio_recorder 1.0", source="node-0") as recorder:
        await asyncio.gather(*(serve(recorder, number, forgets=number == 2) for number in range(3)))
        report = recorder.close()
    print("lines:", report.lines, "lost:", report.lost, "durable rows:", report.last_durable_seq)


if __name__ == "__main__":
    asyncio.run(main())
