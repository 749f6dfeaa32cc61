"""Every finding's code: what it means, what to do about it, and how deep a cause it is.

The *tier* is the written order of root causes. Of the findings of one incident the one with the lowest tier is the
root, ties go to the one that began at the earliest row, and then to this table's order; the others are its
consequences. Wrong names come first, since they make a leak on one side and a hang on the other; then lost peers and
full pools, which silence many handoffs at once; then whatever went wrong within one handoff; then what is left behind
by it; and last a mere bad end, which is told only when nothing else is wrong.
"""

from enum import IntEnum

from attrs import frozen


class Tier(IntEnum):
    """How deep a cause a finding is; lower is deeper."""

    IDENTITY = 0
    PEER = 1
    STEP = 2
    AFTERMATH = 3
    END = 4


@frozen
class FindingCode:
    """One kind of finding.

    Attributes:
        title: it in a few words.
        meaning: what is the case when it is found.
        remedy: what to do; never to wait longer.
        tier: how deep a cause it is.
    """

    title: str
    meaning: str
    remedy: str
    tier: Tier


def _codes(tier: Tier, *entries: tuple[str, str, str, str]) -> dict[str, FindingCode]:
    return {code: FindingCode(title, meaning, remedy, tier) for code, title, meaning, remedy in entries}


