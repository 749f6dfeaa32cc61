"""What the rules of the post-mortem look at: one handoff's rows, what it owns at the end, what struck it first."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import attrs
from attrs import frozen

from handoff.journal.chronicle import ActionRecord, Chronicle, Offer, Role
from handoff.journal.event import Event
from handoff.journal.finding import Certainty, Finding, cited
from handoff.journal.ledger import Ledger
from handoff.journal.row_order import Observers
from handoff.journal.terms import Kind
from handoff.journal.trigger import Trigger, trigger_of
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName, Side, Verdict

NO_OBSERVERS = Observers()


@attrs.frozen(slots=False)
class Case:
    """One handoff under examination."""

    chronicle: Chronicle
    ledger: Ledger
    trigger: Trigger | None
    observers: Observers = NO_OBSERVERS

    @property
    def over(self) -> bool:
        """Whether nothing more can come for this handoff."""
        sides = [side for side in Side if self.chronicle.session_of(side)]
        ended = bool(sides) and all(self.chronicle.end_of(side) is not None for side in sides)
        return self.chronicle.run_over or ended

    @property
    def until_ms(self) -> float:
        """Until when the handoff was observed."""
        return max(self.chronicle.run_until_ms, self.chronicle.last_event.at_ms)

    @cached_property
    def by_seq(self) -> dict[int, Event]:
        """Its rows by number."""
        return {event.seq: event for event in self.chronicle.events}

    @cached_property
    def annotations(self) -> dict[str, list[Event]]:
        """Its annotations by their name, in order."""
        found: dict[str, list[Event]] = {}
        for event in self.chronicle.of(Role.JOURNAL, Kind.RESOURCE):
            found.setdefault(str(event.payload.get("resource")), []).append(event)
        return found

    def annotated(self, *names: str) -> list[Event]:
        """Annotations with some of these names, in order."""
        found = [event for name in names for event in self.annotations.get(name, ())]
        return sorted(found, key=lambda event: event.seq)

    @cached_property
    def fact_rows(self) -> list[Event]:
        """Rows in which the coordinator, or a witness, took a fact."""
        kinds = (Kind.FACT_APPLIED, Kind.FACT_IGNORED, Kind.FACT_OBSERVED)
        roles = (Role.COORDINATOR, Role.WORKER)
        return sorted((e for role in roles for e in self.chronicle.of(role, *kinds)), key=lambda event: event.seq)

    def applied_row(self, fact: FactName) -> Event | None:
        """The row in which a fact was taken."""
        offer = self.chronicle.fact(fact)
        return None if offer is None else self.by_seq[offer.seq]

    def outcome_row(self, record: ActionRecord | None) -> Event | None:
        """The row of an action's first outcome."""
        return None if record is None or record.outcome is None else self.by_seq[record.outcome.seq]

    def answered(self, action: ActionName, *outcomes: OutcomeName) -> Offer | None:
        """An action's first outcome, if it is one of these."""
        record = self.chronicle.action(action)
        outcome = None if record is None else record.outcome
        return outcome if outcome is not None and outcome.name in outcomes else None

    def said(self, event: Event, word: str) -> Any:
        """A field of a row, ours or another system's; None when it has none."""
        payload = event.payload
        extra = payload.get("extra")
        return payload.get(word) if word in payload else extra.get(word) if isinstance(extra, dict) else None

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
        told = tuple(dict.fromkeys(rows))
        return Finding(
            code, certainty, (self.chronicle.handoff_id,), told, cited(sentence, told), fields, None, would_settle
        )

    def silence(self, word: str) -> tuple[Certainty, str | None]:
        """How sure an absence is, and what would settle it: proved only where the row would have been seen."""
        if self.observers.could_show(word):
            return Certainty.PROVED, None
        return Certainty.UNKNOWN, f"a source that shows {word}"


def case_of(chronicle: Chronicle, observers: Observers = NO_OBSERVERS) -> Case:
    """Prepare a handoff for the rules."""
    ledger = Ledger()
    for event in chronicle.events:
        ledger.apply(event)
    return Case(chronicle, ledger, trigger_of(chronicle), observers)


IGNORED = (Verdict.IGNORED_IN_CLEANUP, Verdict.LATE)


@frozen
class Window:
    """When a transfer reads its source and writes its destination: from its scheduling to its completion.

    Attributes:
        opened: the row that scheduled it.
        closed: the row of its completion, taken or not; None if it never completed.
    """

    opened: Event
    closed: Event | None


def window_of(case: Case) -> Window | None:
    """The window of a handoff's transfer, or None if it never began."""
    record = case.chronicle.action(ActionName.START_TRANSFER)
    opened = case.outcome_row(record)
    if opened is None or opened.outcome != OutcomeName.SCHEDULED:
        return None
    closed = next((e for e in case.fact_rows if e.name == FactName.TRANSFER_COMPLETED and e.seq > opened.seq), None)
    return Window(opened, closed)


def blocks_of(event: Event) -> frozenset[int]:
    """The block ids that an annotation names."""
    return frozenset(event.payload.get("blocks") or ())


def overlap(blocks: Iterable[int], others: Iterable[int]) -> list[int]:
    """The blocks that two have in common, in order."""
    return sorted(set(blocks) & set(others))


def is_rounded_up(tokens: int, prompt_tokens: int) -> bool:
    """Whether a count is no more than a prompt's, rounded up to whole blocks of some power of two.

    An engine that reserves whole blocks asks for them; one block more than that is a mismatch.
    """
    return tokens - prompt_tokens < (tokens & -tokens) or tokens <= prompt_tokens
