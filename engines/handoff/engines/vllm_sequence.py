"""A request of the vLLM-style scheduler, and a pass of it in progress."""

from handoff.engines.engine_core import EngineRequest, PassResult
from handoff.engines.pass_metrics import PassWork
from handoff.engines.token_sequence import TokenSequence
from handoff.journal.vocabulary import RequestId


class VllmSequence(TokenSequence):
    """A request of this scheduler.

    Attributes:
        computed: tokens whose KV exists or is being computed; stale in the steady batch.
        owned: blocks that it owns.
        keys: keys of its cached blocks; they come before its private ones.
        preempted: whether it was preempted and not readmitted yet.
        materialized: whether it waits as an activated destination.
    """

    __slots__ = ("computed", "keys", "materialized", "owned", "preempted")

    def __init__(self, request: EngineRequest, limit: int) -> None:
        super().__init__(request, limit)
        self.computed = 0
        self.owned = 0
        self.keys: list[int] = []
        self.preempted = False
        self.materialized = False


class VllmPass(PassResult):
    """A pass and what it has done so far.

    Attributes:
        budget: tokens that may still be scheduled.
        members: requests of the steady batch that this pass has stepped.
        preempted: whether somebody was preempted.
        stable: whether waiting requests will be refused again in the next pass, if only tokens are added.
        batch_requests, batch_tokens, batch_cached: of the prefill batch, see `TimingModel.prefill_ms`.
        steps: what was scheduled one by one: (tokens, prompt end, prompt start), so that a preemption can take it
        back. work: for metrics, if they are captured.
    """

    __slots__ = (
        "batch_cached", "batch_requests", "batch_tokens", "budget", "members", "preempted", "stable", "steps", "work",
    )  # fmt: skip

    def __init__(self, start_ms: float, budget: int, work: PassWork | None) -> None:
        PassResult.__init__(self, start_ms)
        self.budget = budget
        self.members = 0
        self.preempted = False
        self.stable = True
        self.batch_requests = 0
        self.batch_tokens = 0
        self.batch_cached = 0
        self.steps: dict[RequestId, tuple[int, int, int]] = {}
        self.work = work

    def note_step(self, sequence: VllmSequence, used: int, before: int, *, counts_prefill: bool) -> None:
        """A sequence computes `used` tokens after the `before` that it has."""
        prompt_tokens = sequence.prompt_tokens
        prompt_before = min(before, prompt_tokens)
        prompt_end = min(before + used, prompt_tokens)
        self.steps[sequence.request_id] = (used, prompt_end, prompt_before)
        self.budget -= used
        if prompt_end > prompt_before:
            if counts_prefill:
                self.batch_requests += 1
                self.batch_tokens += prompt_end
                self.batch_cached += prompt_before
            if self.work is not None:
                self.work.add_prefill(sequence, prompt_end - prompt_before, prompt_before)

    def take_back(self, request_id: RequestId, *, counts_prefill: bool) -> None:
        """A preempted request gives back what this pass has scheduled for it."""
        step = self.steps.pop(request_id, None)
        if step is None:
            return
        used, prompt_end, prompt_before = step
        self.budget += used
        if prompt_end > prompt_before:
            if counts_prefill:
                self.batch_requests -= 1
                self.batch_tokens -= prompt_end
                self.batch_cached -= prompt_before
            if self.work is not None:
                self.work.remove_prefill(request_id)
