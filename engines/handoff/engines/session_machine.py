"""What the two sides of a handoff have in common: phases, deadlines, and how a failed session gives up what it holds.

A session is a pure machine. It goes through phases, and never back:

    running ---------> finishing -----> ended
       |                   |              ^
       +---> stopping <----+              |
                |                         |
                +---> cleaning -----------+

* **running**: every input is taken.
* **finishing** (source only): all is decided; the last frame is on its way. Whatever the world says now comes too late,
  except that the frame left, or failed, or that time is up.
* **stopping**: the session has failed. It waits until no ordinary call is waited for, so that the cancel that follows
  is the last thing the engine hears of it.
* **cleaning**: the engine was told to give up whatever it holds. *Always*, also when nothing was ever asked of it: a
  call that was not answered may have been carried out, and a cancel that answers ``noop`` is the proof that it was
  not. The session owns this duty until the engine answers or `CLEANUP_LIMIT_MS` (or the session's own timeout, if
  that is longer) has passed; cancel, shutdown and the session's deadline cannot take it away.
* **ended**: what was still queued is ``discarded``.

`TAKEN` says which inputs a phase takes; all others get the verdict in `REFUSED` and change nothing. A timer that is
not the newest of its name is ``late`` in every phase.

The deadline is ``start + session timeout + transfer delay``. The delay is added once it is known, and always to the
start, so that it counts once however often it is told. A delay that no clock can wait for (not finite, negative)
fails the session; without that check a destination that claims to lack more tokens than it can would make it wait for
ever.

Rejected: a deadline of its own for each call of the engine. It would be the session's deadline as it stood when the
call began, and a later extension would not help that call. The session's deadline alone bounds them all.
"""

from collections.abc import Mapping
from enum import StrEnum

from attrs import define, field

from handoff.engines.session_rows import (
    CancelRequested,
    ChildrenStopped,
    CleanupFinished,
    CleanupReplied,
    CleanupStarted,
    CleanupTimedOut,
    ControlCalled,
    ControlReplied,
    DeadlineFired,
    DeadlineMoved,
    DeadlineSet,
    FactObserved,
    JournalLost,
    LifecycleEnded,
    NotCarriedOut,
    OutboxFull,
    PeerClosed,
    SessionEnded,
    SessionInput,
    SessionStarted,
    ShutdownRequested,
    StopChildren,
    TimerCanceled,
    TimerFired,
    TimerSet,
    TornDown,
    TransportClosed,
    TransportFailed,
    WireFailed,
    WireFlushed,
    WireReceived,
)
from handoff.journal.step import Step, StepBuilder
from handoff.journal.terms import EndState, TimerName
from handoff.journal.transfer_timing import (
    InvalidTransferTiming,
    TransferTiming,
    transfer_timeout_delay,
    validate_transfer_delay,
)
from handoff.journal.vocabulary import ActionName, HandoffId, Verdict

CLEANUP_LIMIT_MS = 30_000.0
"""The least time that an engine gets to answer the cancel of a failed session, in ms."""

TIMED_OUT = "handoff session timed out"
SHUTTING_DOWN = "the worker is shutting down"
TORN_DOWN = "the session was torn down"
JOURNAL_LOST = "the journal cannot be written any more"
OUTBOX_FULL = "too many frames wait to be sent to the peer"


class Phase(StrEnum):
    """How far a session has come."""

    RUNNING = "running"
    FINISHING = "finishing"
    STOPPING = "stopping"
    CLEANING = "cleaning"
    ENDED = "ended"


_RUNNING_INPUTS = frozenset(
    {
        SessionStarted,
        WireReceived,
        WireFlushed,
        WireFailed,
        OutboxFull,
        PeerClosed,
        TransportFailed,
        ControlReplied,
        FactObserved,
        LifecycleEnded,
        DeadlineFired,
        TimerFired,
        CancelRequested,
        ShutdownRequested,
        TornDown,
        JournalLost,
        NotCarriedOut,
    }
)

