"""Event lines of other systems, or of an exported journal, as rows.

Lines are looked at twice. The first look (`line_survey`) learns which names are one handoff, which handoffs have
actions, and how far clocks are apart; the second puts the lines in order (`line_merge`) and writes a row for each:

* A handoff with actions gets a **coordinator** actor, declared as *observed*. Its outcomes and facts are its inputs and
  get the verdict that a fold of the coordinator gives them; its actions are effects as the file has them, caused by the
  input whose fold ordered them. So ``replay --tier core`` holds the other system to the protocol. Each row is a group
  of its own, since a file need not tell effects right after their cause; a refusal is the one row that is ours.
* Facts and outcomes of a handoff without actions are a **witness's**: facts only, recorded and never re-executed.
* Everything else is an annotation: resources, faults, errors (as notes), and whole lines without a meaning here.

Native lines (rows of an exported journal) are written as they were. If some are missing, the rest is numbered anew, a
`gap` row says where, and what refers to a lost row loses that reference.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from handoff.journal.coordinator import Coordinator
from handoff.journal.coordinator_actor import ActionIssued, FactOffered, OutcomeOffered
from handoff.journal.declarations import ClockAligned, Foreign, Gap, HandoffJoined, HandoffOpened, SourceDeclared
from handoff.journal.event import RowFields
from handoff.journal.event_lines import LineRefused, is_native
from handoff.journal.foreign_lines import ForeignLine, read_foreign
from handoff.journal.line_files import Line, Unplaced, read_lines
from handoff.journal.line_merge import LineMerge, TimedLine
from handoff.journal.line_survey import ACTIONS, LineSurvey
from handoff.journal.native_import import NativeImport
from handoff.journal.observed_coordinator import ObservedCoordinator
from handoff.journal.port import ActorHandle, RowStream
from handoff.journal.row_codec import encode
from handoff.journal.terms import ActorKind, EndState
from handoff.journal.vocabulary import HandoffId, Verdict
from handoff.journal.witness import seen_by_witness

_BATCH = 4096
_LISTED = 1000
_REPEATED = (ActionIssued, OutcomeOffered, FactOffered)


@frozen
class ImportReport:
    """What became of the files.

    Attributes:
        rows: rows written.
        lines: objects read.
        handoffs: handoffs opened.
        native: whether the file held an exported journal.
        coordinators: handoffs whose coordinator can be folded; the others are facts only.
        joined: names that turned out to be one handoff's.
        ambiguous: keys that more than two names share, so that they join nothing.
        clocks: how clocks were aligned.
        unplaced: what could not become a row; at most the first 1,000.
        unplaced_count: how much there was of it.
        without_meaning: lines kept whole, by the key that might have told what they are.
    """

    rows: int
    lines: int
    handoffs: int
    native: bool
    coordinators: int
    joined: tuple[HandoffJoined, ...]
    ambiguous: tuple[tuple[str, tuple[str, ...]], ...]
    clocks: tuple[ClockAligned, ...]
    unplaced: tuple[Unplaced, ...]
    unplaced_count: int
    without_meaning: int


def import_lines(
    paths: Sequence[str | Path] | Mapping[str, Iterable[Line]],
    journal: RowStream,
    *,
    tool: str = "handoff import",
    end_ms: float | None = None,
    on_line: Callable[[int], None] | None = None,
) -> ImportReport:
    """Write the event lines of some files into a journal as one more run.

    Args:
        paths: the files, plain or gzip, or lines already read, by name; their order means nothing.
        journal: where to; for an exported journal it must be empty.
        tool: what the run's first row names as its recorder.
        end_ms: when the observation ended, ms on the files' time; by default with the last line.
        on_line: told the number of lines read now and then, for a progress bar.

    Raises:
        LinesUnreadable: a file cannot be opened.
        NativeRefused: an exported journal stands beside other files, or the journal is not empty.
    """
    read: Callable[[str], Iterable[Line | Unplaced]] = read_lines
    if isinstance(paths, Mapping):
        read = paths.__getitem__
    files = sorted({str(path) for path in paths})
    first = next((line for path in files for line in read(path) if isinstance(line, Line)), None)
    if first is not None and is_native(first.fields):
        native = NativeImport(journal, files).run(on_line)
        return ImportReport(
            rows=native.rows, lines=native.lines, handoffs=native.handoffs, native=True,
            coordinators=native.coordinators, joined=(), ambiguous=(), clocks=(),
            unplaced=tuple(native.unplaced[:_LISTED]), unplaced_count=len(native.unplaced), without_meaning=0,
        )  # fmt: skip
    survey = LineSurvey(many_files=len(files) > 1)
    for path in files:
        survey.take_all(read(path))
    survey.finish()
    return ForeignImport(journal, survey, {path: read(path) for path in files}, tool, end_ms).run(on_line)


@define
class ForeignImport:
    """The second look at lines of other systems."""

    journal: RowStream
    survey: LineSurvey
    files: dict[str, Iterable[Line | Unplaced]]
    tool: str
    end_ms: float | None = None
    _unplaced: list[Unplaced] = field(factory=list, init=False)
    _unplaced_count: int = field(default=0, init=False)
    _rows: list[tuple[Any, ...]] = field(factory=list, init=False)
    _seq: int = field(default=0, init=False)
    _at_ms: float = field(default=0.0, init=False)
    _handoffs: dict[str, int] = field(factory=dict, init=False)
    _folds: dict[str, ObservedCoordinator] = field(factory=dict, init=False)
    _coordinators: int = field(default=0, init=False)
    _witnesses: dict[str, ActorHandle] = field(factory=dict, init=False)
    _sources: dict[str, int] = field(factory=dict, init=False)
    _aliases: set[str] = field(factory=set, init=False)
    _joined: list[HandoffJoined] = field(factory=list, init=False)
    _kept_fields: dict[tuple[Any, Verdict | None], RowFields] = field(factory=dict, init=False)
    _kept: Counter[str] = field(factory=Counter, init=False)

    def run(self, on_line: Callable[[int], None] | None = None) -> ImportReport:
        """Write the run."""
        first_seq = self.journal.last_seq
        self.journal.begin_run(tool=self.tool, wall_ns=0, clock=self.survey.reference or "run")
        self._seq = self.journal.last_seq
        for source, declared in sorted(self.survey.sources.items()):
            self._sources[source] = self.journal.declare_source(declared, 0.0)
        for aligned in self.survey.clocks:
            self.journal.annotate(aligned, 0.0)
        self._seq = self.journal.last_seq
        merge = LineMerge(self.survey, self.files)
        for count, timed in enumerate(merge.lines(), start=1):
            self._take(timed)
            if on_line is not None and count % _BATCH == 0:
                on_line(count)
        for unplaced in merge.unplaced:
            self._refuse(unplaced)
        self._end()
        return ImportReport(
            rows=self.journal.last_seq - first_seq,
            lines=self.survey.lines,
            handoffs=len(self._handoffs),
            native=False,
            coordinators=self._coordinators,
            joined=tuple(self._joined),
            ambiguous=tuple(self.survey.ambiguous),
            clocks=self.survey.clocks,
            unplaced=tuple(self._unplaced),
            unplaced_count=self._unplaced_count,
            without_meaning=sum(self._kept.values()),
        )

    def _end(self) -> None:
        self._flush()
        end_ms = self._at_ms if self.end_ms is None else max(self.end_ms, self._at_ms)
        if self._unplaced_count:
            first = self._unplaced[0]
            reason = f"{first.reason} ({Path(first.file).name}, line {first.number})"
            self.journal.annotate(Gap(self._unplaced_count, reason), end_ms)
        self.journal.end_run(EndState.FINISHED, end_ms)

    # -- lines ----------------------------------------------------------------------------------------

    def _take(self, timed: TimedLine) -> None:
        line = timed.line
        try:
            foreign = read_foreign(line.fields)
        except LineRefused as refused:
            self._refuse(Unplaced(line.file, line.number, refused.reason, _shown(line.fields)))
            return
        content = foreign.content
        if isinstance(content, SourceDeclared):
            return
        assert timed.at_ms is not None
        self._at_ms = max(self._at_ms, timed.at_ms + 0.0)
        source = self._source(foreign.source)
        handoff = None if foreign.handoff is None else self._handoff(foreign.handoff, source)
        match content:
            case HandoffOpened():
                self._opened_again(foreign, timed, handoff, source)
            case ActionIssued():
                assert foreign.handoff is not None
                self._action(content, foreign, timed, handoff, source)
            case OutcomeOffered() | FactOffered():
                assert foreign.handoff is not None
                self._input(content, foreign, timed, handoff, source)
            case _:
                if isinstance(content, Foreign):
                    self._kept[next(iter(content.fields), "")] += 1
                self._annotate(content, timed, handoff, source)

    def _source(self, name: str | None) -> int | None:
        if not name:
            return None
        number = self._sources.get(name)
        if number is None:
            self._flush()
            number = self.journal.declare_source(SourceDeclared(name, inferred=True), self._at_ms)
            self._seq = self.journal.last_seq
            self._sources[name] = number
        return number

    def _handoff(self, name: str, source: int | None) -> int:
        canonical = self.survey.canonical(name)
        number = self._handoffs.get(canonical)
        if number is None:
            self._flush()
            number = self.journal.open_handoff(self._opening(canonical), self._at_ms)
            self._seq = self.journal.last_seq
            self._handoffs[canonical] = number
        if name != canonical and name not in self._aliases:
            self._aliases.add(name)
            joining = self.survey.joined[name]
            joined = HandoffJoined(joining.alias, joining.by, joining.key)
            self._joined.append(joined)
            self._write(joined, None, None, handoff=number, source=source)
        return number

    def _opening(self, name: str) -> HandoffOpened:
        survey = self.survey.handoffs[name]
        said = {"at_ms": 0.0, "handoff": name, "open": survey.opened}
        try:
            content = read_foreign(said).content
        except LineRefused:
            content = read_foreign({**said, "open": {}}).content
        assert isinstance(content, HandoffOpened)
        return HandoffOpened(
            name, survey.order, content.engine_type, content.request, content.room, content.attempt,
            content.parent_request, inferred=survey.opens == 0, extra=survey.extra or None,
        )  # fmt: skip

    def _opened_again(self, foreign: ForeignLine, timed: TimedLine, handoff: int | None, source: int | None) -> None:
        """An opening was written already, from all that is said of it; what one adds beside is kept whole."""
        content = foreign.content
        assert isinstance(content, HandoffOpened)
        assert foreign.handoff is not None
        known = self.survey.of(foreign.handoff).extra
        differing = {key: item for key, item in (content.extra or {}).items() if known.get(key) != item}
        if differing:
            self._annotate(Foreign({"open": differing}), timed, handoff, source)

    def _action(
        self, content: ActionIssued, foreign: ForeignLine, timed: TimedLine, handoff: int | None, source: int | None
    ) -> None:
        assert foreign.handoff is not None
        fold = self._fold(foreign.handoff, handoff, source)
        if fold is None:
            fields = dict(timed.line.fields)
            self._annotate(Foreign({"action": content.name.value, **fields}), timed, handoff, source)
            return
        issued, cause = fold.issue(content)
        seq = self._write(issued, None, timed, handoff=handoff, actor=fold.actor.actors[0], source=source, cause=cause)
        if foreign.extra:
            self._write(Foreign(dict(foreign.extra)), None, timed, handoff=handoff, source=source, cause=seq)

    def _input(
        self,
        content: OutcomeOffered | FactOffered,
        foreign: ForeignLine,
        timed: TimedLine,
        handoff: int | None,
        source: int | None,
    ) -> None:
        assert foreign.handoff is not None
        fold = self._fold(foreign.handoff, handoff, source)
        if fold is None:
            witness = self._witness(foreign.source, source)
            self._write(seen_by_witness(content), None, timed, handoff=handoff, actor=witness.actors[0], source=source)
            return
        content, verdict, refusal, actions = fold.offer(content)
        seq = self._write(content, verdict, timed, handoff=handoff, actor=fold.actor.actors[0], source=source)
        if refusal is not None:
            self._write(
                refusal, None, timed, handoff=handoff, actor=fold.actor.actors[0], source=source, cause=seq, grp=seq
            )
        fold.note_orders(actions, seq)

    # -- actors ---------------------------------------------------------------------------------------

    def _fold(self, name: str, handoff: int | None, source: int | None) -> ObservedCoordinator | None:
        name = self.survey.canonical(name)
        fold = self._folds.get(name)
        if fold is not None:
            return fold
        survey = self.survey.handoffs[name]
        order = survey.order
        if order is None or not survey.moments & ACTIONS:
            return None
        self._flush()
        config = {"handoff_id": name, "order": order.value, "observed": True}
        actor = self.journal.start_actor(
            (ActorKind.COORDINATOR,), "observed", config, self._at_ms, handoff=handoff, source=source
        )
        self._seq = self.journal.last_seq
        self._coordinators += 1
        fold = self._folds[name] = ObservedCoordinator(actor, Coordinator(HandoffId(name), order))
        return fold

    def _witness(self, name: str | None, source: int | None) -> ActorHandle:
        key = name or ""
        if key not in self._witnesses:
            self._flush()
            self._witnesses[key] = self.journal.start_actor(
                (ActorKind.WITNESS,), key or "imported", {}, self._at_ms, source=source
            )
            self._seq = self.journal.last_seq
        return self._witnesses[key]

    # -- rows -----------------------------------------------------------------------------------------

    def _annotate(self, content: Any, timed: TimedLine, handoff: int | None, source: int | None) -> None:
        self._write(content, None, timed, handoff=handoff, source=source)

    def _write(
        self,
        value: Any,
        verdict: Verdict | None,
        timed: TimedLine | None,
        *,
        handoff: int | None = None,
        actor: int | None = None,
        source: int | None = None,
        cause: int | None = None,
        grp: int | None = None,
    ) -> int:
        self._seq = seq = self._seq + 1
        low = high = None
        if timed is not None and not timed.at_min_ms == self._at_ms == timed.at_max_ms:
            low, high = timed.at_min_ms, timed.at_max_ms
        fields = self._encoded(value, verdict, cause)
        self._rows.append((seq, grp or seq, self.journal.run, handoff, actor, source, self._at_ms, low, high, *fields))
        if len(self._rows) >= _BATCH and grp is None and not isinstance(value, OutcomeOffered | FactOffered):
            self._flush()
        return seq

    def _encoded(self, value: Any, verdict: Verdict | None, cause: int | None) -> RowFields:
        """What a value contributes to its row; a log repeats the same few thousand times, so they are kept."""
        if type(value) not in _REPEATED or getattr(value, "extra", None) is not None:
            return encode(value, verdict, cause)
        key = (value, verdict)
        fields = self._kept_fields.get(key)
        if fields is None:
            fields = encode(value, verdict, None)
            if len(self._kept_fields) < _BATCH:
                self._kept_fields[key] = fields
        return fields if cause is None else fields._replace(cause=cause)

    def _flush(self) -> None:
        if self._rows:
            self.journal.append_rows(self._rows)
            self._rows = []

    def _refuse(self, unplaced: Unplaced) -> None:
        self._unplaced_count += 1
        if len(self._unplaced) < _LISTED:
            self._unplaced.append(unplaced)


def _shown(fields: Any) -> str:
    text = str(dict(fields))
    return text if len(text) <= 120 else text[:119] + "…"
