"""Falsify every row of a recorded run in four ways, and see who notices.

The run has twenty handoffs, healthy and broken ones, with sessions on both sides. ``verify`` must notice every
alteration. The full tier must notice all but those of rows that no decision depends on, and says what shape the
difference has. The core tier must notice exactly those after which an independent fold of a coordinator's inputs
decides otherwise. What goes unnoticed is counted by kind, and each such kind is in `UNNOTICED` with its reason.
"""

import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from alterations import Alteration, altered
from live_runs import record_in_memory, sessions, small_scenario
from recorded_handoffs import source_of
from session_pair import MACHINES, SessionPairs, Trouble

from handoff.engines.machines import MACHINES as ALL_MACHINES
from handoff.journal.coordinator import Coordinator, CoordinatorError, Fact, Outcome
from handoff.journal.coordinator_actor import FactOffered, HandoffStarted, OutcomeOffered
from handoff.journal.divergence import DivergenceClass
from handoff.journal.event import Event
from handoff.journal.event_source import EventList
from handoff.journal.reader import JournalReader
from handoff.journal.replayer import Tier, replay
from handoff.journal.row_codec import UnreadableRow, decode
from handoff.journal.schema import SCHEMA
from handoff.journal.sync_journal import SyncJournal
from handoff.journal.terms import TERM_CODE, ActorKind, EndState, Kind
from handoff.journal.verify import VerifyState, verify_journal
from handoff.journal.vocabulary import ActionName, EngineType, FactName, HandoffId, HandoffOrder, OutcomeName, Side

SHARES = 8
TROUBLES = (
    None,
    Trouble(lost_answer=ActionName.ACTIVATE_DESTINATION),
    None,
    Trouble(lost_fact=FactName.DESTINATION_RESERVED),
    Trouble(cancel_ms=9.0),
    Trouble(failed=ActionName.RELEASE_SOURCE),
    None,
    Trouble(failed=ActionName.CANCEL_SOURCE, lost_answer=ActionName.SUBMIT_PREFILL),
    Trouble(answers={ActionName.RELEASE_SOURCE: OutcomeName.NOOP}),
    Trouble(dead=Side.DESTINATION, dead_ms=30.0),
)