TAKEN: Mapping[Phase, frozenset[type]] = {
    Phase.RUNNING: _RUNNING_INPUTS,
    Phase.FINISHING: frozenset(
        {WireFlushed, WireFailed, OutboxFull, DeadlineFired, TornDown, JournalLost, NotCarriedOut}
    ),
    Phase.STOPPING: frozenset({ChildrenStopped, NotCarriedOut}),
    Phase.CLEANING: frozenset({CleanupReplied, DeadlineFired, WireFlushed, WireFailed, OutboxFull, NotCarriedOut}),
    Phase.ENDED: frozenset(),
}
"""Which inputs a phase takes."""

REFUSED: Mapping[Phase, Verdict] = {
    Phase.RUNNING: Verdict.LATE,
    Phase.FINISHING: Verdict.LATE,
    Phase.STOPPING: Verdict.IGNORED_IN_CLEANUP,
    Phase.CLEANING: Verdict.IGNORED_IN_CLEANUP,
    Phase.ENDED: Verdict.DISCARDED,
}
"""What becomes of all other inputs in a phase."""


class SessionFailure(Exception):
    """Ends a session with an error, from wherever in a step it turns out; never leaves the machine.

    Attributes:
        message: the session's error.
        verdict: what becomes of the input that showed it.
    """

    def __init__(self, message: str, verdict: Verdict = Verdict.APPLIED) -> None:
        self.message = message
        self.verdict = verdict
        super().__init__(message)


