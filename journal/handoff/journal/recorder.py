"""Recording from inside somebody else's program: threads, asyncio, no Trio.

The rules are the reverse of a live driver's. A recorder in a serving engine must never be the reason why a request
fails or waits: its methods raise nothing and wait for nothing. A line goes into a queue, and a thread of the
recorder's makes rows of it and commits them. What the recorder could not take (the queue was full, a word was unknown)
is counted and becomes one `gap` row; what stops it for good (the file cannot be written, the process forked) is said
once through `logging` and in `problem`.

After a fork the child has a copy of the recorder and no thread, and two processes must not write one file. So the
child's copy refuses, and the parent's goes on.

Example:
    recorder = Recorder.open("engine.journal", tool="my-engine 1.0", source="prefill-0")
    handoff = recorder.handoff("req-17", order="source_first")
    handoff.action("submit_prefill")
    handoff.outcome("submitted", of="submit_prefill")
    recorder.close()
"""

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self
from weakref import WeakMethod

import attrs
from attrs import frozen

from handoff.journal.declarations import Gap
from handoff.journal.event_lines import LineRefused
from handoff.journal.observation import Observation
from handoff.journal.receipt import Durability
from handoff.journal.terms import EndState
from handoff.journal.writer import JournalFile

_log = logging.getLogger("handoff.journal")

DEFAULT_MAX_PENDING_LINES = 65_536
_BATCH_LINES = 4096
_NS_PER_MS = 1_000_000
_Stamped = tuple[float, Mapping[str, Any]]


@frozen
class RecorderReport:
    """What a recorder did.

    Attributes:
        lines: lines taken.
        lost: lines that were not.
        last_durable_seq: the last committed row; 0 when there is none.
        problem: what stopped the recorder, or None.
    """

    lines: int
    lost: int
    last_durable_seq: int
    problem: str | None


