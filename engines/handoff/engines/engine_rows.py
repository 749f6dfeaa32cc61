"""What goes into an engine and what comes out of it, as rows of the log.

Requests are numbered within their engine, in the order in which they were prepared: the client's name for a request
may come back later for another one, the number never does. `handoff` is the handoff's number in the journal; engines
that are used without one name the handoff by `handoff_id` instead, and only then.
"""

from enum import StrEnum

from attrs import frozen

from handoff.journal.row_codec import row
from handoff.journal.terms import CommandName, Kind
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    FactName,
    HandoffId,
    OutcomeName,
    TerminalStatus,
)


class EngineOrder(StrEnum):
    """Everything that an engine can be told to do."""

    SUBMIT = CommandName.SUBMIT.value
    SUBMIT_PREFILL = ActionName.SUBMIT_PREFILL.value
    RESERVE_DESTINATION = ActionName.RESERVE_DESTINATION.value
    ACTIVATE_DESTINATION = ActionName.ACTIVATE_DESTINATION.value
    RELEASE_SOURCE = ActionName.RELEASE_SOURCE.value
    CANCEL_SOURCE = ActionName.CANCEL_SOURCE.value
    CANCEL_DESTINATION = ActionName.CANCEL_DESTINATION.value
    CANCEL_REQUEST = CommandName.CANCEL_REQUEST.value
    DROP_REGISTRATION = CommandName.DROP_REGISTRATION.value
    SHUTDOWN = CommandName.SHUTDOWN.value


# -- inputs -------------------------------------------------------------------------------------------------------


@row(Kind.REQUEST_PREPARED, inherited=("prompt_tokens", "max_output_tokens", "block_runs"))
@frozen
class RequestPrepared:
    """A request was registered with an engine; nothing was scheduled yet.

    Attributes:
        request: its number in this engine.
        handoff: the handoff that it will be part of, when that is known already.
        client: the client's name for it, when no handoff names it.
        prompt_tokens, max_output_tokens, block_runs: see `prompt_shape`.
    """

    request: int
    prompt_tokens: int
    max_output_tokens: int
    block_runs: tuple[int, ...] = ()
    handoff: int | None = None
    client: str | None = None


@row(Kind.ENGINE_COMMAND, inherited=("name", "action_id"))
@frozen
class EngineCommand:
    """An engine was told something.

    Attributes:
        name: what.
        request: the number of the prepared request, for orders that take one.
        action_id: the coordinator's number of the action that this carries out.
    """

    name: EngineOrder
    request: int | None = None
    handoff: int | None = None
    handoff_id: HandoffId | None = None
    action_id: ActionId | None = None


@row(Kind.ENGINE_ADVANCED)
@frozen
class EngineAdvanced:
    """The driver woke up and read the clock: everything that the model has finished by then becomes visible."""


EngineInput = RequestPrepared | EngineCommand | EngineAdvanced

# -- effects; `model_ms` is the moment on the model clock, at or before the row's own time ---------------------------


@row(Kind.ENGINE_ANSWERED)
@frozen
class EngineAnswered:
    """The scheduler's own answer to a command; `noop` means that there was nothing to do."""

    name: EngineOrder
    outcome: OutcomeName
    model_ms: float
    handoff: int | None = None
    handoff_id: HandoffId | None = None
    action_id: ActionId | None = None
    request: int | None = None
    message: str | None = None


@row(Kind.ENGINE_LIFECYCLE)
@frozen
class EngineLifecycle:
    """A source is held, or a destination is reserved."""

    name: FactName
    model_ms: float
    handoff: int | None = None
    handoff_id: HandoffId | None = None
    transfer_timing: TransferTiming | None = None
    transferable_prompt_tokens: int | None = None


@row(Kind.ENGINE_ADMITTED)
@frozen
class EngineAdmitted:
    """The scheduler took a request into its batch."""

    request: int
    reused_tokens: int
    model_ms: float
    handoff: int | None = None


@row(Kind.ENGINE_FINISHED)
@frozen
class EngineFinished:
    """A request left the scheduler by itself: completed, or rejected because it can never run here."""

    name: TerminalStatus
    request: int
    output_tokens: int
    model_ms: float
    first_token_ms: float | None = None
    second_token_ms: float | None = None
    handoff: int | None = None


@row(Kind.ENGINE_PRESSURE)
@frozen
class EnginePressure:
    """A running request lost its blocks to others (preemption, retraction)."""

    request: int
    running_before: int
    waiting_before: int
    active_blocks_before: int
    running_after: int
    waiting_after: int
    active_blocks_after: int
    model_ms: float
    handoff: int | None = None


@row(Kind.ENGINE_TOKENS)
@frozen
class EngineTokens:
    """The tokens and cache events of all passes that ended since the engine's row before.

    Attributes:
        passes: passes that ended.
        tokens: tokens that came out of them.
        stored, removed: blocks that entered and left the prefix cache.
        active_blocks: blocks in use afterwards.
        digest: over each pass's end, who got a token in it, who left, and each cache event.
        from_ms, until_ms: model time of the first pass's start and of the last one's end.
    """

    passes: int
    tokens: int
    stored: int
    removed: int
    active_blocks: int
    digest: str
    from_ms: float
    until_ms: float
