"""The core tier: each handoff's coordinator takes its recorded inputs again, and its decisions are compared.

A coordinator needs no session, engine or clock: its outcomes and facts are in its own rows, whoever wrote them. So
this tier works on every journal with actions, those of other systems included, and it is cheap: all other rows are
passed over. Compared are verdicts, actions with their ids and delays, and refusals. A coordinator may stop short
lawfully, since its session may have ended before it.

In a journal of ours an input's effects follow it in the same group. An importer writes rows as it finds them, so
the effects of two inputs may come together, and a driver may have died before it wrote the last; a coordinator that
it declares with ``"observed": true`` is held to the order of its inputs and to the order of its effects, but not to how
the two interleave, nor to effects that never came.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import define, field

from handoff.journal.coordinator import (
    Coordinator,
    CoordinatorError,
)
from handoff.journal.coordinator_actor import FactOffered, HandoffStarted, OutcomeOffered
from handoff.journal.coordinator_fold import FactCache, Fold, Owed
from handoff.journal.divergence import Divergence, DivergenceClass, FieldDifference, describe, readable, shape_of
from handoff.journal.event import COLUMNS, Event, event_from_row, payload_to_json
from handoff.journal.event_source import EventSource, StoredRows, declared_actor
from handoff.journal.replay_report import Findings, MutableTally, ReplayReport, RunEnding, Tier
from handoff.journal.row_codec import UnreadableRow, decode, verdict_kinds
from handoff.journal.terms import ActorKind, EndState, Kind
from handoff.journal.vocabulary import ActorId, HandoffId, HandoffOrder, Seq

COORDINATOR_KINDS = frozenset(
    kind.value
    for kind in (
        Kind.HANDOFF_STARTED, Kind.ACTION_ISSUED, Kind.COORDINATOR_ERROR, Kind.OUTCOME_APPLIED, Kind.OUTCOME_DUPLICATE,
        Kind.OUTCOME_CONFLICT, Kind.OUTCOME_INVALID, Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_LATE, Kind.FACT_APPLIED,
        Kind.FACT_IGNORED,
    )
)  # fmt: skip
"""The kinds of a coordinator's rows; no other actor has rows of these kinds."""

_DECLARING = frozenset(
    kind.value for kind in (Kind.HANDOFF_OPENED, Kind.ACTOR_STARTED, Kind.RUN_STARTED, Kind.RUN_ENDED, Kind.RUN_RESUMED)
)
_LAWFUL = verdict_kinds(OutcomeOffered) | verdict_kinds(FactOffered) | verdict_kinds(HandoffStarted)
_ROOM = 8192
_VERDICT = COLUMNS.index("verdict")


