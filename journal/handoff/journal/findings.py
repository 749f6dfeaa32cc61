"""Findings: what is wrong with a handoff, each one a small rule over its rows.

A rule looks at one handoff's `Case` and yields findings; `RULES` is the table of all of them. A finding names the rows
that prove it and has a stable code. Rules read what happened, never what a scenario injected, and never advise: a
deadline that fired is not explained by being short.

Several findings may tell of one trouble. `EXPLAINS` says which code brings about which others; `link` makes each
finding point to the one that it follows from, so that those without such a pointer are the root causes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from attrs import evolve, frozen

from handoff.journal.chronicle import SIDE_OF_ACTION, SIDE_OF_FACT, ActionRecord, Chronicle, Offer, Role, text_of
from handoff.journal.coordinator import CANCELS
from handoff.journal.event import Event
from handoff.journal.ledger import Asset, Holding, HoldingState, Ledger
from handoff.journal.terms import Kind
from handoff.journal.trigger import Blow, Trigger, trigger_of
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, Side, Verdict


class Certainty(StrEnum):
    """How far the rows carry a finding."""

    PROVED = "proved"
    """It holds in every order that the rows' times and sources allow."""
    POSSIBLE = "possible"
    """It holds in some order."""
    UNKNOWN = "unknown"
    """The row that would decide it was not observable."""


@frozen
class Finding:
    """One thing that is wrong.

    Attributes:
        code: its stable name.
        certainty: how far the rows carry it.
        handoffs: names of the handoffs it is about.
        rows: numbers of the rows that prove it.
        sentence: it in words, with its rows.
        fields: figures of it.
        consequence_of: index of the finding that it follows from, or None for a root cause.
        would_settle: what to record so that it could be decided.
    """

    code: str
    certainty: Certainty
    handoffs: tuple[str, ...]
    rows: tuple[int, ...]
    sentence: str
    fields: Mapping[str, Any]
    consequence_of: int | None = None
    would_settle: str | None = None


@frozen
class Case:
    """What the rules look at: a handoff's rows, what it owns at the end, and what struck it first."""

    chronicle: Chronicle
    ledger: Ledger
    trigger: Trigger | None

    @property
    def over(self) -> bool:
        """Whether nothing more can come for this handoff."""
        sides = [side for side in Side if self.chronicle.session_of(side)]
        ended = bool(sides) and all(self.chronicle.end_of(side) is not None for side in sides)
        return self.chronicle.run_over or ended

    def finding(
        self,
        code: str,
        rows: Sequence[int],
        sentence: str,
        certainty: Certainty = Certainty.PROVED,
        would_settle: str | None = None,
        **fields: Any,
    ) -> Finding:
        """A finding about this handoff; the rows are cited at the sentence's end."""
        cited = " ".join(f"[#{row}]" for row in rows)
        name = self.chronicle.handoff_id
        return Finding(code, certainty, (name,), tuple(rows), f"{sentence} {cited}", fields, None, would_settle)


def case_of(chronicle: Chronicle) -> Case:
    """Prepare a handoff for the rules."""
    ledger = Ledger()
    for event in chronicle.events:
        ledger.apply(event)
    return Case(chronicle, ledger, trigger_of(chronicle))


# -- silence: answers and facts that never came --------------------------------------------------------------------


def _lost_outcome(case: Case) -> Iterator[Finding]:
    for record in case.chronicle.unanswered():
        until = _given_up(case, record)
        if until is None:
            continue
        rows = [record.seq, *(row.seq for row in _far_half(case.chronicle, record)), until.seq]
        waited_ms = until.at_ms - record.at_ms
        yield case.finding(
            "lost_outcome",
            list(dict.fromkeys(rows)),
            f"{record.label} was ordered at {record.at_ms:g} ms and no outcome of it was ever recorded"
            + _which_half(case.chronicle, record),
            action=record.name,
            action_id=record.action_id,
            side=SIDE_OF_ACTION[record.name].value,
            waited_ms=waited_ms,
        )


