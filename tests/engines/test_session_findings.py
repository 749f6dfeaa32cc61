"""Findings that only rows of sessions, the rendezvous and permits can show, each with the nearest sound history."""

from attrs import define, field

from handoff.engines.admission import PermitRefused, PermitReturned
from handoff.engines.rendezvous import Pending, Reason, Retired, SourceRegistered
from handoff.engines.session_rows import (
    CompletionDelivered,
    ControlCalled,
    ControlReplied,
    DeadlineMoved,
    DeadlineSet,
    ObserverEvent,
    SessionEnded,
    SessionStarted,
    WireReceived,
)
from handoff.journal.coordinator_actor import CoordinatorRefused, FactOffered
from handoff.journal.declarations import HandoffOpened
from handoff.journal.event_source import EventList
from handoff.journal.examination import examine
from handoff.journal.port import ActorHandle, MemoryJournal
from handoff.journal.step import Entry, Step
from handoff.journal.terms import ActorKind, EndState, ObserverName, TimerName, WireName
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    EngineType,
    FactName,
    HandoffOrder,
    OutcomeName,
    Side,
    Verdict,
)

SOURCE = (ActorKind.SOURCE_SESSION, ActorKind.COORDINATOR)
DESTINATION = (ActorKind.DESTINATION_SESSION,)
APPLIED = Verdict.APPLIED


@define
class Story:
    """A journal written row by row."""

    journal: MemoryJournal = field(factory=lambda: MemoryJournal(run=0))
    at_ms: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.journal.begin_run(tool="test", wall_ns=0)

    def opened(self, name: str, request: str = "r1") -> int:
        order, engine = HandoffOrder.SOURCE_FIRST, EngineType.VLLM
        return self.journal.open_handoff(HandoffOpened(name, order, engine, request, attempt=1), self.at_ms)

    def actor(self, kinds: tuple[ActorKind, ...], handoff: int | None = None) -> ActorHandle:
        config = {"handoff_id": "h1", "order": "source_first"}
        return self.journal.start_actor(kinds, kinds[0].value, config, self.at_ms, handoff=handoff)

    def tell(self, actor: ActorHandle, *entries: Entry, after_ms: float = 1.0) -> None:
        self.at_ms += after_ms
        self.journal.append(actor, Step(entries), self.at_ms)

    def codes(self) -> list[str]:
        self.journal.end_run(EndState.FINISHED, self.at_ms + 1.0)
        return [finding.code for finding in examine(EventList(self.journal.events)).findings]


def ended(name: EndState, message: str | None = None) -> Entry:
    return Entry(SessionEnded(name, message))


def test_one_side_succeeds_and_the_other_does_not():
    for end, expected in ((EndState.ERROR, ["split_verdict"]), (EndState.SUCCESS, [])):
        story = Story()
        handoff = story.opened("h1")
        for kinds, state in ((SOURCE, EndState.SUCCESS), (DESTINATION, end)):
            actor = story.actor(kinds, handoff)
            story.tell(actor, Entry(SessionStarted(), APPLIED))
            story.tell(actor, Entry(ControlCalled(ActionName.COMPLETE), APPLIED), ended(state))
        assert story.codes() == expected


def test_a_session_and_its_completion_disagree():
    for delivered, expected in ((EndState.ERROR, ["session_result_differs"]), (EndState.SUCCESS, [])):
        story = Story()
        actor = story.actor(SOURCE, story.opened("h1"))
        story.tell(actor, Entry(SessionStarted(), APPLIED))
        story.tell(actor, Entry(ControlCalled(ActionName.COMPLETE), APPLIED), Entry(CompletionDelivered(delivered)))
        story.tell(actor, Entry(ControlCalled(ActionName.COMPLETE), APPLIED), ended(EndState.SUCCESS))
        assert [code for code in story.codes() if code == "session_result_differs"] == expected


def test_an_observer_is_told_before_the_coordinator_refuses():
    story = Story()
    actor = story.actor(SOURCE, story.opened("h1"))
    story.tell(actor, Entry(SessionStarted(), APPLIED))
    story.tell(
        actor,
        Entry(WireReceived(WireName.FACT, fact=FactName.DESTINATION_RESERVED), APPLIED),
        Entry(ObserverEvent(ObserverName.DESTINATION_RESERVED)),
        Entry(FactOffered(FactName.DESTINATION_RESERVED, transferable_prompt_tokens=8), Verdict.INVALID, 0, 1),
        Entry(CoordinatorRefused("early_fact", "too early"), None, 2, 1),
        ended(EndState.ERROR),
    )
    assert "observed_before_validated" in story.codes()


