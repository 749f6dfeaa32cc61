"""Runs a scenario in virtual time and reports it.

`simulate` is the whole of ``handoff simulate`` but its options and its output for people. The garbage collector is
off while a run goes on: nothing in it makes cycles that matter, and looking for them takes a tenth of the time.
"""

import gc
from collections.abc import Callable
from time import perf_counter
from typing import Any, TextIO

from attrs import frozen

from handoff.engines.collector import Collector
from handoff.engines.offline_runtime import DisaggregatedCluster, OfflineRuntime, RuntimeObserver, Stall
from handoff.engines.request_record import record_line
from handoff.engines.run_chart import RunChart
from handoff.engines.scenario import Scenario, ScenarioError
from handoff.engines.scenario_workload import LoadedWorkload, load_workload
from handoff.engines.service_level import ServiceLevel
from handoff.engines.simulated_request import SimulatedRequest
from handoff.engines.summary import RunTotals, real_time_figures, summarize

REPORT_SCHEMA = "handoff.report/1"
_TIMESTAMPS_A_WATCH = 256
_TIMESTAMPS_A_SAMPLE = 8


@frozen
class SimulationProgress:
    """How far a run is.

    Attributes:
        now_ms: virtual time.
        ended, total: requests.
    """

    now_ms: float
    ended: int
    total: int


@frozen
class Simulation:
    """What came of a run.

    Attributes:
        report: the summary with the run's description, as JSON values; the same for the same scenario.
        real_time: what depends on how fast the machine was.
        stalls: requests that had to be failed because nothing could happen any more.
        interrupted: whether it was stopped before its end.
        capped: whether it reached `max_sim_time_ms`.
        chart: what is drawn of it, if asked for.
    """

    report: dict[str, Any]
    real_time: dict[str, float]
    stalls: tuple[Stall, ...]
    interrupted: bool
    capped: bool
    chart: RunChart | None


def check_no_wire_faults(scenario: Scenario) -> None:
    """Refuse faults that only a wire can suffer.

    Raises:
        ScenarioError: for the first such fault.
    """
    fault = scenario.wire_fault()
    if fault is not None:
        raise ScenarioError(
            scenario.folder,
            None,
            "fault",
            f"{fault.on} {fault.do}",
            "no fault that needs a wire: use handoff simulate --wire, or handoff record",
        )


def simulate(
    scenario: Scenario,
    *,
    per_request: TextIO | None = None,
    service_level: ServiceLevel | None = None,
    draws: bool = False,
    on_progress: Callable[[SimulationProgress], bool] | None = None,
    observer: RuntimeObserver | None = None,
) -> Simulation:
    """Run a scenario without a wire.

    Args:
        scenario: what to run.
        per_request: takes a line of JSON for each ended request, in order of arrival.
        service_level: bounds for goodput, or None.
        draws: whether a chart is wanted.
        on_progress: told now and then how far the run is; returns False to stop it.
        observer: told of everything, as a journal needs it.

    Raises:
        ScenarioError: the scenario has a fault that needs a wire.
        TraceError: its trace cannot be used.
    """
    check_no_wire_faults(scenario)
    workload = load_workload(scenario)
    chart = RunChart() if draws else None
    collector = Collector(_sink(per_request, chart, workload), service_level=service_level)
    runtime = _runtime(scenario, workload, collector, observer)
    begun_s = perf_counter()
    collecting = gc.isenabled()
    gc.disable()
    try:
        every = _TIMESTAMPS_A_WATCH if chart is None else _TIMESTAMPS_A_SAMPLE
        ended = runtime.run(_watch(on_progress, chart, workload, collector), every)
    finally:
        if collecting:
            gc.enable()
    collector.close()
    wall_ms = (perf_counter() - begun_s) * 1000.0
    if chart is not None:
        chart.sample(runtime)
        chart.ttft_ms, chart.e2e_ms = collector.ttft_ms, collector.e2e_ms
    report = _report(scenario, workload, runtime, interrupted=not ended)
    real_time = real_time_figures(wall_ms, collector.input_tokens, collector.output_tokens)
    return Simulation(report, real_time, tuple(runtime.stalls), not ended, ended and not runtime.is_done, chart)


def _runtime(
    scenario: Scenario, workload: LoadedWorkload, collector: Collector, observer: RuntimeObserver | None
) -> OfflineRuntime:
    cluster = DisaggregatedCluster(
        scenario.prefill,
        scenario.decode,
        scenario.cluster.num_prefill_workers,
        scenario.cluster.num_decode_workers,
    )
    options: dict[str, Any] = {
        "router_mode": scenario.cluster.router_mode,
        "kv_router": scenario.cluster.kv_router,
        "seed": scenario.seed,
        "collector": collector,
        "max_sim_time_ms": scenario.workload.max_sim_time_ms,
        "observer": observer,
    }
    if scenario.faults:
        # Only runs with faults need what live runs share of them, which takes longer to import than small runs take.
        from handoff.engines.faults import FaultPlan  # noqa: PLC0415
        from handoff.engines.offline_faults import FaultyRuntime  # noqa: PLC0415

        plan = FaultPlan(scenario.faults, scenario.seed)
        return FaultyRuntime(plan, cluster, workload.source, workload.names, **options)
    return OfflineRuntime(cluster, workload.source, workload.names, **options)


def _sink(
    per_request: TextIO | None, chart: RunChart | None, workload: LoadedWorkload
) -> Callable[[SimulatedRequest], None] | None:
    names_sessions = workload.source.reports_sessions
    if per_request is None:
        return None if chart is None else chart.take
    write = per_request.write

    def take(request: SimulatedRequest) -> None:
        write(record_line(request, names_sessions=names_sessions) + "\n")
        if chart is not None:
            chart.take(request)

    return take


def _watch(
    on_progress: Callable[[SimulationProgress], bool] | None,
    chart: RunChart | None,
    workload: LoadedWorkload,
    collector: Collector,
) -> Callable[[OfflineRuntime], bool] | None:
    if on_progress is None and chart is None:
        return None

    def watch(runtime: OfflineRuntime) -> bool:
        if chart is not None:
            chart.sample(runtime)
        if on_progress is None:
            return True
        ended = collector.num_requests - runtime.in_flight
        return on_progress(SimulationProgress(runtime.now_ms, ended, workload.requests))

    return watch


def _report(
    scenario: Scenario, workload: LoadedWorkload, runtime: OfflineRuntime, *, interrupted: bool
) -> dict[str, Any]:
    prefill_router, decode_router = runtime.prefill.router, runtime.decode.router
    totals = RunTotals(
        runtime.prefill.worker_seconds,
        runtime.decode.worker_seconds,
        runtime.decode.gap_logs,
        None,
        0 if prefill_router is None else prefill_router.max_pending,
        0 if decode_router is None else decode_router.max_pending,
    )
    return {
        "schema": REPORT_SCHEMA,
        "scenario": scenario.name,
        "scenario_digest": scenario.digest(),
        "seed": scenario.seed,
        "trace_digest": workload.trace_digest,
        "interrupted": interrupted,
        "simulated_ms": runtime.now_ms,
        **summarize(runtime.collector, totals),
        "stalls": [
            {
                "at_ms": stall.at_ms,
                "pool": stall.pool,
                "worker": stall.worker,
                "failed_request": stall.failed_request,
                "reason": stall.reason,
                "waiting": list(stall.waiting),
            }
            for stall in runtime.stalls
        ],
    }