class Recorder:
    """Records event lines into a journal from any thread; raises nothing and waits for nothing.

    Attributes:
        problem: what stopped the recorder for good, or None.
        lost: lines that were not taken.
    """

    def __init__(self, file: JournalFile | None, problem: str | None, *, source: str | None, max_pending: int) -> None:
        """Use `open`."""
        self.problem = problem
        self.lost = 0
        self._taken = 0
        self._file = file
        self._source = source
        self._max_pending = max_pending
        self._lines: SimpleQueue[_Stamped | None] = SimpleQueue()  # None: the end
        self._lost_lock = threading.RLock()  # a signal handler may record, too
        self._unsaid_loss = 0
        self._loss_reason = ""
        self._start_ns = time.monotonic_ns()
        self._closed = file is None
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        tool: str,
        source: str | None = None,
        engine_type: str | None = None,
        engine_version: str | None = None,
        durability: Durability | str = Durability.FULL,
        max_pending_lines: int = DEFAULT_MAX_PENDING_LINES,
    ) -> Self:
        """Begin a run in a journal, new or existing. On failure the recorder refuses everything and says why.

        Args:
            path: the journal.
            tool: name and version of the recording program.
            source: name of the stream that lines belong to unless they name another.
            engine_type: of the source, such as ``vllm``.
            engine_version: of the source.
            durability: when a commit counts: ``full``, ``normal`` or ``off``.
            max_pending_lines: how many lines may wait; more are lost.
        """
        try:
            file = JournalFile(path, durability=Durability(durability))
            numbers = Observation(**attrs.asdict(file.numbers(), recurse=False))
            numbers.begin_run(tool=tool, wall_ns=time.time_ns())
            if source is not None:
                declared = {"source": source, "engine_type": engine_type, "engine_version": engine_version}
                numbers.see({name: item for name, item in declared.items() if item is not None})
            recorder = cls(file, None, source=source, max_pending=max_pending_lines)
            recorder._thread = threading.Thread(
                target=recorder._run, args=(file, numbers), name="handoff recorder", daemon=True
            )
            recorder._thread.start()
            _close_at_exit(recorder)
        except Exception as error:  # noqa: BLE001  # an engine must start without its journal
            recorder = cls(None, None, source=source, max_pending=0)
            recorder._stop(f"nothing is recorded: {error}")
        return recorder

    def record(self, line: Mapping[str, Any]) -> None:
        """Take one event line, as `handoff.journal.event_lines` describes it; the time is added when it has none.

        Args:
            line: what happened; it must not be changed afterwards.
        """
        if self.problem is not None or self._closed or self._file is None:
            self.lost += 1
            return
        if self._file.lock.inherited:
            self.lost += 1
            self._stop(f"this recorder belongs to process {self._pid}; a forked child must open a journal of its own")
            return
        if self._lines.qsize() >= self._max_pending:
            self._lose("the queue was full")
            return
        self._lines.put((self.now_ms(), line))

    def handoff(
        self,
        handoff_id: str,
        *,
        order: str | None = None,
        engine_type: str | None = None,
        request: str | None = None,
        room: int | None = None,
        attempt: int | None = None,
        parent_request: str | None = None,
    ) -> "RecordedHandoff":
        """Open a handoff. With an order its actions can be held to the protocol by ``replay --tier core``."""
        opened = {
            "order": order, "engine_type": engine_type, "request": request, "room": room, "attempt": attempt,
            "parent_request": parent_request,
        }  # fmt: skip
        self.record({"handoff": handoff_id, "open": {name: item for name, item in opened.items() if item is not None}})
        return RecordedHandoff(self, handoff_id)

    def now_ms(self) -> float:
        """The recorder's time, ms since it was opened."""
        return (time.monotonic_ns() - self._start_ns) / _NS_PER_MS

    def close(self, timeout_s: float = 10.0) -> RecorderReport:
        """End the run and close the file; waits for the disk, at most `timeout_s`."""
        if not self._closed and self._thread is not None and self._file is not None and not self._file.lock.inherited:
            self._closed = True
            self._lines.put(None)
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._stop(f"the journal could not be closed within {timeout_s} s")
        last = 0 if self._file is None else self._file.last_seq
        return RecorderReport(self._taken, self.lost, last, self.problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _lose(self, reason: str) -> None:
        with self._lost_lock:
            self.lost += 1
            self._unsaid_loss += 1
            self._loss_reason = self._loss_reason or reason

    def _stop(self, problem: str) -> None:
        if self.problem is None:
            self.problem = problem
            _log.error("handoff recorder: %s", problem)

    # -- on the recorder's thread -------------------------------------------------------------------------------------

    def _run(self, file: JournalFile, numbers: Observation) -> None:
        try:
            while self._commit_batch(file, numbers):
                pass
            numbers.end_run(EndState.FINISHED, max(self.now_ms(), numbers.last_at_ms))
            file.commit(numbers.take_rows())
            file.close()
        except Exception as error:  # noqa: BLE001  # the first failed commit is the end of the recording
            self._stop(f"the journal failed after row {file.last_seq}: {error}")
            file.fail()

    def _commit_batch(self, file: JournalFile, numbers: Observation) -> bool:
        """Take what is queued and commit it; whether to go on."""
        lines = [self._lines.get()]
        with contextlib.suppress(Empty):
            while lines[-1] is not None and len(lines) < _BATCH_LINES:
                lines.append(self._lines.get_nowait())
        for stamped in lines:
            if stamped is not None:
                self._see(*stamped, numbers)
        self._say_loss(numbers)
        if rows := numbers.take_rows():
            file.commit(rows)
        return lines[-1] is not None

    def _see(self, at_ms: float, line: Mapping[str, Any], numbers: Observation) -> None:
        try:
            stamped = dict(line)
            if not ("at_min_ms" in stamped and "at_max_ms" in stamped):
                stamped.setdefault("at_ms", at_ms)
            if self._source is not None:
                stamped.setdefault("source", self._source)
            numbers.see(stamped)
            self._taken += 1
        except LineRefused as refused:
            self._lose(refused.reason)
        except Exception as error:  # noqa: BLE001  # whatever a caller put into a line
            self._lose(f"{type(error).__name__}: {error}")

    def _say_loss(self, numbers: Observation) -> None:
        with self._lost_lock:
            loss, reason = self._unsaid_loss, self._loss_reason
            self._unsaid_loss, self._loss_reason = 0, ""
        if loss:
            numbers.annotate(Gap(loss, reason), max(self.now_ms(), numbers.last_at_ms))


class RecordedHandoff:
    """One handoff of a recorder. Words and fields are those of event lines.

    Attributes:
        handoff_id: its name.
    """

    def __init__(self, recorder: Recorder, handoff_id: str) -> None:
        self.handoff_id = handoff_id
        self._recorder = recorder

    def action(self, action: str, action_id: int | None = None, **more: Any) -> None:
        """An action was ordered, such as ``reserve_destination``; its ids count from 0."""
        self._line({"action": action}, {"id": action_id}, more)

    def outcome(
        self,
        outcome: str,
        action_id: int | None = None,
        *,
        of: str | None = None,
        message: str | None = None,
        **more: Any,
    ) -> None:
        """An action was answered, such as with ``applied``; named by its id or, `of`, by its name."""
        self._line({"outcome": outcome}, {"id": action_id, "of": of, "message": message}, more)

    def fact(self, fact: str, **more: Any) -> None:
        """Something was observed, such as ``source_held`` with ``transfer_timing={...}``."""
        self._line({"fact": fact}, {}, more)

    def resource(self, resource: str, blocks: Iterable[int] | None = None, **more: Any) -> None:
        """Blocks changed their owner, such as ``destination_freed``."""
        self._line({"resource": resource}, {"blocks": None if blocks is None else list(blocks)}, more)

    def _line(self, subject: dict[str, Any], known: dict[str, Any], more: dict[str, Any]) -> None:
        said = {name: item for name, item in known.items() if item is not None}
        self._recorder.record({"handoff": self.handoff_id, **subject, **said, **more})


def _close_at_exit(recorder: Recorder) -> None:
    close = WeakMethod(recorder.close)

    def close_if_alive() -> None:
        method = close()
        if method is not None:
            method()

    atexit.register(close_if_alive)
