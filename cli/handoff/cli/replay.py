"""`handoff replay`: re-execute a journal offline and compare."""

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console

from handoff.cli.arguments import JournalFile, JsonOutput
from handoff.cli.divergence_view import divergence_view
from handoff.cli.output import console, print_document, progress
from handoff.cli.replay_view import replay_view
from handoff.journal.reader import JournalReader
from handoff.journal.replay_report import ReplayReport, replay_document
from handoff.journal.replayer import MACHINES, Tier
from handoff.journal.replayer import replay as replay_journal
from handoff.journal.step import MachineFactory
from handoff.journal.terms import ActorKind

EXAMPLE = "handoff replay run.db --tier full"


def replay(
    journal: JournalFile,
    tier: Annotated[
        Tier, typer.Option(help="core: each handoff's coordinator alone. full: every actor, down to the engines.")
    ] = Tier.CORE,
    json: JsonOutput = False,
) -> None:
    """Re-execute a journal offline, compare every decision, and report the first divergence.

    Exits 1 when something diverges. The journal is never written to.
    """
    with JournalReader(journal) as reader, progress("replaying", reader.last_seq, quiet=json) as on_row:
        report = replay_journal(reader, tier, _machines(tier), on_row=on_row)
    if json:
        print_document(replay_document(report) | {"journal": str(journal)})
    else:
        _print(console(), report)
    if not report.agrees:
        raise typer.Exit(1)


def _machines(tier: Tier) -> Mapping[ActorKind, MachineFactory]:
    if tier is Tier.CORE:
        return MACHINES
    from handoff.engines.machines import MACHINES as ALL_MACHINES  # noqa: PLC0415 - engines are slow to load

    return ALL_MACHINES


def _print(out: Console, report: ReplayReport) -> None:

    out.print(replay_view(report))
    for divergence in report.divergences[:1]:
        out.print(divergence_view(divergence))
    others = report.divergence_count - 1
    if others > 0:
        out.print(f"[dim]{others} more actors diverge; the first to diverge is the one to look at.[/dim]")
