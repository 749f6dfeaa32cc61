"""A first look at all event lines of an import: who speaks, on which clock, of which handoffs.

The second look writes rows and must know what comes later: whether a handoff has actions at all (else no coordinator
can be folded), which handoffs of two sources are one, and how far their clocks are apart. The first look collects that
and keeps no lines.

**Streams.** Rows of one source in one file are in true order; so are the rows of a file that names no source. A single
file whose lines share one clock is one stream: somebody already put it in order.

**Joining.** Two names are one handoff when two streams that never use each other's name share a key that exactly these
two have: a room (with its attempt), a transfer id, the id that one side calls the other's. A key that more than two
names share joins nothing; the report lists it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from attrs import Factory, define, field, frozen

from handoff.journal.clock_alignment import PairBounds, align
from handoff.journal.declarations import ClockAligned, SourceDeclared
from handoff.journal.event_lines import LineRefused, subject_of
from handoff.journal.foreign_lines import read_foreign
from handoff.journal.handoff_milestones import BIT, CERTAIN, bit_of
from handoff.journal.line_files import Line, Unplaced
from handoff.journal.vocabulary import ActionName, HandoffOrder, Side

JOIN_KEYS = ("room", "bootstrap_room", "transfer_id", "disagg_request_id", "ctx_request_id")
"""Fields that both sides of a handoff print with the same value; the first two are one key."""

NAMING_KEYS = ("remote_request_id", "prefill_request_id")
"""Fields in which one side prints the other side's own name of the handoff."""

_ALL_KEYS = frozenset({*JOIN_KEYS, *NAMING_KEYS})
_OPENED_FIELDS = ("order", "engine_type", "request", "room", "attempt", "parent_request")
_NO_EXTRA = frozenset({"open", "at_ms", "at_min_ms", "at_max_ms", "handoff", "source", *_OPENED_FIELDS})


class StreamKey(NamedTuple):
    """Whose rows: those of a source (empty: none named) in a file."""

    file: str
    source: str


@define
class HandoffSurvey:
    """What the first look learned of one name of a handoff.

    Attributes:
        opened: fields of its ``open`` lines, joined; the first to say a field is believed.
        extra: further fields of them.
        opens: how many there are.
        moments: the bits of `handoff_milestones` that some line tells of.
        actions: its actions' names by id.
        first_action: the name of the first action in a file's order.
        streams: where its lines are.
        keys: its values of `JOIN_KEYS` and `NAMING_KEYS`.
        times: by moment, the first stream that tells of it and between which times.
    """

    opened: dict[str, Any] = Factory(dict)
    extra: dict[str, Any] = Factory(dict)
    opens: int = 0
    moments: int = 0
    actions: dict[int, str] = Factory(dict)
    first_action: str | None = None
    streams: set[StreamKey] = Factory(set)
    keys: set[tuple[str, str]] = Factory(set)
    times: dict[int, tuple[StreamKey, float, float]] | None = None

    @property
    def order(self) -> HandoffOrder | None:
        """Who is asked first: as the opening says, or else as the first action shows."""
        said = self.opened.get("order")
        if said in tuple(HandoffOrder):
            return HandoffOrder(said)
        match self.first_action:
            case ActionName.SUBMIT_PREFILL:
                return HandoffOrder.SOURCE_FIRST
            case ActionName.RESERVE_DESTINATION:
                return HandoffOrder.DESTINATION_FIRST
            case _:
                return None


@frozen
class Joining:
    """Two names that are one handoff: `alias` stands for `name`, since both have `key` under the field `by`."""

    name: str
    alias: str
    by: str
    key: str


