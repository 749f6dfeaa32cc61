"""Findings: what is wrong with a handoff, each one a small rule over its rows.

`RULES` is the table of all rules over one handoff; `fleet` adds those that need several. A rule looks at a `Case` and
yields findings with the rows that prove them. Rules read what happened, never what a scenario injected, nor rows in
which somebody already named the verdict, nor the wording of a message. They never advise to wait longer.

Several findings may tell of one trouble. Findings that share a handoff are one *incident*; the deepest of them
(`finding_codes.depth`) is its root cause, and all others are its consequences. A mere bad end is told only when nothing
else is wrong.
"""

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve

from handoff.journal import rules_of_answers as answers
from handoff.journal import rules_of_blocks as blocks
from handoff.journal import rules_of_cleanup as cleanup
from handoff.journal import rules_of_sessions as sessions
from handoff.journal import rules_of_silence as silence
from handoff.journal.case import Case, case_of
from handoff.journal.chronicle import Chronicle, Role, text_of
from handoff.journal.finding import Certainty, Finding
from handoff.journal.finding_codes import depth
from handoff.journal.terms import Kind
from handoff.journal.trigger import Blow
from handoff.journal.vocabulary import TerminalStatus

__all__ = ["RULES", "Case", "Certainty", "Finding", "case_of", "findings_in", "findings_of", "link"]

Rule = Callable[[Case], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    answers.misrouted_outcome,
    blocks.wrong_rank,
    blocks.never_fits,
    sessions.orphan_rendezvous,
    cleanup.clock_domain_skew,
    silence.peer_lost,
    blocks.stale_peer_generation,
    silence.peer_failure_not_propagated,
    answers.early_fact,
    answers.state_regression,
    answers.terminal_not_sticky,
    answers.conflicting_outcome,
    answers.reservation_vanished,
    answers.invalid_outcome,
    silence.false_timeout,
    answers.transfer_failed,
    silence.lost_outcome,
    silence.lost_fact,
    silence.rendezvous_timeout,
    silence.deadline_spent_in_queue,
    silence.partial_completion,
    silence.activated_before_all_ranks,
    answers.short_transfer,
    answers.token_mismatch,
    answers.conflicting_fact,
    blocks.stale_source_read,
    blocks.re_request_after_release,
    blocks.silent_fallback,
    blocks.source_freed_during_transfer,
    cleanup.unpropagated_cancel,
    cleanup.release_without_effect,
    cleanup.release_applied_in_name,
    cleanup.double_release,
    cleanup.freed_twice,
    cleanup.cleanup_failed,
    cleanup.hold_after_cleanup,
    cleanup.action_after_complete,
    cleanup.complete_with_loose_ends,
    cleanup.healthy_decode_canceled,
    cleanup.lease_overdue,
    cleanup.source_hold_leak,
    cleanup.dest_reservation_leak,
    answers.late_completion_ignored,
    answers.late_fact_after_terminal,
    answers.outcome_after_complete,
    sessions.protocol_violation,
    sessions.complete_not_delivered,
    sessions.split_verdict,
    sessions.session_result_differs,
    sessions.observed_before_validated,
    sessions.abort_text_dropped,
    sessions.pending_twice,
    sessions.vanished_registration,
    sessions.call_before_deadline,
    sessions.not_a_handoff_fault,
)
"""Every rule over one handoff, in the order in which its findings are listed."""

_ENDS = {
    Blow.CANCELED: "canceled",
    Blow.SHUTDOWN: "canceled",
    Blow.REJECTED: "rejected",
}
_NO_END = (Blow.PEER_LOST, Blow.REFUSED)


def findings_in(case: Case) -> list[Finding]:
    """Everything that is wrong with one handoff by itself; nothing for a healthy one."""
    found = [finding for rule in RULES for finding in rule(case)]
    return found or list(bad_end(case))


def bad_end(case: Case) -> Iterator[Finding]:
    """The handoff did not succeed, and every duty was discharged."""
    trigger = case.trigger
    if trigger is None:
        yield from _request_ended_badly(case)
    if trigger is None or trigger.blow in _NO_END:
        return
    yield case.finding(
        _ENDS.get(trigger.blow, "failed"),
        [trigger.seq],
        f"the handoff did not succeed: {trigger.sentence}",
        trigger=trigger.blow.value,
        message=trigger.text,
    )


def _request_ended_badly(case: Case) -> Iterator[Finding]:
    """The request behind a handoff ended without success before anything was ordered for it."""
    ended = case.chronicle.last(Role.WORKER, Kind.REQUEST_ENDED)
    if ended is not None and ended.name in _REQUEST_ENDS and not case.chronicle.actions:
        sentence = "the request ended before anything was ordered for its handoff"
        yield case.finding(ended.name, [ended.seq], sentence, message=text_of(ended))


_REQUEST_ENDS = (TerminalStatus.FAILED, TerminalStatus.REJECTED, TerminalStatus.CANCELED)


def findings_of(chronicle: Chronicle) -> tuple[Finding, ...]:
    """Everything that is wrong with one handoff by itself, root cause and consequences linked."""
    return link(findings_in(case_of(chronicle)))


def link(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Point the findings of each incident to its root cause."""
    root_of: dict[int, int] = {}
    for members in _incidents(findings):
        root = min(members, key=lambda index: depth(findings[index].code, findings[index].rows[0]))
        root_of.update((index, root) for index in members)
    return tuple(
        evolve(finding, consequence_of=None if root_of[index] == index else root_of[index])
        for index, finding in enumerate(findings)
    )


def _incidents(findings: Sequence[Finding]) -> list[list[int]]:
    """The indices of the findings that hang together by the handoffs that they are about."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for finding in findings:
        for other in finding.handoffs[1:]:
            leader[find(other)] = find(finding.handoffs[0])
    incidents: dict[str, list[int]] = {}
    for index, finding in enumerate(findings):
        key = find(finding.handoffs[0]) if finding.handoffs else f"\0{index}"
        incidents.setdefault(key, []).append(index)
    return list(incidents.values())
