"""Feeds machines and keeps what they answer, as a driver would."""

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from handoff.engines.machines import MACHINES
from handoff.journal.event import Event
from handoff.journal.event_source import EventList
from handoff.journal.port import ActorHandle, MemoryJournal
from handoff.journal.replay_report import ReplayReport, Tier
from handoff.journal.replayer import replay
from handoff.journal.step import Step


@define
class RecordedMachine:
    """A machine whose steps go to a journal."""

    machine: Any
    journal: MemoryJournal = field(factory=MemoryJournal)
    label: str = "machine"
    _actor: ActorHandle = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._actor = self.journal.start_actor(self.machine.SLOTS, self.label, self.machine.config(), 0.0)

    def offer(self, value: Any, at_ms: float = 0.0) -> Step:
        """One input."""
        step: Step = self.machine.step(value, at_ms)
        self.journal.append(self._actor, step, at_ms)
        return step


def replay_of(events: Iterable[Event]) -> ReplayReport:
    """The full replay of rows in memory."""
    return replay(EventList(tuple(events)), Tier.FULL, MACHINES)


def assert_replays(journal: MemoryJournal) -> ReplayReport:
    """Every row follows from the inputs; and there were some."""
    report = replay_of(journal.events)
    assert report.agrees, report.divergences[0]
    assert report.compared > 0
    return report