CODES: dict[str, FindingCode] = {
    **_codes(
        Tier.IDENTITY,
        ("id_mismatch", "two names for one handoff",
         "one side was addressed under a name that it does not know",
         "pass the owner's own id (or the room) through unchanged, and refuse unknown ids instead of answering noop"),
        ("duplicate_room", "one room for two handoffs",
         "a second handoff registered under a room that was in use",
         "draw rooms in one place, a new one for each sample and retry; reject the second registration"),
        ("wrong_rank", "asked another rank than the room implies",
         "the room implies one data-parallel rank, and another one served it",
         "derive the rank from the room on both sides, or carry the chosen rank along"),
        ("orphan_sibling", "a sampled child that nobody claimed",
         "several children of a request were prefilled, and not all of them were handed over",
         "forward one handoff for each child, or cancel the children that are not forwarded"),
        ("orphan_rendezvous", "one party of a rendezvous never came",
         "one side of the handoff registered and the other never appeared",
         "look at the router's decision for this request; tell the waiting side when the other is not going to come"),
        ("clock_domain_skew", "a deadline read on another clock",
         "a deadline was stamped on one clock and compared with another that disagrees",
         "send durations instead of instants, or stamp and compare on the same host"),
        ("misrouted_outcome", "an answer for another handoff",
         "an outcome names another handoff than the one that took it; ids alone collide, since all start at 0",
         "match answers by handoff and action id together"),
        ("never_fits", "larger than the pool",
         "the request needs more blocks than the pool has, so no waiting can help",
         "refuse it at admission, with the pool's size in the error"),
        ("no_handoff", "a handoff was expected, and there is none",
         "the router decided for a handoff, and none was opened for the request",
         "separate the router's reasons for an empty result; a missing worker is an error, not a decision"),
    ),
    **_codes(
        Tier.PEER,
        ("peer_lost", "a peer is gone",
         "a connection closed, a process restarted, or a peer stopped answering everybody at the same time",
         "look at the peer's own log at that instant; close what it can no longer answer as lost"),
        ("stale_peer_generation", "another process than the one that was reserved with",
         "the engine was restarted between the reservation and the transfer",
         "carry the engine's generation in the reservation, and reserve again when it does not match"),
        ("peer_failure_not_propagated", "a failure that nobody was told of",
         "one side failed or fell silent, and the other learned it from its own deadline only",
         "tell the partner at once when a side fails; watch the connection while waiting for an answer"),
        ("capacity_deadlock", "every block waits for another",
         "all blocks of the pool are held by handoffs that themselves wait for blocks",
         "reserve what an activation needs from the start, or let one waiting handoff give its blocks up"),
        ("head_of_line", "stuck behind one that does not fit",
         "a request that would fit waits behind one that does not",
         "promote finished loads and fitting requests past a blocked head of the queue"),
        ("source_starved", "the source's pool is full of waiting holds",
         "no prefill can start, since all of the source's blocks wait for destinations",
         "bound the holds that may wait for a destination, or reserve the destination first"),
        ("reaper_starved", "leases that nobody collects",
         "several leases are over and none was collected in between",
         "collect expired leases on a timer of its own, not on the way of new work"),
        ("retry_storm", "many handoffs for one request",
         "a request was tried again and again with little success",
         "bound the retries, back off, and give the last cause to the client"),
    ),
    **_codes(
        Tier.STEP,
        ("early_fact", "a fact before its acknowledgement",
         "a fact overtook the acknowledgement that it depends on, was refused and never offered again",
         "keep an early fact until its acknowledgement arrives, then offer it again"),
        ("state_regression", "a state that goes backwards",
         "a source reported an earlier state after a later one",
         "publish states in one place and in order"),
        ("terminal_not_sticky", "an end that did not last",
         "a handoff that had ended was carried on",
         "make the first terminal state final until the entry is cleared"),
        ("conflicting_outcome", "two answers for one action",
         "an action was answered twice, differently",
         "answer each action once, and repeat the stored answer when asked again"),
        ("reservation_vanished", "nothing to activate",
         "the activation was answered noop: the reservation was gone",
         "find who freed the reservation before the transfer ended"),
        ("invalid_outcome", "an answer that its action does not admit",
         "an outcome of the wrong kind stays recorded, so that the right one is a conflict later",
         "map the engine's answer to one of the outcomes that the action admits"),
        ("false_timeout", "the deadline won against a fact that was there",
         "the deadline was taken at the instant at which the awaited fact was recorded, or after it",
         "read queued completions before checking the deadline"),
        ("transfer_failed", "the transfer failed",
         "the transfer itself was answered with a failure; rendezvous and capacity did their part",
         "look at the transport between the two engines"),
        ("lost_outcome", "an answer that never came",
         "an action was ordered, and no outcome of it was ever recorded",
         "find how far the order came; answer it again from the stored result, or close it as lost"),
        ("partial_completion", "not all ranks completed",
         "some ranks reported their part and others never did",
         "have a rank that cannot post its part say so, so that the count still closes"),
        ("activated_before_all_ranks", "activated over a half-written cache",
         "the destination was activated before every rank had completed",
         "count the ranks before completing the transfer"),
        ("short_transfer", "fewer tokens moved than were reserved",
         "the tokens that were held or moved are fewer than expected, and nobody failed",
         "compare the counts of both sides before activating, and fail the handoff when they differ"),
        ("token_mismatch", "the sides count different prompts",
         "the destination expects more tokens than the source's prompt has",
         "compare prompts by their hash; round both sides' blocks alike"),
        ("rendezvous_timeout", "the reservation was never granted",
         "the destination accepted and did not reserve before the deadline, or a party never met the other",
         "look at who held the destination's pool in the meantime"),
        ("lost_fact", "a fact that never came",
         "every action was answered, and the next expected fact is missing past its time",
         "tie the notification to the work it tells of, so that neither succeeds alone"),
        ("deadline_spent_in_queue", "the deadline ran while it waited in a queue",
         "most of the deadline passed before the step that it was meant to bound began",
         "bound the wait in the queue by itself, and begin the step's own deadline with the step"),
        ("stale_source_read", "freed blocks were read",
         "the transfer ran after the source's hold was over, so the blocks may have held another prompt",
         "renew the lease while a reader waits, and refuse a transfer whose hold is over; distrust these answers"),
        ("unsafe_reuse", "blocks given away while they were written",
         "a destination's blocks went to another handoff before a write to them had ended",
         "quarantine the blocks until the write has drained; distrust the second handoff's answer"),
        ("unpropagated_cancel", "a cancel that never reached the source",
         "the handoff was canceled and the source was never told, so it went on",
         "cancel the source whenever it was asked, acknowledged or not"),
        ("re_request_after_release", "asked again for what was released",
         "a destination reserved again for a source that had been released",
         "treat the handed-over cache as spent after its release, and prefill anew"),
        ("release_not_applied", "a release that released nothing",
         "the release was delivered and the owner still held its blocks",
         "answer a release of an unknown or busy hold with a failure"),
        ("cleanup_failed", "the cleanup itself failed",
         "a cancel was answered with a failure, and nobody repeats it",
         "settle that side by hand, or restart it; let the engine queue a cancel instead of refusing it"),
        ("double_release_benign", "released twice, the second time without effect",
         "a release and a cancel of the same hold were both answered; one of them found nothing",
         "nothing, unless the handoff should have succeeded"),
        ("double_release_real", "released twice, and both were carried out",
         "two releases of one hold were applied, so the second may have freed somebody else's blocks",
         "free by handoff and generation, and only once"),
        ("hold_after_cleanup", "a hold after its cancel had found nothing",
         "the source reported a hold after its cancel was answered noop",
         "take commands and completions of one request in one order"),
        ("action_after_complete", "an order after the end",
         "an action was ordered after the handoff was complete; nobody takes its answer or cleans it up",
         "do not start a handoff that a failure has already completed"),
        ("transfer_delay_unbounded", "a transfer that is longer than its prompt",
         "the destination lacks more tokens than the prompt has, or the delay is not finite",
         "check the destination's count against the prompt before scheduling"),
        ("conflicting_fact", "a fact told twice, differently",
         "a fact was repeated with other figures; the first one counts and nobody was told",
         "send a fact once, or the same each time"),
        ("protocol_violation", "a message that does not fit",
         "a side ended because its peer sent something that the protocol does not allow there",
         "look at the peer's rows before it sent this: a message was lost, repeated or reordered on the way"),
        ("complete_not_delivered", "the other side was never told that it is complete",
         "the handoff was complete and the destination never heard of it, so it cancels what it has",
         "acknowledge the last message, or let the destination ask before it cancels an activated request"),
        ("call_before_deadline", "a call gave up before the session's deadline",
         "a control call ended at the deadline that held when it began, though the deadline had moved since",
         "take the deadline anew when it moves"),
        ("vanished_registration", "a registration that was never answered",
         "a handoff was registered and neither paired nor rejected",
         "answer every queued registration before shutting down"),
        ("pending_twice", "an id that came back",
         "an id that had been retired became pending again",
         "remember retired ids for as long as a late participant can come"),
        ("retry_refused_early", "a retry before the permit was free",
         "an attempt was refused while the one before it had delivered its completion and still had its permit",
         "deliver the completion after the permit is free, or let a retry wait for it"),
        ("silent_fallback", "computed again without a word",
         "the prompt was computed locally although a handoff was due",
         "count fallbacks, and let the policy decide between failing and computing again"),
    ),
    **_codes(
        Tier.AFTERMATH,
        ("healthy_decode_canceled", "a running decode was canceled",
         "the destination was active when cleanup canceled it; tokens may have reached the client",
         "do not retry blindly, the client may see output twice; after activation a failure is the source's alone"),
        ("source_freed_during_transfer", "freed while it was read",
         "the source's blocks were freed while the transfer ran",
         "let a cancel wait until the transfer is quiescent"),
        ("late_completion_ignored", "a completion after cleanup had begun",
         "the transfer completed after cleanup began; its blocks were kept until then, so nothing was harmed",
         "nothing: this is the safe course"),
        ("lease_overdue", "a lease that ended late",
         "a lease was over and its blocks were not freed then",
         "collect every expired lease, not only the ones up to the first live one"),
        ("release_noop", "the hold was gone before its release",
         "the release found nothing: whether the cache was whole during the transfer is not known",
         "record block ids at hold, transfer and free"),
        ("complete_with_loose_ends", "complete with unanswered orders",
         "the handoff was completed while an order was unanswered or a cancel had failed",
         "look at the side whose order is open: later answers are swallowed"),
        ("outcome_after_complete", "an answer that contradicts the end",
         "an answer after the end differs from the recorded one and was swallowed",
         "look at the owner of that action"),
        ("split_verdict", "the two sides disagree",
         "one side ended with success and the other did not",
         "trust the destination's end for the request and the source's for its blocks"),
        ("session_result_differs", "a session and its completion disagree",
         "the session ended without an error, and its completion says that the handoff failed",
         "read the completion, not the session's end"),
        ("observed_before_validated", "an observer was told too early",
         "the observer was told of something that the coordinator then refused",
         "do not count this event"),
        ("abort_text_dropped", "the reason was dropped on the way",
         "one side was told why it had to end, and recorded no reason",
         "read the other side's reason"),
        ("source_hold_leak", "the source's blocks were never given up",
         "source blocks are held after the end, or were freed only by their lease",
         "cancel or release them by handoff id"),
        ("dest_reservation_leak", "the destination's blocks were never given up",
         "destination blocks are reserved after the end",
         "cancel the destination by handoff id"),
        ("late_fact_after_terminal", "a fact after the end",
         "a fact arrived after the handoff was complete; harmless in itself",
         "nothing"),
    ),
    **_codes(
        Tier.END,
        ("failed", "failed", "the handoff failed, and every duty was discharged", "look at the step that failed"),
        ("rejected", "rejected", "the handoff was not let in, and nothing was owned", "look at the limit that it met"),
        ("canceled", "canceled", "the handoff was canceled, and every duty was discharged", "nothing"),
        ("not_a_handoff_fault", "not the handoff's fault",
         "the request ended badly, and its handoff succeeded with every duty discharged",
         "look elsewhere: at the decode, the client, the network in front"),
    ),
}  # fmt: skip
"""Every code, by tier and in the order in which ties are decided."""

_PLACE = {code: place for place, code in enumerate(CODES)}


def depth(code: str, first_row: int) -> tuple[int, int, int]:
    """By what the findings of one incident are ordered: tier, then earliest row, then place in the table."""
    return CODES[code].tier, first_row, _PLACE[code]
