"""Reading journals: rows in pieces, names of handoffs, live files, folders that cannot be written."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_files import contents, copy_files, killed_journal, note, run_child, sync_journal
from recorded_handoffs import open_handoff, record_file

from handoff.journal import reader as reader_module
from handoff.journal import upcast
from handoff.journal.declarations import HandoffOpened, Note
from handoff.journal.errors import AmbiguousHandoff, JournalUnreadable, UnknownHandoff
from handoff.journal.port import MemoryJournal, Row
from handoff.journal.reader import JournalReader
from handoff.journal.schema import FORMAT_VERSION
from handoff.journal.terms import TERMS, ActorKind, EndState
from handoff.journal.verify import verify_journal


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return record_file(tmp_path / "journal")


def test_rows_come_in_order_and_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sync_journal(tmp_path / "journal") as journal:
        journal.begin_run(tool="test", wall_ns=1)
        note(journal, 50)
    monkeypatch.setattr(reader_module, "_PIECE_ROWS", 7)
    with JournalReader(tmp_path / "journal") as reader:
        assert [event.seq for event in reader.events()] == list(range(1, 53))
        assert [event.seq for event in reader.events(first=7, last=14)] == list(range(7, 15))
        assert list(reader.events(first=53)) == []
        assert reader.last_seq == 52


def test_rows_are_narrowed_by_handoff_actor_run_and_kind(journal: Path) -> None:
    record_file(journal)
    with JournalReader(journal) as reader:
        everything = list(reader.events())
        for name in ("handoff", "actor", "run"):
            for number in (1, 2, 99):
                found = list(reader.events(**{name: number}))
                assert found == [event for event in everything if getattr(event, name) == number]
        kinds = {"action_issued", "fact_applied", "no such kind"}
        assert list(reader.events(kinds=kinds)) == [event for event in everything if event.kind in kinds]
        assert list(reader.events(kinds=())) == []


def test_one_row_is_looked_up_by_its_number(journal: Path) -> None:
    with JournalReader(journal) as reader:
        assert reader.event(1).kind == "run_started"
        with pytest.raises(LookupError, match="there is no row 9999; the last is"):
            reader.event(9999)


def test_actors_are_looked_up_by_number_and_by_handoff(journal: Path) -> None:
    with JournalReader(journal) as reader:
        assert [actor.label for actor in reader.actors()][:2] == ["healthy-source-first", "healthy-destination-first"]
        (actor,) = reader.actors(handoff=3)
        assert (actor.kind, actor.config["handoff_id"]) == (ActorKind.COORDINATOR, "refused")
        assert reader.actor(actor.actor) == actor
        with pytest.raises(LookupError, match="no actor 99"):
            reader.actor(99)


def test_a_handoff_is_found_by_its_id_a_prefix_or_its_run(journal: Path) -> None:
    record_file(journal)
    with JournalReader(journal) as reader:
        assert reader.find_handoff("1:refused").number == 3
        assert reader.find_handoff("2:refused").number == 9
        assert reader.find_handoff("2:ref").number == 9
        with pytest.raises(AmbiguousHandoff) as ambiguous:
            reader.find_handoff("refused")
        assert ambiguous.value.candidates == ("1:refused", "2:refused")
        with pytest.raises(AmbiguousHandoff) as ambiguous:
            reader.find_handoff("1:healthy")
        assert ambiguous.value.candidates == ("healthy-source-first", "healthy-destination-first")
        for unknown in ("none", "", "3:refused", "1:"):
            with pytest.raises(UnknownHandoff, match="no handoff is called"):
                reader.find_handoff(unknown)


def test_an_id_that_looks_like_a_run_is_found_by_itself(tmp_path: Path) -> None:
    with sync_journal(tmp_path / "journal") as journal:
        journal.begin_run(tool="test", wall_ns=1)
        journal.open_handoff(HandoffOpened("1:2"), 0.0)
        journal.open_handoff(HandoffOpened("12"), 0.0)
        journal.open_handoff(HandoffOpened("123"), 0.0)
    with JournalReader(tmp_path / "journal") as reader:
        assert [reader.find_handoff(text).number for text in ("1:2", "12", "123")] == [1, 2, 3]


def test_a_follower_sees_what_a_live_writer_appends(tmp_path: Path) -> None:
    with sync_journal(tmp_path / "journal") as journal:
        journal.begin_run(tool="test", wall_ns=1)
        journal.commit()
        waits = iter((3, 0, 2))

        def wait() -> bool:
            count = next(waits, None)
            if count is None:
                return False
            note(journal, count)
            journal.commit()
            return True

        with JournalReader(tmp_path / "journal") as reader:
            assert [event.seq for event in reader.follow(after=1, wait=wait)] == [2, 3, 4, 5, 6]


def test_reading_leaves_no_trace(tmp_path: Path) -> None:
    killed = killed_journal(tmp_path / "journal", tmp_path / "killed")
    before = contents(killed)
    with JournalReader(killed) as reader:
        assert len(list(reader.events())) == reader.last_seq > 100
        assert not reader.copied
    assert contents(killed) == before


def test_an_interrupted_rollback_is_read_from_a_copy(tmp_path: Path) -> None:
    """A kill between leaving WAL mode and its end leaves a rollback journal, which a reader must not play back."""
    path = record_file(tmp_path / "journal")
    with JournalReader(path) as reader:
        before = list(reader.events())
    code = """
        import os, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE big (x)")
        connection.executemany("INSERT INTO big VALUES (?)", [("x" * 4000,)] * 100)
        os._exit(0)
    """
    run_child(code, path)
    assert path.with_name("journal-journal").stat().st_size > 0
    files = contents(path)
    with JournalReader(path) as reader:
        assert reader.copied
        assert list(reader.events()) == before
    assert contents(path) == files


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can enter."""
    folder = Path("/tmp") / f"handoff-test-{os.getpid()}-{id(object())}"
    folder.mkdir(mode=0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


READ_ALL = """
    import os, sys, tempfile
    from handoff.journal.reader import JournalReader
    from handoff.journal.verify import verify_journal

    def read_all(path):
        with JournalReader(path) as reader:
            return len(list(reader.events())), reader.copied, verify_journal(path).state

    path, elsewhere = sys.argv[1:]
    read_all(elsewhere)  # what Python loads late it may not be able to read as another user
    tempfile.TemporaryDirectory().cleanup()
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    print(*read_all(path))
"""


@pytest.mark.parametrize("closed", [True, False])
def test_a_journal_is_read_in_a_folder_that_cannot_be_written(tmp_path: Path, open_folder: Path, closed: bool) -> None:
    if closed:
        path = copy_files(record_file(tmp_path / "journal"), open_folder)
    else:
        path = copy_files(killed_journal(tmp_path / "journal", tmp_path / "killed"), open_folder)
    with JournalReader(path) as reader:
        rows = len(list(reader.events()))
    path.with_name("journal-shm").unlink(missing_ok=True)
    for file in open_folder.iterdir():
        file.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    open_folder.chmod(0o555)
    expected = f"{rows} False sound\n" if closed else f"{rows} True open\n"
    assert run_child(READ_ALL, path, tmp_path / "journal") == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"", "it is empty"), (b"hello", "no SQLite database"),
     (b"SQLite format 3\0 and no more", "cannot be read")],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_a_remedy(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "journal"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(JournalUnreadable, match=reason) as caught:
        JournalReader(path)
    assert caught.value.path == path
    assert caught.value.remedy


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalUnreadable, match="Is a directory"):
        JournalReader(tmp_path)


