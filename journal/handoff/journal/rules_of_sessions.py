"""Rules about the live driver: sessions, the rendezvous, observers and permits (E14 to E22 of the known edges)."""

from collections.abc import Iterator

from handoff.journal.case import Case
from handoff.journal.chronicle import Role, text_of
from handoff.journal.event import Event
from handoff.journal.finding import Certainty, Finding
from handoff.journal.terms import EndState, Kind, TimerName, WireName
from handoff.journal.trigger import Blow
from handoff.journal.vocabulary import ActionName, OutcomeName, Side, TerminalStatus, Verdict


def split_verdict(case: Case) -> Iterator[Finding]:
    """One side ended with success and the other did not."""
    source, destination = (case.chronicle.end_of(side) for side in (Side.SOURCE, Side.DESTINATION))
    if source is None or destination is None or source.name == destination.name:
        return
    yield case.finding(
        "split_verdict",
        [source.seq, destination.seq],
        f"the source ended with {source.name}, the destination with {destination.name}",
        source=source.name,
        destination=destination.name,
    )


def protocol_violation(case: Case) -> Iterator[Finding]:
    """A side ended because its peer said something that does not fit; a goodbye is none."""
    trigger = case.trigger
    if trigger is None or trigger.blow is not Blow.PROTOCOL or trigger.event.kind != Kind.WIRE_RECEIVED:
        return
    if trigger.event.name in (WireName.ABORT, WireName.OVERLOADED) or case.chronicle.refusals:
        return
    yield case.finding(
        "protocol_violation",
        [trigger.seq],
        f"{trigger.sentence}, which does not fit here",
        message=trigger.event.name,
        side=trigger.role.value,
    )


def complete_not_delivered(case: Case) -> Iterator[Finding]:
    """The handoff was complete, and the destination was never told (W11, W12)."""
    chronicle = case.chronicle
    complete = chronicle.action(ActionName.COMPLETE)
    if complete is None or chronicle.completion != "success" or not chronicle.session_of(Side.DESTINATION):
        return
    told = [e for e in chronicle.of(Role.DESTINATION, Kind.WIRE_RECEIVED) if e.name == WireName.COMPLETE]
    end = chronicle.end_of(Side.DESTINATION)
    if told or end is None:
        return
    flushed = [e for e in chronicle.of(Role.SOURCE, Kind.WIRE_FLUSHED) if e.name == WireName.COMPLETE]
    how = "it left the source and never arrived" if flushed else "it never left the source"
    yield case.finding(
        "complete_not_delivered",
        [complete.seq, *(event.seq for event in flushed), end.seq],
        f"the handoff was complete and the destination was not told: {how}",
        flushed=bool(flushed),
    )


def session_result_differs(case: Case) -> Iterator[Finding]:
    """The session ended without an error, and its completion says that the handoff failed (E14)."""
    end = case.chronicle.end_of(Side.SOURCE)
    delivered = case.chronicle.last(Role.SOURCE, Kind.COMPLETION_DELIVERED)
    if end is None or delivered is None or end.name is None or delivered.name is None:
        return
    if EndState.SUCCESS in (end.name, delivered.name) and end.name != delivered.name:
        yield case.finding(
            "session_result_differs",
            [delivered.seq, end.seq],
            f"the session ended with {end.name}, its completion says {delivered.name}",
        )


def observed_before_validated(case: Case) -> Iterator[Finding]:
    """The observer was told of an input that the coordinator refused in the same step (E15)."""
    refused = {refusal.grp: refusal for refusal in case.chronicle.refusals}
    for event in case.chronicle.of(Role.SOURCE, Kind.OBSERVER_EVENT):
        refusal = refused.get(event.grp)
        if refusal is not None:
            yield case.finding(
                "observed_before_validated",
                [event.seq, refusal.seq],
                f"the observer was told {event.name}, and the coordinator refused it",
            )


def abort_text_dropped(case: Case) -> Iterator[Finding]:
    """A side was told why it had to end, and its end records no reason (E17)."""
    for role, side in ((Role.DESTINATION, Side.DESTINATION), (Role.SOURCE, Side.SOURCE)):
        end = case.chronicle.end_of(side)
        told = next((e for e in case.chronicle.of(role, Kind.WIRE_RECEIVED) if e.name == WireName.ABORT), None)
        if end is None or told is None or end.seq < told.seq or told.verdict != Verdict.APPLIED:
            continue
        reason = case.chronicle.text(told)
        if reason is not None and text_of(end) is None:
            yield case.finding(
                "abort_text_dropped",
                [told.seq, end.seq],
                f"the {role} was told {reason!r} and ended without a reason",
                reason=reason,
            )


