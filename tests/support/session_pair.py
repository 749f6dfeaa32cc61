"""A source and a destination session in virtual time, with a scripted engine behind each, journaled as drivers do.

Frames, calls of the engines and timers are events on a heap. Every input that was another actor's effect names that
effect's row as its cause, so that a full replay has to recompute it. The engines are witnesses: their answers are rows
that are read, not re-executed.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

import attrs
from attrs import define, field, frozen

from handoff.engines.destination_session import DestinationSession
from handoff.engines.engine_rows import EngineAnswered, EngineLifecycle, EngineOrder
from handoff.engines.session_rows import (
    CancelRequested,
    ChildrenStopped,
    CleanupReplied,
    ControlCalled,
    ControlReplied,
    DeadlineFired,
    DeadlineMoved,
    DeadlineSet,
    FactObserved,
    PeerClosed,
    SessionEnded,
    SessionStarted,
    StopChildren,
    TimerFired,
    TimerSet,
    TransportClosed,
    WireFlushed,
    WireReceived,
    WireSent,
)
from handoff.engines.source_session import SourceSession
from handoff.journal.coordinator_actor import CoordinatorActor
from handoff.journal.declarations import HandoffOpened, Resource
from handoff.journal.port import ActorHandle, RowStream
from handoff.journal.replayer import MACHINES as JOURNAL_MACHINES
from handoff.journal.step import Entry, MachineFactory, Step
from handoff.journal.terms import ActorKind
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionName,
    EngineType,
    FactName,
    HandoffId,
    OutcomeName,
    Side,
    TimingMode,
    order_for_engine,
)

MACHINES: dict[ActorKind, MachineFactory] = {
    **JOURNAL_MACHINES,
    ActorKind.SOURCE_SESSION: SourceSession.build,
    ActorKind.DESTINATION_SESSION: DestinationSession.build,
    ActorKind.COORDINATOR: CoordinatorActor.build,
}
TIMING = TransferTiming(TimingMode.FULL_PROMPT, 8, 1_000_000, 1.0)
ANSWERS = {
    ActionName.SUBMIT_PREFILL: OutcomeName.SUBMITTED,
    ActionName.RESERVE_DESTINATION: OutcomeName.ACCEPTED,
    ActionName.ACTIVATE_DESTINATION: OutcomeName.APPLIED,
    ActionName.RELEASE_SOURCE: OutcomeName.APPLIED,
    ActionName.CANCEL_SOURCE: OutcomeName.APPLIED,
    ActionName.CANCEL_DESTINATION: OutcomeName.APPLIED,
}
FREES = (ActionName.RELEASE_SOURCE, ActionName.CANCEL_SOURCE, ActionName.CANCEL_DESTINATION)
TIMEOUT_MS = 40.0
WIRE_MS, ENGINE_MS, PREFILL_MS, RESERVE_MS = 0.25, 0.5, 5.0, 0.25


@frozen
class Trouble:
    """What goes wrong with a pair; by default nothing.

    Attributes:
        lost_answer: the engine's answer to this action never comes.
        failed: this action is answered with a failure.
        lost_fact: this fact never comes.
        cancel_ms: when the client cancels.
        hang_up_ms: when the connection closes under both sides.
        dead: a side that goes silent, without a goodbye, at `dead_ms`.
        slow_answer: this action is answered only after the fact that follows from it.
        no_source: the source never comes, so that the destination waits for nobody.
        answers: outcomes that differ from the usual ones.
    """

    lost_answer: ActionName | None = None
    failed: ActionName | None = None
    lost_fact: FactName | None = None
    cancel_ms: float | None = None
    hang_up_ms: float | None = None
    dead: Side | None = None
    dead_ms: float = 0.0
    slow_answer: ActionName | None = None
    no_source: bool = False
    answers: dict[ActionName, OutcomeName] = field(factory=dict)


@define(eq=False)
class _Session:
    side: Side
    machine: Any
    actor: ActorHandle
    engine: ActorHandle
    children: int = 0
    open: bool = True


@define(eq=False)
class SessionPairs:
    """Runs pairs of sessions over one heap and one journal."""

    journal: RowStream
    _heap: list[tuple[float, int, Callable[[float], None]]] = field(factory=list)
    _order: Any = field(factory=count)
    _engines: dict[Side, ActorHandle] = field(factory=dict)

    def add(
        self, name: str, engine_type: EngineType = EngineType.VLLM, at_ms: float = 0.0, trouble: Trouble | None = None
    ) -> None:
        """Let a handoff begin at a time."""
        self._at(at_ms, lambda now: _Pair(self, name, engine_type, trouble or Trouble()).begin(now))

    def run(self) -> None:
        """Let everything happen that is going to."""
        while self._heap:
            at_ms, _, happen = heapq.heappop(self._heap)
            happen(at_ms)

    def engine(self, side: Side, at_ms: float) -> ActorHandle:
        """The witness of one side's engine, declared when it is first needed."""
        if side not in self._engines:
            self._engines[side] = self.journal.start_actor((ActorKind.WITNESS,), f"{side} engine", {}, at_ms)
        return self._engines[side]

    def _at(self, at_ms: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._heap, (at_ms, next(self._order), happen))