@define
class CoreReplay:
    """Folds a journal's coordinators once; `run` gives the report."""

    source: EventSource
    on_row: Callable[[int], None] | None = None
    stop_after: int | None = None
    _found: Findings = field(init=False)
    _tally: MutableTally = field(init=False)
    _folds: OrderedDict[int, Fold] = field(factory=OrderedDict, init=False)
    _opened: dict[int, tuple[str, HandoffOrder | None]] = field(factory=dict, init=False)
    _orders: dict[int, Any] = field(factory=dict, init=False)
    _facts: FactCache = field(factory=FactCache, init=False)

    def __attrs_post_init__(self) -> None:
        self._found = Findings(Tier.CORE, self.stop_after)
        self._tally = self._found.tally(ActorKind.COORDINATOR)

    def run(self) -> ReplayReport:
        """Read the coordinators' rows once, and fold them."""
        found = self._found
        for event in self._slow_rows():
            found.rows += 1
            found.last_seq = event.seq
            if event.kind in COORDINATOR_KINDS:
                self._row(event)
            else:
                self._declaration(event)
            if self.on_row is not None:
                self.on_row(event.seq)
            if found.divergence_count and found.enough:
                return found.report()
        for fold in self._folds.values():
            self._settle(fold)
        return found.report()

    def _slow_rows(self) -> Iterator[Event]:
        """The rows that need a closer look; stored rows that need none are folded on the way."""
        kinds = COORDINATOR_KINDS | _DECLARING
        if not isinstance(self.source, StoredRows):
            yield from self.source.events(kinds=kinds)
            return
        found, tally, folds, facts = self._found, self._tally, self._folds, self._facts
        for row in self.source.rows(kinds=kinds):
            fold = folds.get(row[4])
            if fold is None or not fold.quick(row, facts):
                yield event_from_row(row)
                continue
            found.rows += 1
            found.last_seq = row[0]
            found.compared += 1
            found.steps += row[_VERDICT] is not None
            tally.rows += 1

    # -- declarations ---------------------------------------------------------------------------------

    def _declaration(self, event: Event) -> None:
        self._found.runs.setdefault(event.run, RunEnding(event.run, None))
        try:
            match event.kind:
                case Kind.HANDOFF_OPENED:
                    self._found.handoffs += 1
                    opened = decode(event)
                    if event.handoff is not None:
                        self._opened[event.handoff] = (opened.handoff_id, opened.order)
                case Kind.ACTOR_STARTED:
                    self._actor(event)
                case Kind.RUN_ENDED:
                    ended = decode(event)
                    self._found.runs[event.run] = RunEnding(event.run, EndState(ended.name), ended.reason)
                case _:
                    self._found.runs[event.run] = RunEnding(event.run, None)
        except UnreadableRow as unreadable:
            self._report(None, event, unreadable.reason, DivergenceClass.PAYLOAD)

    def _actor(self, event: Event) -> None:
        declared = declared_actor(event)
        tally = self._found.tally(declared.kind)
        tally.actors += 1
        if declared.kind is not ActorKind.COORDINATOR:
            if declared.kind is ActorKind.SOURCE_SESSION:
                self._orders[declared.actor] = declared.config.get("order")
            return
        tally.re_executed = True
        parent_order = self._orders.pop(declared.parent, None) if declared.parent is not None else None
        try:
            self._seat(declared, event.handoff, parent_order)
        except (KeyError, ValueError) as error:
            sentence = f"no coordinator can be built: {type(error).__name__}: {error}"
            self._report(None, event, sentence, DivergenceClass.STRUCTURE)

    def _seat(self, declared: Any, handoff: int | None, parent_order: Any) -> Fold:
        handoff_id, opened_order = self._opened.pop(handoff, ("", None)) if handoff is not None else ("", None)
        order = declared.config.get("order") or parent_order or opened_order
        if order is None:
            raise KeyError("order: who is asked first is neither in its configuration nor in its handoff's row")
        name = HandoffId(declared.config.get("handoff_id") or handoff_id)
        observed = bool(declared.config.get("observed"))
        fold = Fold(declared.actor, Coordinator(name, HandoffOrder(order)), observed, declared.label)
        self._folds[declared.actor] = fold
        if len(self._folds) > _ROOM:
            self._settle(self._folds.popitem(last=False)[1])
        return fold

    def _fold_of(self, event: Event) -> Fold | None:
        """The fold of a coordinator that has none yet, or had to give its up."""
        if event.actor is None:
            self._report(None, event, f"a row of kind {event.kind} belongs to no actor")
            return None
        try:
            declared = self.source.actor(event.actor)
        except LookupError:
            self._report(None, event, f"actor {event.actor} was not declared before its first row")
            return None
        if declared.kind is not ActorKind.COORDINATOR:
            self._report(None, event, f"actor {event.actor} is no coordinator and has no rows of kind {event.kind}")
            return None
        return self._fold_anew(event, declared)

    def _fold_anew(self, event: Event, declared: Any) -> Fold | None:
        """The fold of a coordinator that had to give way to others, from its rows before `event`."""
        parent = None if declared.parent is None else self.source.actor(declared.parent).config.get("order")
        if declared.handoff is not None:
            for opened in self.source.events(handoff=declared.handoff, kinds=(Kind.HANDOFF_OPENED.value,)):
                value = decode(opened)
                self._opened[declared.handoff] = (value.handoff_id, value.order)
        try:
            fold = self._seat(declared, declared.handoff, parent)
        except (KeyError, ValueError):
            return None
        for earlier in self.source.events(actor=event.actor, last=event.seq - 1):
            if earlier.is_input:
                fold.take(earlier, self._facts)
        fold.owed.clear()
        return fold

    # -- rows -----------------------------------------------------------------------------------------

    def _row(self, event: Event) -> None:
        fold = self._folds.get(-1 if event.actor is None else event.actor) or self._fold_of(event)
        if fold is None:
            return
        found = self._found
        self._tally.rows += 1
        if fold.diverged:
            found.skipped += 1
            return
        found.compared += 1
        if event.verdict is not None:
            self._input(fold, event)
        else:
            self._effect(fold, event)
        fold.last_seq = event.seq

    def _input(self, fold: Fold, event: Event) -> None:
        if fold.owed and not fold.observed:
            self._owed(fold, event.seq, event)
            return
        self._found.steps += 1
        try:
            verdict = fold.take(event, self._facts)
        except UnreadableRow as unreadable:
            self._report(fold, event, f"its input cannot be read: {unreadable.reason}", DivergenceClass.PAYLOAD)
            return
        fold.last_input = event.seq
        if verdict != event.verdict:
            sentence = f"{fold.name} takes {describe(event)} as {verdict}"
            difference = FieldDifference("verdict", verdict.value, event.verdict)
            self._report(fold, event, sentence, DivergenceClass.PAYLOAD, (difference,))
        elif (event.kind, event.verdict) not in _LAWFUL:
            sentence = f"no input of {fold.name} that was {event.verdict} has a row of kind {event.kind}"
            self._report(fold, event, sentence, DivergenceClass.PAYLOAD)

    def _effect(self, fold: Fold, event: Event) -> None:
        if not fold.owed:
            if fold.last_input is None and not fold.core.started and event.kind == Kind.ACTION_ISSUED and fold.observed:
                fold.owed.extend(fold.core.start())
            else:
                sentence = f"the journal holds {describe(event)}, which {fold.name} does not order"
                self._report(fold, event, sentence, DivergenceClass.EXTRA)
                return
        owed = fold.owed[0]
        differences = _effect_differences(owed, event)
        if not differences:
            fold.owed.popleft()
            return
        later = any(not _effect_differences(other, event) for other in list(fold.owed)[1:])
        kind = DivergenceClass.REORDERED if later else shape_of(differences)
        sentence = f"{fold.name} orders {_named(owed)}; the journal holds {describe(event)}"
        self._report(fold, event, sentence, kind, differences)

    def _settle(self, fold: Fold) -> None:
        if fold.owed and not fold.diverged and not fold.observed:
            self._owed(fold, fold.last_seq or fold.last_input or 0, None)

    def _owed(self, fold: Fold, seq: int, event: Event | None) -> None:
        sentence = f"{fold.name} orders {_named(fold.owed[0])}, which the journal lacks"
        row = self.source.event(seq) if event is None else event
        self._report(fold, row, sentence, DivergenceClass.MISSING)

    def _report(
        self,
        fold: Fold | None,
        event: Event,
        sentence: str,
        kind: DivergenceClass = DivergenceClass.STRUCTURE,
        differences: tuple[FieldDifference, ...] = (),
    ) -> None:
        if fold is not None:
            fold.diverged = True
        caused = () if fold is None or fold.last_input in (None, event.seq) else (Seq(fold.last_input or 0),)
        self._found.diverged(
            Divergence(
                kind=kind,
                seq=event.seq,
                sentence=sentence,
                actor=None if event.actor is None else ActorId(event.actor),
                actor_name=None if fold is None else fold.name,
                handoff=event.handoff,
                differences=differences,
                actual=None if kind is DivergenceClass.MISSING else event,
                last_common=None if fold is None or fold.last_seq is None else Seq(fold.last_seq),
                caused_by=caused,
                state=None if fold is None else readable(fold.core),
            )
        )


