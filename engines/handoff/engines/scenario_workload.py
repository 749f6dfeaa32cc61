"""A scenario's requests: its trace, or a synthetic workload, as a source of turns with names for their blocks."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from handoff.engines.block_names import TraceNames
from handoff.engines.length_traces import load_bailian, load_csv
from handoff.engines.mooncake import load_mooncake
from handoff.engines.scenario import Scenario, TraceFormat
from handoff.engines.synthetic import synthetic_sessions
from handoff.engines.trace_error import TraceError
from handoff.engines.trace_transforms import transformed
from handoff.engines.workload import Session, SessionSource, Turn


@frozen
class LoadedWorkload:
    """What a run needs to know of its requests.

    Attributes:
        source: releases turns, by time or by concurrency.
        names: names of the complete blocks of a turn's prompt, in the engines' block size.
        trace_digest: hex SHA-256 of the trace file, None for a synthetic workload.
        requests: how many turns there are.
    """

    source: SessionSource
    names: Callable[[Turn], Sequence[int]]
    trace_digest: str | None
    requests: int


def load_workload(scenario: Scenario) -> LoadedWorkload:
    """Read a scenario's trace, or prepare its synthetic workload, whose sessions are made as they are needed.

    Raises:
        TraceError: the trace cannot be read or used.
    """
    workload, block_size = scenario.workload, scenario.prefill.block_size
    path = scenario.trace_path
    if path is None:
        assert workload.synthetic is not None
        # Made-up blocks are the engines' own.
        names = TraceNames(block_size, block_size)
        names.trust_ids()
        sessions: Iterable[Session] = synthetic_sessions(workload.synthetic, block_size)
        requests = workload.synthetic.request_count * workload.synthetic.turns_per_session
        digest = None
    else:
        listed = transformed(_trace(scenario), workload.transform, scenario.seed)
        names = TraceNames(workload.trace_block_size, block_size)
        names.adopt_ids(turn.blocks for session in listed for turn in session.turns)
        sessions = listed
        requests = sum(len(session.turns) for session in listed)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = SessionSource(sessions, workload.concurrency, workload.arrival_speedup_ratio)
    return LoadedWorkload(source, names.of_turn, digest, requests)


def _trace(scenario: Scenario) -> Sequence[Session]:
    workload, path = scenario.workload, scenario.trace_path
    assert path is not None
    if path.exists() and not path.is_file() and not path.is_dir():
        raise TraceError(str(path), None, "", None, "the trace is a pipe or a device, which may never end: name a file")
    match workload.trace_format:
        case TraceFormat.MOONCAKE:
            by_time = workload.concurrency is None
            return load_mooncake(path, workload.trace_block_size, limit=workload.limit, by_time=by_time)
        case TraceFormat.VIDUR:
            return load_csv(path, workload.trace_block_size, limit=workload.limit)
        case TraceFormat.BAILIAN:
            return load_bailian(path, workload.trace_block_size, limit=workload.limit)
        case TraceFormat.MOONCAKE_DELTA:
            raise AssertionError("a scenario refuses this format")
