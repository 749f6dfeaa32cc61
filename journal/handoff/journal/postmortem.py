"""The post-mortem: why a handoff ended as it did, in sentences that cite their rows.

It answers the questions of whoever is on call, in their order: how far did the handoff come, what was outstanding,
what struck first, who owned which cleanup and what came of it, and how does each side stand now. The findings say
what is wrong; those that follow from no other are the root causes. A healthy handoff has no finding.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import frozen

from handoff.journal.case import NO_OBSERVERS, Case, case_of
from handoff.journal.chronicle import Chronicle, Role, chronicles, text_of
from handoff.journal.coordinator import Coordinator, Mode
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource, HandoffDeclaration
from handoff.journal.examination import Examination, examine
from handoff.journal.finding import Finding
from handoff.journal.findings import findings_in, link
from handoff.journal.ledger import Asset, Holding, HoldingState
from handoff.journal.row_order import Observers
from handoff.journal.terms import EndState, Kind
from handoff.journal.vocabulary import ActionName, HandoffOrder, OutcomeName, Side


@frozen
class SideVerdict:
    """How one side of a handoff stands at the end.

    Attributes:
        side: which side.
        end: how its session ended, or None if it did not, or had none.
        owner: who has, or had, to clean it up.
        cleanup: what its cleanup answered: applied, noop, failed, timed_out, unanswered or not_needed.
        holds: what it still owns.
        sentence: all that in words, with its rows.
        rows: the rows that it rests on.
    """

    side: Side
    end: str | None
    owner: str
    cleanup: str
    holds: tuple[Holding, ...]
    sentence: str
    rows: tuple[int, ...]


@frozen
class PostMortem:
    """Why one handoff ended as it did.

    Attributes:
        chronicle: its rows.
        phase: how far its coordinator came.
        sentences: the story, each sentence with its rows.
        sides: how each side stands.
        findings: what is wrong; empty for a healthy handoff.
    """

    chronicle: Chronicle
    phase: str
    sentences: tuple[str, ...]
    sides: tuple[SideVerdict, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.findings

    @property
    def root_causes(self) -> tuple[Finding, ...]:
        """The findings that follow from no other."""
        return tuple(finding for finding in self.findings if finding.consequence_of is None)


def postmortem_of(
    chronicle: Chronicle, observers: Observers = NO_OBSERVERS, findings: tuple[Finding, ...] | None = None
) -> PostMortem:
    """Examine one handoff.

    Args:
        chronicle: its rows.
        observers: the sources of its journal.
        findings: what is wrong with it where that is known already, from rules over several handoffs too.
    """
    case = case_of(chronicle, observers)
    return PostMortem(
        chronicle,
        phase_of(chronicle.core),
        tuple(_story(case)),
        tuple(_side_verdict(case, side) for side in Side),
        link(findings_in(case)) if findings is None else findings,
    )


def why(
    source: EventSource,
    handoffs: Iterable[HandoffDeclaration] | None = None,
    *,
    on_row: Callable[[int], None] | None = None,
) -> Iterator[PostMortem]:
    """Examine a journal, and explain some of its handoffs, or all that are not plainly healthy.

    The journal is examined whole in either case, since the cause of a handoff's failure may lie in another one.

    Args:
        source: the journal.
        handoffs: which to explain, healthy or not.
        on_row: told the number of a row now and then, for a progress bar.
    """
    chosen = None if handoffs is None else list(handoffs)
    examined = examine(source, on_row=on_row, only=None if chosen is None else [each.number for each in chosen])
    yield from explain(source, examined, chosen)


def explain(
    source: EventSource, examined: Examination, handoffs: Iterable[HandoffDeclaration] | None = None
) -> Iterator[PostMortem]:
    """The post-mortems of some handoffs of an examined journal, or of all that have findings, one after the other."""
    named = {name for finding in examined.findings for name in finding.handoffs}
    numbers = sorted(number for number, name in examined.involved.items() if name in named)
    chosen = map(source.handoff, numbers) if handoffs is None else handoffs
    for chronicle in chronicles(source, chosen):
        yield postmortem_of(chronicle, examined.observers, examined.about(chronicle.handoff_id))


# -- how far it came ------------------------------------------------------------------------------------------------


def phase_of(core: Coordinator | None) -> str:
    """How far a coordinator came, as a phrase."""
    if core is None or not core.started:
        return "not started"
    if core.mode is Mode.COMPLETE:
        return "complete" if core.completion == "success" else "canceled"
    if core.mode is Mode.CLEANING_UP:
        return "cleaning up"
    return next(phrase for reached, phrase in _PHASES if reached(core))


_PHASES = (
    (lambda c: c.activation_applied, "activated, the source being released"),
    (lambda c: c.activation_issued, "transferred, the destination being activated"),
    (lambda c: c.transfer_scheduled, "transferring"),
    (lambda c: c.transfer_issued, "the transfer being scheduled"),
    (lambda c: c.order is HandoffOrder.SOURCE_FIRST and c.destination_accepted, "waiting for the reservation"),
    (lambda c: c.order is HandoffOrder.SOURCE_FIRST and c.reserve_issued, "the destination being asked"),
    (lambda c: c.order is HandoffOrder.SOURCE_FIRST and c.source_submitted, "prefilling"),
    (lambda c: c.order is HandoffOrder.SOURCE_FIRST, "the prefill being submitted"),
    (lambda c: c.source_submitted, "prefilling"),
    (lambda c: c.submit_issued, "the prefill being submitted"),
    (lambda c: c.destination_accepted, "waiting for the reservation"),
    (lambda c: c.reserve_issued, "the destination being asked"),
)  # fmt: skip


# -- the story ------------------------------------------------------------------------------------------------------


def _cite(*events: Event | int | None) -> str:
    rows = [event if isinstance(event, int) else event.seq for event in events if event is not None]
    return " ".join(f"[#{row}]" for row in dict.fromkeys(rows))


def _story(case: Case) -> Iterator[str]:
    chronicle, trigger = case.chronicle, case.trigger
    if not chronicle.actions:
        if trigger is None:
            yield f"Nothing was ever ordered for it {_cite(chronicle.first_seq)}."
        else:
            yield f"Nothing was ever ordered for it: {trigger.sentence} {_cite(trigger.event)}."
        return
    yield _last_step(chronicle, None if trigger is None else trigger.seq)
    yield _outstanding(case)
    if trigger is not None:
        yield f"What struck first, at {trigger.at_ms:g} ms: {trigger.sentence} {_cite(trigger.event)}."
    activated = chronicle.action(ActionName.ACTIVATE_DESTINATION)
    healthy = activated is not None and activated.outcome is not None and activated.outcome.name == OutcomeName.APPLIED
    if trigger is not None and healthy and activated is not None and activated.outcome is not None:
        yield (
            f"The destination had been activated by then, so tokens may have reached the client "
            f"{_cite(activated.outcome.seq)}."
        )
    complete = chronicle.action(ActionName.COMPLETE)
    if complete is not None:
        yield f"The coordinator completed at {complete.at_ms:g} ms ({chronicle.completion}) {_cite(complete.seq)}."


def _last_step(chronicle: Chronicle, before: int | None) -> str:
    ordinary = [r for r in chronicle.actions.values() if before is None or r.seq < before]
    record = (ordinary or list(chronicle.actions.values()))[-1]
    return f"It came as far as {record.label}, ordered at {record.at_ms:g} ms {_cite(record.seq)}."


def _outstanding(case: Case) -> str:
    chronicle = case.chronicle
    waiting = chronicle.unanswered()
    if waiting:
        names = ", ".join(f"{record.label} {_cite(record.seq)}" for record in waiting)
        return f"Without an outcome to this day: {names}."
    fact = chronicle.awaited_when_struck(None if case.trigger is None else case.trigger.seq)
    if fact is not None and chronicle.fact(fact) is None:
        return f"Every action was answered; what it waited for next was the fact {fact}."
    return "Every action was answered."


# -- sides ----------------------------------------------------------------------------------------------------------

_ASSET = {Side.SOURCE: Asset.SOURCE_KV, Side.DESTINATION: Asset.DESTINATION_KV}
_ASKED = {Side.SOURCE: ActionName.SUBMIT_PREFILL, Side.DESTINATION: ActionName.RESERVE_DESTINATION}
_CANCEL = {Side.SOURCE: ActionName.CANCEL_SOURCE, Side.DESTINATION: ActionName.CANCEL_DESTINATION}


def _side_verdict(case: Case, side: Side) -> SideVerdict:
    chronicle, role = case.chronicle, Role(side.value)
    end = chronicle.end_of(side)
    holds = tuple(
        holding
        for holding in case.ledger.holdings(chronicle.number)
        if holding.side is side and holding.asset is not Asset.TRANSFER
    )
    cleanup, answered = _cleanup(chronicle, side, role)
    live = chronicle.session_of(side)
    owner = f"{side} session" if live else "coordinator" if chronicle.action(_ASKED[side]) else "nobody"
    words = [_end_words(end, live), _cleanup_words(owner, cleanup)]
    kv = [holding for holding in holds if holding.asset is _ASSET[side]]
    words.append(_holding_words(kv, cleanup))
    rows = [*([] if end is None else [end.seq]), *answered, *(holding.since_seq for holding in kv)]
    sentence = f"{side.capitalize()}: {'; '.join(filter(None, words))} {_cite(*rows)}".rstrip() + "."
    return SideVerdict(
        side, None if end is None else end.name, owner, cleanup, holds, sentence, tuple(dict.fromkeys(rows))
    )


def _cleanup(chronicle: Chronicle, side: Side, role: Role) -> tuple[str, list[int]]:
    """What the cleanup of a side answered, the session's own before the coordinator's, and the rows that say so."""
    timed_out = chronicle.last(role, Kind.CLEANUP_TIMED_OUT)
    replies = chronicle.of(role, Kind.CLEANUP_REPLIED)
    started = chronicle.last(role, Kind.CLEANUP_STARTED)
    own = [event for event in replies if event.name in (None, _CANCEL[side])]
    if own:
        return str(own[-1].outcome), [own[-1].seq]
    if timed_out is not None:
        return "timed_out", [timed_out.seq]
    if started is not None:
        return "unanswered", [started.seq]
    record = chronicle.action(_CANCEL[side])
    if record is not None:
        return ("unanswered", [record.seq]) if record.outcome is None else (record.outcome.name, [record.outcome.seq])
    release = chronicle.action(ActionName.RELEASE_SOURCE)
    if side is Side.SOURCE and release is not None and release.outcome is not None:
        return release.outcome.name, [release.outcome.seq]
    return "not_needed", []


def _end_words(end: Event | None, live: bool) -> str:
    if end is None:
        return "its session never ended" if live else ""
    text = text_of(end)
    error = f" ({text})" if text and end.name != EndState.SUCCESS else ""
    return f"its session ended with {end.name}{error}"


_CLEANUP_WORDS = {
    "applied": "{owner} gave its KV up, and the engine carried it out",
    "noop": "{owner} gave its KV up, and the engine had nothing to give",
    "failed": "{owner} tried to give its KV up and failed",
    "timed_out": "{owner} tried to give its KV up and got no answer within the limit",
    "unanswered": "{owner} ordered its KV to be given up and was never answered",
}


def _cleanup_words(owner: str, cleanup: str) -> str:
    phrase = _CLEANUP_WORDS.get(cleanup)
    return "" if phrase is None else phrase.format(owner=f"the {owner}")


def _holding_words(kv: list[Holding], cleanup: str) -> str:
    if not kv:
        return "nothing is left" if cleanup != "not_needed" else "it owns nothing"
    match kv[0].state:
        case HoldingState.HELD:
            return f"it still holds KV, and {kv[0].duty} owes the cleanup"
        case HoldingState.POSSIBLE:
            return f"it may hold KV, and {kv[0].duty} owes the cleanup"
        case HoldingState.DECODING:
            return "its KV belongs to the running decode"


# -- as a document --------------------------------------------------------------------------------------------------


def why_document(journal: str, examined: Iterable[PostMortem], elsewhere: Iterable[Finding] = ()) -> dict[str, Any]:
    """Post-mortems as a JSON document (docs/schemas/why.schema.json); indices count over all findings.

    Args:
        journal: the journal's name.
        examined: the post-mortems.
        elsewhere: findings that are about no handoff.
    """
    findings: list[dict[str, Any]] = []
    places: dict[tuple[Any, ...], int] = {}
    for finding in elsewhere:
        _place(finding, places, findings)
    handoffs = []
    for postmortem in examined:
        own = [_place(finding, places, findings) for finding in postmortem.findings]
        for index, finding in zip(own, postmortem.findings, strict=True):
            if finding.consequence_of is not None:
                findings[index]["consequence_of"] = own[finding.consequence_of]
        handoffs.append(_postmortem_document(postmortem, own))
    roots = [
        {"finding": index, "code": finding["code"], "handoffs": finding["handoffs"]}
        for index, finding in enumerate(findings)
        if finding["consequence_of"] is None
    ]
    return {
        "schema": "handoff.why/1",
        "journal": journal,
        "findings": findings,
        "root_causes": roots,
        "handoffs": handoffs,
    }


def _place(finding: Finding, places: dict[tuple[Any, ...], int], findings: list[dict[str, Any]]) -> int:
    """The index of a finding in the document; one that several handoffs share stands there once."""
    key = (finding.code, finding.handoffs, finding.rows)
    if key not in places:
        places[key] = len(findings)
        findings.append(_finding_document(finding))
    return places[key]


def _finding_document(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "certainty": finding.certainty.value,
        "handoffs": list(finding.handoffs),
        "rows": list(finding.rows),
        "fields": dict(finding.fields),
        "consequence_of": None,
        "would_settle": finding.would_settle,
        "sentence": finding.sentence,
    }


def _postmortem_document(postmortem: PostMortem, findings: list[int]) -> dict[str, Any]:
    chronicle = postmortem.chronicle
    return {
        "handoff": chronicle.handoff_id,
        "number": chronicle.number,
        "run": chronicle.run,
        "request": chronicle.request,
        "order": None if chronicle.order is None else chronicle.order.value,
        "healthy": postmortem.healthy,
        "phase": postmortem.phase,
        "completion": chronicle.completion,
        "story": list(postmortem.sentences),
        "sides": {side.side.value: _side_document(side) for side in postmortem.sides},
        "findings": findings,
    }


def _side_document(side: SideVerdict) -> dict[str, Any]:
    return {
        "end": side.end,
        "cleanup_owner": side.owner,
        "cleanup": side.cleanup,
        "holds": [
            {
                "asset": holding.asset.value,
                "state": holding.state.value,
                "since": holding.since_seq,
                "blocks": None if holding.blocks is None else list(holding.blocks),
                "duty": holding.duty,
            }
            for holding in side.holds
        ],
        "sentence": side.sentence,
        "rows": list(side.rows),
    }
