"""What goes into a session and what comes out of it, as rows of the log.

Both sides share these rows; the rendezvous shares the timers and what the world says of a participant, for which its
rows name the handoff. An input whose content another actor decided takes it from its cause: a frame from the row of
the session that sent it, a reply and an event from the engine's rows.
"""

from attrs import frozen

from handoff.engines.wire_messages import Message
from handoff.journal.row_codec import row
from handoff.journal.terms import ActorKind, EndState, Kind, ObserverName, TimerName, WireName
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionId, ActionName, FactName, OutcomeName, Verdict

_SESSIONS = (ActorKind.SOURCE_SESSION, ActorKind.DESTINATION_SESSION)
_MESSAGE = (
    "name", "action_id", "action", "delay_ms", "outcome", "fact",
    "transfer_timing", "transferable_prompt_tokens", "message", "handoff_id",
)  # fmt: skip

# -- inputs ---------------------------------------------------------------------------------------------------------


@row(Kind.SESSION_STARTED)
@frozen
class SessionStarted:
    """The session begins; for a source the cause is the row that paired it."""


@row(Kind.WIRE_RECEIVED, inherited=_MESSAGE)
@frozen
class WireReceived(Message):
    """A message arrived from the peer."""


@row(Kind.WIRE_FLUSHED, inherited=("name", "action_id"))
@frozen
class WireFlushed:
    """A frame has left: the system took all of it. Its cause is the row that sent it."""

    name: WireName
    action_id: ActionId | None = None


@row(Kind.WIRE_FAILED, inherited=("name", "action_id"))
@frozen
class WireFailed:
    """A frame could not be sent, or not within its limit; it may have been sent in part."""

    name: WireName
    message: str
    action_id: ActionId | None = None


@row(Kind.OUTBOX_FULL, inherited=("name", "action_id"))
@frozen
class OutboxFull:
    """A frame found no place among those that wait to be sent; it never will be."""

    name: WireName
    action_id: ActionId | None = None


@row(Kind.PEER_CLOSED)
@frozen
class PeerClosed:
    """The peer closed its end between two frames."""

    handoff: int | None = None


@row(Kind.TRANSPORT_ERROR)
@frozen
class TransportFailed:
    """The connection broke, or the peer sent what cannot be."""

    message: str
    handoff: int | None = None


@row(Kind.CONTROL_REPLIED, inherited=("name", "action_id", "outcome", "message"))
@frozen
class ControlReplied:
    """The engine answered an action.

    Attributes:
        outcome, message: the engine's own result.
        mapped, mapped_message: what the session works with, where that differs.
    """

    name: ActionName
    outcome: OutcomeName
    action_id: ActionId | None = None
    message: str | None = None
    mapped: OutcomeName | None = None
    mapped_message: str | None = None


@row(Kind.CLEANUP_REPLIED, inherited=("name", "outcome", "message"))
@frozen
class CleanupReplied:
    """The engine answered the cancel at the end of a failed session."""

    name: ActionName
    outcome: OutcomeName
    message: str | None = None


@row(
    {
        Verdict.APPLIED: Kind.FACT_OBSERVED,
        Verdict.INVALID: Kind.FACT_OBSERVED,
        Verdict.CONFLICTING: Kind.FACT_OBSERVED,
        Verdict.KEPT: Kind.FACT_KEPT,
        Verdict.DUPLICATE: Kind.FACT_IGNORED,
        Verdict.LATE: Kind.FACT_IGNORED,
        Verdict.IGNORED_IN_CLEANUP: Kind.FACT_IGNORED,
        Verdict.DISCARDED: Kind.FACT_IGNORED,
    },
    actors=_SESSIONS,
    inherited=("name", "transfer_timing", "transferable_prompt_tokens"),
)
@frozen
class FactObserved:
    """The engine observed something."""

    name: FactName
    transfer_timing: TransferTiming | None = None
    transferable_prompt_tokens: int | None = None


@row(Kind.LIFECYCLE_ENDED)
@frozen
class LifecycleEnded:
    """The engine will observe nothing more; `message` says why, when it was an error."""

    message: str | None = None


@row(Kind.DEADLINE_FIRED)
@frozen
class DeadlineFired:
    """A deadline passed."""

    name: TimerName
    generation: int
    handoff: int | None = None