@define
class LineSurvey:
    """Collects the first look; `take` each line, then `finish`.

    Attributes:
        sources: the declarations by source; the first one counts.
        streams: each stream with the time of its first row.
        handoffs: by the name that a line gives.
        joined: which names stand for others.
        ambiguous: keys that more than two names share, with the names.
        clocks: the alignment of every clock but the reference.
        lines: how many objects there are.
    """

    many_files: bool
    sources: dict[str, SourceDeclared] = field(factory=dict, init=False)
    streams: dict[StreamKey, float] = field(factory=dict, init=False)
    actions_of: dict[StreamKey, int] = field(factory=dict, init=False)
    handoffs: dict[str, HandoffSurvey] = field(factory=dict, init=False)
    joined: dict[str, Joining] = field(factory=dict, init=False)
    ambiguous: list[tuple[str, tuple[str, ...]]] = field(factory=list, init=False)
    clocks: tuple[ClockAligned, ...] = field(default=(), init=False)
    lines: int = field(default=0, init=False)

    def take_all(self, lines: Iterable[Line | Unplaced]) -> None:
        """Look at lines in their file's order; what cannot be read is left to the second look."""
        for line in lines:
            if isinstance(line, Line):
                self.lines += 1
                self._take(line)

    def _take(self, line: Line) -> None:
        fields = line.fields
        source = fields.get("source")
        key = StreamKey(line.file, source if isinstance(source, str) else "")
        at_ms = fields.get("at_ms", fields.get("at_min_ms"))
        if at_ms is None and isinstance(source, str) and "handoff" not in fields:
            self._declare(fields)
            return
        if type(at_ms) not in (int, float):
            return
        if key not in self.streams:
            self.streams[key] = at_ms
        name = fields.get("handoff")
        if name is not None:
            self._handoff(str(name), key, at_ms, fields)

    def _declare(self, fields: Mapping[str, Any]) -> None:
        try:
            content = read_foreign(fields).content
        except LineRefused:
            return
        if isinstance(content, SourceDeclared):
            self.sources.setdefault(content.source, content)

    def _handoff(self, name: str, key: StreamKey, at_ms: float, fields: Mapping[str, Any]) -> None:
        survey = self.handoffs.get(name)
        if survey is None:
            survey = self.handoffs[name] = HandoffSurvey()
        if key not in survey.streams:
            survey.streams.add(key)
        subject = subject_of(fields)
        if subject == "open":
            survey.opens += 1
            self._opened(survey, fields)
        elif subject == "action":
            action = fields["action"]
            survey.first_action = survey.first_action or action
            if isinstance(action, str):
                survey.actions.setdefault(fields.get("id", len(survey.actions)), action)
            self.actions_of[key] = self.actions_of.get(key, 0) + 1
        bit = bit_of(fields, survey.actions, subject)
        survey.moments |= bit
        if bit and (self.many_files or key.source):
            if survey.times is None:
                survey.times = {}
            if bit not in survey.times:
                survey.times[bit] = (key, fields.get("at_min_ms", at_ms), fields.get("at_max_ms", at_ms))
        self._keys(survey, fields)

    def _opened(self, survey: HandoffSurvey, fields: Mapping[str, Any]) -> None:
        opened = fields["open"]
        if not isinstance(opened, dict):
            return
        for item in (fields, opened):
            for word in _OPENED_FIELDS:
                if item.get(word) is not None:
                    survey.opened.setdefault(word, item[word])
        for word, item in (*fields.items(), *opened.items()):
            if word not in _NO_EXTRA:
                survey.extra.setdefault(word, item)
        self._keys(survey, opened)

    def _keys(self, survey: HandoffSurvey, fields: Mapping[str, Any]) -> None:
        if _ALL_KEYS.isdisjoint(fields):
            return
        for word in (*JOIN_KEYS, *NAMING_KEYS):
            value = fields.get(word)
            if value is not None:
                survey.keys.add(("room" if word == "bootstrap_room" else word, str(value)))

    # -- conclusions ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Join names and align clocks."""
        if len(self.streams) > 1:
            self._join()
            self._align()

    @property
    def is_ordered(self) -> bool:
        """Whether the lines are one file on one clock, so that their order needs no thought."""
        return not self.many_files and len({self.clock_of(key) for key in self.streams}) < 2

    def clock_of(self, key: StreamKey) -> str:
        """The clock of a stream's times; sources and files that say nothing share one."""
        declared = self.sources.get(key.source)
        return "" if declared is None or declared.clock is None else declared.clock

    def resolution_of(self, key: StreamKey) -> float:
        """How coarse a stream's times are, in ms."""
        declared = self.sources.get(key.source)
        return 0.0 if declared is None or declared.resolution_ms is None else declared.resolution_ms

    @property
    def reference(self) -> str:
        """The clock that the others are moved to: that of the stream with most actions, or the first by name."""
        ranked = sorted(self.streams, key=lambda key: (-self.actions_of.get(key, 0), self.clock_of(key)))
        return self.clock_of(ranked[0]) if ranked else ""

    def canonical(self, name: str) -> str:
        """The name under which a handoff's rows are kept."""
        joining = self.joined.get(name)
        return name if joining is None else joining.name

    def of(self, name: str) -> HandoffSurvey:
        """What was learned of a handoff under any of its names."""
        return self.handoffs[self.canonical(name)]

    def _join(self) -> None:
        by_key: dict[tuple[str, str], list[str]] = {}
        for name, survey in self.handoffs.items():
            attempt = survey.opened.get("attempt")
            for word, value in survey.keys:
                if word in NAMING_KEYS:
                    if value in self.handoffs and value != name:
                        self._join_pair(value, name, word, value)
                else:
                    by_key.setdefault((word, value if attempt is None else f"{value}/{attempt}"), []).append(name)
        for (word, value), names in sorted(by_key.items()):
            if len(names) == 2:
                self._join_pair(names[0], names[1], word, value)
            elif len(names) > 2 and len({key for name in names for key in self.handoffs[name].streams}) > 1:
                self.ambiguous.append((f"{word} {value}", tuple(sorted(names))))

    def _join_pair(self, one: str, other: str, by: str, key: str) -> None:
        one, other = self.canonical(one), self.canonical(other)
        if one == other or self.handoffs[one].streams & self.handoffs[other].streams:
            return
        name, alias = sorted((one, other), key=self._seniority)
        kept, lost = self.handoffs[name], self.handoffs[alias]
        self.joined[alias] = Joining(name, alias, by, key)
        for before, joining in list(self.joined.items()):
            if joining.name == alias:
                self.joined[before] = Joining(name, before, joining.by, joining.key)
        kept.moments |= lost.moments
        kept.streams |= lost.streams
        kept.actions = {**lost.actions, **kept.actions}
        kept.first_action = kept.first_action or lost.first_action
        kept.opened = {**lost.opened, **kept.opened}
        kept.extra = {**lost.extra, **kept.extra}
        kept.times = {**(lost.times or {}), **(kept.times or {})} or None

    def _seniority(self, name: str) -> tuple[bool, bool, str]:
        survey = self.handoffs[name]
        roles = {self.sources[key.source].role for key in survey.streams if key.source in self.sources}
        return survey.first_action is None, Side.SOURCE not in roles, name

    def _align(self) -> None:
        clocks = {self.clock_of(key) for key in self.streams}
        if len(clocks) < 2:
            return
        bounds = PairBounds()
        for survey in self.handoffs.values():
            times = survey.times or {}
            for cause, effect in CERTAIN:
                if cause in times and effect in times:
                    self._pair(bounds, times[cause], times[effect])
        self.clocks = align(clocks, self.reference, bounds)

    def _pair(
        self, bounds: PairBounds, cause: tuple[StreamKey, float, float], effect: tuple[StreamKey, float, float]
    ) -> None:
        cause_clock, effect_clock = self.clock_of(cause[0]), self.clock_of(effect[0])
        if cause_clock != effect_clock:
            bounds.add(cause_clock, cause[1], effect_clock, effect[2] + self.resolution_of(effect[0]))


ACTIONS = sum(bit for word, bit in BIT.items() if word.startswith("action:"))
"""Any of these moments makes a handoff one whose coordinator can be folded."""
