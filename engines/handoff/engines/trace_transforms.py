"""What can be done to a trace's sessions before they run. Each function returns new sessions; arrivals count from 0."""

from collections.abc import Callable, Sequence

from attrs import evolve

from handoff.engines.scenario import Transform
from handoff.engines.seeded_stream import SeededStream
from handoff.engines.workload import Session, Turn


def transformed(sessions: Sequence[Session], transform: Transform, seed: int) -> Sequence[Session]:
    """Apply a scenario's transform, in the order of its fields."""
    if transform.multiply_prefix_depth > 1:
        sessions = multiply_prefix_depth(sessions, transform.multiply_prefix_depth)
    if transform.duplicate > 1:
        sessions = duplicate(sessions, transform.duplicate)
    if transform.split is not None:
        stream = SeededStream(seed, "trace/split") if transform.split_at_random else None
        sessions = split(sessions, transform.split, transform.split_part, stream)
    if transform.rescale_starts_ms is not None:
        sessions = rescale_starts(sessions, transform.rescale_starts_ms)
    if transform.rescale_ready_ms is not None:
        sessions = rescale_ready(sessions, transform.rescale_ready_ms)
    return sessions


def multiply_prefix_depth(sessions: Sequence[Session], factor: int) -> list[Session]:
    """Make each block `h` into the blocks from ``h * factor`` on, `factor` of them, and prompts as much longer."""

    def deeper(turn: Turn) -> Turn:
        blocks = [block * factor + part for block in turn.blocks for part in range(factor)]
        return _copied(turn, blocks, prompt_tokens=turn.prompt_tokens * factor)

    return _each_turn(sessions, deeper)


def duplicate(sessions: Sequence[Session], copies: int) -> list[Session]:
    """Put copies of the whole trace beside it, each with block ids of its own."""
    span = 1 + max((block for session in sessions for turn in session.turns for block in turn.blocks), default=0)
    result = []
    for session in sessions:
        result.append(session)
        for copy in range(1, copies):
            turns = [_copied(turn, [block + copy * span for block in turn.blocks]) for turn in session.turns]
            number = session.number + copy * len(sessions)
            result.append(evolve(session, session_id=f"{session.session_id}_copy_{copy}", turns=turns, number=number))
    return result


def split(sessions: Sequence[Session], parts: int, part: int, stream: SeededStream | None) -> list[Session]:
    """Keep one of so many parts of the sessions: dealt out in turn, or drawn from a stream."""
    if stream is None:
        return [session for index, session in enumerate(sessions) if index % parts == part]
    drawn = [(stream.below(parts), session) for session in sessions]
    return [session for number, session in drawn if number == part]


def rescale_starts(sessions: Sequence[Session], span_ms: float) -> list[Session]:
    """Stretch the sessions' first arrivals so that the last one comes at `span_ms`; delays stay."""
    last_ms = max((session.first_arrival_ms or 0.0 for session in sessions), default=0.0)
    if last_ms == 0.0:
        return list(sessions)
    factor = span_ms / last_ms
    return [_starting(session, factor) for session in sessions]


def rescale_ready(sessions: Sequence[Session], span_ms: float) -> list[Session]:
    """Stretch first arrivals and delays so that the last turn is ready at `span_ms`, were turns to take no time."""
    last_ms = max(
        ((session.first_arrival_ms or 0.0) + sum(turn.delay_ms for turn in session.turns) for session in sessions),
        default=0.0,
    )
    if last_ms == 0.0:
        return list(sessions)
    factor = span_ms / last_ms
    slower = _each_turn(sessions, lambda turn: _copied(turn, turn.blocks, delay_ms=turn.delay_ms * factor))
    return [_starting(session, factor) for session in slower]


def _starting(session: Session, factor: float) -> Session:
    first_ms = session.first_arrival_ms
    return evolve(session, first_arrival_ms=None if first_ms is None else first_ms * factor)


def _each_turn(sessions: Sequence[Session], change: Callable[[Turn], Turn]) -> list[Session]:
    return [evolve(session, turns=[change(turn) for turn in session.turns]) for session in sessions]


def _copied(
    turn: Turn, blocks: Sequence[int], *, prompt_tokens: int | None = None, delay_ms: float | None = None
) -> Turn:
    return Turn(
        turn.prompt_tokens if prompt_tokens is None else prompt_tokens,
        turn.output_tokens,
        blocks,
        turn.delay_ms if delay_ms is None else delay_ms,
        priority=turn.priority,
        strict_priority=turn.strict_priority,
        policy_class=turn.policy_class,
        request_id=turn.request_id,
    )
