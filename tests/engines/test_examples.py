"""The examples run as they are, healthy load stays healthy, and the broken run breaks as its file says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from recorded_steps import MACHINES

from handoff.engines.record import record_scenario
from handoff.engines.scenario import load_scenario
from handoff.journal.reader import JournalReader
from handoff.journal.replay_report import Tier
from handoff.journal.replayer import replay
from handoff.journal.vocabulary import TerminalStatus

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_example(name: str, folder: Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("journal", "engines", "cli"))
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_engine_of_ones_own_hands_over_in_under_sixty_lines(tmp_path: Path) -> None:
    assert len((EXAMPLES / "own_engine.py").read_text().splitlines()) < 60
    assert "source: True destination: True" in run_example("own_engine.py", tmp_path)
    with JournalReader(tmp_path / "own_engine.db") as reader:
        assert replay(reader, Tier.FULL, MACHINES).agrees


def test_an_asyncio_program_records_without_loss(tmp_path: Path) -> None:
    assert "lost: 0" in run_example("asyncio_recorder.py", tmp_path)
    with JournalReader(tmp_path / "asyncio_recorder.db") as reader:
        assert len(list(reader.handoffs())) == 3
        assert replay(reader, Tier.CORE).agrees


@pytest.mark.parametrize("name", ["chat-vllm.toml", "chat-sglang.toml"])
def test_the_chat_examples_stay_healthy(tmp_path: Path, name: str) -> None:
    scenario = load_scenario(EXAMPLES / name)
    scenario = evolve(scenario, workload=evolve(scenario.workload, limit=24))
    report = record_scenario(scenario, tmp_path / "chat.db")
    assert report.all_succeeded
    assert report.handoffs == 24
    with JournalReader(tmp_path / "chat.db") as reader:
        assert replay(reader, Tier.FULL, MACHINES).agrees


def test_the_lost_acknowledgement_fails_one_handoff_and_leaves_nothing(tmp_path: Path) -> None:
    report = record_scenario(load_scenario(EXAMPLES / "lost-ack.toml"), tmp_path / "lost.db")
    assert report.statuses[TerminalStatus.FAILED] == 1
    assert report.statuses[TerminalStatus.COMPLETED] == report.handoffs - 1
    assert report.never_struck == ()
    assert report.inside == ()
    with JournalReader(tmp_path / "lost.db") as reader:
        (failed,) = [handoff.number for handoff in reader.handoffs()][2:3]
        assert replay(reader, Tier.FULL, MACHINES).agrees
        ends = [event.name for event in reader.events(handoff=failed, kinds={"session_ended"}) if event.verdict is None]
    assert ends == ["error", "error"]