UNNOTICED: dict[str, str] = {
    "resource": "a remark for people: ownership is told by the actors' own rows",
    "run_ended": "a missing last row is an open end, as after a kill; verify reports it",
    "engine_answered": "a witness's row: a detail that nobody inherits, or an answer that nobody waited for any more",
    "engine_lifecycle": "a witness's row: a detail that nobody inherits",
}
"""Kinds of rows of which some alterations change no decision, each with the reason."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tampering") / "run.db"
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="test", wall_ns=0)
        pairs = SessionPairs(journal)
        for number in range(20):
            engine = EngineType.VLLM if number % 2 else EngineType.SGLANG
            pairs.add(f"h{number:02}", engine, number * 1.5, TROUBLES[number // 2])
        pairs.run()
        journal.end_run(EndState.INTERRUPTED, journal.last_at_ms)
    return path


@pytest.fixture(scope="module")
def events(run: Path) -> tuple[Event, ...]:
    with JournalReader(run) as reader:
        return tuple(reader.events())


def mine(events: Sequence[Event], share: int) -> Iterator[tuple[Event, Alteration, list[Event]]]:
    """The share of one worker: every so manieth row, falsified in every way that changes it."""
    for index in range(share, len(events), SHARES):
        for alteration in Alteration:
            rows = altered(events, index, alteration)
            if rows is not None and tuple(rows) != tuple(events):
                yield events[index], alteration, rows


def is_root(event: Event) -> bool:
    return event.is_input and event.cause is None


EXPECTED_CLASS = {
    Alteration.CHANGED_OUTCOME: {DivergenceClass.PAYLOAD},
    Alteration.REMOVED: {DivergenceClass.MISSING},
    Alteration.SWAPPED: {DivergenceClass.REORDERED, DivergenceClass.STRUCTURE},
    Alteration.CHANGED_PAYLOAD: {DivergenceClass.PAYLOAD, DivergenceClass.TIMING_ONLY, DivergenceClass.STRUCTURE},
}


def test_the_run_replays_and_shows_every_kind_of_row(events: tuple[Event, ...]) -> None:
    report = replay(source_of(events), Tier.FULL, MACHINES)
    assert report.agrees, report.divergences
    assert len({event.kind for event in events}) >= 30


@pytest.mark.parametrize("share", range(SHARES))
def test_full_replay_notices_whatever_a_decision_depends_on(events: tuple[Event, ...], share: int) -> None:
    unnoticed: Counter[tuple[str, str]] = Counter()
    tried = 0
    for event, alteration, rows in mine(events, share):
        report = replay(EventList(rows), Tier.FULL, MACHINES, stop_after=1)
        tried += 1
        if report.agrees:
            unnoticed[event.kind, alteration.value] += 1
        elif event.actor is not None and not is_root(event):
            first = report.divergences[0]
            assert first.kind in EXPECTED_CLASS[alteration], (event, alteration, first)
    print(f"{tried} alterations, {unnoticed.total()} unnoticed: {dict(sorted(unnoticed.items()))}")
    assert {kind for kind, _ in unnoticed} <= set(UNNOTICED)


UNNOTICED_LIVE: dict[str, str] = {
    "run_ended": UNNOTICED["run_ended"],
    "lag": "a remark for people",
    "request_arrived": "a root input: the client's own number of its request decides nothing",
    "request_ended": "figures of what reached the client, for reports; no decision rests on them",
}
"""The same for a live run, in which engines, permits, rendezvous and conductor are re-executed too."""


def falsified_live_run(handoffs: int) -> tuple[int, Counter[tuple[str, str]]]:
    """Every row of a live run, falsified in every way: how many ways there were, and which replay did not notice."""
    live = record_in_memory(small_scenario(), sessions(handoffs)).events
    assert replay(EventList(live), Tier.FULL, ALL_MACHINES).agrees
    unnoticed: Counter[tuple[str, str]] = Counter()
    tried = 0
    for share in range(SHARES):
        for event, alteration, rows in mine(live, share):
            report = replay(EventList(rows), Tier.FULL, ALL_MACHINES, stop_after=1)
            tried += 1
            if report.agrees:
                unnoticed[event.kind, alteration.value] += 1
            elif not is_root(event):
                assert report.divergences[0].kind in EXPECTED_CLASS[alteration], (event, alteration)
    return tried, unnoticed


def test_full_replay_of_a_live_run_notices_whatever_a_decision_depends_on() -> None:
    tried, unnoticed = falsified_live_run(4)
    print(f"{tried} alterations, {unnoticed.total()} unnoticed: {dict(sorted(unnoticed.items()))}")
    assert {kind for kind, _ in unnoticed} <= set(UNNOTICED_LIVE)


def folds_alike(events: Sequence[Event]) -> bool:
    """Whether each coordinator's inputs, folded anew, give the verdicts and effects that are recorded."""
    coordinators: dict[int, Coordinator] = {}
    given: dict[int, list[tuple[object, ...]]] = {}
    order: HandoffOrder | None = None
    for event in events:
        if event.kind == Kind.ACTOR_STARTED:
            declared = decode(event)
            order = HandoffOrder(declared.config["order"]) if "order" in declared.config else order
            if declared.kind is ActorKind.COORDINATOR:
                assert order is not None
                name = next(e.payload["handoff_id"] for e in events if e.handoff == event.handoff)
                coordinators[declared.actor] = Coordinator(HandoffId(name), order)
                given[declared.actor] = []
        elif event.actor in coordinators:
            assert event.actor is not None
            if not folds_row(coordinators[event.actor], given[event.actor], event):
                return False
    return not any(given.values())