def orphan_rendezvous(case: Case) -> Iterator[Finding]:
    """One party of a handoff registered, and the other never came."""
    pending = case.chronicle.first(Role.RENDEZVOUS, Kind.PENDING)
    if case.trigger is not None and case.trigger.blow in (Blow.CANCELED, Blow.SHUTDOWN):
        return
    if pending is not None and case.over:
        if case.chronicle.first(Role.RENDEZVOUS, Kind.PAIRED) is None and not case.chronicle.actions:
            waited_ms = case.chronicle.last_event.at_ms - pending.at_ms
            yield case.finding(
                "orphan_rendezvous",
                [pending.seq, case.chronicle.last_event.seq],
                f"one party waited {waited_ms:g} ms, and the other never came",
                waited_ms=waited_ms,
            )
        return
    sides = {side for side, words in _SIDE_WORDS.items() if any(case.annotations.get(word) for word in words)}
    sides |= {side for event in case.fact_rows for side, words in _SIDE_WORDS.items() if event.name in words}
    opened = case.chronicle.events[0]
    unmet = len(sides) == 1 and not case.chronicle.actions and opened.payload.get("room") is not None
    if unmet and case.over:
        present = next(iter(sides))
        missing = Side.DESTINATION if present is Side.SOURCE else Side.SOURCE
        seen = [word for word in _SIDE_WORDS[missing] if case.observers.could_show(word)]
        yield case.finding(
            "orphan_rendezvous",
            [opened.seq, case.chronicle.last_event.seq],
            f"only the {present} ever knew room {opened.payload.get('room')}",
            Certainty.PROVED if seen else Certainty.UNKNOWN,
            None if seen else f"a source that shows what the {missing} does",
            side=present.value,
        )


_SIDE_WORDS: dict[Side, tuple[str, ...]] = {
    Side.SOURCE: ("source_held", "source_freed", "source_lease_expired"),
    Side.DESTINATION: ("destination_reserved", "destination_blocks", "destination_freed"),
}


def pending_twice(case: Case) -> Iterator[Finding]:
    """An id that was retired became pending again (E19)."""
    retired = case.chronicle.first(Role.RENDEZVOUS, Kind.RETIRED)
    if retired is None:
        return
    again = [event for event in case.chronicle.of(Role.RENDEZVOUS, Kind.PENDING) if event.seq > retired.seq]
    for event in again[:1]:
        yield case.finding(
            "pending_twice",
            [retired.seq, event.seq],
            f"its id was retired at {retired.at_ms:g} ms and became pending again at {event.at_ms:g} ms",
        )


def vanished_registration(case: Case) -> Iterator[Finding]:
    """A registration was taken and neither paired, rejected nor kept waiting (E20)."""
    registered = case.chronicle.first(Role.RENDEZVOUS, Kind.SOURCE_REGISTERED)
    told = (Kind.PENDING, Kind.PAIRED, Kind.REJECTED, Kind.REJECTION_DROPPED)
    if registered is None or not case.over or registered.verdict != Verdict.DISCARDED:
        return
    if case.chronicle.first(Role.RENDEZVOUS, *told) is None:
        yield case.finding(
            "vanished_registration",
            [registered.seq],
            "it was registered and neither paired nor rejected before the rendezvous closed",
        )


def call_before_deadline(case: Case) -> Iterator[Finding]:
    """A control call gave up at the deadline that held when it began, though that had moved since (E21)."""
    for role in (Role.SOURCE, Role.DESTINATION):
        deadlines = [
            event
            for event in case.chronicle.of(role, Kind.DEADLINE_SET, Kind.DEADLINE_MOVED)
            if event.name == TimerName.SESSION_DEADLINE
        ]
        for reply in case.chronicle.of(role, Kind.CONTROL_REPLIED):
            called = [e for e in case.chronicle.of(role, Kind.CONTROL_CALLED) if e.seq < reply.seq and _same(e, reply)]
            then = [event for event in deadlines if called and event.seq < called[-1].seq]
            now = [event for event in deadlines if event.seq < reply.seq]
            if not then or OutcomeName.FAILED not in (reply.outcome, reply.payload.get("mapped")):
                continue
            if _expires_ms(then[-1]) <= reply.at_ms < _expires_ms(now[-1]):
                yield case.finding(
                    "call_before_deadline",
                    [called[-1].seq, now[-1].seq, reply.seq],
                    f"{reply.name} gave up at {reply.at_ms:g} ms, the deadline when it was called, which had moved to "
                    f"{_expires_ms(now[-1]):g} ms since",
                )


def _same(called: Event, reply: Event) -> bool:
    return called.name == reply.name and called.action_id == reply.action_id


def _expires_ms(deadline: Event) -> float:
    return float(deadline.payload["expires_ms"])


def not_a_handoff_fault(case: Case) -> Iterator[Finding]:
    """The request ended badly, and its handoff succeeded with every duty discharged."""
    chronicle = case.chronicle
    if chronicle.completion != "success" or any(holding.owed for holding in case.ledger.holdings(chronicle.number)):
        return
    ends = [chronicle.end_of(side) for side in Side if chronicle.session_of(side)]
    if any(end is None or end.name != EndState.SUCCESS for end in ends):
        return
    bad = (TerminalStatus.FAILED.value, TerminalStatus.REJECTED.value)
    ended = [event for event in chronicle.of(Role.WORKER, Kind.REQUEST_ENDED) if event.name in bad]
    for event in [*ended, *case.annotated("request_failed")][:1]:
        yield case.finding(
            "not_a_handoff_fault",
            [event.seq],
            "the request ended badly, and its handoff succeeded with every duty discharged",
        )
