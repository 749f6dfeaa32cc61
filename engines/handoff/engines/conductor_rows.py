"""What a conductor is told and what it orders, as rows of the log."""

from attrs import frozen

from handoff.journal.row_codec import row
from handoff.journal.terms import ActorKind, Kind
from handoff.journal.vocabulary import TerminalStatus

_CONDUCTOR = (ActorKind.CONDUCTOR,)


@row(Kind.REQUEST_ARRIVED)
@frozen
class RequestArrived:
    """A client's request reached the cluster: a root input.

    Attributes:
        handoff: the handoff that was opened for it.
        request: its number in the run, from 1, in the order of arrival.
        arrival_ms: when the workload wanted it to arrive, at or before the row's time.
        prompt_tokens, max_output_tokens, block_runs: see `prompt_shape`.
        session, turn: the session and the number in it, when the workload names them.
        priority, strict_priority: for a router's queue.
    """

    handoff: int
    request: int
    arrival_ms: float
    prompt_tokens: int
    max_output_tokens: int
    block_runs: tuple[int, ...] = ()
    session: str | None = None
    turn: int | None = None
    priority: int = 0
    strict_priority: int = 0


@row(Kind.REQUEST_ENDED, actors=_CONDUCTOR)
@frozen
class RequestEnded:
    """A request ended for its client.

    Attributes:
        name: how; the first end counts.
        output_tokens: tokens that the client got.
        first_token_ms, second_token_ms, last_token_ms: when the engine had them ready.
        reason: why it did not complete.
    """

    handoff: int
    name: TerminalStatus
    output_tokens: int = 0
    first_token_ms: float | None = None
    second_token_ms: float | None = None
    last_token_ms: float | None = None
    reason: str | None = None


@row(Kind.PREFILL_ENDED)
@frozen
class PrefillEnded:
    """A request's prefill is complete: its work no longer weighs on the prefill worker."""

    handoff: int


@row(Kind.CACHE_CHANGED)
@frozen
class CacheChanged:
    """A prefill worker's cache took or dropped blocks; only cache-aware routing wants to know.

    Attributes:
        worker: which one.
        stored: whether the blocks were taken.
        parent: the block before the first one, None at the start of a prompt.
        block_runs: their names.
    """

    worker: int
    stored: bool
    block_runs: tuple[int, ...]
    parent: int | None = None


@row(Kind.SHUTDOWN_REQUESTED, actors=_CONDUCTOR)
@frozen
class ConductorStopped:
    """The run is to end: nothing more arrives.

    Attributes:
        reason: a signal's name, or what else ended it.
    """

    reason: str


@row(Kind.REQUEST_ROUTED)
@frozen
class RequestRouted:
    """A request goes to two workers.

    Attributes:
        prefill, decode: numbers of the workers, from 0 in each pool.
        overlap_blocks: leading blocks of the prompt that the prefill worker was known to hold.
        prompt_tokens, max_output_tokens, block_runs: what the workers are given.
    """

    handoff: int
    prefill: int
    decode: int
    prompt_tokens: int
    max_output_tokens: int
    block_runs: tuple[int, ...] = ()
    overlap_blocks: int = 0


ConductorInput = RequestArrived | RequestEnded | PrefillEnded | CacheChanged | ConductorStopped
