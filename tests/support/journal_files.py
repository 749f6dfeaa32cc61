"""Journal files for tests of the storage: small ones, copies of them, and all that can be read from one."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import attrs
from recorded_handoffs import open_handoff, record_six

from handoff.journal.declarations import Note
from handoff.journal.port import RowStream
from handoff.journal.reader import JournalReader
from handoff.journal.schema import TABLES, VIEWS
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.terms import EndState
from handoff.journal.writer import JournalFile

SIDE_FILES = ("", "-wal", "-journal", "-receipt")


def sync_journal(path: Path, page_bytes: int = 4096) -> SyncJournal:
    """A journal on the calling thread, with pages of a size of ours."""
    file = JournalFile(path, page_bytes=page_bytes)
    return SyncJournal(**attrs.asdict(file.numbers(), recurse=False), file=file)


def note(journal: RowStream, count: int = 1, *, length: int = 12) -> None:
    """Append so many notes that say their own number."""
    for _ in range(count):
        seq = journal.last_seq + 1
        journal.annotate(Note(f"{seq} ".ljust(length, "x")), at_ms=seq / 8)


def closed_journal(path: Path, page_bytes: int = 4096) -> Path:
    """A cleanly closed journal of six handoffs."""
    with sync_journal(path, page_bytes) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        record_six(journal)
        journal.end_run(EndState.FINISHED, 50.0)
    return path


def killed_journal(path: Path, folder: Path, page_bytes: int = 4096, *, checkpointed: bool = False) -> Path:
    """The files of a journal as a killed writer leaves them, copied to a folder; its log is empty if checkpointed."""
    with sync_journal(path, page_bytes) as journal:
        journal.begin_run(tool="test", wall_ns=1)
        record_six(journal)
        journal.commit()
        open_handoff(journal, "last").proceed()
        journal.commit()
        if checkpointed:
            journal._file._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return copy_files(path, folder)


def copy_files(path: Path, folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Copy a journal and what belongs to it, but for the side files named."""
    folder.mkdir(exist_ok=True)
    for side in SIDE_FILES:
        source = path.with_name(path.name + side)
        if source.exists() and side not in without:
            shutil.copyfile(source, folder / source.name)
    return folder / path.name


def contents(path: Path) -> dict[str, bytes]:
    """The bytes of a journal's files, by side file."""
    files = {side: path.with_name(path.name + side) for side in SIDE_FILES}
    return {side: file.read_bytes() for side, file in files.items() if file.exists()}


def put_contents(path: Path, files: dict[str, bytes]) -> None:
    """Write a journal's files, and remove those that are not given."""
    for side in (*SIDE_FILES, "-shm"):
        target = path.with_name(path.name + side)
        if side in files:
            target.write_bytes(files[side])
        else:
            target.unlink(missing_ok=True)


def all_that_is_read(path: Path, *, views: bool = True) -> list[Any]:
    """Every row, record, table and schema text that readers get from a file, and what its views make of them."""
    with JournalReader(path) as reader:
        execute = reader.database().execute
        return [
            list(reader.events()),
            reader.runs(),
            list(reader.handoffs()),
            list(reader.actors()),
            [execute(f"SELECT * FROM {name}").fetchall() for name in (*TABLES, *(VIEWS if views else ()))],
            execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall(),
        ]


def run_child(code: str, *arguments: object, **options: Any) -> str:
    """Run Python code in a process of its own and give what it printed; it must say nothing on standard error."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **options,
    )  # fmt: skip
    assert (child.stderr, child.returncode) == ("", 0)
    return child.stdout
