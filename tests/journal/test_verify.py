"""What `verify` says of journals that were damaged, cut, copied in part, or are open."""

import os
import sqlite3
from pathlib import Path

import pytest
from journal_files import (
    all_that_is_read,
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
from handoff.journal.receipt import receipt_path
from handoff.journal.verify import VerifyReport, VerifyState, verify_journal

PAGE_BYTES = 512
SHARES = 16
"""The sweeps over every byte are cut into so many tests, for several processors."""


def codes(report: VerifyReport) -> set[str]:
    return {problem.code for problem in report.problems}


def falsify(path: Path, *statements: str) -> None:
    """Change a file behind the journal's back, triggers and all."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "".join(f"DROP TRIGGER {name};" for (name,) in connection.execute("SELECT name FROM sqlite_master "
        "WHERE type = 'trigger'"))
    )  # fmt: skip
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.fixture
def long_journal(tmp_path: Path) -> Path:
    """Five whole blocks and a begun one."""
    path = tmp_path / "journal"
    with sync_journal(path) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        note(journal, 5 * BLOCK_ROWS + 20)
    return path


def test_a_closed_journal_is_sound(long_journal: Path) -> None:
    report = verify_journal(long_journal)
    assert report.state is VerifyState.SOUND
    assert report.sound
    assert report.last_seq == report.last_trustworthy_seq == 5 * BLOCK_ROWS + 22
    assert (report.runs, report.handoffs) == (1, 0)
    assert report.receipt is not None
    assert report.chain_head == report.receipt.digest.hex()


def test_a_journal_being_written_is_open_and_trustworthy_so_far(tmp_path: Path) -> None:
    with sync_journal(tmp_path / "journal") as journal:
        journal.begin_run(tool="test", wall_ns=1)
        note(journal, 99)
        journal.commit()
        report = verify_journal(tmp_path / "journal")
        assert (report.state, report.last_seq, report.last_trustworthy_seq) == (VerifyState.OPEN, 100, 100)
        note(journal, 10)
        journal.commit()  # the examination took none of the writer's locks away
    assert verify_journal(tmp_path / "journal").sound


def test_a_deleted_row_is_named_with_its_block(long_journal: Path) -> None:
    falsify(long_journal, "DELETE FROM row WHERE seq = 100")
    report = verify_journal(long_journal)
    assert report.state is VerifyState.DAMAGED
    assert (report.last_trustworthy_seq, report.damaged_rows) == (64, ((65, 128),))


def test_a_changed_row_damages_its_block_alone(long_journal: Path) -> None:
    falsify(long_journal, "UPDATE row SET at_ms = at_ms + 1e-9 WHERE seq = 100")
    report = verify_journal(long_journal)
    assert (report.state, report.last_trustworthy_seq) == (VerifyState.DAMAGED, 64)
    assert report.damaged_rows == ((65, 128),)


def test_two_rows_that_changed_places_are_found(long_journal: Path) -> None:
    falsify(
        long_journal,
        "UPDATE row SET seq = -1 WHERE seq = 70", "UPDATE row SET seq = 70 WHERE seq = 71",
        "UPDATE row SET seq = 71 WHERE seq = -1",
    )  # fmt: skip
    assert verify_journal(long_journal).damaged_rows == ((65, 128),)


def test_deleted_last_rows_are_a_lost_tail(long_journal: Path) -> None:
    last = 5 * BLOCK_ROWS + 22
    falsify(long_journal, f"DELETE FROM row WHERE seq > {last - 3}", f"DELETE FROM chain WHERE seq = {last}")
    report = verify_journal(long_journal)
    assert {"tail_lost", "file_changed"} <= codes(report)
    assert report.last_trustworthy_seq <= last - 3


def test_an_added_row_is_found(long_journal: Path) -> None:
    falsify(long_journal, "INSERT INTO row SELECT 343, 343, 1, NULL, NULL, NULL, 99.0, NULL, NULL, kind, NULL, NULL, "
            "NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM row WHERE seq = 2")  # fmt: skip
    report = verify_journal(long_journal)
    assert report.state is VerifyState.DAMAGED
    assert report.last_trustworthy_seq == 342


@pytest.mark.parametrize("seq", [64, 128])
def test_a_damaged_digest_leaves_its_rows_proved(long_journal: Path, seq: int) -> None:
    falsify(long_journal, f"UPDATE chain SET digest = zeroblob(32) WHERE seq = {seq}")
    report = verify_journal(long_journal)
    assert "digest_damaged" in codes(report)
    assert report.damaged_rows == ()
    assert report.last_trustworthy_seq == report.last_seq


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE handoff SET request = 'another' WHERE handoff = 2", "handoff"),
        ("DELETE FROM actor WHERE actor = 6", "actor"),
        ("UPDATE run SET tool = 'another'", "run"),
        ("INSERT INTO source (source, run, seq, name) VALUES (1, 1, 1, 'invented')", "source"),
    ],
)
def test_derived_tables_must_follow_from_the_rows(tmp_path: Path, statement: str, table: str) -> None:
    path = closed_journal(tmp_path / "journal")
    falsify(path, statement)
    problems = [problem for problem in verify_journal(path).problems if problem.code == "table_damaged"]
    assert len(problems) == 1
    assert f"table {table} " in problems[0].text


def test_a_changed_schema_is_named(tmp_path: Path) -> None:
    path = closed_journal(tmp_path / "journal")
    connection = sqlite3.connect(path)
    connection.execute("CREATE INDEX mine ON row (handoff)")
    connection.execute("DROP VIEW runs")
    connection.close()
    texts = [problem.text for problem in verify_journal(path).problems if problem.code == "schema_damaged"]
    assert [text.split()[2] for text in texts] == ["runs", "mine"]


def test_a_changed_word_is_found(tmp_path: Path) -> None:
    path = closed_journal(tmp_path / "journal")
    falsify(path, "UPDATE term SET word = 'applauded' WHERE word = 'applied'")
    assert "terms_damaged" in codes(verify_journal(path))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_found(long_journal: Path, kept: float) -> None:
    content = long_journal.read_bytes()
    long_journal.write_bytes(content[: int(len(content) * kept)])
    report = verify_journal(long_journal)
    assert report.state in (VerifyState.DAMAGED, VerifyState.TAIL_LOST)
    assert report.last_trustworthy_seq < 5 * BLOCK_ROWS + 22


def test_a_copy_without_its_log_has_lost_its_tail(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed")
    whole = verify_journal(killed)
    assert whole.last_trustworthy_seq == whole.last_seq > 0
    report = verify_journal(copy_files(killed, tmp_path / "copy", without=("-wal",)))
    assert report.state is VerifyState.TAIL_LOST
    assert report.last_trustworthy_seq == report.last_seq == 0


def test_a_copy_without_its_receipt_may_have_lost_its_tail(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed")
    report = verify_journal(copy_files(killed, tmp_path / "copy", without=("-receipt",)))
    assert report.state is VerifyState.OPEN
    assert "no_receipt" in codes(report)
    assert report.last_trustworthy_seq == report.last_seq // BLOCK_ROWS * BLOCK_ROWS


def test_a_closed_copy_without_its_receipt_is_proved_and_open(long_journal: Path, tmp_path: Path) -> None:
    report = verify_journal(copy_files(long_journal, tmp_path / "copy", without=("-receipt",)))
    assert (report.state, codes(report)) == (VerifyState.OPEN, {"no_receipt"})
    assert report.last_trustworthy_seq == report.last_seq


def test_a_copy_without_log_and_receipt_is_open(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed", checkpointed=True)
    report = verify_journal(copy_files(killed, tmp_path / "copy", without=("-wal", "-receipt")))
    assert report.state is VerifyState.OPEN
    assert {"no_receipt", "run_without_end"} <= codes(report)


def test_an_older_copy_beside_a_newer_receipt_has_lost_its_tail(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    closed_journal(path)
    old = path.read_bytes()
    closed_journal(path)
    path.write_bytes(old)
    report = verify_journal(path)
    assert "tail_lost" in codes(report)
    assert report.state is VerifyState.DAMAGED  # the receipt knows the whole file, too


def test_another_journals_receipt_is_found(long_journal: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "journal"
    with sync_journal(other) as journal:
        journal.begin_run(tool="another", wall_ns=1)
        note(journal, 200)
    receipt_path(long_journal).write_bytes(receipt_path(other).read_bytes())
    assert "receipt_differs" in codes(verify_journal(long_journal))


def test_a_run_without_an_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = sync_journal(path)
    journal.begin_run(tool="killed", wall_ns=1)
    journal.close()
    closed_journal(path)
    report = verify_journal(path)
    assert [problem.text.split(":")[0] for problem in report.problems] == ["run 1 has no end"]
    assert report.state is VerifyState.OPEN


def test_an_end_must_count_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with sync_journal(path) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        journal.run_first_seq = 0
    assert [problem.text for problem in verify_journal(path).problems] == [
        "the end of run 1 counts 3 rows, and there are 2"
    ]


@pytest.mark.parametrize("content", [None, b"", b"text", b"SQLite format 3\0 and no more"])
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "journal"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(JournalUnreadable) as caught:
        verify_journal(path)
    assert caught.value.path == path
    assert caught.value.remedy


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(JournalUnreadable, match="no journal of handoff"):
        verify_journal(path)


def test_verifying_changes_nothing(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed")
    before = contents(killed)
    verify_journal(killed)
    assert contents(killed) == before


def flips(content: bytes, share: int) -> list[int]:
    """One bit of every byte of this share, a different one from byte to byte."""
    return [8 * at + at * 5 % 8 for at in range(share, len(content), SHARES)]


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("share", range(SHARES))
def test_every_flip_in_a_closed_journal_is_found(tmp_path: Path, share: int) -> None:
    files = contents(closed_journal(tmp_path / "journal", PAGE_BYTES))
    assert len(files[""]) >= 40 * PAGE_BYTES
    for bit in flips(files[""], share)[share % 4 :: 4]:  # the digest of the whole file makes no difference by place
        put_contents(tmp_path / "flipped", {**files, "": flipped(files[""], bit)})
        report = verify_journal(tmp_path / "flipped")
        assert report.state is VerifyState.DAMAGED, bit
        assert 0 <= report.last_trustworthy_seq <= report.last_seq, bit


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("side", ["", "-wal"])
def test_a_flip_in_a_killed_journal_is_found_or_changes_nothing(tmp_path: Path, side: str, share: int) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed", PAGE_BYTES, checkpointed=side == "")
    files = contents(killed)
    before = verify_journal(killed)
    unchanged = {views: all_that_is_read(killed, views=views) for views in (True, False)}
    assert (before.state, len(files[side])) >= (VerifyState.OPEN, 20 * PAGE_BYTES)
    for bit in flips(files[side], share):
        put_contents(tmp_path / "flipped", {**files, side: flipped(files[side], bit)})
        report = verify_journal(tmp_path / "flipped")
        if report.state is VerifyState.OPEN:
            assert report.last_trustworthy_seq == before.last_seq, bit
            views = bit % 5 == 0  # they follow from tables and schema
            assert all_that_is_read(tmp_path / "flipped", views=views) == unchanged[views], bit
        else:
            assert report.last_trustworthy_seq <= before.last_seq, bit


@pytest.mark.parametrize("share", range(SHARES))
def test_flips_at_the_usual_page_size_are_found_or_change_nothing(tmp_path: Path, share: int) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed")
    files = contents(killed)
    unchanged = all_that_is_read(killed)
    last_seq = verify_journal(killed).last_seq
    for side in ("", "-wal"):
        for bit in flips(files[side], share)[share::40]:
            put_contents(tmp_path / "flipped", {**files, side: flipped(files[side], bit)})
            report = verify_journal(tmp_path / "flipped")
            if report.state is VerifyState.OPEN:
                assert report.last_trustworthy_seq == last_seq, bit
                assert all_that_is_read(tmp_path / "flipped") == unchanged, bit


def test_only_what_is_wrong_or_lost_is_a_fault(long_journal: Path, tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "other", tmp_path / "killed")
    assert not verify_journal(long_journal).faulty
    assert not verify_journal(killed).faulty
    for source, without in ((killed, "-wal"), (killed, "-receipt"), (long_journal, "-receipt")):
        copy = copy_files(source, tmp_path / f"copy{without}{source.name}", without=(without,))
        assert verify_journal(copy).faulty
    long_journal.write_bytes(long_journal.read_bytes()[:-1])
    assert verify_journal(long_journal).faulty


def test_a_pipe_as_receipt_is_refused_instead_of_waited_for(long_journal: Path) -> None:
    receipt_path(long_journal).unlink()
    os.mkfifo(receipt_path(long_journal))
    with pytest.raises(JournalUnreadable, match="its receipt cannot be read"):
        verify_journal(long_journal)


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop"
    path.symlink_to(path)
    with pytest.raises(JournalUnreadable, match="symbolic links"):
        verify_journal(path)
