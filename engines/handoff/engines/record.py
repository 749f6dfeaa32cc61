"""`handoff record`: run a scenario live, over real TCP and in real time, and journal all of it.

Everything runs in one process: the engines, one bootstrap server for each prefill worker, and the sessions on both
ends of each connection. A first SIGINT or SIGTERM is an input: nothing more arrives, every session is told to shut
down, and has the grace period to clean up. A second one ends the run at once. Either way the journal's last row says
that the run was interrupted and which handoffs were still inside a worker.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from handoff.engines.clock import RunClock
from handoff.engines.cluster_setup import start_cluster
from handoff.engines.collector import Collector
from handoff.engines.conductor_rows import RequestEnded
from handoff.engines.engine_errors import EngineFailed
from handoff.engines.live_cluster import LiveCluster
from handoff.engines.live_records import LiveRecords
from handoff.engines.scenario import Scenario
from handoff.engines.scenario_workload import load_workload
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.token_gaps import GapLog
from handoff.engines.workload import Turn, WorkloadSource
from handoff.journal.durable_journal import Journal
from handoff.journal.port import JournalFailed
from handoff.journal.receipt import Durability
from handoff.journal.terms import EndState
from handoff.journal.vocabulary import TerminalStatus

DEFAULT_GRACE_S = 10.0
INTERRUPTING = (signal.SIGINT, signal.SIGTERM)


@frozen
class RecordProgress:
    """How far a run has come.

    Attributes:
        arrived, ended: requests so far.
        at_ms: the run's time.
        stopping: whether it was told to stop.
    """

    arrived: int
    ended: int
    at_ms: float
    stopping: bool


@frozen
class RecordReport:
    """What became of a recorded run.

    Attributes:
        name: of the scenario.
        state: ``finished`` or ``interrupted``.
        reason: why it was interrupted, or None.
        statuses: how many requests ended how.
        handoffs: handoffs that were opened.
        inside: for each worker that handoffs were still inside at the end, their numbers.
        never_struck: faults of the scenario that struck nothing, as written.
        rows: rows of the run.
        duration_ms: how long it took.
        collector: the figures of all requests, for a summary.
        gap_logs: the waits between tokens at each decode worker, for a summary.
    """

    name: str
    state: EndState
    reason: str | None
    statuses: Mapping[TerminalStatus, int]
    handoffs: int
    inside: tuple[tuple[str, tuple[int, ...]], ...]
    never_struck: tuple[str, ...]
    rows: int
    duration_ms: float
    collector: Collector
    gap_logs: tuple[GapLog, ...]

    @property
    def all_succeeded(self) -> bool:
        """Whether every handoff that was opened succeeded."""
        return self.statuses[TerminalStatus.COMPLETED] == self.handoffs


@define(eq=False)
class Recording:
    """One run of a scenario into a journal; `run` does it.

    Attributes:
        scenario: what to run.
        journal: where to; nobody else writes to it meanwhile.
        workload, names: the scenario's requests, see `load_workload`.
        trace_digest: of the workload's file, for the run's first row.
        grace_s: how long cleanup may take after the first signal.
        sink: takes each ended request, in order of arrival.
        progress: called whenever a request ends, and when the run is told to stop.
        interrupted_by: signals that stop the run; empty outside of the main thread.
    """

    scenario: Scenario
    journal: Any
    workload: WorkloadSource
    names: Callable[[Turn], Sequence[int]]
    trace_digest: str | None = None
    grace_s: float = DEFAULT_GRACE_S
    sink: Callable[[SimulatedRequest], None] | None = None
    progress: Callable[[RecordProgress], None] | None = None
    interrupted_by: Sequence[signal.Signals] = INTERRUPTING
    _clock: RunClock = field(init=False)
    _collector: Collector = field(init=False)
    cluster: LiveCluster = field(init=False)
    _ended: int = field(default=0, init=False)
    _at_once: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    async def run(self) -> RecordReport:
        """Run the scenario to its end, or until it is stopped.

        Raises:
            JournalFailed: the journal could not be written any more; handoffs were cleaned up all the same.
            InvalidSetting: a server could not listen.
        """
        self._clock = RunClock()
        self._collector = Collector(self.sink)
        self.journal.begin_run(
            tool=f"handoff {version('kv-handoff')}",
            wall_ns=time.time_ns(),
            scenario=self.scenario.resolved(),
            trace_digest=self.trace_digest,
        )
        with self._at_once:
            async with trio.open_nursery() as nursery:
                await self._run_in(nursery)
                nursery.cancel_scope.cancel()
        return self._report()

    async def _run_in(self, nursery: trio.Nursery) -> None:
        records = LiveRecords(self._collector, self.scenario.prefill.block_size)
        self.cluster = cluster = await start_cluster(
            nursery, self.scenario, self.workload, journal=self.journal, clock=self._clock, names=self.names,
            records=records, on_end=self._ended_one,
        )  # fmt: skip
        if self.interrupted_by:
            await nursery.start(self._listen_for_signals)
        await cluster.run()
        cluster.context.shutdown.set()
        for worker in cluster.prefill:
            await worker.wait_closed()
        for live_worker in (*cluster.prefill, *cluster.decode):
            try:
                await live_worker.engine.shutdown()
            except EngineFailed as failed:
                if not isinstance(failed.cause, JournalFailed):  # that one is told when the journal is closed
                    raise

    async def _listen_for_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*self.interrupted_by) as signals, _let_through(self.interrupted_by):
            task_status.started()
            first = True
            async for number in signals:
                if first:
                    first = False
                    self.cluster.stop(signal.Signals(number).name)
                    self._at_once.deadline = self._clock.trio_time_s(self._clock.now_ms() + self.grace_s * 1000.0)
                    self._tell_progress()
                else:
                    self._at_once.cancel()

    def _ended_one(self, _end: RequestEnded) -> None:
        self._ended += 1
        self._tell_progress()

    def _tell_progress(self) -> None:
        if self.progress is not None:
            stopping = self.cluster.stopped is not None
            progress = RecordProgress(self._collector.num_requests, self._ended, self._clock.now_ms(), stopping)
            self.progress(progress)

    def _report(self) -> RecordReport:
        """Write the run's last row, and say how it went."""
        cluster, at_ms = self.cluster, self._clock.now_ms()
        self._collector.close()
        inside = cluster.inside
        reason = cluster.stopped
        if inside:
            still = "; ".join(f"{label}: {', '.join(map(str, handoffs))}" for label, handoffs in inside)
            reason = f"{reason or 'torn down'}; handoffs still inside {still}"
        state = EndState.FINISHED if reason is None else EndState.INTERRUPTED
        first = self.journal.run_first_seq
        last = self.journal.end_run(state, at_ms, reason)
        opened = self._collector.num_requests
        return RecordReport(
            self.scenario.name, state, reason, dict(self._collector.statuses), opened, inside,
            cluster.faults.plan.never_struck, last - first + 1,
            at_ms, self._collector,
            tuple(worker.engine.driver.machine.gap_log for worker in cluster.decode),
        )  # fmt: skip


