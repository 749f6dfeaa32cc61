"""Where requests come from: sessions of turns, released by time or by concurrency.

A session has one turn in flight at most. In *trace* mode a session's first turn is ready at its own time; in
*concurrency* mode times are ignored and a fixed number of sessions is active, each through all of its turns, and the
next one starts when one ends. When a turn completes (or is rejected), the next is ready after its delay; a turn that
fails or is canceled ends its session.

Ready turns are released in the order of (ready time, session, turn).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from attrs import frozen

from handoff.journal.vocabulary import TerminalStatus


class Turn:
    """One request of a session, before it runs.

    Attributes:
        prompt_tokens: at least 1.
        output_tokens: at least 0.
        blocks: the trace's block ids, enough to cover the prompt.
        delay_ms: from the end of the turn before to this one's arrival.
        priority: moves it ahead in a router's queue, in seconds; never back.
        strict_priority: higher ones go first, whatever their age.
        policy_class: a label of the trace, reported only.
        request_id: the trace's own name of it, or None.
    """

    __slots__ = (
        "blocks", "delay_ms", "output_tokens", "policy_class", "priority", "prompt_tokens", "request_id",
        "strict_priority",
    )  # fmt: skip

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        blocks: Sequence[int],
        delay_ms: float = 0.0,
        *,
        priority: int = 0,
        strict_priority: int = 0,
        policy_class: str | None = None,
        request_id: str | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.delay_ms = delay_ms
        self.priority = priority
        self.strict_priority = strict_priority
        self.policy_class = policy_class
        self.request_id = request_id


@frozen
class Session:
    """Turns of one conversation.

    Attributes:
        session_id: its name.
        first_arrival_ms: when its first turn is ready, in trace mode.
        turns: in order, at least one.
        number: its place in the file, which decides between turns that are ready at the same time.
        is_named: whether the trace names it; unnamed single turns are reported without a session.
    """

    session_id: str
    first_arrival_ms: float | None
    turns: Sequence[Turn]
    number: int = 0
    is_named: bool = True


class Arrival(NamedTuple):
    """A turn that is to be sent now.

    Attributes:
        at_ms: its arrival time, at or before now.
        session: its session.
        turn_index: its number in the session, from 0.
    """

    at_ms: float
    session: Session
    turn_index: int

    @property
    def turn(self) -> Turn:
        """The turn."""
        return self.session.turns[self.turn_index]


class WorkloadSource(Protocol):
    """What a runtime asks of a workload.

    Attributes:
        is_workload: whether it is made of sessions rather than of plain requests.
    """

    is_workload: bool

    @property
    def reports_sessions(self) -> bool:
        """Whether records name the session and turn even of unnamed ones."""

    @property
    def ready_ms(self) -> float:
        """From when on `take_ready` returns something, as things are; infinity if that depends on an end."""

    @property
    def is_drained(self) -> bool:
        """Whether no further turn will ever be released."""

    def next_ready_ms(self) -> float | None:
        """When the next turn could be released, or None if that depends on an end."""

    def take_ready(self, now_ms: float) -> list[Arrival]:
        """The turns that are ready at or before now; they are in flight from here on."""

    def on_end(self, arrival: Arrival, status: TerminalStatus, now_ms: float) -> None:
        """A turn in flight has ended."""


class SessionSource:
    """Sessions released by their own times, or by concurrency.

    Args:
        sessions: in trace mode in order of first arrival; read only as far as needed.
        max_in_flight: sessions at once in concurrency mode, or None for trace mode.
        speedup_ratio: divides arrivals and delays in trace mode.
    """

    is_workload = True

    def __init__(
        self, sessions: Iterable[Session], max_in_flight: int | None = None, speedup_ratio: float = 1.0
    ) -> None:
        self._sessions: Iterator[Session] = iter(sessions)
        self._by_time = max_in_flight is None
        self.reports_sessions = not self._by_time
        self._speedup = speedup_ratio if self._by_time else 1.0
        self._ready: list[tuple[float, int, int, Session]] = []
        self._unfinished = 0
        self._next: Session | None = None
        self._next_ms = math.inf
        """When the next session starts by itself."""
        self._read_next()
        for _ in range(max_in_flight or 0):
            self._start_next(0.0)
        self.ready_ms = self._earliest()

    @property
    def is_drained(self) -> bool:
        """Whether every session was started and has ended."""
        return self._next is None and not self._unfinished

    def next_ready_ms(self) -> float | None:
        """The earliest ready time."""
        return None if self.ready_ms == math.inf else self.ready_ms

    def take_ready(self, now_ms: float) -> list[Arrival]:
        """The turns that are ready."""
        while self._next_ms <= now_ms:
            self._start_next(self._next_ms)
        arrivals = []
        ready = self._ready
        while ready and ready[0][0] <= now_ms:
            at_ms, _, turn_index, session = heappop(ready)
            arrivals.append(Arrival(at_ms if self._by_time else now_ms, session, turn_index))
        self.ready_ms = self._earliest()
        return arrivals

    def on_end(self, arrival: Arrival, status: TerminalStatus, now_ms: float) -> None:
        """Make the session's next turn ready, or the next session."""
        session, following = arrival.session, arrival.turn_index + 1
        goes_on = status is TerminalStatus.COMPLETED or status is TerminalStatus.REJECTED
        if goes_on and following < len(session.turns):
            delay_ms = session.turns[following].delay_ms / self._speedup
            heappush(self._ready, (now_ms + delay_ms, session.number, following, session))
            self.ready_ms = self._earliest()
            return
        self._unfinished -= 1
        if not self._by_time:
            self._start_next(now_ms)
            self.ready_ms = self._earliest()

    def _earliest(self) -> float:
        ready = self._ready
        return min(ready[0][0], self._next_ms) if ready else self._next_ms

    def _start_next(self, ready_ms: float) -> None:
        session = self._next
        if session is not None:
            self._unfinished += 1
            heappush(self._ready, (ready_ms, session.number, 0, session))
            self._read_next()

    def _read_next(self) -> None:
        session = self._next = next(self._sessions, None)
        self._next_ms = math.inf
        if session is not None and self._by_time:
            assert session.first_arrival_ms is not None
            self._next_ms = session.first_arrival_ms / self._speedup


