"""What `verify` found, as a JSON document (docs/schemas/verify.schema.json)."""

from typing import Any

from handoff.journal.verify import VerifyReport


def verify_document(report: VerifyReport) -> dict[str, Any]:
    """The report with all its findings."""
    return {
        "schema": "handoff.verify/1",
        "journal": str(report.path),
        "state": report.state.value,
        "sound": report.sound,
        "last_seq": report.last_seq,
        "last_trustworthy_seq": report.last_trustworthy_seq,
        "chain_head": report.chain_head,
        "runs": report.runs,
        "handoffs": report.handoffs,
        "has_receipt": report.receipt is not None,
        "problems": [
            {
                "code": problem.code,
                "state": problem.state.value,
                "text": problem.text,
                "first_seq": problem.first_seq,
                "last_seq": problem.last_seq,
            }
            for problem in report.problems
        ],
    }
