"""Takes requests as they end, and keeps what a report needs of them.

Records go out in the order of arrival; a request that ends before an earlier one waits for it here, so what is held
back is bounded by what is in flight. What the summary needs is one number a request and figure, and nothing a
token.
"""

from array import array
from collections.abc import Callable

from handoff.engines.engine_core import PressureRecord
from handoff.engines.service_level import ServiceLevel
from handoff.engines.simulated_request import SimulatedRequest
from handoff.journal.vocabulary import RequestId, TerminalStatus


class Collector:
    """Figures of one run.

    Args:
        sink: takes each ended request, in order of arrival.
        keeps_requests: whether all requests are kept, for tests and small runs.
        service_level: what makes a completed request good, or None.

    Attributes:
        requests: all requests in order of arrival, if kept.
        num_requests: arrivals.
        statuses: how many ended how.
    """

    def __init__(
        self,
        sink: Callable[[SimulatedRequest], None] | None = None,
        *,
        keeps_requests: bool = False,
        service_level: ServiceLevel | None = None,
    ) -> None:
        self.service_level = service_level
        self.good_requests = 0
        self.good_tokens = 0
        self._sink = sink
        self._keeps_requests = keeps_requests
        self.requests: list[SimulatedRequest] = []
        self._by_id: dict[RequestId, SimulatedRequest] = {}
        self.num_requests = 0
        self.statuses = dict.fromkeys(TerminalStatus, 0)
        self.pressure: list[PressureRecord] = []
        self._held_back: dict[int, SimulatedRequest] = {}
        self._next_out = 0
        self.completed = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.reused_tokens = 0
        self.first_reused_tokens = 0
        self.duration_ms = 0.0
        self.ttft_ms = array("d")
        self.ttst_ms = array("d")
        self.tpot_ms = array("d")
        self.e2e_ms = array("d")

    def arrived(self, request: SimulatedRequest) -> None:
        """A request arrived."""
        self.num_requests += 1
        if self._keeps_requests:
            self.requests.append(request)
            self._by_id[request.request_id] = request

    def snapshot(self, request_id: RequestId) -> SimulatedRequest:
        """A kept request as it is now."""
        return self._by_id[request_id]

    def add_pressure(self, request: SimulatedRequest, record: PressureRecord) -> None:
        """A request was preempted or retracted."""
        if request.pressures is None:
            request.pressures = []
        request.pressures.append(len(self.pressure))
        self.pressure.append(record)

    def retired(self, request: SimulatedRequest) -> None:
        """A request and its handoff are over."""
        assert request.status is not None
        self.statuses[request.status] += 1
        if request.status is TerminalStatus.COMPLETED and request.first_admit_ms is not None:
            self._count(request)
        self._held_back[request.number] = request
        while self._next_out in self._held_back:
            self._let_out(self._held_back.pop(self._next_out))
            self._next_out += 1

    def close(self) -> None:
        """No more requests will end: let out those that wait for one that never did."""
        for number in sorted(self._held_back):
            self._let_out(self._held_back.pop(number))

    def _let_out(self, request: SimulatedRequest) -> None:
        if self._sink is not None:
            self._sink(request)

    def _count(self, request: SimulatedRequest) -> None:
        self.completed += 1
        self.input_tokens += request.input_tokens
        self.output_tokens += request.output_tokens
        # The ratio takes a request's largest reuse anywhere, also that of a readmission on its decode worker.
        self.reused_tokens += max(request.reused, request.decode_reused or 0)
        self.first_reused_tokens += request.admissions[0].reused_tokens
        terminal_ms = request.terminal_ms
        assert terminal_ms is not None
        self.duration_ms = max(self.duration_ms, terminal_ms)
        first_ms, last_ms = request.first_token_ms, request.last_token_ms
        if self.service_level is not None:
            ttft_ms = None if first_ms is None else first_ms - request.arrival_ms
            if self.service_level.is_met(ttft_ms, terminal_ms - request.arrival_ms, request.output_tokens):
                self.good_requests += 1
                self.good_tokens += request.output_tokens
        if first_ms is None or last_ms is None:
            return
        self.ttft_ms.append(first_ms - request.arrival_ms)
        self.e2e_ms.append(last_ms - request.arrival_ms)
        if request.second_token_ms is not None:
            self.ttst_ms.append(request.second_token_ms - first_ms)
            self.tpot_ms.append((last_ms - first_ms) / (request.output_tokens - 1))
