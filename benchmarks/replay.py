"""How fast a journal replays, against bare reading and against another library's replay of the same events.

    python benchmarks/replay.py [HANDOFFS [ROUNDS]]

The journal holds the coordinators of so many handoffs, fifteen rows each, and is read from its file. `reading` makes
an event of every row and does nothing with it. `eventsourcing` rebuilds one aggregate a handoff from the same fifteen
events, kept by its own SQLite recorder; what its aggregates do with an event is next to nothing. Rounds are
interleaved, so that other load of the machine strikes all alike; the best round of each counts.

Goals: `core` at least 0.3 of `reading` and at least 5 times `eventsourcing`.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from handoff.journal.coordinator_actor import (
    ActionIssued,
    CoordinatorActor,
    FactOffered,
    HandoffStarted,
    OutcomeOffered,
)
from handoff.journal.declarations import HandoffOpened
from handoff.journal.reader import JournalReader
from handoff.journal.replayer import Tier, replay
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.terms import EndState
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionName, EngineType, FactName, HandoffOrder, OutcomeName, TimingMode

TIMING = TransferTiming(TimingMode.FULL_PROMPT, 512, 131_072, 100.0)
ANSWERS = {
    ActionName.SUBMIT_PREFILL: OutcomeName.SUBMITTED,
    ActionName.RESERVE_DESTINATION: OutcomeName.ACCEPTED,
    ActionName.START_TRANSFER: OutcomeName.SCHEDULED,
    ActionName.ACTIVATE_DESTINATION: OutcomeName.APPLIED,
    ActionName.RELEASE_SOURCE: OutcomeName.APPLIED,
}
FACTS = {
    ActionName.SUBMIT_PREFILL: FactOffered(FactName.SOURCE_HELD, TIMING),
    ActionName.RESERVE_DESTINATION: FactOffered(FactName.DESTINATION_RESERVED, transferable_prompt_tokens=512),
    ActionName.START_TRANSFER: FactOffered(FactName.TRANSFER_COMPLETED),
}


def inputs_of(machine: CoordinatorActor) -> Iterator[Any]:
    """The inputs of a healthy handoff, each after what the machine ordered."""
    yield HandoffStarted()
    while not machine.core.is_complete:
        ((action_id, name),) = machine.core.unanswered()
        yield OutcomeOffered(action_id, ANSWERS[name], name)
        if name in FACTS:
            yield FACTS[name]


def write_journal(path: Path, handoffs: int) -> int:
    """Record so many healthy handoffs; gives the number of rows."""
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="benchmark", wall_ns=0)
        for number in range(handoffs):
            name, at_ms = f"handoff-{number}", float(number)
            handoff = journal.open_handoff(HandoffOpened(name, HandoffOrder.SOURCE_FIRST, EngineType.VLLM), at_ms)
            machine = CoordinatorActor.build({"handoff_id": name, "order": HandoffOrder.SOURCE_FIRST})
            actor = journal.start_actor(machine.SLOTS, "", machine.config(), at_ms, handoff=handoff)
            for value in inputs_of(machine):
                journal.append(actor, machine.step(value, at_ms), at_ms)
        journal.end_run(EndState.FINISHED, float(handoffs))
    return journal.last_seq


class Handoff(Aggregate):
    """A handoff as `eventsourcing` would keep it."""

    @event("Opened")
    def __init__(self, name: str) -> None:
        self.name = name
        self.latest: Any = None

    @event("ActionIssued")
    def action_issued(self, action_id: int, name: str) -> None:
        """An action was ordered."""
        self.latest = (action_id, name)

    @event("OutcomeApplied")
    def outcome_applied(self, action_id: int, outcome: str) -> None:
        """An action was answered."""
        self.latest = (action_id, outcome)

    @event("FactApplied")
    def fact_applied(self, name: str) -> None:
        """A fact was observed."""
        self.latest = name


def write_aggregates(path: Path, handoffs: int) -> tuple[Application[Any], list[Any]]:
    """The same events as aggregates, in `eventsourcing`'s own file."""
    settings = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": os.fspath(path)}
    application: Application[Any] = Application(env=settings)
    names = []
    for number in range(handoffs):
        aggregate = Handoff(name=f"handoff-{number}")
        machine = CoordinatorActor.build({"handoff_id": aggregate.name, "order": HandoffOrder.SOURCE_FIRST})
        for value in inputs_of(machine):
            match value:
                case OutcomeOffered():
                    aggregate.outcome_applied(value.action_id, value.outcome.value)
                case FactOffered():
                    aggregate.fact_applied(value.name.value)
            for effect in machine.step(value, 0.0).effects:
                if isinstance(effect, ActionIssued):
                    aggregate.action_issued(effect.action_id, effect.name.value)
        application.save(aggregate)
        names.append(aggregate.id)
    return application, names


def read_all(path: Path) -> int:
    with JournalReader(path) as reader:
        return sum(1 for _ in reader.events())


def replay_all(path: Path, tier: Tier) -> int:
    with JournalReader(path) as reader:
        report = replay(reader, tier)
    assert report.agrees
    return report.rows


def rebuild_all(application: Application[Any], names: list[Any]) -> int:
    return sum(application.repository.get(name).version for name in names)


def rates(rounds: int, measured: dict[str, Callable[[], int]]) -> dict[str, float]:
    """The best rate of each, in events a second."""
    best = dict.fromkeys(measured, 0.0)
    for _ in range(rounds):
        for name, work in measured.items():
            begun = perf_counter()
            events = work()
            best[name] = max(best[name], events / (perf_counter() - begun))
    return best


def main(handoffs: int = 6000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.db"
        rows = write_journal(path, handoffs)
        application, names = write_aggregates(Path(folder) / "aggregates.db", handoffs // 4)
        best = rates(
            rounds,
            {
                "reading": lambda: read_all(path),
                "core": lambda: replay_all(path, Tier.CORE),
                "full": lambda: replay_all(path, Tier.FULL),
                "eventsourcing": lambda: rebuild_all(application, names),
            },
        )
        application.close()
    print(f"{rows:,} rows of {handoffs:,} handoffs, best of {rounds} rounds")
    for name, rate in best.items():
        print(f"  {name:14} {rate:>10,.0f} events a second")
    print(f"  core / reading        {best['core'] / best['reading']:.2f} (goal: at least 0.3)")
    print(f"  core / eventsourcing  {best['core'] / best['eventsourcing']:.1f} (goal: at least 5)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
