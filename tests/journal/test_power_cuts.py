"""Power cuts at every moment of a writer's life: what it called durable must be on every disk that may be left."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_files import note
from power_cut import Disk
from system_calls import Call, traced

from handoff.journal.errors import JournalUnreadable
from handoff.journal.reader import JournalReader
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.verify import VerifyState, verify_journal

SHARES = 8
IMAGES_EACH_CALL = 2

WRITER = """
    import os, sys
    from journal_files import note
    from handoff.journal.receipt import Durability
    from handoff.journal.sync_journal import SyncJournal

    folder, durability = sys.argv[1:]
    reports = os.open(folder + "/reported", os.O_WRONLY | os.O_CREAT)
    for run in range(3):
        journal = SyncJournal.create(folder + "/journal", durability=Durability(durability))
        journal._file._connection.execute("PRAGMA wal_autocheckpoint = 8")
        journal.begin_run(tool="power cut", wall_ns=run)
        for size in (1, 3, 80, 1, 1, 2, 1, 150, 1, 1, 1, 1):
            note(journal, size, length=40)
            journal.commit()
            os.write(reports, f"{journal.durable_seq}\\n".encode())
        journal.__exit__(None, None, None)
        os.write(reports, f"{journal.durable_seq}\\n".encode())
"""


def calls_of_writer(folder: Path, durability: str) -> list[Call]:
    found = traced(WRITER, folder, durability, folder=folder)
    return [call for call in found if not call.path.name.endswith(("-shm", "-lock"))]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """The folder of a writer at `full`, and its calls on what is in it."""
    folder = tmp_path_factory.mktemp("writer")
    return folder, calls_of_writer(folder, "full")


def disks(folder: Path, calls: list[Call], share: int, shares: int) -> Iterator[tuple[int, dict[str, bytes], int]]:
    """Files that may be on the disk when the power is cut after a call, and the last row called durable by then."""
    disk = Disk(folder)
    reported = 0
    for number, call in enumerate(calls):
        if call.path.name == "reported":
            reported = int(call.data) if call.name == "write" else reported
            continue
        disk.take(call)
        if number % shares == share:
            draw = random.Random(number)
            for _ in range(IMAGES_EACH_CALL):
                yield number, disk.after_power_cut(draw), reported


def put_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "journal"


def assert_holds(path: Path, reported: int) -> None:
    """The journal must hold every row that was called durable, and all its rows must be right."""
    report = verify_journal(path)
    assert report.state in (VerifyState.OPEN, VerifyState.SOUND), report.problems
    assert report.last_seq >= reported
    with JournalReader(path) as reader:
        for event in reader.events(kinds={"note"}):
            assert event.payload["text"].rstrip("x") == f"{event.seq} "


@pytest.mark.parametrize("share", range(SHARES))
def test_every_disk_that_a_power_cut_may_leave_holds_every_durable_row(
    calls: tuple[Path, list[Call]], tmp_path: Path, share: int
) -> None:
    tried = 0
    for number, files, reported in disks(*calls, share, SHARES):
        path = put_files(tmp_path / "disk", files)
        if not path.exists():
            assert reported == 0
            continue
        tried += 1
        assert_holds(path, reported)
        if number % 5 == 0:
            go_on(path, reported)
    assert tried > 100


def go_on(path: Path, reported: int) -> None:
    """Record another run into what a power cut left."""
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="afterwards", wall_ns=9)
        note(journal, 70)
        last_seq = journal.last_seq
    assert_holds(path, max(reported, last_seq))


def test_without_syncs_a_power_cut_takes_rows(tmp_path: Path) -> None:
    """The model can see a loss: the same writer at durability `off` loses rows that it called durable."""
    (tmp_path / "writer").mkdir()
    calls = calls_of_writer(tmp_path / "writer", "off")
    lost = 0
    for _, files, reported in disks(tmp_path / "writer", calls, 0, 20):
        path = put_files(tmp_path / "disk", files)
        try:
            assert_holds(path, reported)
        except (AssertionError, JournalUnreadable):
            lost += 1
    assert lost > 5