def _named(owed: Owed) -> str:
    if isinstance(owed, CoordinatorError):
        return f"a refusal ({owed.code})"
    return f"{owed.name} (action {owed.id})"


def _effect_differences(owed: Owed, event: Event) -> tuple[FieldDifference, ...]:
    """Where a recorded effect is another than the one that the coordinator gives."""
    if isinstance(owed, CoordinatorError):
        columns: tuple[Any, ...] = (Kind.COORDINATOR_ERROR.value, None, None)
        payload: dict[str, Any] = {"code": owed.code, "message": str(owed)}
    else:
        if (
            event.kind == "action_issued"
            and event.name == owed.name
            and event.action_id == owed.id
            and owed.delay_ms is None
            and event.payload_json is None
        ):
            return ()
        columns = (Kind.ACTION_ISSUED.value, owed.name.value, owed.id)
        payload = {} if owed.delay_ms is None else {"delay_ms": owed.delay_ms}
    recorded = (event.kind, event.name, event.action_id)
    found = [
        FieldDifference(name, expected, actual)
        for name, expected, actual in zip(("kind", "name", "action_id"), columns, recorded, strict=True)
        if expected != actual
    ]
    return (*found, *_payload_differences(payload, event))


def _payload_differences(expected: Mapping[str, Any], event: Event) -> Iterator[FieldDifference]:
    """Keys of the payload that differ; what an importer kept of another system under `extra` is no decision."""
    try:
        actual = event.payload
    except (ValueError, KeyError):
        yield FieldDifference("payload", payload_to_json(expected), event.payload_json)
        return
    for name in dict.fromkeys((*expected, *actual)):
        if expected.get(name) != actual.get(name) and name != "extra":
            yield FieldDifference(f"payload.{name}", expected.get(name), actual.get(name))
