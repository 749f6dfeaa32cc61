"""Writing, reading, verifying and listing take memory that does not grow with the journal."""

from pathlib import Path

from journal_files import run_child

ALLOWED_MB = 8
FEW, MANY = 20_000, 120_000

PEAK = """
    import sys
    from journal_files import note, sync_journal
    from pathlib import Path
    from handoff.journal.declarations import Note
    from handoff.journal.reader import JournalReader
    from handoff.journal.verify import verify_journal

    path, work, rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if work == "write":
        with sync_journal(path) as journal:
            journal.begin_run(tool="test", wall_ns=1)
            note(journal, rows)
    elif work == "read":
        with JournalReader(path) as reader:
            assert sum(1 for _ in reader.events()) == rows + 2
    else:
        assert verify_journal(path).sound
    # getrusage would give the peak of the process that started this one, which is larger
    print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024)
"""


def test_the_peak_does_not_follow_the_number_of_rows(tmp_path: Path) -> None:
    peaks = {
        rows: [int(run_child(PEAK, tmp_path / str(rows), work, rows)) for work in ("write", "read", "verify")]
        for rows in (FEW, MANY)
    }
    for few, many in zip(peaks[FEW], peaks[MANY], strict=True):
        assert many - few <= ALLOWED_MB, peaks


def test_room_bounds_what_a_live_writer_holds(tmp_path: Path) -> None:
    """100,000 rows are appended as fast as the event loop can, by work that asks for room: few are ever pending."""
    code = """
        import sys
        import trio
        from journal_files import note
        from handoff.journal.durable_journal import Journal

        async def main():
            pending = 0
            async with Journal.create(sys.argv[1], max_pending_rows=2000) as journal:
                journal.begin_run(tool="test", wall_ns=1)
                for _ in range(2000):
                    await journal.room()
                    note(journal, 50)
                    pending = max(pending, journal.last_seq - journal.durable_seq)
            print(pending, journal.last_seq)

        trio.run(main)
    """
    pending, last_seq = map(int, run_child(code, tmp_path / "journal").split())
    assert pending <= 2050
    assert last_seq == 100_002
