"""Writers that are killed at random moments, and what is left of their journals.

Run as a program: it imports everything once, then forks a writer for each seed, kills it, and prints a JSON line about
what it left. A fork costs a millisecond where a new interpreter costs two hundred.
"""

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from journal_files import note

from handoff.journal.durable_journal import Journal
from handoff.journal.errors import JournalUnreadable
from handoff.journal.reader import JournalReader
from handoff.journal.terms import EndState
from handoff.journal.verify import verify_journal

LONGEST_LIFE_S = 0.06


def write(path: Path, descriptor: int, seed: int) -> None:
    """Record runs of notes, one after the other, close the file in between, and never end."""
    draw = random.Random(seed)
    while True:
        journal = Journal.create(path)
        journal.report_durable(descriptor)
        if journal.run_open:
            journal.end_run(EndState.INTERRUPTED, journal.last_at_ms)
        journal.begin_run(tool="killed", wall_ns=seed)
        for _ in range(draw.choice((1, 5, 50))):
            note(journal, draw.choice((1, 1, 3, 20)), length=draw.choice((5, 50, 600)))
            for _ in range(draw.choice((0, 0, 100, 1000))):  # let the writer's thread have its turns
                time.perf_counter_ns()
        journal.end_run(EndState.FINISHED, journal.last_at_ms)
        journal.close()


def kill_one(path: Path, seed: int) -> dict[str, object]:
    """Start a writer, kill it, and say what it had reported and what is in its file."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            write(path, writing, seed)
        finally:
            os._exit(1)
    os.close(writing)
    draw = random.Random(~seed)
    reported = b""
    # one half dies young, at creation or before; the other after so many reports
    for _ in range(0 if seed % 2 else draw.randrange(1, 40)):
        reported += os.read(reading, 1 << 16)
    ends = time.monotonic() + draw.uniform(0.0, LONGEST_LIFE_S if seed % 2 else 0.004)
    while (left := ends - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            reported += os.read(reading, 1 << 16)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while part := os.read(reading, 1 << 16):
        reported += part
    os.close(reading)
    lines = reported.decode().split("\n")[:-1]
    return {"seed": seed, "reported": int(lines[-1]) if lines else 0, **_left_behind(path)}


def _left_behind(path: Path) -> dict[str, object]:
    if not path.exists():
        return {"state": "none", "last_seq": 0, "trustworthy": 0, "notes_right": True}
    try:
        report = verify_journal(path)
    except JournalUnreadable as error:
        return {"state": str(error), "last_seq": 0, "trustworthy": 0, "notes_right": False}
    with JournalReader(path) as reader:
        notes = ((event.seq, event.payload["text"]) for event in reader.events(kinds={"note"}))
        notes_right = all(text.rstrip("x") == f"{seq} " for seq, text in notes)
    return {
        "state": report.state.value,
        "problems": sorted({problem.code for problem in report.problems}),
        "last_seq": report.last_seq,
        "trustworthy": report.last_trustworthy_seq,
        "notes_right": notes_right,
    }


def main() -> None:
    """Kill writers in a folder for the seeds from one number to another."""
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, last):
        name = folder / f"journal{seed % 7}"  # some go on with what another left
        before = _left_behind(name)
        print(json.dumps({"before": before["last_seq"], **kill_one(name, seed)}), flush=True)


if __name__ == "__main__":
    main()
