"""One handoff's rows, sorted by what they tell: the base of the ladder, the list and the post-mortem.

A chronicle believes rows and nothing else. Its coordinator is folded anew from the recorded inputs, so that phase and
next expected fact come from the machine itself instead of a second description of it. Notes for people (`fault` rows
among them) are kept for display; no verdict rests on them.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from handoff.journal.coordinator import Coordinator, CoordinatorError, Fact, Mode, Outcome
from handoff.journal.coordinator_actor import FactOffered, HandoffStarted, OutcomeOffered
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource, HandoffDeclaration, declared_actor
from handoff.journal.row_codec import UnreadableRow, decode
from handoff.journal.terms import ActorKind, Kind
from handoff.journal.vocabulary import (
    ActionName,
    FactName,
    HandoffId,
    HandoffOrder,
    OutcomeName,
    Side,
    Verdict,
)


class Role(StrEnum):
    """Whose row it is, as far as readers care."""

    SOURCE = "source"
    DESTINATION = "destination"
    COORDINATOR = "coordinator"
    RENDEZVOUS = "rendezvous"
    WORKER = "worker"
    """Permits and engines."""
    JOURNAL = "journal"


_ROLES: dict[ActorKind, Role] = {
    ActorKind.SOURCE_SESSION: Role.SOURCE,
    ActorKind.DESTINATION_SESSION: Role.DESTINATION,
    ActorKind.COORDINATOR: Role.COORDINATOR,
    ActorKind.RENDEZVOUS: Role.RENDEZVOUS,
    ActorKind.ADMISSION: Role.WORKER,
    ActorKind.ENGINE: Role.WORKER,
    ActorKind.CONDUCTOR: Role.WORKER,
    ActorKind.WITNESS: Role.WORKER,
}

SIDE_OF_ACTION: dict[str, Side] = {
    ActionName.SUBMIT_PREFILL.value: Side.SOURCE,
    ActionName.RELEASE_SOURCE.value: Side.SOURCE,
    ActionName.CANCEL_SOURCE.value: Side.SOURCE,
    ActionName.START_TRANSFER.value: Side.SOURCE,
    ActionName.COMPLETE.value: Side.SOURCE,
    ActionName.RESERVE_DESTINATION.value: Side.DESTINATION,
    ActionName.ACTIVATE_DESTINATION.value: Side.DESTINATION,
    ActionName.CANCEL_DESTINATION.value: Side.DESTINATION,
}
"""Who carries an action out."""

SIDE_OF_FACT: dict[str, Side] = {
    FactName.SOURCE_HELD.value: Side.SOURCE,
    FactName.DESTINATION_RESERVED.value: Side.DESTINATION,
    FactName.TRANSFER_COMPLETED.value: Side.SOURCE,
}
"""Who observes a fact."""


@frozen
class Offer:
    """An outcome or a fact that the coordinator was given, and what became of it."""

    seq: int
    at_ms: float
    name: str
    verdict: str
    message: str | None = None
    synthesised: bool = False
    payload: str | None = None

    @property
    def counted(self) -> bool:
        """Whether it was the one that stays recorded."""
        return self.verdict in (Verdict.APPLIED, Verdict.INVALID)


@define
class ActionRecord:
    """One issued action and every outcome that was offered for it."""

    action_id: int
    name: str
    seq: int
    at_ms: float
    offers: list[Offer] = field(factory=list)

    @property
    def outcome(self) -> Offer | None:
        """The first outcome; later ones change nothing."""
        return self.offers[0] if self.offers else None

    @property
    def failed(self) -> bool:
        """Whether it was answered with a failure."""
        return self.outcome is not None and self.outcome.name == OutcomeName.FAILED

    @property
    def label(self) -> str:
        """What to call it, such as ``activate_destination (action 3)``."""
        return f"{self.name} (action {self.action_id})"


@define
class Chronicle:
    """Everything that a journal says about one handoff.

    Attributes:
        number, handoff_id, request: its names.
        order: who is asked first, where known.
        engine_type: the kind of engines, where known.
        run: the run it belongs to.
        events: its rows in order.
        roles: the role of each actor among them.
        actions: by action id.
        facts: every fact offered to the coordinator.
        refusals: rows in which the coordinator refused an input.
        core: the coordinator, folded from its inputs; None if nothing was ever ordered.
        run_over: whether the run has its last row, or was followed by another run.
        run_until_ms: time of the run's last row.
    """

    number: int
    handoff_id: str
    run: int
    order: HandoffOrder | None = None
    engine_type: str | None = None
    request: str | None = None
    attempt: int | None = None
    events: list[Event] = field(factory=list)
    roles: dict[int, Role] = field(factory=dict)
    labels: dict[int, str] = field(factory=dict)
    actions: dict[int, ActionRecord] = field(factory=dict)
    facts: list[Offer] = field(factory=list)
    refusals: list[Event] = field(factory=list)
    core: Coordinator | None = None
    run_over: bool = False
    run_until_ms: float = 0.0
    _awaited: list[tuple[int, FactName | None]] = field(factory=list)
    _by_seq: dict[int, Event] = field(factory=dict)
    _by_kind: dict[tuple[Role, str], list[Event]] = field(factory=dict)

    # -- building -------------------------------------------------------------------------------------

    def add(self, event: Event) -> None:
        """Take the next row of the handoff."""
        self.events.append(event)
        self._by_seq[event.seq] = event
        if event.kind == Kind.ACTOR_STARTED:
            declared = declared_actor(event)
            self.roles[declared.actor] = _ROLES[declared.kind]
            self.labels[declared.actor] = declared.label
        self._by_kind.setdefault((self.role(event), event.kind), []).append(event)
        if self.role(event) is Role.COORDINATOR:
            self._coordinated(event)

    def meet(self, source: EventSource, actor: int) -> None:
        """Learn the role of an actor that serves many handoffs and was not declared for this one."""
        try:
            declared = source.actor(actor)
        except LookupError:
            return
        self.roles[actor] = _ROLES[declared.kind]
        self.labels[actor] = declared.label

    def _coordinated(self, event: Event) -> None:
        match event.kind:
            case Kind.ACTION_ISSUED if event.action_id is not None and event.name is not None:
                record = ActionRecord(event.action_id, event.name, event.seq, event.at_ms)
                self.actions[event.action_id] = record
                self._begun_elsewhere()
            case Kind.COORDINATOR_ERROR:
                self.refusals.append(event)
            case _ if event.verdict is not None:
                self._fold(event)

    def _begun_elsewhere(self) -> None:
        """An observed coordinator was started by somebody else: its first action is the only sign of it."""
        if self.core is None and self.order is not None:
            self.core = Coordinator(HandoffId(self.handoff_id), self.order)
            self.core.start()

    def _fold(self, event: Event) -> None:
        if self.core is None and self.order is not None:
            self.core = Coordinator(HandoffId(self.handoff_id), self.order)
        try:
            value = decode(event, ActorKind.COORDINATOR)
            if self.core is not None:
                _offer(self.core, value)
        except (CoordinatorError, UnreadableRow, ValueError):
            pass
        offer = Offer(
            event.seq, event.at_ms, str(event.outcome or event.name), str(event.verdict), text_of(event),
            bool(event.payload.get("synthesised")), event.payload_json,
        )  # fmt: skip
        if event.outcome is not None:
            record = self.actions.get(-1 if event.action_id is None else event.action_id)
            if record is not None:
                record.offers.append(offer)
        elif event.name is not None:
            self.facts.append(offer)
        self._awaited.append((event.seq, self.awaited_fact))

    # -- asking ---------------------------------------------------------------------------------------

    def role(self, event: Event) -> Role:
        """Whose row it is."""
        if event.actor is None:
            return Role.JOURNAL
        return self.roles.get(event.actor, Role.WORKER)

    def content(self, event: Event) -> Mapping[str, Any]:
        """What a row says: its payload, and for an input with a cause also that of the effect it was."""
        cause = None if event.cause is None or not event.is_input else self._by_seq.get(event.cause)
        return event.payload if cause is None else {**cause.payload, **event.payload}

    def text(self, event: Event) -> str | None:
        """The sentence that a row carries, itself or from its cause."""
        return text_in(self.content(event))

    def of(self, role: Role, *kinds: Kind) -> list[Event]:
        """The rows of a role of some kinds, in order."""
        if len(kinds) == 1:
            return self._by_kind.get((role, kinds[0].value), [])
        found = [event for kind in kinds for event in self._by_kind.get((role, kind.value), [])]
        return sorted(found, key=lambda event: event.seq)

    def first(self, role: Role, *kinds: Kind) -> Event | None:
        """The first row of a role of some kinds."""
        found = self.of(role, *kinds)
        return found[0] if found else None

    def last(self, role: Role, *kinds: Kind) -> Event | None:
        """The last row of a role of some kinds."""
        found = self.of(role, *kinds)
        return found[-1] if found else None

    def resources(self, *names: str) -> list[Event]:
        """Annotations of ownership with some of these names, in order."""
        return [event for event in self.of(Role.JOURNAL, Kind.RESOURCE) if event.payload.get("resource") in names]

    def action(self, name: ActionName) -> ActionRecord | None:
        """The action of this name, if it was issued."""
        return next((record for record in self.actions.values() if record.name == name), None)

    def fact(self, name: FactName) -> Offer | None:
        """The first offer of a fact that was taken."""
        return next((offer for offer in self.facts if offer.name == name and offer.verdict == Verdict.APPLIED), None)

    def unanswered(self) -> list[ActionRecord]:
        """Issued actions without any outcome; `complete` needs none."""
        return [r for r in self.actions.values() if not r.offers and r.name != ActionName.COMPLETE]

    @property
    def opened_at_ms(self) -> float:
        """Time of its first row."""
        return self.events[0].at_ms if self.events else 0.0

    @property
    def first_seq(self) -> int:
        """Number of its first row."""
        return self.events[0].seq if self.events else 0

    @property
    def last_event(self) -> Event:
        """Its last row that is no note for people."""
        told = [event for event in self.events if event.actor is not None or event.kind == Kind.RESOURCE]
        return (told or self.events)[-1]

    @property
    def completion(self) -> str | None:
        """How the coordinator completed: success, canceled, or not at all."""
        return None if self.core is None or self.core.completion is None else self.core.completion.value

    def end_of(self, side: Side) -> Event | None:
        """The `session_ended` row of a side."""
        return self.last(Role(side.value), Kind.SESSION_ENDED)

    def session_of(self, side: Side) -> bool:
        """Whether a session of this side was started."""
        return Role(side.value) in self.roles.values()

    @property
    def awaited_fact(self) -> FactName | None:
        """The fact that the coordinator waits for when no action is outstanding."""
        core = self.core
        if core is None or core.mode is not Mode.ACTIVE or core.unanswered():
            return None
        if core.source_submitted and not core.source_held:
            return FactName.SOURCE_HELD
        if core.destination_accepted and not core.destination_reserved:
            return FactName.DESTINATION_RESERVED
        if core.transfer_scheduled and not core.transfer_completed:
            return FactName.TRANSFER_COMPLETED
        return None

    def awaited_when_struck(self, seq: int | None) -> FactName | None:
        """The fact that the coordinator waited for just before a row, or still waits for if no row is given."""
        before = [fact for number, fact in self._awaited if seq is None or number < seq]
        return before[-1] if before else None


def _offer(core: Coordinator, value: object) -> None:
    match value:
        case HandoffStarted():
            core.start()
        case OutcomeOffered():
            core.on_outcome(value.action_id, Outcome(value.outcome, value.message))
        case FactOffered():
            handoff_id = core.handoff_id if value.handoff_id is None else value.handoff_id
            core.on_fact(Fact(value.name, handoff_id, value.transfer_timing, value.transferable_prompt_tokens))


_TEXTS = ("message", "error", "reason", "text")


def text_in(payload: Mapping[str, Any]) -> str | None:
    """The sentence in a row's payload, under whatever name its kind keeps it."""
    return next((str(payload[name]) for name in _TEXTS if payload.get(name) is not None), None)


