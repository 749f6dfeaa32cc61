"""Rules about answers and facts that are there and do not fit: early, twice, different, backwards, uneven.

Most are what the coordinator refuses or passes over; the figures of both sides are compared besides.
"""

from collections.abc import Iterator

from handoff.journal.case import IGNORED, Case, is_rounded_up, window_of
from handoff.journal.chronicle import Role, text_of
from handoff.journal.coordinator_actor import FactOffered
from handoff.journal.event import Event
from handoff.journal.finding import Certainty, Finding
from handoff.journal.row_codec import UnreadableRow, decode
from handoff.journal.row_order import before, certainty_of
from handoff.journal.rules_of_silence import unlocking
from handoff.journal.terms import ActorKind, Kind
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, TimingMode, Verdict


def conflicting_outcome(case: Case) -> Iterator[Finding]:
    """An action was answered twice, differently."""
    for record in case.chronicle.actions.values():
        for offer in record.offers:
            if offer.verdict == Verdict.CONFLICTING and record.outcome is not None:
                yield case.finding(
                    "conflicting_outcome",
                    [record.outcome.seq, offer.seq],
                    f"{record.label} was answered {record.outcome.name}, then {offer.name}",
                    action=record.name,
                    action_id=record.action_id,
                    first=record.outcome.name,
                    second=offer.name,
                )


def outcome_after_complete(case: Case) -> Iterator[Finding]:
    """After the end an answer came that differs from the recorded one, or that nothing had asked for (E13)."""
    known = case.chronicle.actions
    for event in case.chronicle.of(Role.COORDINATOR, Kind.OUTCOME_LATE):
        record = known.get(-1 if event.action_id is None else event.action_id)
        first = None if record is None else record.outcome
        if record is None or (first is not None and first.seq != event.seq and first.name != event.outcome):
            was = "nothing had asked for it" if first is None else f"it had been answered {first.name}"
            yield case.finding(
                "outcome_after_complete",
                [*([] if first is None else [first.seq]), event.seq],
                f"after the end action {event.action_id} was answered {event.outcome}, although {was}",
                action_id=event.action_id,
            )


def reservation_vanished(case: Case) -> Iterator[Finding]:
    """The activation found nothing to activate (E3)."""
    noop = case.answered(ActionName.ACTIVATE_DESTINATION, OutcomeName.NOOP)
    if noop is not None:
        yield case.finding("reservation_vanished", [noop.seq], "the activation was answered noop: nothing was reserved")


def invalid_outcome(case: Case) -> Iterator[Finding]:
    """An action was answered with a kind of outcome that it does not admit (E2)."""
    vanished = case.answered(ActionName.ACTIVATE_DESTINATION, OutcomeName.NOOP)
    for refusal in case.chronicle.refusals:
        if refusal.payload.get("code") == "invalid_outcome":
            offered = refusal.cause or refusal.grp
            if vanished is not None and vanished.seq == offered:
                continue
            yield case.finding(
                "invalid_outcome",
                [offered, refusal.seq],
                f"an action was answered with an outcome that it does not admit ({text_of(refusal)})",
            )


def misrouted_outcome(case: Case) -> Iterator[Finding]:
    """An outcome names another handoff than the one that took it (E7)."""
    kinds = (Kind.OUTCOME_APPLIED, Kind.OUTCOME_CONFLICT, Kind.OUTCOME_DUPLICATE, Kind.OUTCOME_LATE)
    for event in case.chronicle.of(Role.COORDINATOR, *kinds):
        named = case.said(event, "for_handoff")
        if named is not None and named != case.chronicle.handoff_id:
            yield case.finding(
                "misrouted_outcome",
                [event.seq],
                f"the {event.outcome} of action {event.action_id} was meant for handoff {named}",
                meant_for=str(named),
            )


