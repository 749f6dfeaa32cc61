"""A scenario's requests: its trace, or a synthetic workload, as a source of turns with names for their blocks."""

import hashlib
from collections.abc import Callable, Sequence

from attrs import frozen

from handoff.engines.block_names import TraceNames
from handoff.engines.length_traces import load_bailian, load_csv
from handoff.engines.mooncake import load_mooncake
from handoff.engines.scenario import Scenario, TraceFormat
from handoff.engines.synthetic import synthetic_sessions
from handoff.engines.trace_transforms import transformed
from handoff.engines.workload import Session, SessionSource, Turn


@frozen
class LoadedWorkload:
    """What a run needs to know of its requests.

    Attributes:
        source: releases turns, by time or by concurrency.
        names: names of the complete blocks of a turn's prompt, in the engines' block size.
        trace_digest: hex SHA-256 of the trace file, None for a synthetic workload.
        requests: how many turns there are, None where they are not counted beforehand.
    """

    source: SessionSource
    names: Callable[[Turn], Sequence[int]]
    trace_digest: str | None
    requests: int | None


def load_workload(scenario: Scenario) -> LoadedWorkload:
    """Read a scenario's trace, or make its synthetic workload.

    Raises:
        TraceError: the trace cannot be read or used.
    """
    workload = scenario.workload
    namer = TraceNames(_trace_block_size(scenario), scenario.prefill.block_size)
    if workload.synthetic is not None:
        namer.trust_ids()
        sessions: Sequence[Session] = list(synthetic_sessions(workload.synthetic, scenario.prefill.block_size))
        digest = None
    else:
        path = scenario.trace_path
        assert path is not None
        sessions = transformed(_trace(scenario), workload.transform, scenario.seed)
        namer.adopt_ids(turn.blocks for session in sessions for turn in session.turns)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = SessionSource(sessions, workload.concurrency, workload.arrival_speedup_ratio)

    def names(turn: Turn) -> Sequence[int]:
        return namer.names(turn.blocks, turn.prompt_tokens)

    return LoadedWorkload(source, names, digest, sum(len(session.turns) for session in sessions))


def _trace(scenario: Scenario) -> Sequence[Session]:
    workload, path = scenario.workload, scenario.trace_path
    assert path is not None
    match workload.trace_format:
        case TraceFormat.MOONCAKE:
            by_time = workload.concurrency is None
            return load_mooncake(path, workload.trace_block_size, limit=workload.limit, by_time=by_time)
        case TraceFormat.VIDUR:
            return load_csv(path, workload.trace_block_size, limit=workload.limit)
        case TraceFormat.BAILIAN:
            return load_bailian(path, workload.trace_block_size, limit=workload.limit)


def _trace_block_size(scenario: Scenario) -> int:
    """A synthetic workload's blocks are the engines' own."""
    if scenario.workload.synthetic is not None:
        return scenario.prefill.block_size
    return scenario.workload.trace_block_size
