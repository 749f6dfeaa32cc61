"""What the journal costs and how fast it is, each against its limit or its peer.

    python benchmarks/journal.py [NAME...]        all of them, or those named: commit bulk bytes million replay live

commit   a hundred tasks append one row each and wait until it is durable, over and over, at `full`; against the same
         tasks doing one hop to a thread and one commit an event. Goal: at least 10 times the rate.
bulk     rows appended 4,096 a commit, as simulated runs do; against raw `executemany` of the same rows into the same
         table without triggers, chain and receipt. Goal: at least 0.7 of its rate.
bytes    file size per event of healthy handoffs, against `eventsourcing`'s own SQLite file. Goal: at most a third.
million  1,000,000 events of handoffs written, read, verified and replayed in both tiers, each step in a process of its
         own: rate and peak of memory.
replay   `benchmarks/replay.py`.
live     `benchmarks/live.py`.

What is compared runs in turns, so that other load of the machine strikes both alike; the best round of each counts,
because load can only slow a run down.
"""

import importlib
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import trio

from handoff.engines.machines import MACHINES
from handoff.journal.declarations import Note
from handoff.journal.durable_journal import Journal
from handoff.journal.port import MemoryJournal, Row
from handoff.journal.reader import JournalReader
from handoff.journal.receipt import Durability
from handoff.journal.replayer import Tier, replay
from handoff.journal.schema import TABLES, insert_statement
from handoff.journal.sync_journal import COMMIT_ROWS
from handoff.journal.verify import verify_journal
from handoff.journal.writer import JournalFile

APPENDERS = 100
EVENTS_EACH = 50
BULK_ROWS = 200_000
MILLION = 1_000_020
ROWS_A_HANDOFF = 17
ROUNDS = 5
HANDOFFS = 3000


def best_rates(measured: dict[str, Callable[[Path], int]], rounds: int = ROUNDS) -> dict[str, float]:
    """Events a second of the best of interleaved rounds; each works in a folder of its own."""
    best = dict.fromkeys(measured, 0.0)
    for _ in range(rounds):
        for name, work in measured.items():
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # a disk, where /tmp may be memory
                begun_s = perf_counter()
                events = work(Path(folder))
                best[name] = max(best[name], events / (perf_counter() - begun_s))
    return best


def show(rates: dict[str, float], unit: str = "events a second") -> None:
    for name, rate in rates.items():
        print(f"  {name:28} {rate:>12,.0f} {unit}")


async def group_commit(folder: Path) -> int:
    async def appender(journal: Journal) -> None:
        for number in range(EVENTS_EACH):
            await journal.durable(journal.annotate(Note("x"), float(number)))

    async with Journal.create(folder / "journal") as journal, trio.open_nursery() as nursery:
        for _ in range(APPENDERS):
            nursery.start_soon(appender, journal)
    return APPENDERS * EVENTS_EACH