@row(Kind.TIMER_FIRED)
@frozen
class TimerFired:
    """A timer went off."""

    name: TimerName
    generation: int
    handoff: int | None = None


@row(Kind.CANCEL_REQUESTED)
@frozen
class CancelRequested:
    """The request behind the handoff was canceled."""

    handoff: int | None = None


@row(Kind.SHUTDOWN_REQUESTED)
@frozen
class ShutdownRequested:
    """The worker is shutting down."""


@row(Kind.CHILDREN_STOPPED)
@frozen
class ChildrenStopped:
    """No ordinary call of the engine is waited for any more."""


@row(Kind.TORN_DOWN)
@frozen
class TornDown:
    """The program around the session is being torn down; what follows is cleanup alone."""


@row(Kind.JOURNAL_LOST)
@frozen
class JournalLost:
    """The journal cannot be written any more, so nothing new may be begun."""


@row(Kind.NOT_CARRIED_OUT)
@frozen
class NotCarriedOut:
    """An effect that the session was torn down before; its cause is the row of that effect."""


# -- effects --------------------------------------------------------------------------------------------------------


@row(Kind.WIRE_SENT)
@frozen
class WireSent(Message):
    """A message is to be sent to the peer."""


@row(Kind.CONTROL_CALLED)
@frozen
class ControlCalled:
    """The engine is to carry out an action; without an action id it is the cancel at the end of a failed session."""

    name: ActionName
    action_id: ActionId | None = None


@row(Kind.DEADLINE_SET)
@frozen
class DeadlineSet:
    """A deadline is to fire at `expires_ms`, unless one of the same name with a higher generation replaces it."""

    name: TimerName
    generation: int
    expires_ms: float
    handoff: int | None = None


@row(Kind.DEADLINE_MOVED)
@frozen
class DeadlineMoved:
    """The session's deadline is to fire later, since the transfer takes its time."""

    name: TimerName
    generation: int
    expires_ms: float


@row(Kind.TIMER_SET)
@frozen
class TimerSet:
    """A timer is to go off at `expires_ms`."""

    name: TimerName
    generation: int
    expires_ms: float
    handoff: int | None = None


@row(Kind.TIMER_CANCELED)
@frozen
class TimerCanceled:
    """A timer is not needed any more."""

    name: TimerName
    generation: int


@row(Kind.STOP_CHILDREN)
@frozen
class StopChildren:
    """The handoff has failed on this side: stop waiting for ordinary calls. `message` says why it failed."""

    message: str


@row(Kind.CLEANUP_STARTED)
@frozen
class CleanupStarted:
    """The engine will be told to give up whatever it holds, and has until the cleanup limit to answer."""

    name: ActionName


@row(Kind.CLEANUP_FINISHED)
@frozen
class CleanupFinished:
    """The engine answered the cancel: ``applied``: it held something; ``noop``: nothing; ``failed``: nobody knows."""

    name: ActionName
    outcome: OutcomeName
    message: str | None = None


@row(Kind.CLEANUP_TIMED_OUT)
@frozen
class CleanupTimedOut:
    """The engine did not answer the cancel within its limit; what it holds has no owner any more."""

    name: ActionName


@row(Kind.TRANSPORT_CLOSED)
@frozen
class TransportClosed:
    """The connection is to be closed."""


@row(Kind.OBSERVER_EVENT)
@frozen
class ObserverEvent:
    """A step of the normalized lifecycle."""

    name: ObserverName


@row(Kind.SESSION_ENDED, actors=_SESSIONS)
@frozen
class SessionEnded:
    """The session is over; `message` is its error."""

    name: EndState
    message: str | None = None


@row(Kind.COMPLETION_DELIVERED)
@frozen
class CompletionDelivered:
    """The request behind the source is to be answered, once its permit is free and its handoff not active any more."""

    name: EndState
    message: str | None = None


SessionInput = (
    SessionStarted
    | WireReceived
    | WireFlushed
    | WireFailed
    | OutboxFull
    | PeerClosed
    | TransportFailed
    | ControlReplied
    | CleanupReplied
    | FactObserved
    | LifecycleEnded
    | DeadlineFired
    | TimerFired
    | CancelRequested
    | ShutdownRequested
    | ChildrenStopped
    | TornDown
    | JournalLost
    | NotCarriedOut
)
"""Everything that a session can be told."""
