"""Rules about silence: answers and facts that never came, ranks that never reported, peers that are gone.

Silence is the commonest failure and leaves no row of its own. What is missing is told by the coordinator itself: an
action that it ordered and has no outcome for, or, when every action is answered, the fact that it waits for next. An
absence proves something only where the row would have been seen; else the finding is *unknown*.
"""

from collections.abc import Iterator

from handoff.journal.case import Case
from handoff.journal.chronicle import SIDE_OF_ACTION, SIDE_OF_FACT, ActionRecord, Chronicle, Offer, Role
from handoff.journal.coordinator import CANCELS
from handoff.journal.event import Event
from handoff.journal.finding import Finding
from handoff.journal.row_order import before, certainty_of
from handoff.journal.terms import EndState, Kind
from handoff.journal.trigger import Blow
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, Side, Verdict

_SILENCING = (Blow.TIMEOUT, Blow.PEER_LOST)


def lost_outcome(case: Case) -> Iterator[Finding]:
    """An action was ordered, and its outcome never came."""
    for record in case.chronicle.unanswered():
        until = _given_up(case, record)
        if until is None or _settled_otherwise(case, record):
            continue
        rows = [record.seq, *(row.seq for row in _far_half(case.chronicle, record)), until.seq]
        certainty, would_settle = case.silence(record.name)
        yield case.finding(
            "lost_outcome",
            rows,
            f"{record.label} was ordered at {record.at_ms:g} ms and no outcome of it was ever recorded"
            + _which_half(case.chronicle, record),
            certainty,
            would_settle,
            action=record.name,
            action_id=record.action_id,
            side=SIDE_OF_ACTION[record.name].value,
            waited_ms=until.at_ms - record.at_ms,
        )


def _settled_otherwise(case: Case, record: ActionRecord) -> bool:
    """Whether a session's own cleanup did what an unanswered cancel should have done."""
    role = Role(SIDE_OF_ACTION[record.name].value)
    return record.name in CANCELS and any(
        event.name == record.name and event.seq > record.seq
        for event in case.chronicle.of(role, Kind.CLEANUP_REPLIED, Kind.CLEANUP_TIMED_OUT)
    )


def _given_up(case: Case, record: ActionRecord) -> Event | None:
    """The row at which waiting for an action ended without its outcome, or None if that is no loss."""
    trigger, last = case.trigger, case.chronicle.last_event
    if trigger is None or trigger.seq < record.seq:
        later = last.at_ms > record.at_ms and last.seq > record.seq
        return last if case.over or later else None
    if trigger.blow in _SILENCING or record.name in CANCELS:
        return trigger.event
    if case.over and _refused_for_want_of(case, record):
        return trigger.event
    return None


def _refused_for_want_of(case: Case, record: ActionRecord) -> bool:
    """Whether a fact was refused since this action had not been answered, which it never was."""
    early = [fact for fact in case.chronicle.facts if fact.verdict == Verdict.INVALID and fact.seq > record.seq]
    return any(_UNLOCKED_BY.get(FactName(fact.name)) == record.name for fact in early)


def _far_half(chronicle: Chronicle, record: ActionRecord) -> list[Event]:
    """Rows that show how far an unanswered action came on the side that had to carry it out."""
    side = Role(SIDE_OF_ACTION[record.name].value)
    found = chronicle.of(side, Kind.WIRE_RECEIVED, Kind.CONTROL_CALLED, Kind.CONTROL_REPLIED, Kind.WIRE_SENT)
    if side is Role.SOURCE:
        found = [event for event in found if event.kind in (Kind.CONTROL_CALLED, Kind.CONTROL_REPLIED)]
    return [event for event in found if event.action_id == record.action_id and event.seq > record.seq]


