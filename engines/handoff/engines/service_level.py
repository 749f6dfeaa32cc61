"""What makes a completed request good enough to count as goodput."""

from attrs import frozen


@frozen
class ServiceLevel:
    """Bounds that make a completed request good; None does not bound. `e2e_ms` excludes the other two."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None

    def __attrs_post_init__(self) -> None:
        bounds = [bound for bound in (self.ttft_ms, self.itl_ms, self.e2e_ms) if bound is not None]
        if not all(0.0 < bound < float("inf") for bound in bounds):
            raise ValueError("service level bounds must be finite and above 0")
        if self.e2e_ms is not None and len(bounds) > 1:
            raise ValueError("a bound on e2e excludes bounds on ttft and itl")

    def is_met(self, ttft_ms: float | None, e2e_ms: float, output_tokens: int) -> bool:
        """Whether a completed request is good.

        Args:
            ttft_ms: its time to the first token, or None for a request without output.
            e2e_ms: its whole time.
            output_tokens: its tokens.
        """
        if ttft_ms is None:
            return self.e2e_ms is not None and e2e_ms <= self.e2e_ms
        if self.ttft_ms is not None and ttft_ms > self.ttft_ms:
            return False
        if self.e2e_ms is not None and e2e_ms > self.e2e_ms:
            return False
        if self.itl_ms is not None and output_tokens > 1:
            return (e2e_ms - ttft_ms) / (output_tokens - 1) <= self.itl_ms
        return True
