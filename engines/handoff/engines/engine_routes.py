"""The engine's ends: of a client's stream, of a handoff's facts, and of a command on its way to the scheduler.

An engine delivers output in batches: all tokens that a request got since the last delivery are one item of its
stream. A stream holds at most ``min(output length, 8)`` items; a reader that lets it fill up is canceled, since an
engine can neither wait for one of its clients nor keep what nobody reads.

A request passes through three states: *prepared* (known here, nothing scheduled), *submitted*, *closed*. A handoff
may be registered again and again under one name; each registration is an object of its own, and the newest one
counts.
"""

from collections import deque
from enum import StrEnum

import trio
from attrs import define, field, frozen

from handoff.engines.engine_rows import EngineAnswered, EngineCommand, EngineLifecycle
from handoff.journal.vocabulary import HandoffId, RequestId, Seq

STREAM_CAPACITY = 8
FACT_CAPACITY = 8


@frozen
class OutputBatch:
    """What a request got since the last delivery.

    Attributes:
        tokens: how many tokens.
        completed, rejected: whether it ended with them.
        at_ms: model time of the last of it.
        cause: number of the row behind it.
    """

    tokens: int
    completed: bool
    rejected: bool
    at_ms: float
    cause: Seq | None


class RouteState(StrEnum):
    """How far a request has come at its engine's door."""

    PREPARED = "prepared"
    SUBMITTED = "submitted"
    CLOSED = "closed"


@define(eq=False)
class RequestRoute:
    """The engine's end of a stream.

    Attributes:
        number: the request's number in its engine.
        request_id: the client's name of it.
        planned: token ids that were asked for, or empty.
        capacity: batches that may lie unread.
        handoff_delay_ms, cached_tokens: see `OutputSignal`.
        state: how far the request has come.
        changed: set once the request is submitted or closed.
        destination_of: the registration that it was reserved for.
        batches: what the client has not read yet.
        readable: set when there is a batch, or no more will come.
    """

    number: int
    request_id: RequestId
    planned: tuple[int, ...]
    capacity: int
    handoff_delay_ms: float | None = None
    cached_tokens: int = 0
    state: RouteState = RouteState.PREPARED
    changed: trio.Event = field(factory=trio.Event)
    destination_of: "HandoffRegistration | None" = None
    batches: deque[OutputBatch] = field(factory=deque)
    readable: trio.Event = field(factory=trio.Event)

    def submitted(self) -> None:
        """The scheduler has taken the request."""
        if self.state is RouteState.PREPARED:
            self.state = RouteState.SUBMITTED
            self.changed.set()

    def deliver(self, batch: OutputBatch) -> bool:
        """Put a batch into the stream; False when it is full, and then nothing was put."""
        if self.state is RouteState.CLOSED:
            return True
        if len(self.batches) >= self.capacity:
            return False
        self.batches.append(batch)
        self.readable.set()
        if batch.completed:
            self.close()
        return True

    def close(self) -> None:
        """Nothing more will come; what is in the stream can still be read."""
        self.state = RouteState.CLOSED
        self.changed.set()
        self.readable.set()


@define(eq=False)
class PendingCommand:
    """A command on its way to the scheduler.

    Attributes:
        command: what was ordered.
        cause: the row that ordered it, if any.
        answer: the scheduler's answer, once there is one.
        answer_row: its row.
        answered: set with the answer.
    """

    command: EngineCommand
    cause: Seq | None
    answer: EngineAnswered | None = None
    answer_row: Seq | None = None
    answered: trio.Event = field(factory=trio.Event)

    def resolve(self, answer: EngineAnswered, row: Seq | None) -> None:
        """Give the answer to whoever waits."""
        self.answer = answer
        self.answer_row = row
        self.answered.set()

    async def wait(self) -> EngineAnswered:
        """The answer; canceling the wait withdraws nothing."""
        await self.answered.wait()
        assert self.answer is not None
        return self.answer


@define(eq=False)
class HandoffRegistration:
    """One registration of a handoff with an engine.

    Attributes:
        handoff_id: its name.
        handoff: its number in the journal, if it has one.
        request: the request that was submitted or reserved for it.
        open: whether its events are still wanted.
        commands: commands in order; the first one is with the scheduler.
        facts: facts that nobody has read yet, each with its row.
        readable: set when there is a fact, or no more will come.
    """

    handoff_id: HandoffId
    handoff: int | None
    request: RequestRoute | None = None
    open: bool = True
    commands: deque[PendingCommand] = field(factory=deque)
    facts: deque[tuple[EngineLifecycle, Seq]] = field(factory=deque)
    readable: trio.Event = field(factory=trio.Event)