@define(eq=False)
class SessionMachine:
    """The common part of both sessions; `SourceSession` and `DestinationSession` say what happens while running.

    Attributes:
        handoff_id: whose session it is.
        session_timeout_ms: how long it may last, not counting the transfer, in ms.
        phase: how far it has come.
        error: why it failed, if it did.
        deadline_ms: when its deadline fires; None before it has one.
    """

    handoff_id: HandoffId
    session_timeout_ms: float
    phase: Phase = field(default=Phase.RUNNING, init=False)
    error: str | None = field(default=None, init=False)
    deadline_ms: float | None = field(default=None, init=False)
    _started_ms: float = field(default=0.0, init=False)
    _generations: dict[TimerName, int] = field(factory=dict, init=False)
    _transfer_timer: bool = field(default=False, init=False)
    _transport_closed: bool = field(default=False, init=False)
    _cleanup_answered: bool = field(default=False, init=False)
    _out: StepBuilder = field(factory=StepBuilder, init=False, repr=False)
    _at_ms: float = field(default=0.0, init=False, repr=False)

    @property
    def ended(self) -> bool:
        """Whether the session is over."""
        return self.phase is Phase.ENDED

    @property
    def failing(self) -> bool:
        """Whether the session has failed and still has to clean up."""
        return self.phase is Phase.STOPPING or self.phase is Phase.CLEANING

    def step(self, value: SessionInput, at_ms: float) -> Step:
        """Take one input that the driver saw at `at_ms` (ms since the run's start)."""
        self._out, self._at_ms = StepBuilder(), at_ms
        self._out.add(value)
        try:
            verdict = self._admit(value)
        except SessionFailure as failure:
            verdict = failure.verdict
            self._fail(failure.message)
        return self._out.finish(verdict)

    def _admit(self, value: SessionInput) -> Verdict:
        stale = isinstance(value, DeadlineFired | TimerFired) and value.generation != self._generations.get(value.name)
        if stale and self.phase is not Phase.ENDED:
            return Verdict.LATE
        if type(value) not in TAKEN[self.phase]:
            return REFUSED[self.phase]
        match self.phase:
            case Phase.RUNNING:
                return self._run(value)
            case Phase.FINISHING:
                return self._finish(value)
            case Phase.STOPPING:
                if isinstance(value, ChildrenStopped):
                    self._start_cleanup()
                return Verdict.APPLIED
            case Phase.CLEANING:
                return self._clean(value)
            case Phase.ENDED:
                return Verdict.DISCARDED

    # -- what each side says for itself -----------------------------------------------------------------

    def _run(self, value: SessionInput) -> Verdict:
        """Take an input while running."""
        raise NotImplementedError

    def _finish(self, value: SessionInput) -> Verdict:
        """Take an input while finishing."""
        raise NotImplementedError

    def _cancel_action(self) -> ActionName:
        """The cancel that makes the engine give up whatever it holds."""
        raise NotImplementedError

    def _say_goodbye(self) -> None:
        """Tell the peer that the session has failed."""
        raise NotImplementedError

    def _goodbye_said(self) -> bool:
        """Whether the peer was told, or cannot be told any more."""
        raise NotImplementedError

    # -- deadlines --------------------------------------------------------------------------------------

    def _next_generation(self, name: TimerName) -> int:
        generation = self._generations.get(name, 0) + 1
        self._generations[name] = generation
        return generation

    def _set_deadline(self, name: TimerName, expires_ms: float) -> None:
        self._out.add(DeadlineSet(name, self._next_generation(name), expires_ms))

    def _start_session_clock(self) -> None:
        self._started_ms = self._at_ms
        self.deadline_ms = self._at_ms + self.session_timeout_ms
        self._set_deadline(TimerName.SESSION_DEADLINE, self.deadline_ms)

    def _allow_for_transfer(self, timing: TransferTiming, missing_tokens: int | None) -> None:
        """Move the deadline by the transfer's delay, if it is known by now and there is one."""
        known, delay_ms = transfer_timeout_delay(timing, missing_tokens)
        if not known or delay_ms is None:
            return
        try:
            validate_transfer_delay(delay_ms)
        except InvalidTransferTiming as error:
            raise SessionFailure(str(error), Verdict.INVALID) from error
        deadline_ms = self._started_ms + self.session_timeout_ms + delay_ms
        if deadline_ms != self.deadline_ms:
            self.deadline_ms = deadline_ms
            name = TimerName.SESSION_DEADLINE
            self._out.add(DeadlineMoved(name, self._next_generation(name), deadline_ms))

    def _set_transfer_timer(self, delay_ms: float, cause: int) -> None:
        name = TimerName.TRANSFER
        self._transfer_timer = True
        self._out.add(TimerSet(name, self._next_generation(name), self._at_ms + delay_ms), cause=cause)

    # -- the way down -----------------------------------------------------------------------------------

    def _fail(self, message: str) -> None:
        """Enter cleanup: first nobody may wait for an ordinary call any more."""
        self.error = message
        self.phase = Phase.STOPPING
        if self._transfer_timer:
            self._transfer_timer = False
            generation = self._generations[TimerName.TRANSFER]
            self._next_generation(TimerName.TRANSFER)
            self._out.add(TimerCanceled(TimerName.TRANSFER, generation))
        self._out.add(StopChildren(message))

    def _start_cleanup(self) -> None:
        self.phase = Phase.CLEANING
        self._out.add(CleanupStarted(self._cancel_action()))
        limit_ms = max(self.session_timeout_ms, CLEANUP_LIMIT_MS)
        self._set_deadline(TimerName.CLEANUP_LIMIT, self._at_ms + limit_ms)
        self._out.add(ControlCalled(self._cancel_action()))
        self._say_goodbye()

    def _clean(self, value: SessionInput) -> Verdict:
        match value:
            case CleanupReplied():
                if self._cleanup_answered:
                    return Verdict.DUPLICATE
                self._cleanup_answered = True
                self._out.add(CleanupFinished(self._cancel_action(), value.outcome, value.message))
            case DeadlineFired(name=TimerName.CLEANUP_LIMIT):
                if not self._cleanup_answered:
                    self._out.add(CleanupTimedOut(self._cancel_action()))
                self._end()
                return Verdict.APPLIED
            case DeadlineFired():
                return Verdict.IGNORED_IN_CLEANUP
            case WireFlushed() | WireFailed() | OutboxFull():
                self._note_goodbye(value)
            case _:
                return Verdict.APPLIED
        if self._cleanup_answered and self._goodbye_said():
            self._end()
        return Verdict.APPLIED

    def _note_goodbye(self, value: WireFlushed | WireFailed | OutboxFull) -> None:
        """Take note that a frame left, or never will."""

    def _close_transport(self) -> None:
        if not self._transport_closed:
            self._transport_closed = True
            self._out.add(TransportClosed())

    def _end(self) -> None:
        self.phase = Phase.ENDED
        self._close_transport()
        self._out.add(SessionEnded(EndState.SUCCESS if self.error is None else EndState.ERROR, self.error))
