"""What `salvage` kept and dropped, as a JSON document (docs/schemas/salvage.schema.json)."""

from typing import Any

from handoff.journal.salvage import SalvageReport


def salvage_document(report: SalvageReport) -> dict[str, Any]:
    """The report, lost parts as pairs of first and last row."""
    return {
        "schema": "handoff.salvage/1",
        "journal": str(report.path),
        "new_journal": str(report.new_path),
        "last_seq": report.last_seq,
        "kept": report.kept,
        "recovered": report.recovered,
        "unproved": report.unproved,
        "lost_rows": report.lost_rows,
        "lost": [[first, last] for first, last in report.lost],
    }