async def commit_each(folder: Path) -> int:
    connection = sqlite3.connect(folder / "rows", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(TABLES["row"])
    insert = insert_statement("row", 19)
    limit = trio.CapacityLimiter(1)
    events = APPENDERS * EVENTS_EACH // 10
    rows = MemoryRows(events)

    async def appender(mine: list[Row]) -> None:
        for row in mine:
            await trio.to_thread.run_sync(connection.execute, insert, row, limiter=limit)

    async with trio.open_nursery() as nursery:
        for first in range(APPENDERS):
            nursery.start_soon(appender, rows.rows[first::APPENDERS])
    connection.close()
    return events


class MemoryRows(MemoryJournal):
    """Stored rows of notes, as the writer gets them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.rows: list[Row] = []
        for number in range(count):
            self.annotate(Note("x"), float(number))

    def _take(self, rows: list[Row]) -> None:
        self.rows += rows


def measure_commit() -> None:
    print(f"commit: {APPENDERS} tasks, one durable event at a time each, at full")
    rates = best_rates(
        {
            "journal": lambda folder: trio.run(group_commit, folder),
            "hop and commit each": lambda folder: trio.run(commit_each, folder),
        }
    )
    show(rates)
    ratio = rates["journal"] / rates["hop and commit each"]
    print(f"  ratio {ratio:.1f} (goal: at least 10)")


def typical_rows(count: int) -> list[Row]:
    """Stored rows of healthy handoffs: the shapes that a simulated run has."""
    peer = importlib.import_module("replay")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        peer.write_journal(path, count // ROWS_A_HANDOFF + 1)
        with JournalReader(path) as reader:
            return list(reader.rows(last=count))


def measure_bulk() -> None:
    rows = typical_rows(BULK_ROWS)
    print(f"bulk: {len(rows):,} rows of handoffs, {COMMIT_ROWS:,} a commit, at normal")

    def journal(folder: Path) -> int:
        file = JournalFile(folder / "journal", durability=Durability.NORMAL)
        for start in range(0, len(rows), COMMIT_ROWS):
            file.commit(rows[start : start + COMMIT_ROWS])
        file.close()
        return len(rows)

    def raw(folder: Path) -> int:
        connection = sqlite3.connect(folder / "rows", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(TABLES["row"])
        insert = insert_statement("row", 19)
        for start in range(0, len(rows), COMMIT_ROWS):
            connection.execute("BEGIN")
            connection.executemany(insert, rows[start : start + COMMIT_ROWS])
            connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        return len(rows)

    rates = best_rates({"journal": journal, "executemany": raw})
    show(rates)
    print(f"  ratio {rates['journal'] / rates['executemany']:.2f} (goal: at least 0.7)")


def measure_bytes() -> None:
    replays = importlib.import_module("replay")
    with tempfile.TemporaryDirectory() as folder:
        path, peer = Path(folder) / "journal", Path(folder) / "peer.db"
        rows = replays.write_journal(path, HANDOFFS)
        application, _ = replays.write_aggregates(peer, HANDOFFS)
        application.close()
        connection = sqlite3.connect(peer)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (events,) = connection.execute("SELECT count(*) FROM stored_events").fetchone()
        connection.close()
        ours, theirs = path.stat().st_size / rows, peer.stat().st_size / events
    print(f"bytes: {HANDOFFS:,} healthy handoffs")
    print(f"  journal                      {ours:>8.1f} bytes an event ({rows:,} events)")
    print(f"  eventsourcing                {theirs:>8.1f} bytes an event ({events:,} events)")
    print(f"  ratio {ours / theirs:.2f} (goal: at most 0.33)")


def write_million(path: Path) -> int:
    rows: int = importlib.import_module("replay").write_journal(path, MILLION // ROWS_A_HANDOFF)
    return rows


def read_million(path: Path) -> int:
    with JournalReader(path) as reader:
        return sum(1 for _ in reader.events())


def verify_million(path: Path) -> int:
    report = verify_journal(path)
    assert report.sound
    return report.last_trustworthy_seq


def replay_million(path: Path, tier: Tier) -> int:
    with JournalReader(path) as reader:
        assert replay(reader, tier, MACHINES).agrees
        return reader.last_seq


WORKS: dict[str, Callable[[Path], int]] = {
    "write": write_million,
    "read": read_million,
    "verify": verify_million,
    "replay core": lambda path: replay_million(path, Tier.CORE),
    "replay full": lambda path: replay_million(path, Tier.FULL),
}


def measure_million() -> None:
    print(f"million: {MILLION:,} events, each step in a process of its own")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for work in WORKS:
            arguments = [sys.executable, __file__, "--work", work, f"{folder}/journal"]
            printed = subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout.split()
            events, took_s, peak = map(float, printed)
            print(f"  {work:28} {events / took_s:>12,.0f} events a second, peak {peak:.0f} MB", flush=True)


def work_alone(name: str, path: Path) -> None:
    """One step of `million`; prints events, seconds and the peak of memory in MB."""
    begun_s = perf_counter()
    print(WORKS[name](path), perf_counter() - begun_s, peak_mb())


def peak_mb() -> float:
    """The peak of this program's memory; `getrusage` would give that of the process that started it, if larger."""
    status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
    return int(status.split()[0]) / 1024


def run_script(name: str) -> None:
    print(f"{name}:", flush=True)
    subprocess.run([sys.executable, Path(__file__).with_name(f"{name}.py")], check=True)


MEASUREMENTS: dict[str, Callable[[], None]] = {
    "commit": measure_commit,
    "bulk": measure_bulk,
    "bytes": measure_bytes,
    "million": measure_million,
    "replay": lambda: run_script("replay"),
    "live": lambda: run_script("live"),
}


def main(names: list[str]) -> Iterator[str]:
    """Run the measurements named, or all; gives the names that there are none of."""
    for name in names or MEASUREMENTS:
        if name in MEASUREMENTS:
            MEASUREMENTS[name]()
        else:
            yield name


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work_alone(sys.argv[2], Path(sys.argv[3]))
    elif unknown := list(main(sys.argv[1:])):
        sys.exit(f"error: no measurement is called {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
