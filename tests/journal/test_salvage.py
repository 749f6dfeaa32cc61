"""What `salvage` keeps of a wreck, and what the new journal says about the rest."""

import os
import sqlite3
from pathlib import Path

import pytest
from journal_files import (
    closed_journal,
    contents,
    copy_files,
    killed_journal,
    note,
    put_contents,
    sync_journal,
)

from handoff.journal.chain import BLOCK_ROWS
from handoff.journal.errors import JournalUnreadable
from handoff.journal.event import Event
from handoff.journal.page_scan import PageScan
from handoff.journal.reader import JournalReader
from handoff.journal.receipt import receipt_path
from handoff.journal.salvage import SalvageReport, salvage_journal
from handoff.journal.verify import VerifyState, verify_journal

ROWS = 6 * BLOCK_ROWS


def events(path: Path) -> list[Event]:
    with JournalReader(path) as reader:
        return list(reader.events())


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Six whole blocks of notes, the last row being the end of the run."""
    path = tmp_path / "journal"
    with sync_journal(path, 512) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        note(journal, ROWS - 2, length=40)
    return path


def salvage(path: Path) -> tuple[SalvageReport, list[Event]]:
    report = salvage_journal(path, path.with_name("salvaged"))
    verified = verify_journal(report.new_path)
    assert (verified.state, verified.problems) == (VerifyState.SOUND, ())
    return report, events(report.new_path)


def test_a_sound_journal_is_kept_whole(journal: Path) -> None:
    before = events(journal)
    report, after = salvage(journal)
    assert after == before
    assert (report.kept, report.recovered, report.unproved, report.lost) == (ROWS, 0, 0, ())


def test_a_damaged_block_becomes_gaps_and_all_else_keeps_its_number(journal: Path) -> None:
    before = events(journal)
    connection = sqlite3.connect(journal)
    connection.execute("DROP TRIGGER row_is_not_changed")
    connection.execute("UPDATE row SET at_ms = -1 WHERE seq = 100")
    connection.commit()
    connection.close()
    report, after = salvage(journal)
    assert report.lost == ((65, 128),)
    assert report.lost_rows == 64
    assert after[:64] == before[:64]
    assert [event.kind for event in after[64:128]] == ["gap"] * 64
    assert [event.seq for event in after] == list(range(1, ROWS + 1))
    assert after[128:] == before[128:]


def test_a_lost_beginning_is_replaced_by_one_that_says_so(journal: Path) -> None:
    connection = sqlite3.connect(journal)
    connection.execute("DROP TRIGGER row_is_not_deleted")
    connection.execute("DELETE FROM row WHERE seq < 10")
    connection.commit()
    connection.close()
    report, after = salvage(journal)
    assert report.lost == ((1, 64),)
    assert after[63].kind == "run_started"
    assert after[63].payload["tool"].startswith("unknown")


def test_a_file_that_sqlite_cannot_open_is_read_page_by_page(journal: Path) -> None:
    before = events(journal)
    content = bytearray(journal.read_bytes())
    content[:100] = bytes(100)
    journal.write_bytes(content)
    report, after = salvage(journal)
    assert (report.kept, report.recovered) == (ROWS, ROWS)
    assert after == before


def test_a_schema_that_cannot_be_read_costs_no_row(journal: Path) -> None:
    before = events(journal)
    content = bytearray(journal.read_bytes())
    at = content.index(b"CREATE TABLE row")
    content[at : at + 6] = b"CREAM\x80"
    journal.write_bytes(content)
    report, after = salvage(journal)
    assert after == before
    assert report.recovered == ROWS


def test_rows_behind_a_damaged_log_frame_are_found_again(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed", 512)
    before = events(killed)
    files = contents(killed)
    log = bytearray(files["-wal"])
    log[32 + 8] ^= 1  # the salt of the first frame: SQLite ignores the log from here on
    put_contents(killed, {**files, "-wal": bytes(log)})
    assert verify_journal(killed).last_seq == 0
    report, after = salvage(killed)
    assert after[:-1] == before
    assert report.recovered == len(before)
    assert after[-1].kind == "run_ended"
    assert after[-1].name == "interrupted"


def test_a_cut_file_keeps_its_head(journal: Path) -> None:
    before = events(journal)
    content = journal.read_bytes()
    journal.write_bytes(content[: len(content) * 2 // 3])
    report, after = salvage(journal)
    assert 0 < report.kept < ROWS
    kept = [event for event in after if event.kind == "note"]
    assert kept == [before[event.seq - 1] for event in kept]


def test_a_wreck_without_receipt_keeps_what_is_whole_and_counts_it(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed")
    before = events(killed)
    copy = copy_files(killed, tmp_path / "copy", without=("-receipt",))
    report, after = salvage(copy)
    assert after[: len(before)] == before
    assert report.unproved == len(before) % BLOCK_ROWS


def test_long_rows_are_put_together_from_their_overflow_pages(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with sync_journal(path, 512) as journal:
        journal.begin_run(tool="test", wall_ns=1, scenario={"text": "é" * 5000})
        note(journal, 10, length=1000)
    with JournalReader(path) as reader:
        assert sorted(PageScan.read(path).rows()) == list(reader.rows())


@pytest.mark.parametrize("share", range(4))
def test_whatever_is_damaged_no_false_row_is_kept(tmp_path: Path, share: int) -> None:
    path = closed_journal(tmp_path / "journal", 512)
    before = events(path)
    files = contents(path)
    for start in range(share * 512, len(files[""]), 4 * 512):
        content = bytearray(files[""])
        content[start + 100 : start + 400] = bytes(300)
        put_contents(tmp_path / "wreck", {**files, "": bytes(content)})
        new = tmp_path / f"salvaged{start}"
        report = salvage_journal(tmp_path / "wreck", new)
        after = events(new)
        kept = [event for event in after if event.kind != "gap" and "unknown" not in (event.payload_json or "")]
        assert report.kept + report.lost_rows >= len(before)
        assert [event for event in kept if event.seq <= len(before)] == [
            before[event.seq - 1] for event in kept if event.seq <= len(before)
        ]
        assert verify_journal(new).sound


def test_nothing_of_a_journal_is_said_to_be_nothing(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"no rows in here " * 1000)
    with pytest.raises(JournalUnreadable, match="no row of a journal"):
        salvage_journal(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_existing_file_is_not_overwritten(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("mine")
    with pytest.raises(JournalUnreadable, match="exists already"):
        salvage_journal(journal, tmp_path / "new")


def test_the_wreck_is_not_changed(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed")
    before = contents(killed)
    salvage_journal(killed, tmp_path / "new")
    assert contents(killed) == before


def test_a_pipe_is_refused_as_a_wreck_and_as_a_receipt(journal: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(JournalUnreadable, match="a pipe or a device"):
        salvage_journal(pipe, tmp_path / "new")
    receipt_path(journal).unlink()
    os.mkfifo(receipt_path(journal))
    with pytest.raises(JournalUnreadable, match="its receipt cannot be read"):
        salvage_journal(journal, tmp_path / "new")
    assert not (tmp_path / "new").exists()
