"""What one forward pass worked on, gathered while it runs and summed up at its end."""

from collections.abc import Sequence

from handoff.engines.engine_core import ForwardPassMetrics
from handoff.engines.token_sequence import TokenSequence
from handoff.journal.vocabulary import RequestId


class PassWork:
    """Lengths in tokens of what a pass computed and left waiting.

    Attributes:
        prefills: by request: (prompt length, tokens computed, tokens present before).
        decodes: sequence length before the new token.
        queued_prefills: prompt length.
        queued_decodes: sequence length.
    """

    __slots__ = ("decodes", "prefills", "queued_decodes", "queued_prefills")

    def __init__(self) -> None:
        self.prefills: dict[RequestId, tuple[int, int, int]] = {}
        self.decodes: list[int] = []
        self.queued_prefills: list[int] = []
        self.queued_decodes: list[int] = []

    def add_prefill(self, sequence: TokenSequence, computed: int, present: int) -> None:
        """A request computed part of its prompt."""
        self.prefills[sequence.request_id] = (sequence.prompt_tokens, computed, present)

    def remove_prefill(self, request_id: RequestId) -> None:
        """It was preempted in the same pass."""
        self.prefills.pop(request_id, None)

    def metrics(self, wall_time_ms: float) -> ForwardPassMetrics:
        """The sums and variances."""
        lengths = [length for length, _, _ in self.prefills.values()]
        return ForwardPassMetrics(
            wall_time_s=wall_time_ms / 1000.0,
            num_prefill_requests=len(lengths),
            sum_prefill_tokens=sum(computed for _, computed, _ in self.prefills.values()),
            var_prefill_length=_variance(lengths),
            sum_prefill_kv_tokens=sum(present for _, _, present in self.prefills.values()),
            num_decode_requests=len(self.decodes),
            sum_decode_kv_tokens=sum(self.decodes),
            var_decode_kv_tokens=_variance(self.decodes),
            num_queued_prefill=len(self.queued_prefills),
            sum_queued_prefill_tokens=sum(self.queued_prefills),
            var_queued_prefill_length=_variance(self.queued_prefills),
            num_queued_decode=len(self.queued_decodes),
            sum_queued_decode_kv_tokens=sum(self.queued_decodes),
            var_queued_decode_kv_tokens=_variance(self.queued_decodes),
        )


def _variance(values: Sequence[int]) -> float:
    """Population variance; 0 for none."""
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
