"""Rows that no machine writes: what a journal says about itself, and notes for people.

Declarations come before what they declare and give it a number: handoffs, actors and sources are numbered from 1 in
the order of their rows. Everything in a journal file outside its rows can be derived from them.
"""

from collections.abc import Mapping
from typing import Any

from attrs import Factory, frozen

from handoff.journal.row_codec import row
from handoff.journal.terms import ActorKind, EndState, Kind
from handoff.journal.vocabulary import EngineType, HandoffOrder, Side


@row(Kind.RUN_STARTED)
@frozen
class RunStarted:
    """A run begins.

    Attributes:
        run: its number in the journal, from 1.
        tool: name and version of the recording program.
        wall_ns: wall clock at the run's time 0, ns since the epoch.
        scenario: the scenario as resolved, all defaults filled in.
        trace_digest: hex SHA-256 of the workload's file, when there is one.
        clock: name of the clock that times are read from (rows of one clock can be compared).
    """

    run: int
    tool: str
    wall_ns: int
    scenario: Mapping[str, Any] = Factory(dict)
    trace_digest: str | None = None
    clock: str = "run"


@row(Kind.RUN_RESUMED)
@frozen
class RunResumed:
    """A run goes on in a new process after the row before; its times go on, never backwards."""

    run: int
    tool: str
    wall_ns: int


@row(Kind.RUN_ENDED)
@frozen
class RunEnded:
    """The last row of a run.

    Attributes:
        name: ``finished``, ``interrupted``, or ``error``.
        rows: rows of the run, this one included.
        handoffs: handoffs opened in the run.
        reason: why it was interrupted, or the error.
    """

    name: EndState
    rows: int
    handoffs: int
    reason: str | None = None


@row(Kind.SOURCE_DECLARED)
@frozen
class SourceDeclared:
    """A stream of rows that one observer saw; rows of one source are in true order.

    Attributes:
        source: its name.
        clock: name of the clock its times come from.
        resolution_ms: how coarse its times are, in ms.
        observes: kinds of rows that it could have shown; None: all of them.
    """

    source: str
    role: Side | None = None
    engine_type: EngineType | None = None
    engine_version: str | None = None
    clock: str | None = None
    resolution_ms: float | None = None
    observes: tuple[str, ...] | None = None


@row(Kind.HANDOFF_OPENED)
@frozen
class HandoffOpened:
    """A handoff gets its number.

    Attributes:
        handoff_id: its name: a UUID of ours, or any text from another system.
        order: who is asked first, where known.
        request: name of the client's request it serves.
        room: bootstrap room as text (an unsigned 64-bit number).
        attempt: 1 for the first handoff of a request.
        parent_request: the request that this one was sampled or retried from.
    """

    handoff_id: str
    order: HandoffOrder | None = None
    engine_type: EngineType | None = None
    request: str | None = None
    room: str | None = None
    attempt: int | None = None
    parent_request: str | None = None


@row(Kind.ACTOR_STARTED)
@frozen
class ActorStarted:
    """An actor gets its number.

    Attributes:
        actor: its number.
        kind: which machine it is an instance of.
        label: a name for people, such as ``prefill-0``.
        config: what the machine was built from; with it and the actor's inputs it can be rebuilt.
        parent: number of the actor that owns this one as a sub-machine.
    """

    actor: int
    kind: ActorKind
    label: str
    config: Mapping[str, Any] = Factory(dict)
    parent: int | None = None


@row(Kind.GAP)
@frozen
class Gap:
    """Rows that a recorder could not take: how many, and why."""

    lost: int
    reason: str


@row(Kind.FAULT)
@frozen
class FaultInjected:
    """A fault of the scenario was carried out here. For people: no reader needs it.

    Attributes:
        on: what it waited for, such as ``outcome:activate_destination``.
        do: what it did, such as ``drop``.
    """

    on: str
    do: str
    side: Side | None = None
    delay_ms: float | None = None


@row(Kind.LAG)
@frozen
class Lag:
    """Real time ran behind model time by so many ms."""

    lag_ms: float


@row(Kind.NOTE)
@frozen
class Note:
    """A sentence for people."""

    text: str


@row(Kind.RESOURCE)
@frozen
class Resource:
    """An annotation of ownership: which blocks were held, reserved or freed.

    Attributes:
        resource: such as ``source_held`` or ``destination_freed``.
        blocks: block ids, where the engine has them.
        count: number of blocks, where it has only that.
    """

    resource: str
    blocks: tuple[int, ...] | None = None
    count: int | None = None
    side: Side | None = None


@row(Kind.FOREIGN)
@frozen
class Foreign:
    """A row of another system that has no kind here, kept whole."""

    fields: Mapping[str, Any] = Factory(dict)
