"""Journals that earlier versions wrote, as users have them, still read, verify and replay as they did.

When the format is changed before its release: PYTHONPATH=tests/support python tests/golden/make_golden.py
"""

import shutil
from pathlib import Path

import pytest
import stranger

from handoff.journal.divergence import DivergenceClass
from handoff.journal.event_lines import LineWriter
from handoff.journal.reader import JournalReader
from handoff.journal.replayer import Tier, replay
from handoff.journal.schema import FORMAT_VERSION
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.verify import verify_journal

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = range(1, FORMAT_VERSION + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_journal_reads_as_it_was_written(version: int) -> None:
    with JournalReader(GOLDEN / f"version{version}.journal") as reader:
        writer = LineWriter()
        lines = [writer.line(event) for event in reader.events()]
    assert lines == (GOLDEN / f"version{version}.jsonl").read_text().splitlines()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_journal_is_sound_to_us_and_to_a_stranger(version: int) -> None:
    path = GOLDEN / f"version{version}.journal"
    assert verify_journal(path).problems == ()
    assert stranger.verify(path) == "sound"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_journal_replays(version: int) -> None:
    with JournalReader(GOLDEN / f"version{version}.journal") as reader:
        assert replay(reader, Tier.CORE).divergences == ()
        assert replay(reader, Tier.FULL).divergences == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_golden_journal_that_must_diverge_does(version: int) -> None:
    path = GOLDEN / f"version{version}-diverging.journal"
    assert verify_journal(path).problems == ()
    with JournalReader(path) as reader:
        first = replay(reader, Tier.CORE).divergences[0]
        assert first.kind is DivergenceClass.PAYLOAD
        assert reader.event(first.seq).name == "activate_destination"


def test_a_golden_journal_is_continued(tmp_path: Path) -> None:
    for side in ("", "-receipt"):
        shutil.copyfile(GOLDEN / f"version{FORMAT_VERSION}.journal{side}", tmp_path / f"journal{side}")
    with SyncJournal.create(tmp_path / "journal") as journal:
        assert journal.begin_run(tool="test", wall_ns=1) == 2
    assert verify_journal(tmp_path / "journal").sound
