"""Rules about giving up: cancels and releases that failed, did nothing, came twice or never, and what is left."""

from collections.abc import Iterator

from handoff.journal.case import Case
from handoff.journal.chronicle import SIDE_OF_ACTION, ActionRecord, Chronicle, Role, text_of
from handoff.journal.coordinator import CANCELS
from handoff.journal.event import Event
from handoff.journal.finding import Certainty, Finding
from handoff.journal.ledger import Asset, Holding, HoldingState
from handoff.journal.row_order import before, certainty_of
from handoff.journal.terms import Kind
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, Side, Verdict


def cleanup_failed(case: Case) -> Iterator[Finding]:
    """A cancel was answered with a failure, or not within its limit (E1, E18)."""
    for record in case.chronicle.actions.values():
        if record.name in CANCELS and record.failed and record.outcome is not None:
            yield case.finding(
                "cleanup_failed",
                [record.seq, record.outcome.seq],
                f"{record.label} was answered with a failure ({record.outcome.message}); it is not repeated, so its "
                f"{SIDE_OF_ACTION[record.name]} stays uncleaned",
                action=record.name,
                action_id=record.action_id,
                side=SIDE_OF_ACTION[record.name].value,
            )
    for role in (Role.SOURCE, Role.DESTINATION):
        for event in case.chronicle.of(role, Kind.CLEANUP_REPLIED, Kind.CLEANUP_TIMED_OUT):
            if event.kind == Kind.CLEANUP_TIMED_OUT or event.outcome == OutcomeName.FAILED:
                how = "did not answer within its limit" if event.outcome is None else f"failed ({text_of(event)})"
                yield case.finding(
                    "cleanup_failed",
                    [event.seq],
                    f"the cleanup of the {role} side {how}, and nobody repeats it",
                    side=role.value,
                )


def source_hold_leak(case: Case) -> Iterator[Finding]:
    """Source blocks are held after the end, or only their lease freed them."""
    yield from _leak(case, Asset.SOURCE_KV, "source_hold_leak", "source_held", "source_freed")
    for event in case.annotated("source_lease_expired"):
        held = next(iter(case.annotated("source_held")), None)
        held_ms = event.at_ms - (event if held is None else held).at_ms
        yield case.finding(
            "source_hold_leak",
            [*([] if held is None else [held.seq]), event.seq],
            f"nobody gave the source's KV up: only its lease freed it, after {held_ms:g} ms",
            blocks=event.payload.get("blocks"),
            held_ms=held_ms,
        )


def dest_reservation_leak(case: Case) -> Iterator[Finding]:
    """Destination blocks are reserved after the end."""
    yield from _leak(case, Asset.DESTINATION_KV, "dest_reservation_leak", "destination_blocks", "destination_freed")


_OWNED = {
    (Asset.SOURCE_KV, HoldingState.HELD): "the source's KV is still held",
    (Asset.SOURCE_KV, HoldingState.POSSIBLE): "the source may hold KV: it was asked to, and never canceled or released",
    (Asset.DESTINATION_KV, HoldingState.HELD): "the destination's reservation is still there",
    (Asset.DESTINATION_KV, HoldingState.POSSIBLE): "the destination may hold a reservation that nobody canceled",
}


def _leak(case: Case, asset: Asset, code: str, holding_it: str, giving_up: str) -> Iterator[Finding]:
    if not case.over or not (case.chronicle.actions or case.annotations.get(holding_it)):
        return  # a witness's facts alone never tell of the giving up
    for holding in case.ledger.holdings(case.chronicle.number):
        if holding.asset is asset and holding.owed:
            yield _leak_of(case, holding, code, giving_up)


def _leak_of(case: Case, holding: Holding, code: str, giving_up: str) -> Finding:
    held_ms = case.until_ms - holding.since_ms
    certainty, would_settle = case.silence(giving_up)
    if holding.state is not HoldingState.HELD:
        certainty = Certainty.POSSIBLE
        would_settle = f"the {holding.side}'s answer to a cancel, or its pool's level at the end"
    blocks = "" if holding.blocks is None else f" ({len(holding.blocks)} blocks)"
    return case.finding(
        code,
        [holding.since_seq, case.chronicle.last_event.seq],
        f"{_OWNED[holding.asset, holding.state]}{blocks} {held_ms:g} ms later, when its rows end",
        certainty,
        would_settle,
        blocks=None if holding.blocks is None else list(holding.blocks),
        held_ms=held_ms,
        duty=holding.duty,
    )


