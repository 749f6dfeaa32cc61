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
        inferred: whether an importer declared it, because its file did not.
        extra: further fields of another system, kept as they were.
    """

    source: str
    role: Side | None = None
    engine_type: EngineType | None = None
    engine_version: str | None = None
    clock: str | None = None
    resolution_ms: float | None = None
    observes: tuple[str, ...] | None = None
    inferred: bool = False
    extra: Mapping[str, Any] | None = None


@row(Kind.CLOCK_ALIGNED)
@frozen
class ClockAligned:
    """How one clock's times were moved to another's: added were `offset_ms`, and it lies between the bounds.

    Attributes:
        clock: the clock whose times were moved.
        reference: the clock they were moved to.
        offset_ms: what was added to its times, in ms.
        low_ms, high_ms: the bounds that follow from rows that cause one another; None: no row bounds it.
        pairs: pairs of such rows between this clock and any other.
        consistent: whether one offset satisfies all of them; if none does, a clock drifted or was set.
    """

    clock: str
    reference: str
    offset_ms: float
    low_ms: float | None
    high_ms: float | None
    pairs: int
    consistent: bool = True


@row(Kind.HANDOFF_JOINED)
@frozen
class HandoffJoined:
    """Another name for a handoff: the row's handoff is known as `alias` to a source.

    Attributes:
        by: what the two names have in common, such as ``room`` or ``remote_request_id``.
        key: the value they share.
    """

    alias: str
    by: str
    key: str


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
        inferred: whether an importer opened it, because its file did not.
        extra: further fields of another system, kept as they were.
    """

    handoff_id: str
    order: HandoffOrder | None = None
    engine_type: EngineType | None = None
    request: str | None = None
    room: str | None = None
    attempt: int | None = None
    parent_request: str | None = None
    inferred: bool = False
    extra: Mapping[str, Any] | None = None


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
        extra: further fields of another system, kept as they were.
    """

    on: str | None = None
    do: str = "unknown"
    side: Side | None = None
    delay_ms: float | None = None
    extra: Mapping[str, Any] | None = None


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
        lease_deadline_ms: until when a hold lasts by itself, on the row's clock.
        rank: which of `rank_count` ranks it concerns, from 0.
        generation: of the engine process.
        extra: further fields of another system, kept as they were.
    """

    resource: str
    blocks: tuple[int, ...] | None = None
    count: int | None = None
    side: Side | None = None
    lease_deadline_ms: float | None = None
    rank: int | None = None
    rank_count: int | None = None
    generation: int | None = None
    extra: Mapping[str, Any] | None = None


@row(Kind.FOREIGN)
@frozen
class Foreign:
    """A row of another system that has no kind here, kept whole."""

    fields: Mapping[str, Any] = Factory(dict)
