"""Replay: the same code takes the recorded inputs again, and must decide the same.

Two tiers, named for what they re-execute. ``core`` folds each handoff's coordinator alone (`core_replay`): cheap, and
possible for every journal that holds actions, whoever wrote it. ``full`` feeds every actor its rows
(`full_replay`): sessions, rendezvous, permits, engines down to the digests of their tokens; only what came from the
world is believed. A journal that a kill cut short replays like any other, and the report says that it ends open.

Replay only reads. It keeps as many machines as fit (`seats`) and no rows, so a journal's length does not matter.
"""

from collections.abc import Callable, Mapping

from handoff.journal.coordinator_actor import CoordinatorActor
from handoff.journal.core_replay import CoreReplay
from handoff.journal.event_source import EventSource
from handoff.journal.full_replay import FullReplay
from handoff.journal.replay_report import ReplayReport, Tier
from handoff.journal.step import MachineFactory
from handoff.journal.terms import ActorKind

__all__ = ["MACHINES", "ReplayReport", "Tier", "replay"]

MACHINES: Mapping[ActorKind, MachineFactory] = {ActorKind.COORDINATOR: CoordinatorActor.build}
"""The machines that this package has; `handoff.engines.machines` adds all others."""


def replay(
    source: EventSource,
    tier: Tier = Tier.CORE,
    machines: Mapping[ActorKind, MachineFactory] = MACHINES,
    *,
    on_row: Callable[[int], None] | None = None,
    stop_after: int | None = None,
) -> ReplayReport:
    """Re-execute a journal and compare.

    Args:
        source: the journal, such as an open `JournalReader`.
        tier: how much of it is re-executed.
        machines: how each kind of actor is built; actors of other kinds are read, not re-executed (``full`` only).
        on_row: told the number of a row now and then, for a progress bar.
        stop_after: so many divergences are enough; all are looked for by default.

    Returns:
        what was compared and where it diverged; `ReplayReport.agrees` is the short answer.
    """
    match tier:
        case Tier.CORE:
            return CoreReplay(source, on_row, stop_after).run()
        case Tier.FULL:
            return FullReplay(source, machines, on_row, stop_after).run()
