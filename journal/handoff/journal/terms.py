"""The closed dictionary of words that rows store as small integers.

A row keeps its kind, name, outcome and verdict as the word's number in `TERMS`, which costs one byte instead of
a dozen; the table ``term`` in each file and the view ``events`` give the words back to SQL. The order of `TERMS`
is part of the format: words are only ever appended, and a file is checked against the list of its version.
"""

from enum import StrEnum
from itertools import chain

from handoff.journal.vocabulary import (
    ActionName,
    FactName,
    OutcomeName,
    Side,
    TerminalStatus,
    Verdict,
)


class ActorKind(StrEnum):
    """Which machine an actor is an instance of."""

    CONDUCTOR = "conductor"
    """Arrivals, routing and the end of a run."""
    ADMISSION = "admission"
    """The permits of one worker."""
    RENDEZVOUS = "rendezvous"
    """The pairing of sources with destinations at one prefill worker."""
    SOURCE_SESSION = "source_session"
    DESTINATION_SESSION = "destination_session"
    COORDINATOR = "coordinator"
    ENGINE = "engine"
    WITNESS = "witness"
    """Somebody else's program that reports what it saw: recorded, never re-executed."""


class Kind(StrEnum):
    """What a row is. The comment says whose row it is and whether it is an input (in) or an effect (out)."""

    # the journal's own declarations (no actor)
    RUN_STARTED = "run_started"
    RUN_RESUMED = "run_resumed"
    RUN_ENDED = "run_ended"
    SOURCE_DECLARED = "source_declared"
    HANDOFF_OPENED = "handoff_opened"
    ACTOR_STARTED = "actor_started"
    GAP = "gap"
    CLOCK_ALIGNED = "clock_aligned"
    HANDOFF_JOINED = "handoff_joined"
    # for people (no actor): replay neither needs nor checks them
    FAULT = "fault"
    LAG = "lag"
    NOTE = "note"
    RESOURCE = "resource"
    FOREIGN = "foreign"
    # conductor
    REQUEST_ARRIVED = "request_arrived"  # in
    REQUEST_ROUTED = "request_routed"  # out
    PREFILL_ENDED = "prefill_ended"  # in
    REQUEST_ENDED = "request_ended"  # in
    CACHE_CHANGED = "cache_changed"  # in: an engine published or dropped blocks, for cache-aware routing
    ADMISSION = "admission"  # in, out
    # admission
    PERMIT_REQUESTED = "permit_requested"  # in
    PERMIT_TAKEN = "permit_taken"  # out
    PERMIT_REFUSED = "permit_refused"  # out
    PERMIT_RETURNED = "permit_returned"  # in
    POOL_CLOSED = "pool_closed"  # in
    # rendezvous
    SOURCE_REGISTERED = "source_registered"  # in
    DESTINATION_CONNECTED = "destination_connected"  # in
    PENDING = "pending"  # out
    PAIRED = "paired"  # out
    REJECTED = "rejected"  # out
    REJECTION_DROPPED = "rejection_dropped"  # out
    REJECTION_SENT = "rejection_sent"  # in
    RETIRED = "retired"  # out
    FORGOTTEN = "forgotten"  # out
    QUEUE_FULL = "queue_full"  # in
    # sessions
    SESSION_STARTED = "session_started"  # in
    DEADLINE_SET = "deadline_set"  # out
    DEADLINE_MOVED = "deadline_moved"  # out
    DEADLINE_FIRED = "deadline_fired"  # in
    TIMER_SET = "timer_set"  # out
    TIMER_CANCELED = "timer_canceled"  # out
    TIMER_FIRED = "timer_fired"  # in
    CONTROL_CALLED = "control_called"  # out
    CONTROL_REPLIED = "control_replied"  # in
    WIRE_SENT = "wire_sent"  # out
    WIRE_FLUSHED = "wire_flushed"  # in
    WIRE_FAILED = "wire_failed"  # in
    WIRE_RECEIVED = "wire_received"  # in
    OUTBOX_FULL = "outbox_full"  # in
    PEER_CLOSED = "peer_closed"  # in: end of stream
    TRANSPORT_ERROR = "transport_error"  # in
    FACT_OBSERVED = "fact_observed"  # in
    FACT_KEPT = "fact_kept"  # in
    FACT_APPLIED = "fact_applied"  # in
    FACT_IGNORED = "fact_ignored"  # in
    LIFECYCLE_ENDED = "lifecycle_ended"  # in
    CANCEL_REQUESTED = "cancel_requested"  # in
    SHUTDOWN_REQUESTED = "shutdown_requested"  # in
    CHILDREN_STOPPED = "children_stopped"  # in
    TORN_DOWN = "torn_down"  # in
    JOURNAL_LOST = "journal_lost"  # in
    NOT_CARRIED_OUT = "not_carried_out"  # in
    STOP_CHILDREN = "stop_children"  # out
    CLEANUP_STARTED = "cleanup_started"  # out
    CLEANUP_REPLIED = "cleanup_replied"  # in
    CLEANUP_FINISHED = "cleanup_finished"  # out
    CLEANUP_TIMED_OUT = "cleanup_timed_out"  # out
    TRANSPORT_CLOSED = "transport_closed"  # out
    COMPLETION_DELIVERED = "completion_delivered"  # out
    OBSERVER_EVENT = "observer_event"  # out
    SESSION_ENDED = "session_ended"  # in (rendezvous), out (session)
    # coordinator
    HANDOFF_STARTED = "handoff_started"  # in
    ACTION_ISSUED = "action_issued"  # out
    OUTCOME_APPLIED = "outcome_applied"  # in
    OUTCOME_DUPLICATE = "outcome_duplicate"  # in
    OUTCOME_CONFLICT = "outcome_conflict"  # in
    OUTCOME_INVALID = "outcome_invalid"  # in
    OUTCOME_UNKNOWN = "outcome_unknown"  # in
    OUTCOME_LATE = "outcome_late"  # in
    COORDINATOR_ERROR = "coordinator_error"  # out
    # engine
    REQUEST_PREPARED = "request_prepared"  # in
    ENGINE_COMMAND = "engine_command"  # in
    ENGINE_ADVANCED = "engine_advanced"  # in: the model clock was read
    ENGINE_ANSWERED = "engine_answered"  # out
    ENGINE_LIFECYCLE = "engine_lifecycle"  # out: source held, destination reserved
    ENGINE_ADMITTED = "engine_admitted"  # out
    ENGINE_TOKENS = "engine_tokens"  # out: tokens and KV events of a run of passes, counted and digested
    ENGINE_FINISHED = "engine_finished"  # out
    ENGINE_PRESSURE = "engine_pressure"  # out: preemption, retraction