@define(eq=False)
class _Pair:
    pairs: SessionPairs
    name: str
    engine_type: EngineType
    trouble: Trouble
    handoff: int = 0
    sessions: dict[Side, _Session] = field(factory=dict)

    def begin(self, at_ms: float) -> None:
        journal, order = self.pairs.journal, order_for_engine(self.engine_type)
        opened = HandoffOpened(self.name, order, self.engine_type, request=f"req-{self.name}")
        self.handoff = journal.open_handoff(opened, at_ms)
        machines = {
            Side.DESTINATION: DestinationSession(HandoffId(self.name), TIMEOUT_MS),
            Side.SOURCE: SourceSession(HandoffId(self.name), TIMEOUT_MS, order),
        }
        for side, machine in machines.items():
            if side is Side.SOURCE and self.trouble.no_source:
                continue
            label = "decode-0" if side is Side.DESTINATION else "prefill-0"
            actor = journal.start_actor(machine.SLOTS, label, machine.config(), at_ms, handoff=self.handoff)
            self.sessions[side] = _Session(side, machine, actor, self.pairs.engine(side, at_ms))
            self.give(side, SessionStarted(), at_ms)
        if self.trouble.cancel_ms is not None:
            self.later(at_ms + self.trouble.cancel_ms, Side.SOURCE, CancelRequested())
        if self.trouble.hang_up_ms is not None:
            for side in Side:
                self.later(at_ms + self.trouble.hang_up_ms, side, PeerClosed())

    def later(self, at_ms: float, side: Side, value: Any, cause: int | None = None) -> None:
        self.pairs._at(at_ms, lambda now: self.give(side, value, now, cause))

    def give(self, side: Side, value: Any, at_ms: float, cause: int | None = None) -> None:
        session = self.sessions.get(side)
        if session is None:
            return
        dead = self.trouble.dead is side and at_ms >= self.trouble.dead_ms
        if dead:
            if session.open:
                session.open = False
                self.later(at_ms + WIRE_MS, self.other(side), PeerClosed())
            return
        if not session.open or session.machine.ended:
            return
        step = session.machine.step(value, at_ms)
        first = self.pairs.journal.append(session.actor, step, at_ms, cause)  # type: ignore[arg-type]
        for index, entry in enumerate(step.entries):
            if entry.verdict is None and entry.slot == 0:
                self.carry_out(session, entry.value, first + index, at_ms)

    def other(self, side: Side) -> Side:
        return Side.DESTINATION if side is Side.SOURCE else Side.SOURCE

    def carry_out(self, session: _Session, effect: Any, row: int, at_ms: float) -> None:
        side = session.side
        match effect:
            case WireSent():
                fields = attrs.asdict(effect, recurse=False)
                self.later(at_ms, side, WireFlushed(effect.name, effect.action_id), row)
                self.later(at_ms + WIRE_MS, self.other(side), WireReceived(**fields), row)
            case ControlCalled():
                self.pairs._at(at_ms + ENGINE_MS, lambda now: self.answer(session, effect, now))
            case DeadlineSet() | DeadlineMoved():
                self.later(max(effect.expires_ms, at_ms), side, DeadlineFired(effect.name, effect.generation))
            case TimerSet():
                self.later(effect.expires_ms, side, TimerFired(effect.name, effect.generation))
            case StopChildren():
                session.children += 1
                self.later(at_ms, side, ChildrenStopped())
            case TransportClosed():
                self.later(at_ms + WIRE_MS, self.other(side), PeerClosed())
            case SessionEnded():
                session.open = False
            case _:
                pass

    def answer(self, session: _Session, called: ControlCalled, at_ms: float) -> None:
        """The engine carries an action out and answers; ordinary answers that nobody waits for any more are lost."""
        if self.trouble.dead is session.side and at_ms >= self.trouble.dead_ms:
            return
        cleanup = called.action_id is None
        outcome = self.trouble.answers.get(called.name, ANSWERS[called.name])
        message = None
        if called.name is self.trouble.failed:
            outcome, message = OutcomeName.FAILED, "worker busy"
        answered = EngineAnswered(
            EngineOrder(called.name.value), outcome, at_ms, self.handoff, action_id=called.action_id, message=message
        )
        row = self.pairs.journal.append(session.engine, Step((Entry(answered),)), at_ms)
        self.follow_up(session, called.name, outcome, at_ms)
        if called.name in FREES and outcome is OutcomeName.APPLIED:
            freed = Resource(f"{session.side}_freed", (0, 1), side=session.side)
            self.pairs.journal.annotate(freed, at_ms, handoff=self.handoff)
        if called.name is self.trouble.lost_answer or (session.children and not cleanup):
            return
        if cleanup:
            self.give(session.side, CleanupReplied(called.name, outcome, message), at_ms, row)
            return
        slow_ms = PREFILL_MS + RESERVE_MS if called.name is self.trouble.slow_answer else 0.0
        self.later(at_ms + slow_ms, session.side, ControlReplied(called.name, outcome, called.action_id, message), row)

    def follow_up(self, session: _Session, name: ActionName, outcome: OutcomeName, at_ms: float) -> None:
        match name, outcome:
            case ActionName.SUBMIT_PREFILL, OutcomeName.SUBMITTED:
                held = EngineLifecycle(FactName.SOURCE_HELD, at_ms + PREFILL_MS, self.handoff, transfer_timing=TIMING)
                self.observe_later(session, held, at_ms + PREFILL_MS)
            case ActionName.RESERVE_DESTINATION, OutcomeName.ACCEPTED:
                reserved = EngineLifecycle(
                    FactName.DESTINATION_RESERVED, at_ms + RESERVE_MS, self.handoff, transferable_prompt_tokens=8
                )
                self.observe_later(session, reserved, at_ms + RESERVE_MS)
            case _:
                pass

    def observe_later(self, session: _Session, seen: EngineLifecycle, at_ms: float) -> None:
        if seen.name is self.trouble.lost_fact:
            return

        def observe(now: float) -> None:
            row = self.pairs.journal.append(session.engine, Step((Entry(seen),)), now)
            resource = "source_held" if session.side is Side.SOURCE else "destination_blocks"
            self.pairs.journal.annotate(Resource(resource, (0, 1), side=session.side), now, handoff=self.handoff)
            fact = FactObserved(seen.name, seen.transfer_timing, seen.transferable_prompt_tokens)
            self.give(session.side, fact, now, row)

        self.pairs._at(at_ms, observe)