def _given_up(case: Case, record: ActionRecord) -> Event | None:
    """The row at which waiting for an action ended without its outcome, or None if that is no loss."""
    trigger, last = case.trigger, case.chronicle.last_event
    cancel = record.name in CANCELS
    if trigger is None or trigger.seq < record.seq:
        later = last.at_ms > record.at_ms and last.seq > record.seq
        return last if case.over or later else None
    if trigger.blow in (Blow.TIMEOUT, Blow.PEER_LOST) or cancel:
        return trigger.event
    return None


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


def _lost_fact(case: Case) -> Iterator[Finding]:
    chronicle, trigger = case.chronicle, case.trigger
    fact = chronicle.awaited_when_struck(None if trigger is None else trigger.seq)
    if fact is None or (trigger is not None and trigger.blow not in (Blow.TIMEOUT, Blow.PEER_LOST)):
        return
    if trigger is None and not case.over:
        return
    if trigger is not None and _arrived(chronicle, fact, trigger.at_ms) is not None:
        return
    since = _unlocking(chronicle, fact)
    until = chronicle.last_event if trigger is None else trigger.event
    rows = list(dict.fromkeys([*([] if since is None else [since.seq]), until.seq]))
    queued = fact is FactName.DESTINATION_RESERVED and trigger is not None and trigger.blow is Blow.TIMEOUT
    waited_ms = until.at_ms - (until if since is None else since).at_ms
    if queued:
        yield case.finding(
            "rendezvous_timeout",
            rows,
            f"the destination accepted the reservation and did not grant it within {waited_ms:g} ms",
            stage="accepted_not_reserved",
            waited_ms=waited_ms,
        )
    else:
        yield case.finding(
            "lost_fact",
            rows,
            f"every action was answered, but the next expected fact, {fact}, never came",
            fact=fact.value,
            side=SIDE_OF_FACT[fact].value,
            waited_ms=waited_ms,
        )


_UNLOCKED_BY = {
    FactName.SOURCE_HELD: ActionName.SUBMIT_PREFILL,
    FactName.DESTINATION_RESERVED: ActionName.RESERVE_DESTINATION,
    FactName.TRANSFER_COMPLETED: ActionName.START_TRANSFER,
}


def _unlocking(chronicle: Chronicle, fact: FactName) -> Offer | None:
    """The outcome after which a fact was to be expected."""
    record = chronicle.action(_UNLOCKED_BY[fact])
    return None if record is None else record.outcome


def _arrived(chronicle: Chronicle, fact: FactName, by_ms: float) -> Offer | None:
    """A fact recorded at or before a time, whatever became of it."""
    return next((offer for offer in chronicle.facts if offer.name == fact and offer.at_ms <= by_ms), None)


def _false_timeout(case: Case) -> Iterator[Finding]:
    trigger = case.trigger
    if trigger is None or trigger.blow is not Blow.TIMEOUT:
        return
    fact = case.chronicle.awaited_when_struck(trigger.seq)
    if fact is None:
        return
    arrived = _arrived(case.chronicle, fact, trigger.at_ms)
    if arrived is not None and arrived.seq > trigger.seq:
        yield case.finding(
            "false_timeout",
            [trigger.seq, arrived.seq],
            f"the deadline was taken at {trigger.at_ms:g} ms, the instant at which {fact} was there",
            fact=fact.value,
        )


def _peer_lost(case: Case) -> Iterator[Finding]:
    trigger = case.trigger
    if trigger is None or trigger.blow is not Blow.PEER_LOST:
        return
    lost = trigger.event.payload.get("side")
    if trigger.role in (Role.SOURCE, Role.DESTINATION):
        lost = (Side.DESTINATION if trigger.role is Role.SOURCE else Side.SOURCE).value
    yield case.finding("peer_lost", [trigger.seq], trigger.sentence, side=lost, at_ms=trigger.at_ms)