class RequestListSource:
    """A plain list of requests, as tests build it.

    In trace mode each is released at its own time; in concurrency mode the next one is released whenever fewer than
    `max_in_flight` are in flight, but that never wakes anybody up: it rides on other events.

    Args:
        requests: sessions of one turn, in order.
        max_in_flight: requests at once, or None for trace mode.
    """

    reports_sessions = False
    is_workload = False

    def __init__(self, requests: Sequence[Session], max_in_flight: int | None = None) -> None:
        self._requests = list(requests)
        self._max_in_flight = max_in_flight
        self._next = 0
        self._in_flight = 0

    @property
    def is_drained(self) -> bool:
        """Whether every request was released."""
        return self._next == len(self._requests)

    @property
    def ready_ms(self) -> float:
        """The next request's time; in concurrency mode always, while there is room."""
        if self.is_drained:
            return math.inf
        if self._max_in_flight is not None:
            return -math.inf if self._in_flight < self._max_in_flight else math.inf
        return self._requests[self._next].first_arrival_ms or 0.0

    def next_ready_ms(self) -> float | None:
        """The next request's time, in trace mode."""
        return None if math.isinf(self.ready_ms) else self.ready_ms

    def take_ready(self, now_ms: float) -> list[Arrival]:
        """The requests whose time has come, or for which there is room."""
        arrivals = []
        while self.ready_ms <= now_ms:
            session = self._requests[self._next]
            at_ms = now_ms if self._max_in_flight is not None else session.first_arrival_ms or 0.0
            arrivals.append(Arrival(at_ms, session, 0))
            self._next += 1
            self._in_flight += 1
        return arrivals

    def on_end(self, _arrival: Arrival, _status: TerminalStatus, _now_ms: float) -> None:
        """Make room."""
        self._in_flight -= 1


def normalized(requests: Sequence[Session], speedup_ratio: float = 1.0) -> list[Session]:
    """Requests in order of arrival, the first at 0, times divided by the ratio."""
    if not requests:
        return []
    ordered = sorted(requests, key=lambda session: session.first_arrival_ms or 0.0)
    start_ms = ordered[0].first_arrival_ms or 0.0
    return [
        Session(
            session.session_id,
            ((session.first_arrival_ms or 0.0) - start_ms) / speedup_ratio,
            session.turns,
            session.number,
            session.is_named,
        )
        for session in ordered
    ]