def early_fact(case: Case) -> Iterator[Finding]:
    """A fact came before its acknowledgement, was refused, and was never offered again."""
    for refusal in case.chronicle.refusals:
        if refusal.payload.get("code") != "early_fact":
            continue
        offer = next((fact for fact in case.chronicle.facts if fact.seq == (refusal.cause or refusal.grp)), None)
        if offer is None or case.chronicle.fact(FactName(offer.name)) is not None:
            continue
        acknowledged = unlocking(case.chronicle, FactName(offer.name))
        late_ms = None if acknowledged is None else acknowledged.at_ms - offer.at_ms
        how = "" if late_ms is None else f", {late_ms:g} ms before it"
        same_source = acknowledged is None or before(case.by_seq[offer.seq], case.by_seq[acknowledged.seq])
        yield case.finding(
            "early_fact",
            [offer.seq, refusal.seq, *([] if acknowledged is None else [acknowledged.seq])],
            f"{offer.name} came before the acknowledgement that it depends on{how}, was refused, and never came again",
            certainty_of(same_source) or Certainty.POSSIBLE,
            fact=offer.name,
            early_ms=late_ms,
        )


def transfer_failed(case: Case) -> Iterator[Finding]:
    """The transfer itself was answered with a failure."""
    record = case.chronicle.action(ActionName.START_TRANSFER)
    if record is not None and record.failed and record.outcome is not None:
        yield case.finding(
            "transfer_failed",
            [record.seq, record.outcome.seq],
            f"the transfer was answered with a failure ({record.outcome.message})",
            message=record.outcome.message,
        )


def late_completion_ignored(case: Case) -> Iterator[Finding]:
    """The transfer completed after cleanup had begun; the destination's blocks were kept until then."""
    window, trigger = window_of(case), case.trigger
    if window is None or window.closed is None or trigger is None or window.closed.verdict not in IGNORED:
        return
    freed = next(iter(case.annotated("destination_freed")), None)
    kept = freed is None or not _surely_earlier(freed, window.closed)
    certainty = certainty_of(before(trigger.event, window.closed))
    if kept and certainty is not None:
        late_ms = window.closed.at_ms - trigger.at_ms
        yield case.finding(
            "late_completion_ignored",
            [trigger.seq, window.closed.seq],
            f"the transfer completed {late_ms:g} ms after the handoff had turned to cleanup, and was ignored",
            certainty,
            late_ms=late_ms,
        )


def _surely_earlier(one: Event, other: Event) -> bool:
    """Whether a row's time, not only its place, is before another's: what is freed as a write ends was kept."""
    latest = one.at_ms if one.at_max_ms is None else one.at_max_ms
    return latest < (other.at_ms if other.at_min_ms is None else other.at_min_ms)


def late_fact_after_terminal(case: Case) -> Iterator[Finding]:
    """A fact arrived after the handoff was complete."""
    complete = case.chronicle.action(ActionName.COMPLETE)
    if complete is None:
        return
    for offer in case.chronicle.facts:
        if offer.verdict == Verdict.LATE and offer.seq > complete.seq:
            known = before(case.by_seq[complete.seq], case.by_seq[offer.seq])
            yield case.finding(
                "late_fact_after_terminal",
                [complete.seq, offer.seq],
                f"{offer.name} arrived {offer.at_ms - complete.at_ms:g} ms after the handoff was complete",
                certainty_of(known) or Certainty.POSSIBLE,
                fact=offer.name,
            )


def conflicting_fact(case: Case) -> Iterator[Finding]:
    """A fact was repeated with other figures (E9)."""
    first: dict[str, tuple[Event, object]] = {}
    for event in case.fact_rows:
        figures = _figures(event)
        if event.name is None or figures is None or event.rank is not None:
            continue
        known = first.setdefault(event.name, (event, figures))
        if known[1] != figures:
            yield case.finding(
                "conflicting_fact",
                [known[0].seq, event.seq],
                f"{event.name} was told twice with different figures; the first ones count",
                fact=event.name,
            )


def _figures(event: Event) -> object:
    offered = _offered(event)
    return None if offered is None else (offered.transfer_timing, offered.transferable_prompt_tokens)


def _offered(event: Event) -> FactOffered | None:
    try:
        actor = ActorKind.WITNESS if event.kind == Kind.FACT_OBSERVED else ActorKind.COORDINATOR
        value: FactOffered = decode(event, actor)
    except UnreadableRow:
        return None
    return value


