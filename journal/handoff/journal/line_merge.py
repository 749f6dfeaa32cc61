"""Event lines of several streams as one sequence, in the order that their times and causes allow.

Within a stream the order is true and stays. Between streams each line's time is only known to lie in an interval: its
clock's resolution, and the bounds of the clock's offset. Of the streams' next lines, those may come first that can lie
before every other one's latest time. Among them a line that must follow another (`handoff_milestones.NEEDS`) which some
stream still holds waits; the earliest of the others is taken, ties by the stream's rank. If all wait, causes and
times contradict each other, and the one whose time ends first is taken.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from attrs import define, field, frozen

from handoff.journal.event_lines import subject_of
from handoff.journal.handoff_milestones import NEEDS, bit_of
from handoff.journal.line_files import Line, Unplaced
from handoff.journal.line_survey import LineSurvey, StreamKey
from handoff.journal.vocabulary import HandoffOrder, Side

_TIMES = ("at_ms", "at_min_ms", "at_max_ms")


@frozen
class TimedLine:
    """A line with its place on the common clock.

    Attributes:
        at_ms: its time, moved to the reference clock; None for lines without a time.
        at_min_ms, at_max_ms: between which it lies.
    """

    line: Line
    at_ms: float | None
    at_min_ms: float | None
    at_max_ms: float | None


@define
class _Clock:
    """How a stream's times are moved."""

    offset_ms: float
    low_ms: float
    high_ms: float
    resolution_ms: float

    @property
    def is_plain(self) -> bool:
        """Whether it changes nothing."""
        return self.low_ms == self.high_ms == self.resolution_ms == 0.0

    def timed(self, line: Line) -> TimedLine:
        fields = line.fields
        at_ms = fields.get("at_ms")
        if type(at_ms) is float and self.is_plain and "at_min_ms" not in fields and "at_max_ms" not in fields:
            return TimedLine(line, at_ms, at_ms, at_ms)
        known = {name: float(fields[name]) for name in _TIMES if type(fields.get(name)) in (int, float)}
        if not known:
            return TimedLine(line, None, None, None)
        at_ms = known.get("at_ms", sum(known.values()) / len(known))
        low = known.get("at_min_ms", at_ms) + self.low_ms
        high = known.get("at_max_ms", at_ms) + self.high_ms + self.resolution_ms
        return TimedLine(line, at_ms + self.offset_ms, low, high)


@define
class _Stream:
    """One stream: the lines of it that were read and not taken yet, and where more come from."""

    rank: tuple[int, str, str]
    clock: _Clock
    more: Callable[[], bool]
    waiting: deque[TimedLine] = field(factory=deque)

    def head(self) -> TimedLine | None:
        while not self.waiting:
            if not self.more():
                return None
        return self.waiting[0]


