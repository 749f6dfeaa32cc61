"""A program that records a scenario and writes each durable row's number to its standard output.

    python record_child.py SCENARIO JOURNAL GRACE_S

It ends with the status that `handoff record` would: 0 for a finished run, 130 for an interrupted one.
"""

import sys

from handoff.engines.record import record_scenario
from handoff.engines.scenario import load_scenario
from handoff.journal.terms import EndState


def main(scenario: str, journal: str, grace_s: str) -> int:
    """Record, and say how it ended."""
    report = record_scenario(load_scenario(scenario), journal, grace_s=float(grace_s), report_durable_fd=1)
    return 0 if report.state is EndState.FINISHED else 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