def record_scenario(
    scenario: Scenario,
    journal_path: Path | str,
    *,
    durability: Durability = Durability.FULL,
    grace_s: float = DEFAULT_GRACE_S,
    report_durable_fd: int | None = None,
    sink: Callable[[SimulatedRequest], None] | None = None,
    progress: Callable[[RecordProgress], None] | None = None,
) -> RecordReport:
    """Record a scenario into a journal file, from the main thread of a program that is not in Trio.

    SIGINT and SIGTERM stop the run, see the module.

    Args:
        scenario: what to run, see `load_scenario`.
        journal_path: a new file, or a journal that gets a further run.
        durability: what a durable row has to survive.
        grace_s: how long cleanup may take after the first signal, in s.
        report_durable_fd: a file descriptor to write the number of each durable row to, a line each.
        sink: takes each ended request, in order of arrival.
        progress: called whenever a request ends, and when the run is told to stop.

    Raises:
        TraceError: the scenario's trace cannot be read or used.
        JournalFailed: the journal could not be written any more; handoffs were cleaned up all the same.
        JournalBusy, JournalUnreadable, OSError: the file cannot be written to.
        InvalidSetting: a server could not listen.
    """
    workload = load_workload(scenario)
    with _held_back(INTERRUPTING):
        journal = Journal.create(journal_path, durability=durability)
        if report_durable_fd is not None:
            journal.report_durable(report_durable_fd)
        recording = Recording(
            scenario, journal, workload.source, workload.names, workload.trace_digest, grace_s, sink, progress
        )
        return trio.run(_record_and_close, recording, journal)


@contextlib.contextmanager
def _held_back(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Let signals wait while the journal is open and nobody takes them as inputs: at the start, and as it closes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _let_through(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Take what `_held_back` kept, and what comes meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _record_and_close(recording: Recording, journal: Journal) -> RecordReport:
    async with journal:
        return await recording.run()
