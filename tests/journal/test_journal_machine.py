"""Any sequence of appends, commits, closes, crashes and readings, against a list of rows in memory."""

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from journal_files import copy_files
from recorded_handoffs import open_handoff

from handoff.journal.declarations import Foreign, HandoffOpened, Note, SourceDeclared
from handoff.journal.durable_journal import Journal
from handoff.journal.port import MemoryJournal, RowStream
from handoff.journal.reader import JournalReader
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.terms import EndState
from handoff.journal.verify import VerifyState, verify_journal
from handoff.journal.vocabulary import ActionName, EngineType

texts = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
times = st.floats(0.0, 1e9)


class JournalMachine(RuleBasedStateMachine):
    """The journal keeps each row as the model has it, through closes and crashes, and verifies at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="handoff-machine-"))
        self.path = self.folder / "journal"
        self.copies = 0
        self.model = MemoryJournal(run=0)
        self.committed = copy.deepcopy(self.model)
        self.journal: Journal | SyncJournal

    @initialize(threaded=st.booleans())
    def open(self, threaded: bool) -> None:
        self.journal = Journal.create(self.path) if threaded else SyncJournal.create(self.path)

    def both(self, name: str, *arguments: Any, **named: Any) -> None:
        answers = [getattr(keeper, name)(*arguments, **named) for keeper in (self.journal, self.model)]
        assert answers[0] == answers[1]

    @precondition(lambda self: not self.model.run_open)
    @rule(scenario=st.dictionaries(texts, json_values, max_size=2))
    def begin_run(self, scenario: dict[str, Any]) -> None:
        self.both("begin_run", tool="machine", wall_ns=1, scenario=scenario)

    @precondition(lambda self: self.model.run_open)
    @rule(state=st.sampled_from(EndState), at_ms=times)
    def end_run(self, state: EndState, at_ms: float) -> None:
        self.both("end_run", state, at_ms)

    @rule(at_ms=times, text=texts)
    def resume(self, at_ms: float, text: str) -> None:
        if self.model.run_open:
            self.both("resume_run", tool=text, wall_ns=2, at_ms=at_ms)

    @rule(text=texts, count=st.sampled_from((1, 3, 63, 64, 130)), at_ms=times)
    def notes(self, text: str, count: int, at_ms: float) -> None:
        for _ in range(count):
            self.both("annotate", Note(text), at_ms)

    @rule(value=json_values, at_ms=st.floats(allow_nan=False, allow_infinity=False))
    def anything(self, value: Any, at_ms: float) -> None:
        self.both("annotate", Foreign({"value": value}), at_ms)

    @rule(name=texts, request=st.none() | texts, attempt=st.none() | st.integers(-(2**63), 2**63 - 1))
    def handoff_alone(self, name: str, request: str | None, attempt: int | None) -> None:
        self.both("open_handoff", HandoffOpened(name, request=request, attempt=attempt), 0.0)

    @rule(name=texts)
    def source(self, name: str) -> None:
        self.both("declare_source", SourceDeclared(name), 0.0)

    @rule(engine=st.sampled_from((EngineType.VLLM, EngineType.SGLANG)), until=st.sampled_from(ActionName))
    def handoff(self, engine: EngineType, until: ActionName) -> None:
        if until in (ActionName.CANCEL_SOURCE, ActionName.CANCEL_DESTINATION):
            until = ActionName.COMPLETE
        for keeper in (self.journal, self.model):
            open_handoff(keeper, f"h{self.model.handoffs}", engine).proceed(until)

    @rule()
    def commit(self) -> None:
        if isinstance(self.journal, SyncJournal):
            self.journal.commit()
            self.committed = copy.deepcopy(self.model)

    @rule(threaded=st.booleans())
    def close_and_go_on(self, threaded: bool) -> None:
        self.journal.close()
        self.committed = copy.deepcopy(self.model)
        assert verify_journal(self.path).receipt is not None
        self.open(threaded)

    @rule(threaded=st.booleans())
    def crash_and_go_on(self, threaded: bool) -> None:
        """Go on with a copy of the files as they are now; what was not committed is gone."""
        if isinstance(self.journal, Journal):
            return
        self.copies += 1
        copied = copy_files(self.path, self.folder / str(self.copies))
        self.journal.close()
        self.path = copied
        self.model = copy.deepcopy(self.committed)
        self.open(threaded)

    @rule()
    def compare(self) -> None:
        with JournalReader(self.path) as reader:
            found = list(reader.events())
            assert found == self.model.events[: len(found)]
            assert len(found) >= self.committed.last_seq
            opened = [record.first_seq for record in reader.handoffs() if record.first_seq <= len(found)]
            assert opened == [event.seq for event in found if event.kind == "handoff_opened"]

    @invariant()
    def numbers_agree(self) -> None:
        if hasattr(self, "journal"):
            assert numbers_of(self.journal) == numbers_of(self.model)

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            report = verify_journal(self.path)
            ended = {problem.code for problem in report.problems} <= {"run_without_end"}
            assert ended, report.problems
            assert report.state in (VerifyState.SOUND, VerifyState.OPEN)
            with JournalReader(self.path) as reader:
                assert list(reader.events()) == self.model.events
        shutil.rmtree(self.folder)


def numbers_of(stream: RowStream) -> tuple[Any, ...]:
    return (
        stream.last_seq, stream.last_at_ms, stream.run, stream.run_open, stream.handoffs, stream.actors,
        stream.sources,
    )  # fmt: skip


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_row_that_cannot_be_stored_is_refused_and_takes_no_number() -> None:
    journal = MemoryJournal()
    with pytest.raises(ValueError, match="more than 64 bits"):
        journal.open_handoff(HandoffOpened("h", attempt=2**63), 0.0)
    assert (journal.last_seq, journal.handoffs) == (0, 0)
