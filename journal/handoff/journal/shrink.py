"""Makes a history smaller while the same finding stays and the history stays lawful.

Greedy, in rounds until nothing more can go: whole handoffs, then runs of lines (halves first, then smaller), then
names, tokens, block lists, further fields and times. Each candidate is imported and examined anew; it is kept if a
finding of the same code and certainty about as many handoffs is there, none of another code is new, and the
coordinators' fold still agrees (or disagreed before). So what is left is a history that could have happened, and
nothing in it is there by chance.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from handoff.journal.event_source import EventList
from handoff.journal.finding import Certainty, Finding
from handoff.journal.fixture import Observation, observe_lines
from handoff.journal.replayer import replay

Lines = list[dict[str, Any]]


class NothingToKeep(ValueError):
    """A history in which the finding is not there to begin with.

    Attributes:
        code: the finding's code.
        found: the codes that are there.
    """

    def __init__(self, code: str, found: Sequence[str]) -> None:
        self.code = code
        self.found = tuple(found)
        known = ", ".join(sorted(set(found))) or "nothing"
        super().__init__(f"the finding {code} is not in this history; found: {known}")


@define
class Shrinker:
    """Shrinks one history.

    Attributes:
        code: the finding that must stay.
        end_ms: until when the history was observed, or None: until its last line.
        tries: how many candidates were examined.
    """

    code: str
    end_ms: float | None = None
    on_try: Callable[[int], None] | None = None
    tries: int = field(default=0, init=False)
    _certainty: Certainty = field(default=Certainty.PROVED, init=False)
    _handoffs: int = field(default=1, init=False)
    _lawful: bool = field(default=True, init=False)
    _codes: frozenset[str] = field(default=frozenset(), init=False)
    _root: bool = field(default=True, init=False)

    def shrink(self, lines: Sequence[Mapping[str, Any]]) -> Lines:
        """The smallest history that the rounds find.

        Raises:
            NothingToKeep: the finding is not in `lines`.
        """
        kept = [dict(line) for line in lines]
        observed = observe_lines(kept, self.end_ms)
        finding = self._of(observed)
        if finding is None:
            raise NothingToKeep(self.code, [each.code for each in observed.examination.findings])
        self._certainty, self._handoffs = finding.certainty, len(finding.handoffs)
        self._root = finding.consequence_of is None
        self._codes = frozenset(each.code for each in observed.examination.findings)
        self._lawful = _lawful(observed)
        kept = self._only_handoffs(kept, finding)
        size = -1
        while size != _size(kept):
            size = _size(kept)
            kept = self._without_lines(kept)
            kept = self._simpler(kept)
        return kept

    def _of(self, observed: Observation) -> Finding | None:
        return next((each for each in observed.examination.findings if each.code == self.code), None)

    def _holds(self, lines: Lines) -> bool:
        self.tries += 1
        if self.on_try is not None:
            self.on_try(self.tries)
        observed = observe_lines(lines, self.end_ms)
        found = observed.examination.findings
        if observed.report.unplaced_count or not self._codes.issuperset(each.code for each in found):
            return False
        return any(
            each.code == self.code
            and each.certainty is self._certainty
            and len(each.handoffs) == self._handoffs
            and (each.consequence_of is None) is self._root
            for each in found
        ) and (not self._lawful or _lawful(observed))

    def _only_handoffs(self, lines: Lines, finding: Finding) -> Lines:
        """The finding's own handoffs if they suffice; else one handoff after another is tried."""
        own = [line for line in lines if line.get("handoff") is None or line["handoff"] in finding.handoffs]
        if len(own) < len(lines) and self._holds(own):
            return own
        for name in dict.fromkeys(line["handoff"] for line in lines if line.get("handoff") is not None):
            fewer = [line for line in lines if line.get("handoff") != name]
            if self._holds(fewer):
                lines = fewer
        return lines

    def _without_lines(self, lines: Lines) -> Lines:
        run = max(1, len(lines) // 2)
        while run:
            start = 0
            while start < len(lines):
                fewer = lines[:start] + lines[start + run :]
                if fewer and self._holds(fewer):
                    lines = fewer
                else:
                    start += run
            run //= 2
        return lines

    def _simpler(self, lines: Lines) -> Lines:
        for change in (_short_names, _small_prompt, _one_block, _without_further_fields, _from_zero, _in_whole_ms):
            simpler = change(lines)
            if simpler != lines and self._holds(simpler):
                lines = simpler
        return lines


def shrink_lines(lines: Sequence[Mapping[str, Any]], code: str, end_ms: float | None = None) -> Lines:
    """The smallest history in which a finding of this code is there still; see `Shrinker`."""
    return Shrinker(code, end_ms).shrink(lines)


def _lawful(observed: Observation) -> bool:
    return replay(EventList(observed.journal.events)).agrees


def _size(lines: Lines) -> int:
    return sum(len(str(line)) for line in lines)


def _one_block(lines: Lines) -> Lines:
    """Every list of blocks cut to its first."""
    return [{**line, "blocks": line["blocks"][:1]} if line.get("blocks") else line for line in lines]


def _without_further_fields(lines: Lines) -> Lines:
    """Openings that say their order alone."""
    bare = [{key: item for key, item in line.get("open", {}).items() if key == "order"} for line in lines]
    return [{**line, "open": fields} if "open" in line else line for line, fields in zip(lines, bare, strict=True)]


def _short_names(lines: Lines) -> Lines:
    """Handoffs named h1, h2 and so on in the order of their first lines."""
    names = dict.fromkeys(line["handoff"] for line in lines if "handoff" in line)
    short = {name: f"h{number}" for number, name in enumerate(names, start=1)}
    return [{**line, "handoff": short[line["handoff"]]} if "handoff" in line else line for line in lines]


def _small_prompt(lines: Lines) -> Lines:
    """Prompts of 8 tokens that take 8 ms to transfer."""
    small: Lines = []
    for line in lines:
        changed = dict(line)
        if "transfer_timing" in changed:
            changed["transfer_timing"] = dict(_SMALL_TIMING)
        if "transferable_prompt_tokens" in changed:
            changed["transferable_prompt_tokens"] = 8
        if changed.get("delay_ms") is not None:
            changed["delay_ms"] = 8.0
        small.append(changed)
    return small


_SMALL_TIMING = {
    "mode": "full_prompt",
    "full_prompt_tokens": 8,
    "kv_bytes_per_token": 1_000_000,
    "bandwidth_gb_s": 1.0,
}


def _from_zero(lines: Lines) -> Lines:
    """Times counted from the first one."""
    first = min((line["at_ms"] for line in lines if "at_ms" in line), default=0.0)
    return _at(lines, lambda at_ms: at_ms - first)


def _in_whole_ms(lines: Lines) -> Lines:
    """Times in whole ms."""
    return _at(lines, lambda at_ms: float(round(at_ms)))


_TIMES = ("at_ms", "at_min_ms", "at_max_ms", "lease_deadline_ms")


def _at(lines: Lines, move: Callable[[float], float]) -> Lines:
    return [{key: move(item) if key in _TIMES else item for key, item in line.items()} for line in lines]