def text_of(event: Event) -> str | None:
    """The sentence that a row carries itself."""
    return text_in(event.payload)


def chronicle_of(source: EventSource, declaration: HandoffDeclaration) -> Chronicle:
    """Read one handoff's rows, in memory that depends on this handoff alone."""
    opened = declaration.opened
    chronicle = Chronicle(
        declaration.number, declaration.handoff_id, declaration.run, opened.order,
        None if opened.engine_type is None else opened.engine_type.value, opened.request, opened.attempt,
    )  # fmt: skip
    for event in source.events(handoff=declaration.number):
        if event.actor is not None and event.actor not in chronicle.roles:
            chronicle.meet(source, event.actor)
        chronicle.add(event)
    return chronicle


@frozen
class RunSpan:
    """How far a run went: the time of its last row, and whether nothing more can come."""

    until_ms: float
    over: bool


def run_spans(source: EventSource) -> dict[int, RunSpan]:
    """The span of every run that has its last row, and of the newest."""
    ended = source.events(kinds=(Kind.RUN_ENDED.value,))
    spans: dict[int, RunSpan] = {event.run: RunSpan(event.at_ms, over=True) for event in ended}
    if source.last_seq:
        newest = source.event(source.last_seq)
        spans.setdefault(newest.run, RunSpan(newest.at_ms, over=False))
    return spans


def chronicles(source: EventSource, declarations: Iterable[HandoffDeclaration]) -> Iterator[Chronicle]:
    """Read handoffs one after the other, each knowing how its run ended."""
    spans = run_spans(source)
    for declaration in declarations:
        chronicle = chronicle_of(source, declaration)
        span = spans.get(declaration.run)
        chronicle.run_over = span is None or span.over
        chronicle.run_until_ms = chronicle.last_event.at_ms if span is None else span.until_ms
        yield chronicle
