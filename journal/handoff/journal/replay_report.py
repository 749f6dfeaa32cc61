"""What a replay says: how much it re-executed, how the runs ended, and where it diverged."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen

from handoff.journal.divergence import Divergence, FieldDifference
from handoff.journal.event import Event
from handoff.journal.terms import ActorKind, EndState


class Tier(StrEnum):
    """How much of a journal is re-executed."""

    CORE = "core"
    """Each handoff's coordinator alone."""
    FULL = "full"
    """Every actor."""


@frozen
class ActorTally:
    """How many actors of one kind a journal holds, and what replay did with them.

    Attributes:
        kind: which machine they are instances of.
        actors: how many were declared.
        rows: rows of theirs, inputs and effects.
        re_executed: False when their rows were only read: another program's, or not of this tier.
    """

    kind: ActorKind
    actors: int
    rows: int
    re_executed: bool


@frozen
class RunEnding:
    """How one run ended; `name` is None when the journal holds no `run_ended` row for it."""

    run: int
    name: EndState | None
    reason: str | None = None


@frozen
class ReplayReport:
    """The answer of a replay.

    Attributes:
        tier: what was re-executed.
        last_seq: number of the last row, 0 for an empty journal.
        rows: rows read.
        steps: steps re-executed.
        compared: rows compared with what re-execution gave.
        handoffs: handoffs declared.
        actors: tallies in the order of the kinds.
        runs: endings in the order of the runs.
        unended: sessions that were still going on at the end of an interrupted or open run.
        divergences: the first divergence of each actor that has one, by row, cut at a limit.
        divergence_count: how many there are without the limit.
        skipped: rows not compared because their actor had diverged before.
    """

    tier: Tier
    last_seq: int
    rows: int
    steps: int
    compared: int
    handoffs: int
    actors: tuple[ActorTally, ...]
    runs: tuple[RunEnding, ...]
    unended: tuple[int, ...]
    divergences: tuple[Divergence, ...]
    divergence_count: int
    skipped: int

    @property
    def agrees(self) -> bool:
        """Whether re-execution gave every row that it should have."""
        return self.divergence_count == 0

    @property
    def ends_open(self) -> bool:
        """Whether a run lacks its last row, as after a kill."""
        return any(run.name is None for run in self.runs)


@define
class MutableTally:
    """The running figures behind an `ActorTally`."""

    actors: int = 0
    rows: int = 0
    re_executed: bool = False


@define
class Findings:
    """Collects a report while a replay goes on."""

    tier: Tier
    stop_after: int | None = None
    limit: int = 100
    last_seq: int = 0
    rows: int = 0
    steps: int = 0
    compared: int = 0
    handoffs: int = 0
    skipped: int = 0
    divergence_count: int = 0
    divergences: list[Divergence] = field(factory=list)
    tallies: dict[ActorKind, MutableTally] = field(factory=dict)
    runs: dict[int, RunEnding] = field(factory=dict)

    @property
    def enough(self) -> bool:
        """Whether nothing more needs to be found."""
        return self.stop_after is not None and self.divergence_count >= self.stop_after

    def diverged(self, divergence: Divergence) -> None:
        """Add one divergence."""
        self.divergence_count += 1
        if len(self.divergences) < self.limit:
            self.divergences.append(divergence)

    def tally(self, kind: ActorKind) -> MutableTally:
        """The running figures of one kind of actor."""
        found = self.tallies.get(kind)
        if found is None:
            found = self.tallies[kind] = MutableTally()
        return found

    def report(self, unended: tuple[int, ...] = ()) -> ReplayReport:
        """The finished report."""
        order = list(ActorKind)
        return ReplayReport(
            tier=self.tier,
            last_seq=self.last_seq,
            rows=self.rows,
            steps=self.steps,
            compared=self.compared,
            handoffs=self.handoffs,
            actors=tuple(
                ActorTally(kind, tally.actors, tally.rows, tally.re_executed)
                for kind, tally in sorted(self.tallies.items(), key=lambda item: order.index(item[0]))
                if tally.actors or tally.rows
            ),
            runs=tuple(self.runs[run] for run in sorted(self.runs)),
            unended=unended,
            divergences=tuple(sorted(self.divergences, key=lambda divergence: divergence.seq)),
            divergence_count=self.divergence_count,
            skipped=self.skipped,
        )


def replay_document(report: ReplayReport) -> dict[str, Any]:
    """The report as a JSON document (docs/schemas/replay.schema.json)."""
    return {
        "schema": "handoff.replay/1",
        "tier": report.tier.value,
        "agrees": report.agrees,
        "last_seq": report.last_seq,
        "rows": report.rows,
        "steps": report.steps,
        "compared": report.compared,
        "handoffs": report.handoffs,
        "ends_open": report.ends_open,
        "actors": [
            {"kind": t.kind.value, "actors": t.actors, "rows": t.rows, "re_executed": t.re_executed}
            for t in report.actors
        ],
        "runs": [
            {"run": run.run, "end": None if run.name is None else run.name.value, "reason": run.reason}
            for run in report.runs
        ],
        "unended_actors": list(report.unended),
        "divergence_count": report.divergence_count,
        "divergences": [_divergence_document(divergence) for divergence in report.divergences],
        "skipped_rows": report.skipped,
    }


def _divergence_document(divergence: Divergence) -> dict[str, Any]:
    return {
        "class": divergence.kind.value,
        "seq": divergence.seq,
        "sentence": divergence.sentence,
        "actor": divergence.actor,
        "actor_name": divergence.actor_name,
        "handoff": divergence.handoff,
        "differences": [_difference_document(difference) for difference in divergence.differences],
        "expected": row_document(divergence.expected),
        "actual": row_document(divergence.actual),
        "last_common": divergence.last_common,
        "caused_by": list(divergence.caused_by),
        "state": divergence.state,
    }


def _difference_document(difference: FieldDifference) -> dict[str, Any]:
    return {"field": difference.field, "expected": difference.expected, "actual": difference.actual}


def row_document(event: Event | None) -> Mapping[str, Any] | None:
    """A row as JSON readers see it: columns that are empty are left out, the payload is parsed where it can be."""
    if event is None:
        return None
    shown: dict[str, Any] = {
        name: item
        for name, item in (
            ("seq", event.seq), ("grp", event.grp), ("run", event.run), ("handoff", event.handoff),
            ("actor", event.actor), ("source", event.source), ("at_ms", event.at_ms),
            ("at_min_ms", event.at_min_ms), ("at_max_ms", event.at_max_ms), ("kind", event.kind),
            ("name", event.name), ("action_id", event.action_id), ("outcome", event.outcome),
            ("verdict", event.verdict), ("cause", event.cause), ("rank", event.rank),
            ("generation", event.generation), ("attempt", event.attempt),
        )
        if item is not None
    }  # fmt: skip
    if event.payload_json is not None:
        try:
            shown["payload"] = dict(event.payload)
        except (ValueError, KeyError):
            shown["payload_text"] = event.payload_json
    return shown