def _which_half(chronicle: Chronicle, record: ActionRecord) -> str:
    reached = {event.kind for event in _far_half(chronicle, record)}
    side = SIDE_OF_ACTION[record.name]
    if Kind.WIRE_SENT in reached:
        return f"; the {side} had carried it out and sent its acknowledgement, which never arrived"
    if Kind.CONTROL_REPLIED in reached:
        return f"; the {side}'s engine had answered"
    if Kind.CONTROL_CALLED in reached:
        return f"; the {side}'s engine was told and never answered"
    if Kind.WIRE_RECEIVED in reached:
        return f"; the order reached the {side}"
    return ""


def lost_fact(case: Case) -> Iterator[Finding]:
    """Every action was answered, and the next expected fact is missing past its time."""
    missing = _missing_fact(case)
    if missing is None or (missing is FactName.DESTINATION_RESERVED and _deadline(case) is not None):
        return
    done, ranks = _ranks(case)
    if missing is FactName.TRANSFER_COMPLETED and len(done) < ranks:
        return  # it is not the fact that is lost, but some ranks' part of it
    since, until = unlocking(case.chronicle, missing), _deadline(case) or case.chronicle.last_event
    if case.trigger is not None:
        until = case.trigger.event
    certainty, would_settle = case.silence(missing.value)
    yield case.finding(
        "lost_fact",
        [*([] if since is None else [since.seq]), until.seq],
        f"every action was answered, but the next expected fact, {missing}, never came",
        certainty,
        would_settle,
        fact=missing.value,
        side=SIDE_OF_FACT[missing].value,
        waited_ms=(case.until_ms if case.trigger is None else until.at_ms) - (until if since is None else since).at_ms,
    )


def rendezvous_timeout(case: Case) -> Iterator[Finding]:
    """The destination accepted and did not reserve before the deadline; or a party never met the other."""
    deadline = _deadline(case)
    since = unlocking(case.chronicle, FactName.DESTINATION_RESERVED)
    if deadline is not None and case.trigger is not None and case.trigger.role is Role.RENDEZVOUS:
        yield case.finding(
            "rendezvous_timeout",
            [deadline.seq],
            "one party waited for the other until the rendezvous' deadline",
            stage="never_paired",
        )
        return
    if deadline is not None and since is not None and _missing_fact(case) is FactName.DESTINATION_RESERVED:
        waited_ms = deadline.at_ms - since.at_ms
        yield case.finding(
            "rendezvous_timeout",
            [since.seq, deadline.seq],
            f"the destination accepted the reservation and did not grant it within {waited_ms:g} ms",
            stage="accepted_not_reserved",
            waited_ms=waited_ms,
        )


def deadline_spent_in_queue(case: Case) -> Iterator[Finding]:
    """The reservation was granted so late that the deadline left no time for the transfer."""
    deadline = _deadline(case)
    since = unlocking(case.chronicle, FactName.DESTINATION_RESERVED)
    granted = case.applied_row(FactName.DESTINATION_RESERVED)
    if deadline is None or since is None or granted is None or case.chronicle.fact(FactName.TRANSFER_COMPLETED):
        return
    queued_ms, whole_ms = granted.at_ms - since.at_ms, deadline.at_ms - case.chronicle.opened_at_ms
    if _missing_fact(case) is None and whole_ms > 0.0 and queued_ms > whole_ms / 2:
        yield case.finding(
            "deadline_spent_in_queue",
            [since.seq, granted.seq, deadline.seq],
            f"{queued_ms:g} of the {whole_ms:g} ms until the deadline passed before the reservation was granted",
            queued_ms=queued_ms,
            deadline_ms=whole_ms,
        )


def _deadline(case: Case) -> Event | None:
    trigger = case.trigger
    return trigger.event if trigger is not None and trigger.blow is Blow.TIMEOUT else None


