"""Small journals of coordinators alone, for tests of replay and of the readers."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import attrs
from attrs import define, field

from handoff.journal.coordinator_actor import (
    ActionIssued,
    CoordinatorActor,
    FactOffered,
    HandoffStarted,
    OutcomeOffered,
)
from handoff.journal.declarations import HandoffOpened
from handoff.journal.event import StoredRow
from handoff.journal.event_source import EventList
from handoff.journal.port import ActorHandle, MemoryJournal, RowStream
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.terms import TERM_CODE, EndState
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import (
    ActionId,
    ActionName,
    EngineType,
    FactName,
    OutcomeName,
    TimingMode,
    order_for_engine,
)

TIMING = TransferTiming(TimingMode.FULL_PROMPT, 8, 1_000_000, 1.0)
HELD = FactOffered(FactName.SOURCE_HELD, TIMING)
RESERVED = FactOffered(FactName.DESTINATION_RESERVED, transferable_prompt_tokens=8)
TRANSFERRED = FactOffered(FactName.TRANSFER_COMPLETED)
ADMITTED = {
    ActionName.SUBMIT_PREFILL: OutcomeName.SUBMITTED,
    ActionName.RESERVE_DESTINATION: OutcomeName.ACCEPTED,
    ActionName.START_TRANSFER: OutcomeName.SCHEDULED,
    ActionName.ACTIVATE_DESTINATION: OutcomeName.APPLIED,
    ActionName.RELEASE_SOURCE: OutcomeName.APPLIED,
    ActionName.CANCEL_SOURCE: OutcomeName.APPLIED,
    ActionName.CANCEL_DESTINATION: OutcomeName.NOOP,
}
FACT_AFTER = {
    ActionName.SUBMIT_PREFILL: HELD,
    ActionName.RESERVE_DESTINATION: RESERVED,
    ActionName.START_TRANSFER: TRANSFERRED,
}


@define
class RecordedHandoff:
    """One coordinator whose inputs and answers are journaled, as a driver would."""

    journal: RowStream
    machine: CoordinatorActor
    actor: ActorHandle
    at_ms: float = 0.0
    issued: list[ActionIssued] = field(factory=list)

    def offer(self, *values: object) -> "RecordedHandoff":
        """Give the coordinator inputs, one every half millisecond."""
        for value in values:
            step = self.machine.step(value, self.at_ms)
            self.journal.append(self.actor, step, self.at_ms)
            self.issued.extend(effect for effect in step.effects if isinstance(effect, ActionIssued))
            self.at_ms += 0.5
        return self

    def answer(self, action: ActionIssued, outcome: OutcomeName | None = None) -> "RecordedHandoff":
        """Give the coordinator an outcome of an action, by default the one that it admits."""
        return self.offer(OutcomeOffered(action.action_id, outcome or ADMITTED[action.name], action.name))

    def proceed(self, until: ActionName = ActionName.COMPLETE) -> "RecordedHandoff":
        """Play healthy peers until an action is issued."""
        answered = 0
        while self.issued[-1].name is not until:
            action = self.issued[answered]
            self.answer(action)
            answered += 1
            if action.name in FACT_AFTER:
                self.offer(FACT_AFTER[action.name])
        return self


def open_handoff(journal: RowStream, name: str, engine_type: EngineType = EngineType.VLLM) -> RecordedHandoff:
    """Declare a handoff and start its coordinator."""
    order = order_for_engine(engine_type)
    handoff = journal.open_handoff(HandoffOpened(name, order, engine_type, request=f"request of {name}"), 0.0)
    machine = CoordinatorActor.build({"handoff_id": name, "order": order})
    actor = journal.start_actor(machine.SLOTS, name, machine.config(), 0.0, handoff=handoff)
    return RecordedHandoff(journal, machine, actor).offer(HandoffStarted())


def healthy_and_broken() -> MemoryJournal:
    """Six handoffs in memory; see `record_six`."""
    journal = MemoryJournal()
    record_six(journal)
    return journal


def record_six(journal: RowStream) -> None:
    """Six handoffs: two healthy ones and four that failed, in several ways."""
    open_handoff(journal, "healthy-source-first").proceed()
    open_handoff(journal, "healthy-destination-first", EngineType.SGLANG).proceed()
    refused = open_handoff(journal, "refused").proceed(ActionName.RELEASE_SOURCE)
    refused.offer(OutcomeOffered(ActionId(4), OutcomeName.FAILED, ActionName.RELEASE_SOURCE, "worker busy"))
    refused.answer(refused.issued[-2]).answer(refused.issued[-1])
    timed_out = open_handoff(journal, "timed-out").proceed(ActionName.ACTIVATE_DESTINATION)
    timed_out.offer(FactOffered(FactName.TIMED_OUT))
    timed_out.answer(timed_out.issued[-2]).answer(timed_out.issued[-2], OutcomeName.NOOP).answer(timed_out.issued[-1])
    timed_out.answer(timed_out.issued[3])
    early = open_handoff(journal, "early").offer(HELD, HELD)
    early.answer(early.issued[0]).offer(HELD, HELD, RESERVED)
    open_handoff(journal, "unanswered", EngineType.SGLANG)


def record_file(path: Path) -> Path:
    """A journal file of one finished run of six handoffs."""
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="test", wall_ns=0)
        record_six(journal)
        journal.end_run(EndState.FINISHED, 50.0)
    return path


class StoredList(EventList):
    """Rows in memory that can also be had as a file stores them."""

    def rows(self, *, kinds: Collection[str] | None = None) -> Iterator[StoredRow]:
        """The rows, words as their numbers."""
        for event in self.events(kinds=kinds):
            columns = attrs.astuple(event)
            words = (TERM_CODE[word] if word is not None else None for word in (columns[i] for i in (9, 10, 12, 13)))
            kind, name, outcome, verdict = words
            yield StoredRow(*columns[:9], kind, name, columns[11], outcome, verdict, *columns[14:])


def source_of(events: Iterable[object] | Sequence[object]) -> EventList:
    """Rows in memory as a source for replay."""
    return EventList(tuple(events))  # type: ignore[arg-type]
