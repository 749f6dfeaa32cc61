"""What an engine core is: a scheduler with its KV pool, as a pure machine on a model clock.

A core works in *passes*. A pass computes one batch; its whole effect on the core's state happens at the moment it
starts, and everything it produced (tokens, ends, holds, cache events) becomes visible at the moment it ends. What
lies in between is the duration that the timing model charges. A core never waits: it says when the pass ends.

Who uses a core keeps three rules, and `PassClock` keeps them for everybody:

* between `execute_pass` and the end of that pass the engine is *busy*. Submissions and reservations reach it all the
  same (they act at the next boundary); activations, releases and cancels are held back until the boundary;
* at the boundary, in this order: the pass's results, one `retry_pending_destinations`, the commands held back;
* an engine with work then starts its next pass at the same moment.

**Runs.** Most passes of a decode engine only add one token to each request of an unchanged batch. A core may
therefore look ahead: `extend_pass` prolongs a pass into a run of `passes` passes in which nothing else can happen,
without applying any but the first. Whatever reaches the engine cuts the run at the first boundary at or after its
own time (`cut_pass`), and `settle_pass` applies what is left, as if it had been stepped: the boundaries are summed in
the order of stepping, so every time is the same to the last bit. A user that wants to see each pass by itself, as
a live engine does, never calls `extend_pass`, and gets runs of one.

**Identity.** A core never sees tokens. Equal prefixes are equal sequences of *block names*: 64-bit integers, one for
each complete block, each naming its block together with all blocks before it. `block_names` derives them from
tokens; a trace brings its own. Names are also the hashes that cache events carry.

Rejected: an interface that returns one signal a token (a million signals a second say nothing that first token, last
token and count do not), and cores that own a clock or defer commands themselves (then live and virtual time would
each need their own).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol

from attrs import define, frozen

from handoff.engines.engine_settings import EngineSettings
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import HandoffId, RequestId

BlockName = NewType("BlockName", int)
"""Name of a complete block and of everything before it: a 64-bit integer, equal exactly for equal prefixes."""


class EngineRequest(NamedTuple):
    """A request as an engine sees it.

    Attributes:
        request_id: its name, unused in this engine.
        prompt_tokens: length of the prompt, at least 1.
        max_output_tokens: tokens to generate, at least 0. A source is given at most 1.
        block_names: one name for each complete block of the prompt, in the engine's block size; may go on with the
            blocks of an output that is known beforehand. Generated blocks without a name get a unique one.
    """

    request_id: RequestId
    prompt_tokens: int
    max_output_tokens: int
    block_names: Sequence[int]


class Admission(NamedTuple):
    """The scheduler took a request into its batch; visible when the pass starts.

    Attributes:
        request_id: which request.
        reused_tokens: prompt tokens found in this engine's cache (SGLang: for a further chunk, those already there).
    """

    request_id: RequestId
    reused_tokens: int


class EndKind(StrEnum):
    """How a request left an engine by itself."""

    COMPLETED = "completed"
    REJECTED = "rejected"


class RequestEnd(NamedTuple):
    """A request left the engine by itself; visible when the pass ends.

    Attributes:
        request_id: which request.
        kind: completed, or rejected because it can never run here.
        output_tokens: tokens that it got in this engine.
        first_token_ms, second_token_ms, last_token_ms: when those tokens became visible, if there were any.
    """

    request_id: RequestId
    kind: EndKind
    output_tokens: int
    first_token_ms: float | None
    second_token_ms: float | None
    last_token_ms: float | None


class SourceHeld(NamedTuple):
    """A prefill is complete and its KV is kept for a handoff; visible when the pass ends."""

    handoff_id: HandoffId
    request_id: RequestId
    transfer_timing: TransferTiming


class DestinationReserved(NamedTuple):
    """A pending destination got its blocks.

    Attributes:
        handoff_id: for which handoff.
        request_id: the request that will decode there.
        transferable_prompt_tokens: fresh blocks times block size: what has to come over the wire.
    """

    handoff_id: HandoffId
    request_id: RequestId
    transferable_prompt_tokens: int


class Reply(NamedTuple):
    """The answer to a command.

    Attributes:
        applied: False when there was nothing to do (a no-op).
        reserved: the destination that this command's freed capacity let in, if any.
    """

    applied: bool
    reserved: DestinationReserved | None = None


NOTHING_TO_DO = Reply(applied=False)


class KvEventKind(StrEnum):
    """What happened to blocks that others may look up."""

    STORED = "stored"
    REMOVED = "removed"


class KvEvent(NamedTuple):
    """Blocks became visible in, or vanished from, an engine's prefix cache.

    Attributes:
        event_id: from 0, increasing by one within an engine.
        kind: stored or removed.
        parent: for ``stored`` the name of the block before the first one, None at the start of a prompt.
        block_names: for ``stored`` a contiguous run, shallow to deep; for ``removed`` in order of removal.
    """

    event_id: int
    kind: KvEventKind
    parent: int | None
    block_names: tuple[int, ...]


@frozen
class ForwardPassMetrics:
    """What one pass worked on and what it left waiting. Lengths in tokens, variances over the population."""

    wall_time_s: float = 0.0
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0
    num_queued_prefill: int = 0
    sum_queued_prefill_tokens: int = 0
    var_queued_prefill_length: float = 0.0
    num_queued_decode: int = 0
    sum_queued_decode_kv_tokens: int = 0
    var_queued_decode_kv_tokens: float = 0.0


@frozen
class EngineMetrics:
    """An engine's load right now. Blocks are pages for SGLang.

    Attributes:
        active_blocks: vLLM: referenced or reserved; SGLang: every allocated page, evictable ones included.
        inactive_blocks: cached and unreferenced (vLLM; 0 for SGLang).
        total_blocks: size of the pool.
        running, waiting: requests; waiting includes activated, pending and reserved destinations.
        preemptions_total: preemptions (vLLM) or retractions (SGLang) so far.
        cache_hit_tokens, cache_total_tokens: of the last pass (SGLang).
    """

    active_blocks: int
    inactive_blocks: int
    total_blocks: int
    running: int
    waiting: int
    preemptions_total: int
    cache_hit_tokens: int = 0
    cache_total_tokens: int = 0

    @property
    def usage(self) -> float:
        """Active share of the pool, 0 to 1."""
        return self.active_blocks / self.total_blocks


@frozen
class PressureRecord:
    """One preemption or retraction: a running request lost its blocks to others.

    Attributes:
        request_id: the victim.
        running_before, waiting_before, active_blocks_before: the engine before it.
        running_after, waiting_after, active_blocks_after: and after it.
    """

    request_id: RequestId
    running_before: int
    waiting_before: int
    active_blocks_before: int
    running_after: int
    waiting_after: int
    active_blocks_after: int


class HasRequestId(Protocol):
    """Anything of a scheduler that stands for one request."""

    @property
    def request_id(self) -> RequestId:
        """The request."""


class PassResult:
    """One pass, or a run of passes in which only tokens were added.

    `ends`, `held`, `kv_events`, `token_sequences`, `metrics` are complete once the pass was settled; all of them
    become visible at `end_ms`. `admissions` are visible at `start_ms`.

    Attributes:
        start_ms: when the first pass started.
        end_ms: when the last pass ends.
        last_start_ms: when the last pass started (`start_ms` for a run of one).
        passes: number of passes, at least 1.
        effect: False for a pass that did nothing at all; the same pass again would do nothing either.
        admissions: taken into the batch, in order.
        token_sequences: what got one token in each pass, in batch order; the completed ones included.
        ends: requests that left, in the scheduler's order.
        held: prefills that are complete and kept, in the same order.
        kv_events: cache events, in order.
        metrics: what the pass worked on; only when the core captures them (then there are only runs of one).
        pressure: preemptions or retractions, in order.
    """

    __slots__ = (
        "admissions", "effect", "end_ms", "ends", "held", "kv_events", "last_start_ms", "metrics", "passes",
        "pressure", "start_ms", "token_sequences",
    )  # fmt: skip

    def __init__(self, start_ms: float) -> None:
        self.start_ms = start_ms
        self.end_ms = start_ms
        self.last_start_ms = start_ms
        self.passes = 1
        self.effect = True
        self.admissions: list[Admission] = []
        self.token_sequences: Sequence[HasRequestId] = ()
        self.ends: list[RequestEnd] = []
        self.held: list[SourceHeld] = []
        self.kv_events: list[KvEvent] = []
        self.metrics: ForwardPassMetrics | None = None
        self.pressure: list[PressureRecord] = []

    @property
    def token_requests(self) -> list[RequestId]:
        """The requests that got one token in each pass, in batch order."""
        return [sequence.request_id for sequence in self.token_sequences]


@frozen
class Blocked:
    """Why a request does not progress, for a stall report.

    Attributes:
        request_id: the request.
        waits_for: in plain words.
        blocks_needed: blocks that it lacks, 0 when it waits for something else.
    """

    request_id: RequestId
    waits_for: str
    blocks_needed: int


@frozen
class BlockHolder:
    """A request that owns blocks of an engine, for a stall report."""

    request_id: RequestId
    state: str
    blocks: int


class EngineError(Exception):
    """A command that an engine refuses; its state is unchanged."""

    code = "engine_error"


@define
class DuplicateId(EngineError):
    """The request or handoff is already known to this engine."""

    code = "duplicate_id"
    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id} is already known to this engine"


@define
class DestinationTooLarge(EngineError):
    """The prompt alone needs more blocks than the engine has; it can never be reserved."""

    code = "destination_too_large"
    request_id: RequestId
    blocks_needed: int
    total_blocks: int

    def __str__(self) -> str:
        return (
            f"request {self.request_id} needs {self.blocks_needed} blocks for its prompt, "
            f"the engine has {self.total_blocks}"
        )


class EngineCore(Protocol):
    """A scheduler with its KV pool. See the module for the rules of use."""

    @property
    def settings(self) -> EngineSettings:
        """How the engine is set up."""

    @property
    def has_work(self) -> bool:
        """Whether a pass could do anything: holds and reservations alone do not count."""

    @property
    def is_empty(self) -> bool:
        """Whether the engine owns nothing for anybody: no request, hold, pending or reserved destination."""

    # -- commands -------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> None:
        """Queue an ordinary request.

        Raises:
            DuplicateId: its id is in use.
        """

    def submit_handoff_prefill(self, handoff_id: HandoffId, request: EngineRequest) -> None:
        """Queue a prefill whose KV is held for `handoff_id` once it completes. `max_output_tokens` is cut to 1.

        Raises:
            DuplicateId: the request's or the handoff's id is in use.
        """

    def release_source(self, handoff_id: HandoffId) -> Reply:
        """Free a held source, or let a pending one complete unheld. Never while busy."""

    def cancel_source(self, handoff_id: HandoffId) -> Reply:
        """Free a held source, or drop a pending one. Never while busy."""

    def reserve_destination(self, handoff_id: HandoffId, request: EngineRequest, *, busy: bool) -> Reply:
        """Queue a destination; the reply is always applied. When not `busy`, one reservation is tried at once.

        Raises:
            DuplicateId: the request's or the handoff's id is in use.
            DestinationTooLarge: it could never be reserved.
        """

    def activate_destination(self, handoff_id: HandoffId) -> Reply:
        """Turn a reservation into a request that is ready to decode. Never while busy."""

    def cancel_destination(self, handoff_id: HandoffId) -> Reply:
        """Drop a pending, reserved or active destination. Never while busy."""

    def cancel_request(self, request_id: RequestId) -> Reply:
        """Drop a request, wherever it is. Never while busy."""

    def retry_pending_destinations(self) -> DestinationReserved | None:
        """Try to reserve for the head of the queue, if capacity changed since its last try. At every boundary."""

    # -- passes ---------------------------------------------------------------------------------------

    def execute_pass(self, now_ms: float) -> PassResult:
        """Run one pass from `now_ms`. Call `settle_pass` with it at its end."""

    def extend_pass(self, result: PassResult) -> None:
        """Prolong a pass just executed into a run, if nothing but tokens can follow."""

    def cut_pass(self, result: PassResult, at_ms: float) -> None:
        """Shorten a run to its first boundary at or after `at_ms`."""

    def settle_pass(self, result: PassResult) -> None:
        """Apply the passes of a run after its first, and complete `result`. Exactly once, at `end_ms`."""

    # -- looking --------------------------------------------------------------------------------------

    def take_kv_events(self) -> list[KvEvent]:
        """The cache events of commands since the last call, in order."""

    def token_times(self, request_id: RequestId) -> RequestEnd | None:
        """A present request's tokens so far, as settled; None if it is not here."""

    def metrics(self) -> EngineMetrics:
        """The engine's load as settled."""

    def blocked(self) -> list[Blocked]:
        """Who waits for what, in queue order."""

    def holders(self) -> list[BlockHolder]:
        """Who owns blocks, in a fixed order."""