def _missing_fact(case: Case) -> FactName | None:
    """The fact that was due and did not come, when everything else was answered."""
    chronicle, trigger = case.chronicle, case.trigger
    fact = chronicle.awaited_when_struck(None if trigger is None else trigger.seq)
    if fact is None or (trigger is None and not case.over):
        return None
    if trigger is None:
        return fact if _due_ms(chronicle, fact) <= case.until_ms else None
    if trigger.blow is Blow.REFUSED and fact is not None and case.over and chronicle.awaited_fact is fact:
        return fact
    if trigger.blow not in _SILENCING or _arrived(chronicle, fact, trigger.at_ms) is not None:
        return None
    early = trigger.blow is Blow.TIMEOUT and trigger.at_ms < _due_ms(chronicle, fact)
    return None if early else fact


def _due_ms(chronicle: Chronicle, fact: FactName) -> float:
    """When a fact is due: a transfer's completion after its announced delay, any other at once."""
    scheduled = unlocking(chronicle, fact)
    if fact is not FactName.TRANSFER_COMPLETED or scheduled is None:
        return float("-inf")
    record = chronicle.action(ActionName.START_TRANSFER)
    ordered = None if record is None else next((e for e in chronicle.events if e.seq == record.seq), None)
    return scheduled.at_ms + (0.0 if ordered is None else ordered.payload.get("delay_ms") or 0.0)


_UNLOCKED_BY = {
    FactName.SOURCE_HELD: ActionName.SUBMIT_PREFILL,
    FactName.DESTINATION_RESERVED: ActionName.RESERVE_DESTINATION,
    FactName.TRANSFER_COMPLETED: ActionName.START_TRANSFER,
}


def unlocking(chronicle: Chronicle, fact: FactName) -> Offer | None:
    """The outcome after which a fact is to be expected."""
    record = chronicle.action(_UNLOCKED_BY[fact])
    return None if record is None else record.outcome


def _arrived(chronicle: Chronicle, fact: FactName, by_ms: float) -> Offer | None:
    """A fact recorded at or before a time, whatever became of it."""
    return next((offer for offer in chronicle.facts if offer.name == fact and offer.at_ms <= by_ms), None)


def false_timeout(case: Case) -> Iterator[Finding]:
    """The deadline was taken although the awaited fact was there at that instant."""
    trigger = case.trigger
    if trigger is None or trigger.blow is not Blow.TIMEOUT:
        return
    fact = case.chronicle.awaited_when_struck(trigger.seq)
    if fact is None:
        return
    arrived = next((e for e in case.fact_rows if e.name == fact and e.seq > trigger.seq), None)
    if arrived is None:
        return
    earliest = arrived.at_ms if arrived.at_min_ms is None else arrived.at_min_ms
    latest = trigger.at_ms if trigger.event.at_max_ms is None else trigger.event.at_max_ms
    certain = arrived.at_ms <= trigger.at_ms and arrived.at_min_ms is None and trigger.event.at_min_ms is None
    certainty = certainty_of(True if certain else None if earliest <= latest else False)
    if certainty is not None:
        yield case.finding(
            "false_timeout",
            [trigger.seq, arrived.seq],
            f"the deadline was taken at {trigger.at_ms:g} ms, the instant at which {fact} was there",
            certainty,
            fact=fact.value,
        )


def partial_completion(case: Case) -> Iterator[Finding]:
    """Some ranks reported that their part is done, and others never did."""
    done, count = _ranks(case)
    if not count or len(done) >= count or not (case.over or case.trigger):
        return
    missing = [rank for rank in range(count) if rank not in done]
    certainty, would_settle = case.silence("rank_done")
    yield case.finding(
        "partial_completion",
        [event.seq for event in done.values()],
        f"{len(done)} of {count} ranks completed; missing: {', '.join(map(str, missing))}",
        certainty,
        would_settle,
        completed=len(done),
        ranks=count,
        missing=missing,
    )