@define
class LineMerge:
    """Merges the files of an import.

    Attributes:
        survey: what the first look learned.
        files: the lines of each file, by its name.
    """

    survey: LineSurvey
    files: dict[str, Iterable[Line | Unplaced]]
    unplaced: list[Unplaced] = field(factory=list, init=False)
    _streams: dict[StreamKey, _Stream] = field(factory=dict, init=False)
    _told: dict[str, int] = field(factory=dict, init=False)

    def lines(self) -> Iterator[TimedLine]:
        """Every line with an object in it, once; what has none is in `unplaced` by then."""
        return self._in_file_order() if self.survey.is_ordered else self._merged()

    def _in_file_order(self) -> Iterator[TimedLine]:
        by_source = {key.source or None: self._clock(key) for key in self.survey.streams}
        plain = _Clock(0.0, 0.0, 0.0, 0.0)
        for lines in self.files.values():
            for line in lines:
                if isinstance(line, Unplaced):
                    self.unplaced.append(line)
                    continue
                source = line.fields.get("source")
                clock = by_source.get(source, plain) if source is None or isinstance(source, str) else plain
                yield clock.timed(line)

    def _merged(self) -> Iterator[TimedLine]:
        readers = {name: iter(lines) for name, lines in self.files.items()}
        for key in self.survey.streams:
            self._streams[key] = self._stream(key, readers)
        for name, reader in readers.items():
            # a file without any timed line has no stream, and may still declare a source
            if not any(key.file == name for key in self._streams):
                yield from self._loose(reader)
        streams = list(self._streams.values())
        while True:
            heads = [(head, stream) for stream in streams if (head := stream.head()) is not None]
            if not heads:
                return
            head, stream = self._first(heads)
            stream.waiting.popleft()
            self._tell(head)
            yield head

    def _stream(self, key: StreamKey, readers: dict[str, Iterator[Line | Unplaced]]) -> _Stream:
        declared = self.survey.sources.get(key.source)
        role = 2 if declared is None or declared.role is None else int(declared.role is Side.DESTINATION)
        return _Stream((role, key.source, key.file), self._clock(key), lambda: self._read_on(readers[key.file]))

    def _clock(self, key: StreamKey) -> _Clock:
        name = self.survey.clock_of(key)
        resolution_ms = self.survey.resolution_of(key)
        for aligned in self.survey.clocks:
            if aligned.clock == name:
                low = aligned.offset_ms if aligned.low_ms is None else aligned.low_ms
                high = aligned.offset_ms if aligned.high_ms is None else aligned.high_ms
                return _Clock(aligned.offset_ms, low, high, resolution_ms)
        return _Clock(0.0, 0.0, 0.0, resolution_ms)

    def _read_on(self, reader: Iterator[Line | Unplaced]) -> bool:
        """Read one line of a file into its stream; False at the file's end."""
        for line in reader:
            if isinstance(line, Unplaced):
                self.unplaced.append(line)
                return True
            source = line.fields.get("source")
            stream = self._streams.get(StreamKey(line.file, source if isinstance(source, str) else ""))
            if stream is None:
                stream = next(stream for key, stream in self._streams.items() if key.file == line.file)
            stream.waiting.append(stream.clock.timed(line))
            return True
        return False

    def _loose(self, reader: Iterator[Line | Unplaced]) -> Iterator[TimedLine]:
        for line in reader:
            if isinstance(line, Unplaced):
                self.unplaced.append(line)
            else:
                yield TimedLine(line, None, None, None)

    def _first(self, heads: list[tuple[TimedLine, _Stream]]) -> tuple[TimedLine, _Stream]:
        for head, stream in heads:
            if head.at_ms is None:
                return head, stream
        latest = min(_known(head.at_max_ms) for head, _ in heads)
        able = [item for item in heads if _known(item[0].at_min_ms) <= latest]
        able.sort(key=lambda item: (_known(item[0].at_ms), item[1].rank))
        for head, stream in able:
            if len(able) == 1 or not self._waits(head):
                return head, stream
        return min(able, key=lambda item: (_known(item[0].at_max_ms), item[1].rank))

    def _waits(self, head: TimedLine) -> bool:
        name = head.line.fields.get("handoff")
        if not isinstance(name, str) or name not in self.survey.handoffs:
            return False
        name = self.survey.canonical(name)
        survey = self.survey.handoffs[name]
        needs = NEEDS[survey.order or HandoffOrder.SOURCE_FIRST]
        needed = needs.get(bit_of(head.line.fields, survey.actions, subject_of(head.line.fields)), 0)
        return bool(needed & survey.moments & ~self._told.get(name, 0))

    def _tell(self, head: TimedLine) -> None:
        name = head.line.fields.get("handoff")
        if isinstance(name, str) and name in self.survey.handoffs:
            name = self.survey.canonical(name)
            bit = bit_of(head.line.fields, self.survey.handoffs[name].actions, subject_of(head.line.fields))
            self._told[name] = self._told.get(name, 0) | bit


def _known(item: float | None) -> float:
    assert item is not None
    return item