def folds_row(core: Coordinator, given: list[tuple[object, ...]], event: Event) -> bool:
    if event.verdict is None:
        shown = (event.kind, event.name, event.action_id, event.payload_json and dict(event.payload))
        return bool(given) and given.pop(0) == shown
    if given:
        return False
    try:
        match decode(event, ActorKind.COORDINATOR):
            case HandoffStarted():
                actions = core.start()
            case OutcomeOffered() as value:
                actions = core.on_outcome(value.action_id, Outcome(value.outcome, value.message))
            case FactOffered() as value:
                name = core.handoff_id if value.handoff_id is None else value.handoff_id
                actions = core.on_fact(Fact(value.name, name, value.transfer_timing, value.transferable_prompt_tokens))
            case _:
                return False
    except CoordinatorError as error:
        given.append(("coordinator_error", None, None, {"code": error.code, "message": str(error)}))
    except (UnreadableRow, ValueError):
        return False
    else:
        given.extend(
            ("action_issued", a.name, a.id, None if a.delay_ms is None else {"delay_ms": a.delay_ms}) for a in actions
        )
    return bool(core.verdict == event.verdict)


@pytest.mark.parametrize("share", range(SHARES))
def test_core_replay_notices_exactly_what_a_fresh_fold_decides_otherwise(events: tuple[Event, ...], share: int) -> None:
    noticed = 0
    for event, alteration, rows in mine(events, share):
        if event.kind in ("handoff_opened", "actor_started", "run_started", "run_ended"):
            continue
        agrees = replay(EventList(rows), Tier.CORE, stop_after=1).agrees
        assert agrees is folds_alike(rows), (event, alteration)
        noticed += not agrees
    assert noticed > 0


def falsify_file(path: Path, row: Event, alteration: Alteration, rows: Sequence[Event]) -> None:
    """Bring an alteration into the file, behind the back of its triggers."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")
        for verb in ("changed", "deleted"):
            connection.execute(f"DROP TRIGGER row_is_not_{verb}")
        if alteration is Alteration.REMOVED:
            connection.execute("DELETE FROM row WHERE seq = ?", (row.seq,))
        for event in rows:
            if event.seq in (row.seq, row.seq + 1) and alteration is not Alteration.REMOVED:
                connection.execute(
                    "UPDATE row SET grp = ?, handoff = ?, actor = ?, at_ms = ?, kind = ?, name = ?, action_id = ?,"
                    " outcome = ?, verdict = ?, cause = ?, generation = ?, payload = ? WHERE seq = ?",
                    (
                        event.grp, event.handoff, event.actor, event.at_ms, code(event.kind), code(event.name),
                        event.action_id, code(event.outcome), code(event.verdict), event.cause, event.generation,
                        event.payload_json, event.seq,
                    ),
                )  # fmt: skip
        for verb in ("changed", "deleted"):
            connection.execute(SCHEMA[f"row_is_not_{verb}"])
    connection.close()


def code(word: str | None) -> int | None:
    return None if word is None else TERM_CODE[word]


@pytest.mark.parametrize("share", range(SHARES))
def test_verify_notices_everything(run: Path, events: tuple[Event, ...], share: int, tmp_path: Path) -> None:
    for event, alteration, rows in mine(events, share):
        copy = tmp_path / "copy.db"
        shutil.copy(run, copy)
        shutil.copy(run.with_name(run.name + "-receipt"), tmp_path / "copy.db-receipt")
        falsify_file(copy, event, alteration, rows)
        report = verify_journal(copy)
        assert report.state is VerifyState.DAMAGED, (event, alteration, report)
        assert report.last_trustworthy_seq < event.seq + 1


def main(handoffs: int) -> None:
    """Print the whole matrix of a live run: `PYTHONPATH=tests/support python tests/test_tampering.py 20`."""
    tried, unnoticed = falsified_live_run(handoffs)
    print(f"{tried} alterations of a live run of {handoffs} handoffs, {unnoticed.total()} unnoticed")
    for (kind, alteration), count in sorted(unnoticed.items()):
        print(f"  {kind:18} {alteration:18} {count:5}   {UNNOTICED_LIVE[kind]}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