def state_regression(case: Case) -> Iterator[Finding]:
    """A source told of an earlier state after a later one: a hold or reservation after its own completion."""
    if case.chronicle.actions:
        return  # a coordinator's order is checked where its facts are taken
    completed = next((event for event in case.fact_rows if event.name == FactName.TRANSFER_COMPLETED), None)
    for event in case.fact_rows:
        earlier_state = event.name in (FactName.SOURCE_HELD, FactName.DESTINATION_RESERVED)
        if completed is not None and earlier_state and event.source == completed.source and event.seq > completed.seq:
            yield case.finding(
                "state_regression",
                [completed.seq, event.seq],
                f"{event.name} was reported after {completed.name}",
                fact=event.name,
            )


def terminal_not_sticky(case: Case) -> Iterator[Finding]:
    """A handoff that somebody else's system had failed was carried on to a success."""
    if case.chronicle.actions:
        return
    ends = (FactName.FAILED, FactName.TIMED_OUT, FactName.CANCELED)
    ended = next((event for event in case.fact_rows if event.name in ends), None)
    if ended is None:
        return
    carried_on = [event for event in case.fact_rows if event.name == FactName.TRANSFER_COMPLETED]
    carried_on += case.annotated("destination_finished")
    for event in carried_on:
        certainty = certainty_of(before(ended, event))
        if certainty is not None:
            what = event.name or event.payload.get("resource")
            sentence = f"after it had {ended.name} the handoff went on to {what}"
            yield case.finding("terminal_not_sticky", [ended.seq, event.seq], sentence, certainty)
            return


def token_mismatch(case: Case) -> Iterator[Finding]:
    """The destination lacks more tokens than the source's prompt has (E12 where they are charged for)."""
    held, reserved = case.applied_row(FactName.SOURCE_HELD), case.applied_row(FactName.DESTINATION_RESERVED)
    one, other = (None if event is None else _offered(event) for event in (held, reserved))
    if held is None or reserved is None or one is None or other is None or one.transfer_timing is None:
        return
    if _is_inferred(one) or _is_inferred(other):
        return
    timing, missing = one.transfer_timing, other.transferable_prompt_tokens or 0
    if is_rounded_up(missing, timing.full_prompt_tokens):
        return
    charged = timing.mode is TimingMode.DESTINATION_MISSING and _is_longer(timing, missing)
    yield case.finding(
        "transfer_delay_unbounded" if charged else "token_mismatch",
        [held.seq, reserved.seq],
        f"the destination lacks {missing} tokens of a prompt that has {timing.full_prompt_tokens}",
        prompt_tokens=timing.full_prompt_tokens,
        missing_tokens=missing,
    )


def _is_longer(timing: TransferTiming, missing: int) -> bool:
    whole, delay = timing.full_prompt_delay_ms(), timing.delay_ms(missing)
    return whole is not None and delay is not None and not delay <= whole


def _is_inferred(offered: FactOffered) -> bool:
    return bool(offered.extra and "inferred" in offered.extra)


_COUNTS = (("expected_tokens", "held_tokens"), ("expected_tokens", "moved_tokens"), ("held_tokens", "moved_tokens"))


def short_transfer(case: Case) -> Iterator[Finding]:
    """Fewer tokens were held or moved than were expected, and nothing failed."""
    said: dict[str, tuple[int, Event]] = {}
    for event in case.chronicle.events:
        for word in ("expected_tokens", "held_tokens", "moved_tokens"):
            tokens = case.said(event, word) if event.payload_json and word in event.payload_json else None
            if isinstance(tokens, int):
                said.setdefault(word, (tokens, event))
    for more, fewer in _COUNTS:
        if more in said and fewer in said and said[fewer][0] < said[more][0]:
            yield case.finding(
                "short_transfer",
                [said[more][1].seq, said[fewer][1].seq],
                f"{said[more][0]} tokens were {more.partition('_')[0]}, and {said[fewer][0]} {fewer.partition('_')[0]}",
                expected=said[more][0],
                actual=said[fewer][0],
            )
            return