def release_without_effect(case: Case) -> Iterator[Finding]:
    """The release of a successful handoff was answered noop (E4): the hold was there still, or gone already."""
    record = case.chronicle.action(ActionName.RELEASE_SOURCE)
    if record is None or case.chronicle.completion == "canceled":
        return
    noop = _raw_noop(case.chronicle, record)
    if noop is None:
        return
    freed_later = [e for e in case.annotated("source_lease_expired", "source_freed") if e.seq > noop]
    holds = case.ledger.holdings(case.chronicle.number)
    if freed_later or any(holding.asset is Asset.SOURCE_KV for holding in holds):
        yield case.finding(
            "release_not_applied",
            [record.seq, noop, *(event.seq for event in freed_later[:1])],
            "the release was delivered and changed nothing: the source still held its KV",
        )
    else:
        yield case.finding(
            "release_noop",
            [record.seq, noop],
            "the source's hold was gone before it was released, so the transfer may have read freed blocks",
            Certainty.UNKNOWN,
            "block ids at hold, transfer and free, as resource rows",
        )


def _raw_noop(chronicle: Chronicle, record: ActionRecord) -> int | None:
    """The row in which an action was first answered, by its engine or by its outcome, if that was noop."""
    for event in chronicle.events:
        answered = event.kind in (Kind.ENGINE_ANSWERED, Kind.CONTROL_REPLIED) and event.name == record.name
        if answered and event.seq > record.seq:
            return event.seq if event.outcome == OutcomeName.NOOP else None
    outcome = record.outcome
    return outcome.seq if outcome is not None and outcome.name == OutcomeName.NOOP else None


def release_applied_in_name(case: Case) -> Iterator[Finding]:
    """The release was answered applied, and the blocks were freed by their lease or not at all."""
    applied = case.answered(ActionName.RELEASE_SOURCE, OutcomeName.APPLIED)
    if applied is None or not case.annotated("source_held") or case.annotated("source_freed"):
        return
    expired = case.annotated("source_lease_expired")
    if not expired and not (case.over and case.observers.could_show("source_freed")):
        return
    yield case.finding(
        "release_not_applied",
        [applied.seq, *(event.seq for event in expired[:1])],
        "the release was answered applied, and the source still held its KV",
    )


def double_release(case: Case) -> Iterator[Finding]:
    """A release and a cancel of one hold were both answered (E16)."""
    release = case.chronicle.action(ActionName.RELEASE_SOURCE)
    cancel = case.chronicle.action(ActionName.CANCEL_SOURCE)
    if release is None or cancel is None or release.outcome is None or cancel.outcome is None:
        return
    answers = {release.outcome.name, cancel.outcome.name}
    rows = sorted([release.outcome.seq, cancel.outcome.seq])
    if answers == {OutcomeName.APPLIED.value, OutcomeName.NOOP.value}:
        sentence = "the source's hold was given up twice; the second time did nothing"
        yield case.finding("double_release_benign", rows, sentence)
    elif answers == {OutcomeName.APPLIED.value}:
        sentence = "the source's hold was given up twice, and both were carried out"
        yield case.finding("double_release_real", rows, sentence)


def freed_twice(case: Case) -> Iterator[Finding]:
    """The same blocks were freed twice without having been held in between."""
    for held_name, freed_names, side in (
        ("source_held", ("source_freed", "source_lease_expired"), Side.SOURCE),
        ("destination_blocks", ("destination_freed", "destination_finished"), Side.DESTINATION),
    ):
        freed: Event | None = None
        for event in case.annotated(held_name, *freed_names):
            if event.payload.get("resource") == held_name or event.rank is not None:
                freed = None
            elif freed is None:
                freed = event
            else:
                sentence = f"the {side}'s blocks were freed twice"
                yield case.finding("double_release_real", [freed.seq, event.seq], sentence, side=side.value)


def unpropagated_cancel(case: Case) -> Iterator[Finding]:
    """The handoff was canceled, the source was never told, and it went on."""
    ends = (FactName.FAILED, FactName.TIMED_OUT, FactName.CANCELED)
    ended = next((event for event in case.fact_rows if event.name in ends), None)
    chronicle = case.chronicle
    if ended is None or chronicle.action(ActionName.CANCEL_SOURCE) is not None or chronicle.session_of(Side.SOURCE):
        return
    went_on = [
        event
        for event in [*case.annotated("source_held"), *case.fact_rows]
        if FactName.SOURCE_HELD in (event.name, event.payload.get("resource"))
    ]
    for event in went_on:
        certainty = certainty_of(before(ended, event))
        if certainty is not None:
            wasted_ms = event.at_ms - ended.at_ms
            yield case.finding(
                "unpropagated_cancel",
                [ended.seq, event.seq],
                f"the source went on for {wasted_ms:g} ms after the handoff had {ended.name}, and was never canceled",
                certainty,
                wasted_ms=wasted_ms,
            )
            return


