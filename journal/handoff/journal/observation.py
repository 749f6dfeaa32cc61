"""What a running program says it saw, as rows, line by line.

The lines are event lines (`foreign_lines`). Unlike an importer's, they come once, in order, and nobody knows what will
follow. So a handoff is opened by its first line, and its coordinator is declared as observed with its first action;
facts and outcomes seen before that are a witness's. A line that cannot be read is counted, not raised.
"""

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from handoff.journal.coordinator import Coordinator
from handoff.journal.coordinator_actor import ActionIssued, FactOffered, OutcomeOffered
from handoff.journal.declarations import Foreign, HandoffOpened, SourceDeclared
from handoff.journal.foreign_lines import read_foreign
from handoff.journal.observed_coordinator import ObservedCoordinator
from handoff.journal.port import ActorHandle, Row, RowStream
from handoff.journal.row_codec import encode
from handoff.journal.terms import ActorKind
from handoff.journal.vocabulary import HandoffId, Verdict
from handoff.journal.witness import seen_by_witness

REMEMBERED_HANDOFFS = 65_536
"""How many handoffs are followed at a time; a line of an older one opens it anew."""


@define
class Observation(RowStream):
    """Numbers the rows of lines and collects them until they are taken.

    Attributes:
        rows: rows since the last `take_rows`.
    """

    rows: list[Row] = field(init=False, factory=list)
    _sources: dict[str, int] = field(init=False, factory=dict)
    _handoffs: dict[str, tuple[int, HandoffOpened]] = field(init=False, factory=dict)
    _observed: dict[int, ObservedCoordinator] = field(init=False, factory=dict)
    _witnesses: dict[int | None, ActorHandle] = field(init=False, factory=dict)

    def _take(self, rows: list[Row]) -> None:
        self.rows += rows

    def take_rows(self) -> list[Row]:
        """The rows collected so far, which are forgotten here."""
        rows, self.rows = self.rows, []
        return rows

    def see(self, line: Mapping[str, Any]) -> None:
        """Add the rows of one line.

        Raises:
            LineRefused: it has a word or a value that cannot be.
        """
        foreign = read_foreign(line)
        content = foreign.content
        at_ms = max(self.last_at_ms, foreign.at_ms or 0.0)
        if isinstance(content, SourceDeclared):
            self._sources[content.source] = self.declare_source(content, at_ms)
            return
        source = None if foreign.source is None else self._source(foreign.source, at_ms)
        if isinstance(content, HandoffOpened):
            self._open(content, at_ms, source)
            return
        handoff = None if foreign.handoff is None else self._handoff(foreign.handoff, at_ms)
        bounds = (foreign.at_min_ms, foreign.at_max_ms)
        if isinstance(content, ActionIssued):
            self._action(content, dict(line), handoff, source, at_ms)
        elif isinstance(content, OutcomeOffered | FactOffered):
            self._input(content, handoff, source, at_ms)
        else:
            self._write(content, None, at_ms, handoff=handoff, source=source, bounds=bounds)

    def _source(self, name: str, at_ms: float) -> int:
        if name not in self._sources:
            self._sources[name] = self.declare_source(SourceDeclared(name, inferred=True), at_ms)
        return self._sources[name]

    def _open(self, opened: HandoffOpened, at_ms: float, source: int | None) -> int:
        number = self.open_handoff(opened, at_ms, source=source)
        self._handoffs[opened.handoff_id] = (number, opened)
        if len(self._handoffs) > REMEMBERED_HANDOFFS:
            oldest = next(iter(self._handoffs))
            self._observed.pop(self._handoffs.pop(oldest)[0], None)
        return number

    def _handoff(self, name: str, at_ms: float) -> int:
        if name not in self._handoffs:
            return self._open(HandoffOpened(name, inferred=True), at_ms, None)
        return self._handoffs[name][0]

    def _coordinator(self, name: str, source: int | None, at_ms: float) -> ObservedCoordinator | None:
        number, opened = self._handoffs[name]
        if number not in self._observed:
            if opened.order is None:
                return None
            config = {"handoff_id": name, "order": opened.order.value, "observed": True}
            actor = self.start_actor((ActorKind.COORDINATOR,), "observed", config, at_ms, handoff=number, source=source)
            self._observed[number] = ObservedCoordinator(actor, Coordinator(HandoffId(name), opened.order))
        return self._observed[number]

    def _action(
        self, content: ActionIssued, line: dict[str, Any], handoff: int | None, source: int | None, at_ms: float
    ) -> None:
        observed = self._coordinator(line["handoff"], source, at_ms)
        if observed is None:
            self._write(Foreign(line), None, at_ms, handoff=handoff, source=source)
            return
        issued, cause = observed.issue(content)
        self._write(issued, None, at_ms, handoff=handoff, source=source, actor=observed.actor.actors[0], cause=cause)

    def _input(
        self, content: OutcomeOffered | FactOffered, handoff: int | None, source: int | None, at_ms: float
    ) -> None:
        observed = None if handoff is None else self._observed.get(handoff)
        if observed is None:
            if source not in self._witnesses:
                self._witnesses[source] = self.start_actor((ActorKind.WITNESS,), "witness", {}, at_ms, source=source)
            actor = self._witnesses[source].actors[0]
            self._write(seen_by_witness(content), None, at_ms, handoff=handoff, source=source, actor=actor)
            return
        actor = observed.actor.actors[0]
        content, verdict, refusal, actions = observed.offer(content)
        seq = self._write(content, verdict, at_ms, handoff=handoff, source=source, actor=actor)
        if refusal is not None:
            self._write(refusal, None, at_ms, handoff=handoff, source=source, actor=actor, cause=seq, grp=seq)
        observed.note_orders(actions, seq)

    def _write(
        self,
        value: Any,
        verdict: Verdict | None,
        at_ms: float,
        *,
        handoff: int | None,
        source: int | None,
        actor: int | None = None,
        cause: int | None = None,
        grp: int | None = None,
        bounds: tuple[float | None, float | None] = (None, None),
    ) -> int:
        seq = self.last_seq + 1
        fields = encode(value, verdict, cause)
        self.append_rows([(seq, grp or seq, self.run, handoff, actor, source, at_ms, *bounds, *fields)])
        return seq