def test_a_reason_is_dropped_on_the_way():
    for message, expected in ((None, True), ("handoff ended: it was canceled", False)):
        story = Story()
        actor = story.actor(DESTINATION, story.opened("h1"))
        story.tell(actor, Entry(SessionStarted(), APPLIED))
        goodbye = Entry(WireReceived(WireName.ABORT, message="it was canceled"), APPLIED)
        story.tell(actor, goodbye, ended(EndState.ERROR, message))
        assert ("abort_text_dropped" in story.codes()) is expected


def test_a_call_gives_up_at_a_deadline_that_had_moved():
    for replied_ms, expected in ((40.0, True), (165.0, False)):
        story = Story()
        actor = story.actor(SOURCE, story.opened("h1"))
        deadline = TimerName.SESSION_DEADLINE
        story.tell(actor, Entry(SessionStarted(), APPLIED), Entry(DeadlineSet(deadline, 1, 40.0)), after_ms=0.0)
        called = Entry(ControlCalled(ActionName.SUBMIT_PREFILL, ActionId(0)))
        story.tell(actor, Entry(SessionStarted(), Verdict.DUPLICATE), called)
        story.tell(actor, Entry(SessionStarted(), Verdict.DUPLICATE), Entry(DeadlineMoved(deadline, 2, 160.0)))
        reply = ControlReplied(ActionName.SUBMIT_PREFILL, OutcomeName.FAILED, ActionId(0), "timed out")
        story.tell(actor, Entry(reply, APPLIED), ended(EndState.ERROR), after_ms=replied_ms - 2.0)
        assert ("call_before_deadline" in story.codes()) is expected


def registered(handoff: int) -> SourceRegistered:
    return SourceRegistered(handoff, "9", "r1", HandoffOrder.SOURCE_FIRST, EngineType.VLLM)


def test_a_registration_that_nobody_answered_vanished():
    story = Story()
    handoff = story.opened("h1")
    story.tell(story.actor((ActorKind.RENDEZVOUS,)), Entry(registered(handoff), Verdict.DISCARDED))
    assert "vanished_registration" in story.codes()


def test_an_id_that_was_retired_becomes_pending_again():
    story = Story()
    handoff = story.opened("h1")
    actor = story.actor((ActorKind.RENDEZVOUS,))
    reason = next(iter(Reason))
    story.tell(actor, Entry(registered(handoff), APPLIED), Entry(Pending(handoff, Side.SOURCE)))
    story.tell(actor, Entry(registered(handoff), Verdict.LATE), Entry(Retired(handoff, reason, 50.0)))
    story.tell(actor, Entry(registered(handoff), APPLIED), Entry(Pending(handoff, Side.SOURCE)), after_ms=60.0)
    assert "pending_twice" in story.codes()


def test_one_party_of_a_rendezvous_never_comes():
    story = Story()
    handoff = story.opened("h1")
    actor = story.actor((ActorKind.RENDEZVOUS,))
    story.tell(actor, Entry(registered(handoff), APPLIED), Entry(Pending(handoff, Side.SOURCE)))
    assert story.codes() == ["orphan_rendezvous"]


def test_a_retry_is_refused_while_the_attempt_before_it_keeps_its_permit():
    for returned_first, expected in ((False, ["retry_refused_early"]), (True, ["rejected"])):
        story = Story()
        first, retry = story.opened("h1"), story.opened("h2")
        source, permits = story.actor(SOURCE, first), story.actor((ActorKind.ADMISSION,))
        story.tell(source, Entry(SessionStarted(), APPLIED))
        story.tell(
            source,
            Entry(ControlCalled(ActionName.COMPLETE), APPLIED),
            ended(EndState.SUCCESS),
            Entry(CompletionDelivered(EndState.SUCCESS)),
        )
        refused = Entry(PermitRefused(retry, "handoff session limit reached", 1, 1))
        steps = [refused, Entry(PermitReturned(first), APPLIED)]
        for entry in reversed(steps) if returned_first else steps:
            story.tell(permits, entry)
        assert story.codes() == expected
