"""A request on its way through the offline runtime: where its handoff stands, and what will be reported of it."""

from enum import StrEnum
from typing import NamedTuple

from handoff.engines.engine_core import EngineRequest, RequestEnd
from handoff.engines.workload import Arrival
from handoff.journal.coordinator import Action, Coordinator
from handoff.journal.vocabulary import HandoffId, RequestId, TerminalStatus


class Phase(StrEnum):
    """Where a request stands."""

    QUEUED_PREFILL = "queued_prefill"
    AWAITING_DESTINATION = "awaiting_destination"
    RUNNING_PREFILL = "running_prefill"
    TRANSFER_PENDING = "transfer_pending"
    READY_DECODE = "ready_decode"
    RUNNING_DECODE = "running_decode"
    CLEANUP_PENDING = "cleanup_pending"
    DONE = "done"


class Routing(NamedTuple):
    """One decision of a router.

    Attributes:
        pool: ``prefill`` or ``decode``.
        worker: the chosen worker.
        queued_at_ms, released_at_ms: when it entered and left the router's queue, or None.
        overlap_blocks, best_overlap_blocks: of a KV router: the chosen worker's cached prefix, and the best one's.
    """

    pool: str
    worker: int
    queued_at_ms: float | None = None
    released_at_ms: float | None = None
    overlap_blocks: int | None = None
    best_overlap_blocks: int | None = None


class Admitted(NamedTuple):
    """One admission by a scheduler."""

    pool: str
    at_ms: float
    reused_tokens: int


class SimulatedRequest:
    """Everything that the runtime knows of one request.

    Attributes:
        number: order of arrival, from 0.
        arrival: the turn.
        coordinator: its handoff's machine.
        parked: the action that waits while a router queues the request.
        handoff_is_over: whether its completion was carried out.
        counted_in_flight: until its logical end.
        others: as the report names them; times in ms, None until they happen.
    """

    __slots__ = (
        "activated_ms", "admissions", "arrival", "arrival_ms", "booked_decode", "booked_prefill", "coordinator",
        "counted_in_flight", "decode_admit_ms", "decode_overlap_tokens", "decode_reused", "decode_worker",
        "failure", "first_admit_ms", "first_token_ms", "handoff_id", "handoff_is_over", "held_ms", "input_tokens",
        "is_retired",
        "last_token_ms", "number", "output_limit", "output_tokens", "parked", "phase", "prefill_admit_ms",
        "prefill_overlap_tokens", "prefill_worker", "pressures", "released_ms", "request", "request_id",
        "reserved_ms", "reused", "routings", "second_token_ms", "status", "terminal_ms",
    )  # fmt: skip

    def __init__(
        self, number: int, arrival: Arrival, request: EngineRequest, handoff_id: HandoffId, coordinator: Coordinator
    ) -> None:
        self.number = number
        self.arrival = arrival
        self.arrival_ms = arrival.at_ms
        self.request = request
        self.request_id: RequestId = request.request_id
        self.input_tokens = request.prompt_tokens
        self.output_limit = request.max_output_tokens
        self.handoff_id = handoff_id
        self.coordinator = coordinator
        self.phase = Phase.QUEUED_PREFILL
        self.counted_in_flight = True
        self.handoff_is_over = False
        self.is_retired = False
        self.booked_prefill = False
        self.booked_decode = False
        self.parked: Action | None = None
        self.prefill_worker: int | None = None
        self.decode_worker: int | None = None
        self.status: TerminalStatus | None = None
        self.failure: str | None = None
        self.first_admit_ms: float | None = None
        self.prefill_admit_ms: float | None = None
        self.held_ms: float | None = None
        self.reserved_ms: float | None = None
        self.activated_ms: float | None = None
        self.decode_admit_ms: float | None = None
        self.released_ms: float | None = None
        self.first_token_ms: float | None = None
        self.second_token_ms: float | None = None
        self.last_token_ms: float | None = None
        self.terminal_ms: float | None = None
        self.output_tokens = 0
        self.reused = 0
        self.decode_reused: int | None = None
        self.prefill_overlap_tokens: int | None = None
        self.decode_overlap_tokens: int | None = None
        self.routings: list[Routing] = []
        self.admissions: list[Admitted] = []
        self.pressures: list[int] | None = None

    def take_tokens(self, end: RequestEnd) -> None:
        """Note the tokens that its decode worker reports."""
        self.output_tokens = end.output_tokens
        self.first_token_ms = end.first_token_ms
        self.second_token_ms = end.second_token_ms
        self.last_token_ms = end.last_token_ms

    def set_status(self, status: TerminalStatus, at_ms: float) -> None:
        """Set how it ended; the first status stays."""
        if self.status is None:
            self.status = status
            self.terminal_ms = at_ms
