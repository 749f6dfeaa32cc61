"""Builds a live cluster from a scenario: engines, permits, servers, and what they tell whom."""

from collections.abc import Callable, Sequence
from typing import Any

import trio

from handoff.engines.clock import RunClock
from handoff.engines.conductor_rows import RequestEnded
from handoff.engines.engine_core import KvEvent
from handoff.engines.engine_rows import EngineFinished
from handoff.engines.engine_settings import EngineSettings, InvalidSetting
from handoff.engines.faults import FaultPlan, PlannedFaults
from handoff.engines.interception import no_faults
from handoff.engines.live_cluster import LiveCluster
from handoff.engines.live_records import LiveRecords
from handoff.engines.live_workers import DecodeWorker, PrefillWorker
from handoff.engines.scenario import Scenario
from handoff.engines.session_context import SESSION_TIMEOUT_MS, SessionContext
from handoff.engines.workload import Turn, WorkloadSource
from handoff.journal.port import JournalPort
from handoff.journal.vocabulary import WorkerRole


def effective_capacity(settings: EngineSettings) -> int:
    """How many handoffs an engine may have inside: its slots, or its blocks when slots are unlimited."""
    return max(1, settings.num_gpu_blocks if settings.max_num_seqs is None else settings.max_num_seqs)


async def start_cluster(
    nursery: trio.Nursery,
    scenario: Scenario,
    workload: WorkloadSource,
    *,
    journal: JournalPort,
    clock: RunClock,
    names: Callable[[Turn], Sequence[int]],
    records: LiveRecords,
    on_end: Callable[[RequestEnded], None],
) -> LiveCluster:
    """Start every worker of a scenario; the cluster's `run` then serves the workload.

    Args:
        nursery: where engines, servers and managers run.
        scenario: the run's description.
        workload: where requests come from.
        journal: where rows go.
        clock: of the run.
        names: names of the complete blocks of a turn's prompt.
        records: takes what engines do to requests.
        on_end: told of each request that has ended.

    Raises:
        InvalidSetting: an address cannot be listened on.
    """
    faults = PlannedFaults(FaultPlan(scenario.faults, scenario.seed), journal, clock, {})
    live = scenario.live
    context = SessionContext(
        journal,
        clock,
        session_timeout_ms=_session_timeout_ms(scenario),
        rendezvous_timeout_ms=live.rendezvous_timeout_ms,
        interceptor=faults if scenario.faults else no_faults,
    )
    prefill: list[PrefillWorker] = []
    decode: list[DecodeWorker] = []
    cluster = LiveCluster(scenario, workload, names, context, faults, prefill, decode, records, on_end)
    for number in range(scenario.cluster.num_prefill_workers):
        worker = _prefill_worker(nursery, cluster, number)
        prefill.append(worker)
        port = live.port and live.port + number
        try:
            await worker.start(nursery, live.host, port, _max_sessions(scenario))
        except OSError as error:
            expected = f"an address that this machine can listen on ({error.strerror})"
            raise InvalidSetting("live.host, live.port", f"{live.host}:{port}", expected) from error
    decode += (_decode_worker(nursery, cluster, number) for number in range(scenario.cluster.num_decode_workers))
    return cluster


def _prefill_worker(nursery: trio.Nursery, cluster: LiveCluster, number: int) -> PrefillWorker:
    def watch(effect: Any) -> None:
        cluster.records.watch(WorkerRole.PREFILL, effect)
        if cluster.watches_caches and isinstance(effect, EngineFinished) and effect.handoff is not None:
            cluster.prefill_ended(effect.handoff)

    def cache_changed(event: KvEvent) -> None:
        cluster.cache_changed(number, event)

    settings = cluster.scenario.prefill
    return PrefillWorker(
        nursery,
        settings,
        cluster.context,
        effective_capacity(settings),
        f"prefill-{number}",
        kv_sink=cache_changed if cluster.watches_caches else None,
        watcher=watch,
    )


def _decode_worker(nursery: trio.Nursery, cluster: LiveCluster, number: int) -> DecodeWorker:
    settings = cluster.scenario.decode
    return DecodeWorker(
        nursery,
        settings,
        cluster.context,
        effective_capacity(settings),
        f"decode-{number}",
        watcher=lambda effect: cluster.records.watch(WorkerRole.DECODE, effect),
        peers=cluster.prefill,
    )


def _max_sessions(scenario: Scenario) -> int:
    return scenario.live.max_sessions or effective_capacity(scenario.prefill)


def _session_timeout_ms(scenario: Scenario) -> float:
    """The scenario's, else the one that the engine's settings name."""
    given = scenario.live.session_timeout_ms
    return given if given is not None else scenario.prefill.handoff_session_timeout_ms or SESSION_TIMEOUT_MS
