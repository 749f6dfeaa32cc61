"""What became of a recorded run, as a JSON document (docs/schemas/record.schema.json) and as summary figures."""

from typing import Any

from handoff.engines.record import RecordReport
from handoff.engines.scenario import Scenario
from handoff.engines.summary import RunTotals, summarize


def record_summary(report: RecordReport, scenario: Scenario) -> dict[str, Any]:
    """The summary figures, under the names that simulated runs use too.

    Tokens reach a live client in batches; the waits between single tokens are those of the engines' model clocks.
    """
    seconds = report.duration_ms / 1000.0
    cluster = scenario.cluster
    totals = RunTotals(
        prefill_worker_seconds=seconds * cluster.num_prefill_workers,
        decode_worker_seconds=seconds * cluster.num_decode_workers,
        gap_logs=report.gap_logs,
        wall_time_ms=report.duration_ms,
    )
    return summarize(report.collector, totals)


def record_document(report: RecordReport, journal: str, scenario: Scenario) -> dict[str, Any]:
    """The whole report."""
    return {
        "schema": "handoff.record/1",
        "journal": journal,
        "scenario": report.name,
        "state": report.state.value,
        "reason": report.reason,
        "handoffs": report.handoffs,
        "rows": report.rows,
        "duration_ms": report.duration_ms,
        "all_succeeded": report.all_succeeded,
        "statuses": {status.value: count for status, count in report.statuses.items()},
        "inside": [{"worker": worker, "handoffs": list(handoffs)} for worker, handoffs in report.inside],
        "faults_that_struck_nothing": list(report.never_struck),
        "summary": record_summary(report, scenario),
    }