class WireName(StrEnum):
    """The messages of the bootstrap transport."""

    REGISTER = "register"
    REGISTERED = "registered"
    ACTION = "action"
    ACTION_ACK = "action_ack"
    FACT = "fact"
    COMPLETE = "complete"
    ABORT = "abort"
    OVERLOADED = "overloaded"
    PROTOCOL_ERROR = "protocol_error"


class TimerName(StrEnum):
    """The timers that machines set."""

    SESSION_DEADLINE = "session_deadline"
    REGISTRATION_DEADLINE = "registration_deadline"
    TRANSFER = "transfer"
    CLEANUP_LIMIT = "cleanup_limit"
    RENDEZVOUS_DEADLINE = "rendezvous_deadline"
    RETIREMENT = "retirement"
    FLUSH_LIMIT = "flush_limit"


class ObserverName(StrEnum):
    """The normalized lifecycle that both surfaces report."""

    SOURCE_HELD = "source_held"
    DESTINATION_ACCEPTED = "destination_accepted"
    DESTINATION_RESERVED = "destination_reserved"
    DESTINATION_ACTIVATED = "destination_activated"
    SOURCE_RELEASED = "source_released"
    COMPLETED = "completed"


class CommandName(StrEnum):
    """What an engine can be told beyond the actions of a handoff."""

    SUBMIT = "submit"
    CANCEL_REQUEST = "cancel_request"
    DROP_REGISTRATION = "drop_registration"
    SHUTDOWN = "shutdown"


class EndState(StrEnum):
    """How a run, a session or a request came to its end."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    SUCCESS = "success"
    ERROR = "error"


def _distinct(*vocabularies: type[StrEnum]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.value for word in chain.from_iterable(vocabularies)))


TERMS: tuple[str, ...] = _distinct(
    Kind, Verdict, OutcomeName, ActionName, FactName, WireName, TimerName, ObserverName, CommandName,
    EndState, TerminalStatus, Side, ActorKind,
)  # fmt: skip
"""Every word of format version 1, numbered from 1."""

TERM_CODE: dict[str, int] = {word: code for code, word in enumerate(TERMS, start=1)}
