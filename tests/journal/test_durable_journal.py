"""The journal that live drivers write to: appending, waiting, failing, closing."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import trio
from journal_files import note, run_child
from recorded_handoffs import open_handoff

from handoff.journal.declarations import Note
from handoff.journal.durable_journal import Journal
from handoff.journal.errors import JournalUnreadable
from handoff.journal.file_lock import JournalBusy
from handoff.journal.port import JournalFailed, JournalPort, MemoryJournal
from handoff.journal.reader import JournalReader
from handoff.journal.receipt import Durability, ReceiptState, read_receipt
from handoff.journal.sync_journal import COMMIT_ROWS, DiscardingJournal, SyncJournal
from handoff.journal.terms import EndState
from handoff.journal.verify import VerifyState, verify_journal
from handoff.journal.vocabulary import ActionName, Seq

REAL_CLOCK: Any = None
TRIO = Callable[..., Any]


def break_next_commit(journal: Journal | SyncJournal) -> None:
    """Leave the database no room for another page."""
    journal._file._connection.execute("PRAGMA max_page_count = 1")


class StuckDisk:
    """Lets commits begin only when told."""

    def __init__(self, journal: Journal) -> None:
        self.goes_on = threading.Event()
        commit = journal._file.commit

        def commit_when_told(rows: Any) -> None:
            assert self.goes_on.wait(20.0)
            commit(rows)

        journal._file.commit = commit_when_told  # type: ignore[method-assign]


def texts(path: Path) -> list[str]:
    with JournalReader(path) as reader:
        return [event.payload["text"] for event in reader.events(kinds={"note"})]


@pytest.mark.parametrize("durability", Durability)
def test_what_is_durable_can_be_read_by_others(tmp_path: Path, trio_run: TRIO, durability: Durability) -> None:
    path = tmp_path / "journal"

    async def main() -> None:
        async with Journal.create(path, durability=durability) as journal:
            journal.begin_run(tool="test", wall_ns=1)
            seq = journal.annotate(Note("first"), 1.0)
            await journal.durable(seq)
            assert journal.durable_seq >= seq
            assert texts(path) == ["first"]

    trio_run(main, clock=REAL_CLOCK)
    assert verify_journal(path).state is VerifyState.SOUND


def test_appending_waits_for_no_disk(tmp_path: Path, trio_run: TRIO) -> None:
    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            disk = StuckDisk(journal)
            journal.begin_run(tool="test", wall_ns=1)
            note(journal, 1000)
            assert journal.last_seq == 1001
            assert journal.durable_seq == 0
            disk.goes_on.set()
            await journal.durable(Seq(1001))

    trio_run(main, clock=REAL_CLOCK)
    assert len(texts(tmp_path / "journal")) == 1000


def test_all_that_was_appended_during_a_commit_is_one_commit(tmp_path: Path, trio_run: TRIO) -> None:
    commits: list[int] = []

    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            disk = StuckDisk(journal)
            slow_commit = journal._file.commit

            def counted(rows: Any) -> None:
                commits.append(len(rows))
                slow_commit(rows)

            journal._file.commit = counted  # type: ignore[method-assign]
            journal.begin_run(tool="test", wall_ns=1)
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(journal.durable, journal.annotate(Note("x"), 1.0))
                disk.goes_on.set()

    trio_run(main, clock=REAL_CLOCK)
    assert sum(commits) == 52
    assert len(commits) <= 3  # the first rows alone, the rest together, the end of the run


def test_one_commit_wakes_the_event_loop_once(tmp_path: Path, trio_run: TRIO) -> None:
    wakes: list[int] = []

    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            disk = StuckDisk(journal)
            seq = journal.annotate(Note("x"), 1.0)
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(journal.durable, seq)
                await trio.testing.wait_all_tasks_blocked()
                wake_loop = journal._committer.told

                def counted() -> None:
                    wakes.append(len(journal._waiting))
                    wake_loop()

                journal._committer.told = counted
                disk.goes_on.set()

    trio_run(main, clock=REAL_CLOCK)
    assert wakes == [100]


def test_a_canceled_wait_withdraws_nothing(tmp_path: Path, trio_run: TRIO) -> None:
    path = tmp_path / "journal"

    async def main() -> None:
        async with Journal.create(path) as journal:
            disk = StuckDisk(journal)
            journal.begin_run(tool="test", wall_ns=1)
            with trio.CancelScope() as scope:
                scope.cancel()
                await journal.durable(journal.annotate(Note("canceled before it waited"), 1.0))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal.durable, journal.annotate(Note("canceled while it waited"), 1.0))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert journal._waiting == {}
            disk.goes_on.set()

    trio_run(main, clock=REAL_CLOCK)
    assert texts(path) == ["canceled before it waited", "canceled while it waited"]


def test_waiting_for_a_durable_row_is_a_checkpoint(tmp_path: Path, trio_run: TRIO) -> None:
    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            seq = journal.annotate(Note("x"), 1.0)
            await journal.durable(seq)
            with trio.testing.assert_checkpoints():
                await journal.durable(seq)
            with trio.testing.assert_checkpoints():
                await journal.room()

    trio_run(main, clock=REAL_CLOCK)


def test_the_first_failed_commit_is_told_to_everybody_and_is_the_last(tmp_path: Path, trio_run: TRIO) -> None:
    path = tmp_path / "journal"
    failures: list[JournalFailed] = []

    async def main() -> None:
        async with Journal.create(path) as journal:
            journal.begin_run(tool="test", wall_ns=1)
            last = journal.annotate(Note("durable"), 1.0)
            await journal.durable(last)
            break_next_commit(journal)
            disk = StuckDisk(journal)

            async def wait(seq: Seq) -> None:
                with pytest.raises(JournalFailed) as caught:
                    await journal.durable(seq)
                failures.append(caught.value)

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(wait, journal.annotate(Note("x" * 10_000), 1.0))
                await trio.testing.wait_all_tasks_blocked()
                disk.goes_on.set()
            for failure in failures:
                assert failure.last_durable_seq == last
                assert isinstance(failure.cause, sqlite3.Error)
            await wait(journal.annotate(Note("appending still returns"), 1.0))
            with pytest.raises(JournalFailed):
                await journal.room()
            await journal.durable(last)
            assert journal.failure is not None

    with pytest.raises(JournalFailed):
        trio_run(main, clock=REAL_CLOCK)
    assert len(failures) == 6
    assert texts(path) == ["durable"]
    report = verify_journal(path)
    assert (report.state, report.last_trustworthy_seq) == (VerifyState.OPEN, 2)
    assert "writer_failed" in [problem.code for problem in report.problems]


def test_an_error_of_the_block_is_not_hidden_by_the_journals(tmp_path: Path, trio_run: TRIO) -> None:
    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            journal.begin_run(tool="test", wall_ns=1)
            await journal.durable(Seq(1))
            break_next_commit(journal)
            note(journal, 100, length=1000)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        trio_run(main, clock=REAL_CLOCK)


def test_new_root_work_waits_for_room_and_nothing_else_does(tmp_path: Path, trio_run: TRIO) -> None:
    async def main() -> None:
        async with Journal.create(tmp_path / "journal", max_pending_rows=10) as journal:
            disk = StuckDisk(journal)
            journal.begin_run(tool="test", wall_ns=1)
            for _ in range(9):
                await journal.room()
                note(journal)
            note(journal, 20)
            with trio.move_on_after(0) as scope:
                await journal.room()
            assert scope.cancelled_caught
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal.room)
                await trio.testing.wait_all_tasks_blocked()
                disk.goes_on.set()
            assert journal.last_seq - journal.durable_seq < 10

    trio_run(main, clock=REAL_CLOCK)


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        with pytest.raises(JournalBusy) as caught:
            SyncJournal.create(path)
        assert caught.value.owner == os.getpid()
        link = tmp_path / "link"
        link.symlink_to(path)
        with pytest.raises(JournalBusy):
            Journal.create(link)
    SyncJournal.create(path).close()


def test_a_second_writing_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = """
        import sys
        from handoff.journal.file_lock import JournalBusy
        from handoff.journal.sync_journal import SyncJournal
        try:
            SyncJournal.create(sys.argv[1])
        except JournalBusy as busy:
            print(busy)
    """
    with SyncJournal.create(path):
        assert f"process {os.getpid()} is writing this journal" in run_child(code, path)


def test_a_clean_close_leaves_the_file_and_its_receipt_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="test", wall_ns=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal", "journal-receipt"]
    assert path.read_bytes()[18:20] == b"\1\1"  # not in WAL mode
    receipt = read_receipt(path)
    assert receipt is not None
    assert receipt.state is ReceiptState.CLOSED


def test_a_journal_is_closed_cleanly_while_somebody_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        journal.commit()
        reader = JournalReader(path)
        assert reader.last_seq == 1
        journal._file._connection.execute("PRAGMA busy_timeout = 1")
    assert reader.last_seq == 2
    reader.close()
    assert verify_journal(path).state is VerifyState.SOUND


def test_runs_are_appended_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for run in (1, 2, 3):
        with SyncJournal.create(path) as journal:
            assert journal.begin_run(tool=f"test {run}", wall_ns=run) == run
            open_handoff(journal, f"h{run}").proceed()
    with JournalReader(path) as reader:
        runs = reader.runs()
        assert [(record.run, record.started.tool, record.state) for record in runs] == [
            (1, "test 1", "finished"), (2, "test 2", "finished"), (3, "test 3", "finished"),
        ]  # fmt: skip
        assert [record.first_seq - 1 for record in runs[1:]] == [record.last_seq for record in runs[:-1]]
        assert [(record.number, record.run) for record in reader.handoffs()] == [(1, 1), (2, 2), (3, 3)]
        assert [record.actor for record in reader.actors()] == [1, 2, 3]
    assert verify_journal(path).state is VerifyState.SOUND


def test_a_killed_run_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = SyncJournal.create(path)
    journal.begin_run(tool="test", wall_ns=1)
    open_handoff(journal, "h1").proceed(ActionName.START_TRANSFER)
    journal.annotate(Note("last words"), 70.0)
    journal.commit()
    journal._file._release()  # what a kill leaves, but for the log that SQLite folds in
    with SyncJournal.create(path) as journal:
        assert journal.run_open
        assert journal.resume_run(tool="test", wall_ns=2, at_ms=60.0) == 1
        assert journal.last_at_ms == 70.0
        open_handoff(journal, "h2")
    with JournalReader(path) as reader:
        (run,) = reader.runs()
        assert len(run.resumed_seqs) == 1
        assert reader.event(run.last_seq or 0).payload == {"rows": reader.last_seq, "handoffs": 2}
        times = [event.at_ms for event in reader.events(first=run.resumed_seqs[0], kinds={"run_resumed"})]
        assert times == [70.0]
    assert verify_journal(path).state is VerifyState.SOUND


@pytest.mark.parametrize(
    ("error", "state"),
    [(None, "finished"), (KeyboardInterrupt(), "interrupted"), (ValueError("bad"), "error"),
     (BaseExceptionGroup("", [KeyboardInterrupt()]), "interrupted")],
)  # fmt: skip
def test_a_run_says_how_its_block_was_left(
    tmp_path: Path, trio_run: TRIO, error: BaseException | None, state: str
) -> None:
    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            journal.begin_run(tool="test", wall_ns=1)
            note(journal)
            if error is not None:
                raise error

    with pytest.raises(type(error)) if error is not None else nullcontext():
        trio_run(main, clock=REAL_CLOCK)
    with JournalReader(tmp_path / "journal") as reader:
        assert reader.runs()[0].state == state
    assert verify_journal(tmp_path / "journal").state is VerifyState.SOUND


def test_a_canceled_block_says_interrupted(tmp_path: Path, trio_run: TRIO) -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            async with Journal.create(tmp_path / "journal") as journal:
                journal.begin_run(tool="test", wall_ns=1)
                scope.cancel()
                await trio.sleep_forever()

    trio_run(main, clock=REAL_CLOCK)
    with JournalReader(tmp_path / "journal") as reader:
        assert reader.runs()[0].state == "interrupted"


def test_simulated_runs_commit_every_4096_rows_where_they_are(tmp_path: Path) -> None:
    with SyncJournal.create(tmp_path / "journal") as journal:
        journal.begin_run(tool="test", wall_ns=1)
        note(journal, COMMIT_ROWS - 2)
        assert journal.durable_seq == 0
        note(journal)
        assert journal.durable_seq == COMMIT_ROWS


def test_waiters_are_told_of_a_failed_commit_even_if_the_file_cannot_be_given_up(
    tmp_path: Path, trio_run: TRIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        journal = Journal.create(tmp_path / "journal")
        journal.begin_run(tool="test", wall_ns=1)
        await journal.durable(journal.annotate(Note("durable"), 1.0))
        break_next_commit(journal)
        given_up = journal._file.fail

        def give_up_badly() -> None:
            given_up()
            raise OSError("the lock is gone")

        monkeypatch.setattr(journal._file, "fail", give_up_badly)
        with trio.fail_after(5), pytest.raises(JournalFailed):
            await journal.durable(journal.annotate(Note("x" * 10_000), 1.0))
        with pytest.raises(JournalFailed):
            journal.close()

    trio_run(main, clock=None)


def test_a_failed_commit_of_a_simulated_run_is_raised_and_final(tmp_path: Path) -> None:
    journal = SyncJournal.create(tmp_path / "journal")
    journal.begin_run(tool="test", wall_ns=1)
    journal.commit()
    break_next_commit(journal)
    note(journal, 100, length=1000)
    for again in (journal.commit, journal.commit, journal.close):
        with pytest.raises(JournalFailed) as caught:
            again()
        assert caught.value.last_durable_seq == 1


def record_some(journal: Any) -> None:
    journal.begin_run(tool="test", wall_ns=1)
    open_handoff(journal, "h").proceed()
    journal.end_run(EndState.FINISHED, 9.0)


def test_every_keeper_numbers_the_same_rows(tmp_path: Path, trio_run: TRIO) -> None:
    memory = MemoryJournal(run=0)
    record_some(memory)
    discarding = DiscardingJournal()
    record_some(discarding)
    assert discarding.last_seq == memory.last_seq

    async def main() -> None:
        journal: JournalPort
        async with Journal.create(tmp_path / "live") as journal:
            record_some(journal)
        async with SyncJournal.create(tmp_path / "sync") as journal:
            record_some(journal)
            await journal.room()
            await journal.durable(Seq(3))

    trio_run(main, clock=REAL_CLOCK)
    for name in ("live", "sync"):
        with JournalReader(tmp_path / name) as reader:
            assert list(reader.events()) == memory.events


def test_durable_rows_are_reported_to_a_descriptor(tmp_path: Path, trio_run: TRIO) -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            journal.report_durable(writing)
            for _ in range(3):
                await journal.durable(journal.annotate(Note("x"), 1.0))

    trio_run(main, clock=REAL_CLOCK)
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert lines.read() == "1\n2\n3\n"


def test_a_reporter_that_nobody_listens_to_stops_nothing(tmp_path: Path, trio_run: TRIO) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    async def main() -> None:
        async with Journal.create(tmp_path / "journal") as journal:
            journal.report_durable(writing)
            note(journal, 3)
            await journal.durable(Seq(3))

    trio_run(main, clock=REAL_CLOCK)
    assert len(texts(tmp_path / "journal")) == 3


def test_a_full_disk_is_a_failed_commit(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = """
        import resource, sys
        from journal_files import note
        from handoff.journal.port import JournalFailed
        from handoff.journal.sync_journal import SyncJournal
        journal = SyncJournal.create(sys.argv[1])
        journal.begin_run(tool="test", wall_ns=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            while True:
                note(journal, 50)
                journal.commit()
        except JournalFailed as failed:
            print(failed.last_durable_seq)
    """
    last = int(run_child(code, path))
    assert last > 100
    assert len(texts(path)) >= last - 1
    report = verify_journal(path)
    assert report.state is VerifyState.OPEN
    assert report.last_trustworthy_seq == last


def test_a_forked_child_writes_nothing_and_takes_nothing_away(tmp_path: Path, trio_run: TRIO) -> None:
    path = tmp_path / "journal"
    code = """
        import os, sys
        from journal_files import note
        from handoff.journal.durable_journal import Journal
        from handoff.journal.file_lock import JournalBusy
        from handoff.journal.sync_journal import SyncJournal
        journal = Journal.create(sys.argv[1])
        journal.begin_run(tool="test", wall_ns=1)
        note(journal, 10)
        child = os.fork()
        if child == 0:
            note(journal, 10)
            journal.close()
            try:
                SyncJournal.create(sys.argv[1])
            except JournalBusy:
                sys.exit(7)
            sys.exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        note(journal, 10)
        journal.close()
    """
    run_child(code, path)
    assert texts(path) == [f"{seq} ".ljust(12, "x") for seq in range(2, 22)]
    assert [problem.code for problem in verify_journal(path).problems] == ["run_without_end"]


def test_a_forked_child_of_a_simulated_run_is_refused(tmp_path: Path) -> None:
    code = """
        import os, sys
        from journal_files import note
        from handoff.journal.file_lock import ForkedWriter
        from handoff.journal.port import JournalFailed
        from handoff.journal.sync_journal import SyncJournal
        journal = SyncJournal.create(sys.argv[1])
        journal.begin_run(tool="test", wall_ns=1)
        note(journal, 10)
        child = os.fork()
        if child == 0:
            try:
                journal.close()
            except JournalFailed as failed:
                sys.exit(7 if isinstance(failed.cause, ForkedWriter) else 8)
            sys.exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        note(journal, 10)
        journal.close()
    """
    run_child(code, tmp_path / "journal")
    assert len(texts(tmp_path / "journal")) == 20


@pytest.mark.parametrize("statement", ["UPDATE row SET at_ms = 0", "DELETE FROM row", "DELETE FROM handoff"])
def test_sql_cannot_change_what_was_written(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "journal"
    with SyncJournal.create(path) as journal:
        record_some(journal)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="only ever appended to"):
        connection.execute(statement)
    connection.close()
    assert verify_journal(path).state is VerifyState.SOUND


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(JournalUnreadable, match="of another program"):
        SyncJournal.create(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are not the rows you are looking for")
    with pytest.raises(JournalUnreadable, match="it cannot be opened"):
        SyncJournal.create(path)
    assert path.read_text() == "these are not the rows you are looking for"


def test_a_journal_that_lost_its_tail_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with SyncJournal.create(path) as journal:
        record_some(journal)
    shorter = tmp_path / "shorter"
    with SyncJournal.create(shorter) as journal:
        journal.begin_run(tool="test", wall_ns=1)
    path.write_bytes(shorter.read_bytes())
    with pytest.raises(JournalUnreadable, match="its receipt says that row"):
        SyncJournal.create(path)


def test_a_time_that_is_no_number_is_refused_before_it_is_numbered() -> None:
    journal = MemoryJournal()
    with pytest.raises(ValueError, match="not NaN"):
        journal.annotate(Note("x"), float("nan"))
    assert journal.last_seq == 0


def test_a_pipe_is_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(JournalUnreadable, match="a pipe or a device"):
        SyncJournal.create(pipe)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_disk_without_room_for_a_beginning_is_a_failed_journal_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from handoff.journal.port import JournalFailed\n"
        "from handoff.journal.sync_journal import SyncJournal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "try:\n"
        "    SyncJournal.create(sys.argv[1])\n"
        "except JournalFailed as failed:\n"
        "    print(failed.last_durable_seq)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "journal")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (answer.stdout, answer.stderr) == ("0\n", "")
    assert list(tmp_path.iterdir()) == []
