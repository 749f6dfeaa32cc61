"""A recording process that is interrupted, told to end, or killed: its journal says what happened, and replays."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from live_runs import SMALL
from recorded_steps import MACHINES

from handoff.journal.declarations import RunEnded
from handoff.journal.reader import JournalReader
from handoff.journal.replay_report import ReplayReport, Tier
from handoff.journal.replayer import replay
from handoff.journal.row_codec import decode
from handoff.journal.terms import EndState
from handoff.journal.verify import verify_journal

CHILD = Path(__file__).parents[1] / "support" / "record_child.py"
ROOTS = [str(Path(__file__).parents[2] / folder) for folder in ("journal", "engines", "cli")]


class Child:
    """A recording process; `until` waits for its durable rows."""

    def __init__(self, folder: Path, grace_s: float = 10.0, **changes: object) -> None:
        self.journal = folder / "run.db"
        scenario = folder / "scenario.toml"
        values = {
            "in_flight": 4, "requests": 500, "engine_type": "vllm", "workers": 2, "router_mode": "round_robin",
            "timing_mode": "full_prompt", "session_timeout_ms": 20_000.0,
        }  # fmt: skip
        scenario.write_text(SMALL.format(**(values | changes)).replace("request_rate = 1.0", "replay_concurrency = 4"))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(ROOTS)}
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(scenario), str(self.journal), str(grace_s)],
            stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip
        self.durable = 0

    def until(self, condition: Callable[[int], bool]) -> None:
        """Read the numbers of durable rows until one will do."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.durable = int(line)
            if condition(self.durable):
                return
        raise AssertionError(f"the child ended after row {self.durable}")

    def ended(self) -> int:
        """Read on until the process has ended; its status."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):
                    self.durable = int(line)
        return self.process.wait(timeout=30)


def last_row(journal: Path) -> RunEnded:
    with JournalReader(journal) as reader:
        event = reader.event(reader.last_seq)
        assert event.kind == "run_ended"
        ended: RunEnded = decode(event)
        return ended


def replayed(journal: Path) -> ReplayReport:
    with JournalReader(journal) as reader:
        report = replay(reader, Tier.FULL, MACHINES)
    assert report.agrees, report.divergences[0].sentence
    return report


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_becomes_a_shutdown_and_every_handoff_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    child = Child(tmp_path)
    child.until(lambda seq: seq > 1500)
    child.process.send_signal(number)
    assert child.ended() == 130
    ended = last_row(child.journal)
    assert (ended.name, ended.reason) == (EndState.INTERRUPTED, number.name)
    assert verify_journal(child.journal).state == "sound"
    report = replayed(child.journal)
    assert not report.unended
    with JournalReader(child.journal) as reader:
        kinds = [event.kind for event in reader.events(kinds={"shutdown_requested", "permit_taken", "permit_returned"})]
    assert kinds.count("permit_taken") == kinds.count("permit_returned")
    assert kinds.count("shutdown_requested") > 2


def test_a_second_signal_ends_at_once_and_leaves_a_sound_journal(tmp_path: Path) -> None:
    child = Child(tmp_path, grace_s=600.0, session_timeout_ms=600_000.0)
    child.until(lambda seq: seq > 1500)
    child.process.send_signal(signal.SIGTERM)
    child.process.send_signal(signal.SIGINT)
    assert child.ended() == 130
    ended = last_row(child.journal)
    assert ended.name is EndState.INTERRUPTED
    assert verify_journal(child.journal).state == "sound"
    replayed(child.journal)


@pytest.mark.parametrize("rows", [40, 333, 1000, 2500])
def test_after_a_kill_every_durable_row_is_there_and_replays(tmp_path: Path, rows: int) -> None:
    child = Child(tmp_path)
    child.until(lambda seq: seq >= rows)
    child.process.kill()
    assert child.ended() == -signal.SIGKILL
    with JournalReader(child.journal) as reader:
        assert reader.last_seq >= child.durable >= rows
    report = replayed(child.journal)
    assert report.ends_open
    assert verify_journal(child.journal).last_trustworthy_seq >= child.durable
