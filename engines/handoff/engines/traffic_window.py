"""What a planner sees of the traffic since it last looked."""

from attrs import frozen

from handoff.engines.simulated_request import SimulatedRequest
from handoff.journal.vocabulary import TerminalStatus


@frozen
class TrafficStats:
    """Means over one window; each is 0 when its count is 0.

    Attributes:
        duration_s: length of the window.
        num_req: arrivals.
        num_ended: requests that ended and were not rejected; they give the mean lengths.
        avg_isl, avg_osl: input and output tokens.
        num_ttft, avg_ttft_ms: of those with a first token.
        num_itl, avg_itl_ms: mean waits of those with more than one token.
        num_routed, avg_kv_hit_rate: prefill decisions of a KV-aware router, and the share of cached blocks.
        avg_accept_length: 1 once anything was decoded, else None; nothing is speculated here.
    """

    duration_s: float
    num_req: int
    num_ended: int
    avg_isl: float
    avg_osl: float
    num_ttft: int
    avg_ttft_ms: float
    num_itl: int
    avg_itl_ms: float
    num_routed: int
    avg_kv_hit_rate: float
    avg_accept_length: float | None


class TrafficWindow:
    """Counts from one drain to the next."""

    __slots__ = (
        "_arrivals", "_ended", "_hit_rate", "_input", "_itl_ms", "_itls", "_output", "_routed", "_start_ms",
        "_ttft_ms", "_ttfts",
    )  # fmt: skip

    def __init__(self) -> None:
        self._start_ms = 0.0
        self._clear()

    def _clear(self) -> None:
        self._arrivals = self._ended = self._input = self._output = self._ttfts = self._itls = self._routed = 0
        self._ttft_ms = self._itl_ms = self._hit_rate = 0.0

    def arrived(self) -> None:
        """A request arrived."""
        self._arrivals += 1

    def routed(self, overlap_blocks: int, prompt_blocks: int) -> None:
        """A KV-aware router placed a prefill."""
        self._routed += 1
        self._hit_rate += overlap_blocks / prompt_blocks

    def ended(self, request: SimulatedRequest) -> None:
        """A request ended."""
        if request.status is not TerminalStatus.COMPLETED:
            return
        self._ended += 1
        self._input += request.input_tokens
        self._output += request.output_tokens
        if request.first_token_ms is not None and request.last_token_ms is not None:
            self._ttfts += 1
            self._ttft_ms += request.first_token_ms - request.arrival_ms
            if request.output_tokens > 1:
                self._itls += 1
                self._itl_ms += (request.last_token_ms - request.first_token_ms) / (request.output_tokens - 1)

    def drain(self, now_ms: float) -> TrafficStats:
        """The window up to now; the next one begins."""
        stats = TrafficStats(
            duration_s=(now_ms - self._start_ms) / 1000.0,
            num_req=self._arrivals,
            num_ended=self._ended,
            avg_isl=_mean(self._input, self._ended),
            avg_osl=_mean(self._output, self._ended),
            num_ttft=self._ttfts,
            avg_ttft_ms=_mean(self._ttft_ms, self._ttfts),
            num_itl=self._itls,
            avg_itl_ms=_mean(self._itl_ms, self._itls),
            num_routed=self._routed,
            avg_kv_hit_rate=_mean(self._hit_rate, self._routed),
            avg_accept_length=1.0 if self._ttfts else None,
        )
        self._start_ms = now_ms
        self._clear()
        return stats


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