def set_version(path: Path, version: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def test_a_newer_format_is_refused_by_name(journal: Path) -> None:
    set_version(journal, FORMAT_VERSION + 1)
    with pytest.raises(JournalUnreadable, match=f"version {FORMAT_VERSION + 1}, and this handoff reads"):
        JournalReader(journal)


def test_rows_of_an_older_version_are_brought_up_to_date(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed_note(row: Row) -> Row:
        return (*row[:-1], '{"text":"brought up"}') if row[9] == TERMS.index("note") + 1 else row

    with JournalReader(journal) as reader:
        before = list(reader.events())
    with sync_journal(journal) as writer:
        writer.begin_run(tool="test", wall_ns=1)
        writer.annotate(Note("old"), 1.0)
    set_version(journal, FORMAT_VERSION - 2)
    monkeypatch.setitem(upcast.UPCASTERS, FORMAT_VERSION - 2, lambda row: row)
    monkeypatch.setitem(upcast.UPCASTERS, FORMAT_VERSION - 1, renamed_note)
    with JournalReader(journal) as reader:
        after = list(reader.events())
    assert after[: len(before)] == before
    assert [event.payload for event in after if event.kind == "note"] == [{"text": "brought up"}]


def test_a_file_with_fewer_words_is_read_and_gets_the_others_when_continued(journal: Path) -> None:
    connection = sqlite3.connect(journal)
    connection.execute("DROP TRIGGER term_is_not_deleted")
    connection.execute("DELETE FROM term WHERE code > ?", (len(TERMS) - 3,))
    connection.execute(
        "CREATE TRIGGER term_is_not_deleted BEFORE DELETE ON term\n"
        "BEGIN SELECT raise(ABORT, 'a journal is only ever appended to: term cannot be deleted'); END"
    )
    connection.commit()
    connection.close()
    with JournalReader(journal) as reader:
        assert reader.runs()[0].state == EndState.FINISHED
    with sync_journal(journal) as writer:
        writer.begin_run(tool="test", wall_ns=1)
    connection = sqlite3.connect(journal)
    assert connection.execute("SELECT max(code) FROM term").fetchone() == (len(TERMS),)
    connection.close()
    assert [problem.code for problem in verify_journal(journal).problems if problem.code == "terms_damaged"] == []


def test_a_damaged_word_stops_the_reader_with_its_row(journal: Path) -> None:
    connection = sqlite3.connect(journal)
    connection.execute("DROP TRIGGER row_is_not_changed")
    connection.execute("UPDATE row SET kind = 4000 WHERE seq = 9")
    connection.commit()
    connection.close()
    with JournalReader(journal) as reader, pytest.raises(JournalUnreadable, match="row 9 is damaged"):
        list(reader.events())


def test_the_views_are_one_line_a_handoff_and_one_an_obligation(journal: Path) -> None:
    with JournalReader(journal) as reader:
        database = reader.database()
        handoffs = list(database.query("SELECT * FROM handoffs"))
        assert [(line["id"], line["completion"]) for line in handoffs] == [
            ("healthy-source-first", "success"), ("healthy-destination-first", "success"), ("refused", "canceled"),
            ("timed-out", "canceled"), ("early", None), ("unanswered", None),
        ]  # fmt: skip
        for line in handoffs:
            rows = list(reader.events(handoff=line["number"]))
            assert (line["first_seq"], line["last_seq"]) == (rows[0].seq, rows[-1].seq)
            assert line["row_count"] == len(rows)
            assert line["engine_type"] in ("vllm", "sglang")
        failed = [line["id"] for line in database.query("SELECT id FROM failed_handoffs")]
        assert failed == ["refused", "timed-out", "early", "unanswered"]
        obligations = database.query("SELECT * FROM open_obligations ORDER BY seq")
        assert [(line["handoff"], line["duty"], line["name"]) for line in obligations] == [
            ("early", "complete the handoff", None), ("early", "answer the action", "reserve_destination"),
            ("unanswered", "complete the handoff", None), ("unanswered", "answer the action", "reserve_destination"),
        ]  # fmt: skip
        (run,) = database.query("SELECT * FROM runs")
        assert (run["tool"], run["handoffs"], run["state"]) == ("test", 6, "finished")


def test_the_view_of_events_says_what_the_reader_says(journal: Path) -> None:
    with JournalReader(journal) as reader:
        names = {record.number: record.handoff_id for record in reader.handoffs()}
        for line, event in zip(reader.database().query("SELECT * FROM events"), reader.events(), strict=True):
            for column in ("seq", "grp", "at_ms", "kind", "name", "action_id", "outcome", "verdict", "cause"):
                assert line[column] == getattr(event, column)
            assert line["payload"] == event.payload_json
            assert line["handoff"] == (None if event.handoff is None else names[event.handoff])


def test_plain_sqlite_reads_every_view(journal: Path) -> None:
    connection = sqlite3.connect(f"{journal.as_uri()}?mode=ro", uri=True)
    views = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
    assert sorted(views) == ["events", "failed_handoffs", "handoffs", "open_obligations", "runs"]
    assert all(connection.execute(f"SELECT * FROM {view}").fetchall() for view in views)
    connection.close()


def test_a_schema_of_somebody_else_runs_nothing(tmp_path: Path) -> None:
    path = record_file(tmp_path / "journal")
    connection = sqlite3.connect(path)
    connection.execute("DROP VIEW runs")
    connection.execute("CREATE VIEW runs AS SELECT load_extension('evil')")
    connection.close()
    with JournalReader(path) as reader:
        assert len(reader.runs()) == 1
        with pytest.raises(sqlite3.OperationalError):
            reader.database().execute("SELECT * FROM runs")


def test_a_reader_in_the_writers_process_takes_no_locks_away(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with sync_journal(path) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        journal.commit()
        with JournalReader(path) as reader:
            assert reader.last_seq == 1
        verify_journal(path)
        code = """
            import sqlite3, sys
            connection = sqlite3.connect(sys.argv[1], timeout=0)
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.OperationalError as error:
                print(error)
        """
        assert run_child(code, path) == "database is locked\n"


def test_memory_and_file_give_the_same_events(tmp_path: Path) -> None:
    memory = MemoryJournal(run=0)
    with sync_journal(tmp_path / "journal") as journal:
        for keeper in (memory, journal):
            keeper.begin_run(tool="test", wall_ns=1)
            open_handoff(keeper, "h").proceed()
            keeper.end_run(EndState.FINISHED, 9.0)
    with JournalReader(tmp_path / "journal") as reader:
        assert list(reader.events()) == memory.events


def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.db"
    os.mkfifo(pipe)
    with pytest.raises(JournalUnreadable, match="it is a pipe or a device"):
        JournalReader(pipe)
