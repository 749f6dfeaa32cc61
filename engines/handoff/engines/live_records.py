"""What a live run reports of each request: the times that its engines gave it, with the names of the offline report.

The engines' effects are watched as they happen and noted at their model time. That is the same clock as the run's, only
without the lag of a driver that wakes up late, so a live report can be compared with a simulated one.
"""

from typing import Any

from handoff.engines.collector import Collector
from handoff.engines.conductor_rows import RequestEnded, RequestRouted
from handoff.engines.engine_core import EndKind, PressureRecord, RequestEnd
from handoff.engines.engine_rows import (
    EngineAdmitted,
    EngineAnswered,
    EngineFinished,
    EngineLifecycle,
    EngineOrder,
    EnginePressure,
)
from handoff.engines.simulated_request import Admitted, Routing, SimulatedRequest
from handoff.journal.vocabulary import FactName, OutcomeName, RequestId, TerminalStatus, WorkerRole

_POOL = {WorkerRole.PREFILL: "prefill", WorkerRole.DECODE: "decode"}


class LiveRecords:
    """Notes what engines do to requests, and gives each to the collector once it has ended.

    Args:
        collector: takes the ended requests.
        block_size: tokens of a block, for overlaps.
    """

    def __init__(self, collector: Collector, block_size: int) -> None:
        self.collector = collector
        self._block_size = block_size
        self._open: dict[int, SimulatedRequest] = {}

    def arrived(self, handoff: int, request: SimulatedRequest) -> None:
        """A request arrived; `handoff` is its handoff's number in the journal."""
        self._open[handoff] = request
        self.collector.arrived(request)

    def routed(self, routed: RequestRouted, *, cache_aware: bool) -> None:
        """It was placed."""
        request = self._open[routed.handoff]
        request.prefill_worker, request.decode_worker = routed.prefill, routed.decode
        overlap = routed.overlap_blocks if cache_aware else None
        request.routings += (
            Routing("prefill", routed.prefill, overlap_blocks=overlap),
            Routing("decode", routed.decode, overlap_blocks=0 if cache_aware else None),
        )
        request.prefill_overlap_tokens = min(routed.overlap_blocks * self._block_size, request.input_tokens)
        request.decode_overlap_tokens = 0

    def ended(self, end: RequestEnded, at_ms: float) -> None:
        """It ended for its client."""
        request = self._open.pop(end.handoff, None)
        if request is not None:
            completed_ms = end.last_token_ms if end.name is TerminalStatus.COMPLETED else None
            request.set_status(end.name, at_ms if completed_ms is None else completed_ms)
            request.failure = end.reason
            self.collector.retired(request)

    def watch(self, role: WorkerRole, effect: Any) -> None:
        """An engine had an effect."""
        handoff = getattr(effect, "handoff", None)
        request = None if handoff is None else self._open.get(handoff)
        if request is None:
            return
        match effect:
            case EngineAdmitted():
                self._admitted(request, role, effect)
            case EngineLifecycle(name=FactName.SOURCE_HELD):
                request.held_ms = effect.model_ms
            case EngineLifecycle(name=FactName.DESTINATION_RESERVED):
                request.reserved_ms = effect.model_ms
            case EngineAnswered(name=EngineOrder.ACTIVATE_DESTINATION, outcome=OutcomeName.APPLIED):
                request.activated_ms = effect.model_ms
            case EngineAnswered(name=EngineOrder.RELEASE_SOURCE, outcome=OutcomeName.APPLIED):
                request.released_ms = effect.model_ms
            case EngineFinished() if role is WorkerRole.DECODE:
                request.take_tokens(_request_end(request.request_id, effect))
            case EnginePressure():
                self.collector.add_pressure(request, _pressure(request.request_id, effect))
            case _:
                pass

    @staticmethod
    def _admitted(request: SimulatedRequest, role: WorkerRole, admitted: EngineAdmitted) -> None:
        request.admissions.append(Admitted(_POOL[role], admitted.model_ms, admitted.reused_tokens))
        if role is WorkerRole.PREFILL:
            request.reused = max(request.reused, admitted.reused_tokens)
            if request.prefill_admit_ms is None:
                request.prefill_admit_ms = request.first_admit_ms = admitted.model_ms
        else:
            request.decode_reused = max(request.decode_reused or 0, admitted.reused_tokens)
            if request.decode_admit_ms is None:
                request.decode_admit_ms = admitted.model_ms


def _request_end(request_id: RequestId, finished: EngineFinished) -> RequestEnd:
    kind = EndKind.REJECTED if finished.name is TerminalStatus.REJECTED else EndKind.COMPLETED
    last_ms = finished.model_ms if finished.output_tokens else None
    return RequestEnd(
        request_id, kind, finished.output_tokens, finished.first_token_ms, finished.second_token_ms, last_ms
    )


def _pressure(request_id: RequestId, record: EnginePressure) -> PressureRecord:
    return PressureRecord(
        request_id, record.running_before, record.waiting_before, record.active_blocks_before,
        record.running_after, record.waiting_after, record.active_blocks_after,
    )  # fmt: skip
