"""Live runs in which each handoff is struck by a fault at a point of its own."""

from live_runs import LiveRun, record_in_memory, sessions, small_scenario

from handoff.engines.scenario import Fault, FaultDeed
from handoff.journal.vocabulary import ActionName, FactName

OURS = (FactName.SOURCE_HELD, FactName.DESTINATION_RESERVED, FactName.TRANSFER_COMPLETED)
FRAMES = ("registered", "action", "action_ack", "fact", "complete")
THINGS = (
    *(f"action:{name}" for name in ActionName if not name.startswith("cancel")),
    *(f"outcome:{name}" for name in ActionName if name not in (ActionName.COMPLETE, ActionName.START_TRANSFER)
      and not name.startswith("cancel")),
    *(f"fact:{name}" for name in OURS),
    *(f"frame:{name}" for name in FRAMES),
    "request",
)  # fmt: skip
DEADLINE_MS = 60_000.0


def struck_run(engine_type: str, deed: FaultDeed) -> LiveRun:
    """One handoff for each thing, struck by the deed, and as many healthy ones at the end."""
    delay_ms = 20.0 if deed is FaultDeed.DELAY else 0.0
    faults = [Fault(thing, deed, handoff=number, delay_ms=delay_ms) for number, thing in enumerate(THINGS, start=1)]
    scenario = small_scenario(faults, engine_type=engine_type, session_timeout_ms=DEADLINE_MS)
    return record_in_memory(scenario, sessions(len(THINGS) + 4), in_flight=8, rate=50.0)