def _peer_failure_not_propagated(case: Case) -> Iterator[Finding]:
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


# -- answers and facts that do not fit ------------------------------------------------------------------------------


def _conflicting_outcome(case: Case) -> Iterator[Finding]:
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


def _invalid_outcome(case: Case) -> Iterator[Finding]:
    for refusal in case.chronicle.refusals:
        if refusal.payload.get("code") == "invalid_outcome":
            yield case.finding(
                "invalid_outcome",
                [refusal.grp, refusal.seq],
                f"an action was answered with an outcome that it does not admit ({text_of(refusal)})",
            )


def _early_fact(case: Case) -> Iterator[Finding]:
    for refusal in case.chronicle.refusals:
        if refusal.payload.get("code") != "early_fact":
            continue
        offer = next((fact for fact in case.chronicle.facts if fact.seq == (refusal.cause or refusal.grp)), None)
        if offer is None or case.chronicle.fact(FactName(offer.name)) is not None:
            continue
        unlocking = _unlocking(case.chronicle, FactName(offer.name))
        late_ms = None if unlocking is None else unlocking.at_ms - offer.at_ms
        how = "" if late_ms is None else f", {late_ms:g} ms before it"
        yield case.finding(
            "early_fact",
            [offer.seq, refusal.seq, *([] if unlocking is None else [unlocking.seq])],
            f"{offer.name} came before the acknowledgement that it depends on{how}, was refused, and never came again",
            fact=offer.name,
            early_ms=late_ms,
        )


def _late_completion(case: Case) -> Iterator[Finding]:
    ignored = (Verdict.IGNORED_IN_CLEANUP, Verdict.LATE)
    for offer in case.chronicle.facts:
        if offer.name != FactName.TRANSFER_COMPLETED or offer.verdict not in ignored:
            continue
        if case.trigger is not None and offer.at_ms > case.trigger.at_ms:
            late_ms = offer.at_ms - case.trigger.at_ms
            yield case.finding(
                "late_completion_ignored",
                [case.trigger.seq, offer.seq],
                f"the transfer completed {late_ms:g} ms after the handoff had turned to cleanup, and was ignored",
                late_ms=late_ms,
            )


def _transfer_failed(case: Case) -> Iterator[Finding]:
    record = case.chronicle.action(ActionName.START_TRANSFER)
    if record is not None and record.failed and record.outcome is not None:
        yield case.finding(
            "transfer_failed",
            [record.seq, record.outcome.seq],
            f"the transfer was answered with a failure ({record.outcome.message})",
            message=record.outcome.message,
        )


# -- cleanup and ownership ------------------------------------------------------------------------------------------


def _cleanup_failed(case: Case) -> Iterator[Finding]:
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


def _source_hold_leak(case: Case) -> Iterator[Finding]:
    yield from _leak(case, Asset.SOURCE_KV, "source_hold_leak")
    for event in case.chronicle.resources("source_lease_expired"):
        held = next(iter(case.chronicle.resources("source_held")), None)
        held_ms = event.at_ms - (event if held is None else held).at_ms
        yield case.finding(
            "source_hold_leak",
            [*([] if held is None else [held.seq]), event.seq],
            f"nobody gave the source's KV up: only its lease freed it, after {held_ms:g} ms",
            blocks=event.payload.get("blocks"),
            held_ms=held_ms,
        )


def _dest_reservation_leak(case: Case) -> Iterator[Finding]:
    yield from _leak(case, Asset.DESTINATION_KV, "dest_reservation_leak")


_OWNED = {
    (Asset.SOURCE_KV, HoldingState.HELD): "the source's KV is still held",
    (Asset.SOURCE_KV, HoldingState.POSSIBLE): "the source may hold KV: it was asked to, and never canceled or released",
    (Asset.DESTINATION_KV, HoldingState.HELD): "the destination's reservation is still there",
    (Asset.DESTINATION_KV, HoldingState.POSSIBLE): "the destination may hold a reservation that nobody canceled",
}