def hold_after_cleanup(case: Case) -> Iterator[Finding]:
    """The source reported a hold after its cancel had been answered (E11)."""
    cancel = case.outcome_row(case.chronicle.action(ActionName.CANCEL_SOURCE))
    if cancel is None or cancel.outcome not in (OutcomeName.NOOP, OutcomeName.APPLIED):
        return
    rows = [event for event in case.fact_rows if event.name == FactName.SOURCE_HELD]
    for event in rows[:1]:
        certainty = certainty_of(before(cancel, event))
        if certainty is not None:
            yield case.finding(
                "hold_after_cleanup",
                [cancel.seq, event.seq],
                f"the source reported a hold after its cancel had been answered {cancel.outcome}",
                certainty,
            )


def healthy_decode_canceled(case: Case) -> Iterator[Finding]:
    """Cleanup canceled a destination that had been activated (E8, E10)."""
    activated = case.answered(ActionName.ACTIVATE_DESTINATION, OutcomeName.APPLIED)
    cancel = case.chronicle.action(ActionName.CANCEL_DESTINATION)
    if activated is None or cancel is None or cancel.seq < activated.seq:
        return
    release = case.chronicle.action(ActionName.RELEASE_SOURCE)
    released_badly = release is not None and release.failed
    why = "a failed release" if released_badly else "the cleanup"
    yield case.finding(
        "healthy_decode_canceled",
        [activated.seq, cancel.seq],
        f"{why} canceled a destination that was active; tokens may have reached the client",
        after_failed_release=released_badly,
    )


def complete_with_loose_ends(case: Case) -> Iterator[Finding]:
    """The handoff was completed while an order was unanswered (E5)."""
    complete = case.chronicle.action(ActionName.COMPLETE)
    if complete is None:
        return
    for record in case.chronicle.actions.values():
        open_then = not any(offer.verdict != Verdict.LATE for offer in record.offers)
        if record.seq < complete.seq and record.name in CANCELS and (open_then or record.failed):
            yield case.finding(
                "complete_with_loose_ends",
                [record.seq, complete.seq],
                f"the handoff was completed while {record.label} was {'failed' if record.failed else 'unanswered'}",
                action=record.name,
            )


def action_after_complete(case: Case) -> Iterator[Finding]:
    """An action was ordered after the end (E6)."""
    complete = case.chronicle.action(ActionName.COMPLETE)
    for record in case.chronicle.actions.values():
        if complete is not None and record.seq > complete.seq:
            yield case.finding(
                "action_after_complete",
                [complete.seq, record.seq],
                f"{record.label} was ordered after the handoff was complete",
                action=record.name,
            )


def lease_overdue(case: Case) -> Iterator[Finding]:
    """A lease was over, and the blocks were freed late or never."""
    deadline_ms, held = _lease(case)
    if held is None or deadline_ms is None:
        return
    freed = next(iter(case.annotated("source_freed", "source_lease_expired")), None)
    until_ms = case.until_ms if freed is None else freed.at_ms
    if freed is None and not case.over:
        return
    overdue_ms = until_ms - deadline_ms
    doubt_ms = _doubt_ms(held) + (0.0 if freed is None else _doubt_ms(freed))
    if overdue_ms > 0.0:
        certainty, would_settle = case.silence("source_lease_expired")
        yield case.finding(
            "lease_overdue",
            [held.seq, *([] if freed is None else [freed.seq])],
            f"the lease ended at {deadline_ms:g} ms and the blocks were "
            + (f"freed {overdue_ms:g} ms later" if freed is not None else f"still held {overdue_ms:g} ms later"),
            certainty if overdue_ms > doubt_ms else Certainty.POSSIBLE,
            would_settle,
            overdue_ms=overdue_ms,
        )


def clock_domain_skew(case: Case) -> Iterator[Finding]:
    """A lease was ended by another clock than the one that its deadline was read from, and too early."""
    deadline_ms, held = _lease(case)
    expired = next(iter(case.annotated("source_lease_expired")), None)
    if held is None or deadline_ms is None or expired is None:
        return
    clocks = (
        case.said(held, "clock") or case.observers.clock_of(held),
        case.said(expired, "clock") or case.observers.clock_of(expired),
    )
    early_ms = deadline_ms - expired.at_ms
    if clocks[0] != clocks[1] and early_ms > _doubt_ms(held) + _doubt_ms(expired):
        yield case.finding(
            "clock_domain_skew",
            [held.seq, expired.seq],
            f"the lease was given until {deadline_ms:g} ms on clock {clocks[0]} and ended {early_ms:g} ms early on "
            f"clock {clocks[1]}",
            skew_ms=early_ms,
        )


def _lease(case: Case) -> tuple[float | None, Event | None]:
    """Until when the source's hold was given, counting renewals, and the row that gave it last."""
    rows = [e for e in case.annotated("source_held", "lease_renewed") if e.payload.get("lease_deadline_ms") is not None]
    if not rows:
        return None, None
    return max(event.payload["lease_deadline_ms"] for event in rows), rows[-1]


def _doubt_ms(event: Event) -> float:
    if event.at_min_ms is None or event.at_max_ms is None:
        return 0.0
    return event.at_max_ms - event.at_min_ms
