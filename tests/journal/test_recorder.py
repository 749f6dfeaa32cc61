"""The recorder inside other people's programs: it raises nothing and waits for nothing."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from journal_files import run_child

from handoff.journal.event import Event
from handoff.journal.event_source import EventSource
from handoff.journal.reader import JournalReader
from handoff.journal.recorder import Recorder
from handoff.journal.replayer import Tier, replay
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.verify import VerifyState, verify_journal

TIMING = {"mode": "full_prompt", "full_prompt_tokens": 8, "kv_bytes_per_token": 1_000_000, "bandwidth_gb_s": 1.0}


def events(path: Path, **narrow: Any) -> list[Event]:
    with JournalReader(path) as reader:
        return list(reader.events(**narrow))


def record_healthy(recorder: Recorder, name: str) -> None:
    handoff = recorder.handoff(name, order="source_first", engine_type="vllm", request="r1", room=2**64 - 1, attempt=1)
    handoff.action("submit_prefill", 0)
    handoff.outcome("submitted", 0)
    handoff.fact("source_held", transfer_timing=TIMING)
    handoff.resource("source_held", [0, 1])
    handoff.action("reserve_destination", 1)
    handoff.outcome("accepted", of="reserve_destination")
    handoff.fact("destination_reserved", transferable_prompt_tokens=8)
    handoff.action("start_transfer")
    handoff.outcome("scheduled", 2)
    handoff.fact("transfer_completed")
    handoff.action("activate_destination")
    handoff.outcome("applied", 3)
    handoff.action("release_source")
    handoff.outcome("applied", 4)
    handoff.action("complete")


def test_a_recorded_handoff_can_be_held_to_the_protocol(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Recorder.open(path, tool="engine 1", source="prefill-0", engine_type="vllm") as recorder:
        record_healthy(recorder, "h1")
    report = recorder.close()
    assert (report.lines, report.lost, report.problem) == (16, 0, None)
    assert verify_journal(path).state is VerifyState.SOUND
    with JournalReader(path) as reader:
        source: EventSource = reader
        replayed = replay(source, Tier.CORE, {})
        assert replayed.divergences == ()
        (handoff,) = reader.handoffs()
        assert handoff.opened.room == str(2**64 - 1)
        assert reader.database().execute("SELECT completion FROM handoffs").fetchall() == [("success",)]
        assert reader.database().execute("SELECT * FROM open_obligations").fetchall() == []


def test_rows_say_when_and_by_whom_they_were_seen(tmp_path: Path) -> None:
    with Recorder.open(tmp_path / "journal", tool="engine 1", source="prefill-0") as recorder:
        recorder.record({"at_ms": 5.0, "handoff": "h", "fact": "source_held"})
        recorder.record({"handoff": "h", "fact": "transfer_completed", "source": "decode-0"})
        recorder.record({"at_min_ms": 1e6, "at_max_ms": 2e6, "resource": "source_freed"})
    rows = events(tmp_path / "journal", kinds={"fact_observed", "resource"})
    assert [row.source for row in rows] == [1, 2, 1]
    assert rows[0].at_ms == 5.0
    assert rows[1].at_ms >= 5.0
    assert (rows[2].at_min_ms, rows[2].at_ms, rows[2].at_max_ms) == (1e6, 1.5e6, 2e6)


def test_many_threads_record_into_one_journal(tmp_path: Path) -> None:
    with Recorder.open(tmp_path / "journal", tool="engine 1") as recorder:
        threads = [threading.Thread(target=record_healthy, args=(recorder, f"h{n}")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert recorder.lost == 0
    assert verify_journal(tmp_path / "journal").sound
    with JournalReader(tmp_path / "journal") as reader:
        assert replay(reader, Tier.CORE, {}).divergences == ()
        assert sorted(record.handoff_id for record in reader.handoffs()) == [f"h{n}" for n in range(8)]
        ends = reader.database().execute("SELECT completion, count(*) FROM handoffs GROUP BY 1").fetchall()
        assert ends == [("success", 8)]


def test_an_asyncio_program_records(tmp_path: Path) -> None:
    async def serve(recorder: Recorder, name: str) -> None:
        handoff = recorder.handoff(name, order="destination_first")
        for action, outcome in (("reserve_destination", "accepted"), ("submit_prefill", "submitted")):
            handoff.action(action)
            await asyncio.sleep(0)
            handoff.outcome(outcome, of=action)

    async def main() -> None:
        with Recorder.open(tmp_path / "journal", tool="asyncio engine") as recorder:
            await asyncio.gather(*(serve(recorder, f"h{n}") for n in range(20)))

    asyncio.run(main())
    assert len(events(tmp_path / "journal", kinds={"outcome_applied"})) == 20


NONSENSE: list[Any] = [
    None,
    7,
    {},
    {"handoff": "h", "outcome": "splendid"},
    {"handoff": "h", "action": "submit_prefill", "id": 10**30},
    {"handoff": "h", "open": {"attempt": 2**63}},
    {"handoff": 5, "fact": "source_held"},
    {"at_ms": float("nan"), "handoff": "h", "fact": "source_held"},
    {"at_ms": "noon", "fact": "source_held"},
    {"resource": object(), "blocks": 3},
    {"note": object()},
    {"handoff": "\ud800", "open": {"order": "source_first"}},
    {"source": "\ud800"},
]


@pytest.mark.parametrize("line", NONSENSE, ids=map(str, range(len(NONSENSE))))
def test_no_line_raises_and_none_spoils_the_journal(tmp_path: Path, line: Any) -> None:
    with Recorder.open(tmp_path / "journal", tool="engine 1") as recorder:
        recorder.handoff("before", order="source_first").action("submit_prefill")
        recorder.record(line)
        recorder.record(line)
        record_healthy(recorder, "after")
    assert recorder.problem is None
    assert verify_journal(tmp_path / "journal").sound
    lost = sum(event.payload["lost"] for event in events(tmp_path / "journal", kinds={"gap"}))
    assert lost == recorder.lost
    assert events(tmp_path / "journal", kinds={"action_issued"})[-1].name == "complete"


def test_what_finds_no_room_is_one_gap(tmp_path: Path) -> None:
    recorder = Recorder.open(tmp_path / "journal", tool="engine 1", max_pending_lines=10)
    assert recorder._file is not None
    commit, goes_on, stuck = recorder._file.commit, threading.Event(), threading.Event()

    def commit_when_told(rows: Any) -> None:
        stuck.set()
        assert goes_on.wait(20.0)
        commit(rows)

    recorder._file.commit = commit_when_told  # type: ignore[method-assign]
    recorder.record({"error": "first"})
    assert stuck.wait(20.0)
    for number in range(100):
        recorder.record({"error": f"{number}"})
    assert recorder.lost == 90
    goes_on.set()
    recorder.close()
    rows = events(tmp_path / "journal", kinds={"gap", "note"})
    assert [row.kind for row in rows] == ["note"] * 11 + ["gap"]
    assert rows[-1].payload == {"lost": 90, "reason": "the queue was full"}
    assert verify_journal(tmp_path / "journal").sound


def test_an_engine_starts_without_its_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "handoff.journal"):
        recorder = Recorder.open(tmp_path / "no" / "such" / "folder", tool="engine 1")
        record_healthy(recorder, "h")
    assert recorder.problem is not None
    assert "nothing is recorded" in recorder.problem
    assert len(caplog.records) == 1
    report = recorder.close()
    assert (report.lines, report.lost, report.last_durable_seq) == (0, 16, 0)


def test_a_journal_that_somebody_writes_is_refused(tmp_path: Path) -> None:
    with SyncJournal.create(tmp_path / "journal"):
        recorder = Recorder.open(tmp_path / "journal", tool="engine 1")
        assert "is writing this journal" in (recorder.problem or "")


def test_a_failed_commit_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    recorder = Recorder.open(tmp_path / "journal", tool="engine 1")
    assert recorder._file is not None
    recorder._file._connection.execute("PRAGMA max_page_count = 1")
    recorder.record({"error": "x" * 100_000})
    assert recorder._thread is not None
    recorder._thread.join()
    assert "the journal failed after row 0" in (recorder.problem or "")
    recorder.record({"error": "later"})
    assert recorder.close().lost == 1
    report = verify_journal(tmp_path / "journal")
    assert "writer_failed" in [problem.code for problem in report.problems]


def test_a_forked_child_refuses_and_the_parent_goes_on(tmp_path: Path) -> None:
    code = """
        import logging, os, sys
        from handoff.journal.recorder import Recorder
        logging.disable(logging.CRITICAL)
        recorder = Recorder.open(sys.argv[1], tool="engine 1")
        recorder.record({"error": "before"})
        child = os.fork()
        if child == 0:
            recorder.record({"error": "in the child"})
            print(recorder.problem)
            recorder.close()
            sys.exit(0)
        os.waitpid(child, 0)
        recorder.record({"error": "after"})
        print(recorder.close())
    """
    said = run_child(code, tmp_path / "journal")
    assert "a forked child must open a journal of its own" in said
    assert "lines=2, lost=0" in said
    texts = [event.payload["text"] for event in events(tmp_path / "journal", kinds={"note"})]
    assert texts == ["error: before", "error: after"]
    assert verify_journal(tmp_path / "journal").sound


def test_a_program_that_forgets_to_close_loses_nothing(tmp_path: Path) -> None:
    code = """
        import sys
        from handoff.journal.recorder import Recorder
        recorder = Recorder.open(sys.argv[1], tool="engine 1")
        for number in range(1000):
            recorder.record({"error": str(number)})
    """
    run_child(code, tmp_path / "journal")
    assert len(events(tmp_path / "journal", kinds={"note"})) == 1000
    assert verify_journal(tmp_path / "journal").sound
