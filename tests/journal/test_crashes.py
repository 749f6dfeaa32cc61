"""What survives a killed process, and what is synced before anybody is told that it is durable.

A kill does not test durability `full`: the kernel keeps what a killed process wrote. So syncs are counted, too, and
power cuts are rebuilt from the trace of a writer's system calls (`test_power_cuts`).
"""

import json
import shutil
from pathlib import Path

import pytest
from journal_files import run_child
from system_calls import traced

KILLS_EACH = 25


@pytest.mark.parametrize("share", range(8))
def test_a_killed_writer_leaves_every_durable_row(tmp_path: Path, share: int) -> None:
    code = "import write_until_killed; write_until_killed.main()"
    lines = run_child(code, tmp_path, share * KILLS_EACH, (share + 1) * KILLS_EACH).splitlines()
    assert len(lines) == KILLS_EACH
    found = [json.loads(line) for line in lines]
    for left in found:
        assert left["state"] in ("none", "open", "sound"), left
        assert left["last_seq"] >= left["reported"], left
        assert left["trustworthy"] >= left["reported"], left
        assert left["notes_right"], left
    assert sum(left["reported"] > left["before"] for left in found) >= KILLS_EACH // 2


DURABLE_WAITS = """
    import sys
    import trio
    from handoff.journal.declarations import Note
    from handoff.journal.durable_journal import Journal
    from handoff.journal.receipt import Durability

    async def main():
        async with Journal.create(sys.argv[1], durability=Durability(sys.argv[2])) as journal:
            for number in range(25):
                await journal.durable(journal.annotate(Note(str(number)), float(number)))

    trio.run(main)
"""


@pytest.mark.parametrize(("durability", "least", "most"), [("full", 25, 60), ("normal", 0, 20), ("off", 0, 0)])
def test_each_durable_answer_at_full_had_a_sync_of_its_own(
    tmp_path: Path, durability: str, least: int, most: int
) -> None:
    calls = traced(DURABLE_WAITS, tmp_path / "journal", durability, folder=tmp_path, only="fsync,fdatasync")
    synced = [call.path.name for call in calls]
    assert least <= synced.count("journal-wal") <= most


def test_the_log_is_synced_before_the_receipt_says_so(tmp_path: Path) -> None:
    calls = traced(DURABLE_WAITS, tmp_path / "journal", "full", folder=tmp_path)
    unsynced = 0
    receipts = 0
    for call in calls:
        if call.path.name == "journal-wal" and call.name in ("pwrite64", "fdatasync"):
            unsynced = 0 if call.name == "fdatasync" else unsynced + 1
        elif call.path.name == "journal-receipt" and call.name == "pwrite64":
            receipts += 1
            assert unsynced == 0
    assert receipts >= 25


def test_strace_is_there() -> None:
    assert shutil.which("strace"), "the tests of syncs and power cuts need strace: apt-get install strace"