def activated_before_all_ranks(case: Case) -> Iterator[Finding]:
    """The destination was activated while some rank had not completed."""
    done, count = _ranks(case)
    activated = case.outcome_row(case.chronicle.action(ActionName.ACTIVATE_DESTINATION))
    if not count or activated is None or activated.outcome != OutcomeName.APPLIED:
        return
    late = [event for event in done.values() if before(event, activated) is not True]
    missing = count - len(done)
    if not late and not missing:
        return
    certainty = certainty_of(True if missing else None, *(before(activated, event) for event in late[:1]))
    if not missing:
        certainty = certainty_of(*(before(activated, event) for event in late))
    if certainty is not None:
        yield case.finding(
            "activated_before_all_ranks",
            [activated.seq, *(event.seq for event in late)],
            f"the destination was activated when {count - len(late) - missing} of {count} ranks had completed",
            certainty,
            ranks=count,
            completed=count - len(late) - missing,
        )


def _ranks(case: Case) -> tuple[dict[int, Event], int]:
    """The first completion of each rank, and how many ranks there are."""
    done: dict[int, Event] = {}
    count = 0
    facts = [event for event in case.fact_rows if event.name == FactName.TRANSFER_COMPLETED]
    for event in [*case.annotated("rank_done"), *facts]:
        ranks = case.said(event, "rank_count")
        if event.rank is not None and isinstance(ranks, int):
            count = max(count, ranks)
            done.setdefault(event.rank, event)
    return done, count


def peer_lost(case: Case) -> Iterator[Finding]:
    """The connection to a peer closed or broke, or a session stopped without an end."""
    trigger, chronicle = case.trigger, case.chronicle
    lost = _side_lost(case)
    for side in Side:
        if chronicle.run_over and chronicle.session_of(side) and chronicle.end_of(side) is None:
            last = [event for event in chronicle.events if chronicle.role(event) is Role(side.value)][-1]
            seen = [] if trigger is None or lost != side else [trigger.seq]
            yield case.finding(
                "peer_lost",
                [last.seq, *seen],
                f"the {side}'s session stopped after {last.at_ms:g} ms without an end",
                side=side.value,
                at_ms=last.at_ms,
            )
            if lost == side:
                return
    if trigger is not None and trigger.blow is Blow.PEER_LOST and not _closed_in_order(case, lost):
        yield case.finding("peer_lost", [trigger.seq], trigger.sentence, side=lost, at_ms=trigger.at_ms)


def _side_lost(case: Case) -> str | None:
    """Which side a broken connection led to."""
    trigger = case.trigger
    if trigger is None or trigger.blow is not Blow.PEER_LOST:
        return None
    match trigger.role:
        case Role.SOURCE | Role.RENDEZVOUS:
            return Side.DESTINATION.value
        case Role.DESTINATION:
            return Side.SOURCE.value
        case _:
            side = trigger.event.payload.get("side")
            return None if side is None else str(side)


def _closed_in_order(case: Case, lost: str | None) -> bool:
    """Whether the other side closed the connection because it had ended with success."""
    end = None if lost is None else case.chronicle.end_of(Side(lost))
    assert case.trigger is not None
    return end is not None and end.name == EndState.SUCCESS and end.at_ms <= case.trigger.at_ms


def peer_failure_not_propagated(case: Case) -> Iterator[Finding]:
    """A side fell silent before its cancel was even ordered, and its partner learned it from the deadline alone."""
    trigger = case.trigger
    if trigger is None or trigger.blow is not Blow.TIMEOUT:
        return
    silent = {SIDE_OF_ACTION[r.name] for r in case.chronicle.unanswered() if r.name in CANCELS}
    for record in case.chronicle.unanswered():
        side = SIDE_OF_ACTION[record.name]
        if record.seq < trigger.seq and side in silent:
            waited_ms = trigger.at_ms - record.at_ms
            yield case.finding(
                "peer_failure_not_propagated",
                [record.seq, trigger.seq],
                f"the {side} fell silent after {record.label} was ordered, and nobody was told for {waited_ms:g} ms",
                side=side.value,
                waited_ms=waited_ms,
            )
