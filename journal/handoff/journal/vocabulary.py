"""The words of a handoff: the closed vocabularies that rows, machines, fixtures and users share.

Every enumeration is a `StrEnum` whose values are the stored snake_case names, so a value can be written to a
row, compared with text from a fixture or shown to a person without translation.
"""

from enum import StrEnum
from typing import NewType

HandoffId = NewType("HandoffId", str)
"""Name of one handoff. Ours are UUIDs in canonical text; imported ones may be any text."""

RequestId = NewType("RequestId", str)
"""Name of the client's request that a handoff serves."""

ActionId = NewType("ActionId", int)
"""Number of an issued action, from 0 within its handoff."""

Seq = NewType("Seq", int)
"""Number of a row, from 1 within its journal, without gaps."""

RunId = NewType("RunId", int)
"""Number of a run, from 1 within its journal."""

ActorId = NewType("ActorId", int)
"""Number of an actor (one instance of a machine), from 1 within its journal."""

SourceId = NewType("SourceId", int)
"""Number of an observing stream, from 1 within its journal."""


class EngineType(StrEnum):
    """The kind of scheduler that an engine runs."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


class HandoffOrder(StrEnum):
    """Which participant is asked first."""

    SOURCE_FIRST = "source_first"
    DESTINATION_FIRST = "destination_first"


class WorkerRole(StrEnum):
    """What a worker does in a disaggregated cluster."""

    AGGREGATED = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"


class Side(StrEnum):
    """One of the two owners of a handoff."""

    SOURCE = "source"
    DESTINATION = "destination"


class TimingMode(StrEnum):
    """Which tokens a transfer is charged for."""

    FULL_PROMPT = "full_prompt"
    DESTINATION_MISSING = "destination_missing"


class ActionName(StrEnum):
    """What a coordinator may order."""

    SUBMIT_PREFILL = "submit_prefill"
    RESERVE_DESTINATION = "reserve_destination"
    START_TRANSFER = "start_transfer"
    ACTIVATE_DESTINATION = "activate_destination"
    RELEASE_SOURCE = "release_source"
    CANCEL_SOURCE = "cancel_source"
    CANCEL_DESTINATION = "cancel_destination"
    COMPLETE = "complete"


class OutcomeName(StrEnum):
    """How an action was answered."""

    SUBMITTED = "submitted"
    ACCEPTED = "accepted"
    SCHEDULED = "scheduled"
    APPLIED = "applied"
    NOOP = "noop"
    FAILED = "failed"


class FactName(StrEnum):
    """What can be observed of a handoff without having been an answer."""

    SOURCE_HELD = "source_held"
    DESTINATION_RESERVED = "destination_reserved"
    TRANSFER_COMPLETED = "transfer_completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELED = "canceled"


class Completion(StrEnum):
    """How a coordinator completed."""

    SUCCESS = "success"
    CANCELED = "canceled"


class TerminalStatus(StrEnum):
    """How a request ended; the first status that is set stays."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELED = "canceled"


class Verdict(StrEnum):
    """What a machine made of one offered input."""

    APPLIED = "applied"
    KEPT = "kept"
    """Early: held back until the acknowledgement it depends on arrives."""
    DUPLICATE = "duplicate"
    CONFLICTING = "conflicting"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    LATE = "late"
    IGNORED_IN_CLEANUP = "ignored_in_cleanup"
    DISCARDED = "discarded"
    """Still queued when its actor ended."""
    CRASHED = "crashed"
    """The machine raised something that is not one of its own errors."""


def order_for_engine(engine_type: EngineType) -> HandoffOrder:
    """The order in which an engine type's participants are asked.

    Raises:
        ValueError: for TensorRT-LLM, which supports no destination handoff.
    """
    match engine_type:
        case EngineType.VLLM:
            return HandoffOrder.SOURCE_FIRST
        case EngineType.SGLANG:
            return HandoffOrder.DESTINATION_FIRST
        case EngineType.TRTLLM:
            raise ValueError("disaggregated handoff does not support TRT-LLM: use engine_type vllm or sglang")