def _leak(case: Case, asset: Asset, code: str) -> Iterator[Finding]:
    if not case.over:
        return
    until_ms = max(case.chronicle.run_until_ms, case.chronicle.last_event.at_ms)
    for holding in case.ledger.holdings(case.chronicle.number):
        if holding.asset is asset and holding.owed:
            yield _leak_of(case, holding, code, until_ms)


def _leak_of(case: Case, holding: Holding, code: str, until_ms: float) -> Finding:
    held_ms = until_ms - holding.since_ms
    certain = holding.state is HoldingState.HELD
    blocks = "" if holding.blocks is None else f" ({len(holding.blocks)} blocks)"
    last = case.chronicle.last_event.seq
    return case.finding(
        code,
        list(dict.fromkeys([holding.since_seq, last])),
        f"{_OWNED[holding.asset, holding.state]}{blocks} {held_ms:g} ms later, when its rows end",
        Certainty.PROVED if certain else Certainty.POSSIBLE,
        None if certain else f"the {holding.side}'s answer to a cancel, or its pool's level at the end",
        blocks=None if holding.blocks is None else list(holding.blocks),
        held_ms=held_ms,
        duty=holding.duty,
    )


def _release_noop(case: Case) -> Iterator[Finding]:
    record = case.chronicle.action(ActionName.RELEASE_SOURCE)
    if record is None or case.chronicle.completion == "canceled":
        return
    noop = _raw_noop(case.chronicle, record)
    if noop is None:
        return
    kept = bool(case.chronicle.resources("source_lease_expired")) or any(
        holding.asset is Asset.SOURCE_KV for holding in case.ledger.holdings(case.chronicle.number)
    )
    if kept:
        yield case.finding(
            "release_not_applied",
            [record.seq, noop],
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
    """The row in which an action was answered noop, by its engine or by its outcome."""
    for event in chronicle.events:
        answered = event.kind in (Kind.ENGINE_ANSWERED, Kind.CONTROL_REPLIED) and event.name == record.name
        if answered and event.seq > record.seq and event.outcome == OutcomeName.NOOP:
            return event.seq
    outcome = record.outcome
    return outcome.seq if outcome is not None and outcome.name == OutcomeName.NOOP else None


def _double_release(case: Case) -> Iterator[Finding]:
    release = case.chronicle.action(ActionName.RELEASE_SOURCE)
    cancel = case.chronicle.action(ActionName.CANCEL_SOURCE)
    if release is None or cancel is None or release.outcome is None or cancel.outcome is None:
        return
    answers = {release.outcome.name, cancel.outcome.name}
    rows = [release.outcome.seq, cancel.outcome.seq]
    if answers == {OutcomeName.APPLIED.value, OutcomeName.NOOP.value}:
        sentence = "the source's hold was given up twice; the second time did nothing"
        yield case.finding("double_release_benign", rows, sentence)
    elif answers == {OutcomeName.APPLIED.value}:
        yield case.finding(
            "double_release_real", rows, "the source's hold was given up twice, and both were carried out"
        )


def _split_verdict(case: Case) -> Iterator[Finding]:
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


# -- ends -----------------------------------------------------------------------------------------------------------

_ENDS = {
    Blow.CANCELED: "canceled",
    Blow.SHUTDOWN: "canceled",
    Blow.REJECTED: "rejected",
}


def _ended_badly(case: Case) -> Iterator[Finding]:
    trigger = case.trigger
    if trigger is None or trigger.blow in (Blow.PEER_LOST, Blow.REFUSED):
        return
    yield case.finding(
        _ENDS.get(trigger.blow, "failed"),
        [trigger.seq],
        f"the handoff did not succeed: {trigger.sentence}",
        trigger=trigger.blow.value,
        message=trigger.text,
    )


Rule = Callable[[Case], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    _peer_lost, _peer_failure_not_propagated, _early_fact, _conflicting_outcome, _invalid_outcome, _transfer_failed,
    _false_timeout, _lost_outcome, _lost_fact, _late_completion, _cleanup_failed, _release_noop, _double_release,
    _split_verdict, _source_hold_leak, _dest_reservation_leak,
)  # fmt: skip
"""Every rule over one handoff, in the order in which its findings are listed."""

EXPLAINS: dict[str, frozenset[str]] = {
    "peer_lost": frozenset(
        {"lost_outcome", "lost_fact", "source_hold_leak", "dest_reservation_leak", "split_verdict", "cleanup_failed"}
    ),
    "peer_failure_not_propagated": frozenset({"lost_outcome", "source_hold_leak", "dest_reservation_leak"}),
    "early_fact": frozenset({"lost_fact", "lost_outcome", "source_hold_leak", "dest_reservation_leak"}),
    "conflicting_outcome": frozenset({"source_hold_leak", "dest_reservation_leak", "split_verdict"}),
    "invalid_outcome": frozenset({"conflicting_outcome", "source_hold_leak", "dest_reservation_leak"}),
    "false_timeout": frozenset({"late_completion_ignored", "split_verdict"}),
    "lost_outcome": frozenset(
        {
            "double_release_benign",
            "source_hold_leak",
            "dest_reservation_leak",
            "split_verdict",
            "late_completion_ignored",
        }
    ),
    "lost_fact": frozenset({"source_hold_leak", "dest_reservation_leak", "late_completion_ignored", "split_verdict"}),
    "cleanup_failed": frozenset({"source_hold_leak", "dest_reservation_leak"}),
    "transfer_failed": frozenset({"split_verdict"}),
    "failed": frozenset({"cleanup_failed", "late_completion_ignored", "split_verdict", "double_release_benign"}),
    "canceled": frozenset({"cleanup_failed", "late_completion_ignored", "split_verdict", "double_release_benign"}),
}
"""Which findings follow from a finding of which code; a leak follows from the cleanup that failed, and so on."""


def findings_of(chronicle: Chronicle) -> tuple[Finding, ...]:
    """Everything that is wrong with one handoff; nothing for a healthy one."""
    case = case_of(chronicle)
    found = [finding for rule in RULES for finding in rule(case)]
    if not any(_tells_why(finding, case.trigger) for finding in found):
        found = [*_ended_badly(case), *found]
    return link(found)


_CAUSES_OF_FAILURE = frozenset(
    {"peer_lost", "peer_failure_not_propagated", "lost_outcome", "lost_fact", "rendezvous_timeout", "false_timeout",
     "transfer_failed", "early_fact", "conflicting_outcome", "invalid_outcome"}
)  # fmt: skip


def _tells_why(finding: Finding, trigger: Trigger | None) -> bool:
    """Whether a finding says more about why a handoff failed than its trigger does; what came later cannot."""
    return finding.code in _CAUSES_OF_FAILURE and (trigger is None or min(finding.rows) <= trigger.seq)


def link(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Point each finding to the earliest one that explains it."""
    return tuple(
        evolve(finding, consequence_of=_cause_of(index, finding, findings)) for index, finding in enumerate(findings)
    )


def _cause_of(index: int, finding: Finding, findings: Sequence[Finding]) -> int | None:
    causes = [
        other
        for other, cause in enumerate(findings)
        if other != index
        and finding.code in EXPLAINS.get(cause.code, ())
        and set(finding.handoffs) & set(cause.handoffs)
        and min(cause.rows) <= max(finding.rows)
    ]
    same_side = [other for other in causes if findings[other].fields.get("side") == finding.fields.get("side")]
    return next(iter(same_side or causes), None)
