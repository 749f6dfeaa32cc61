"""Traces become sessions, and a wrong one is answered with file, line, key, value and what would be right."""

import json
from pathlib import Path
from typing import Any

import pytest

from handoff.engines.block_names import TraceNames, block_names
from handoff.engines.length_traces import load_bailian, load_csv
from handoff.engines.mooncake import load_mooncake
from handoff.engines.scenario import Synthetic, Transform
from handoff.engines.synthetic import synthetic_sessions
from handoff.engines.trace_error import TraceError
from handoff.engines.trace_transforms import transformed
from handoff.engines.workload import RequestListSource, Session, SessionSource, Turn
from handoff.journal.vocabulary import TerminalStatus


def mooncake(folder: Path, *rows: dict[str, Any] | str, **options: Any) -> list[Session]:
    path = folder / "trace.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return load_mooncake(path, 64, **options)


def row(**values: Any) -> dict[str, Any]:
    return {"timestamp": 0, "output_length": 1, "hash_ids": [1, 2, 3]} | values


def test_rows_of_one_session_are_its_turns_and_delays_follow_from_timestamps(tmp_path: Path) -> None:
    first, second = mooncake(
        tmp_path,
        row(timestamp=100, session_id="a"),
        row(timestamp=105, session_id="b"),
        "",
        row(timestamp=150, session_id="a", input_length=100),
        row(timestamp=None, session_id="a", delay=7),
    )
    assert (first.session_id, first.first_arrival_ms) == ("a", 0.0)
    assert [turn.delay_ms for turn in first.turns] == [0.0, 50.0, 7.0]
    assert (second.session_id, second.first_arrival_ms) == ("b", 5.0)
    assert [(turn.prompt_tokens, list(turn.blocks)) for turn in first.turns[:2]] == [(192, [1, 2, 3]), (100, [1, 2])]


def test_sessions_run_in_order_of_arrival_and_unnamed_rows_stand_alone(tmp_path: Path) -> None:
    early = row(created_time=-1)
    del early["timestamp"]
    sessions = mooncake(tmp_path, row(timestamp=9), early)
    assert [(session.session_id, session.first_arrival_ms, session.is_named) for session in sessions] == [
        ("request_2", 0.0, False),
        ("request_1", 10.0, False),
    ]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(output_length=None)], ["line 1", "output_length is missing"]),
        ([row(), row(hash_ids=[])], ["line 2", "hash_ids"]),
        ([row(input_length=200)], ["line 1", "input_length = 200", "capacity of 192"]),
        ([row(input_length=0)], ["input_length = 0", "at least 1"]),
        ([row(delay=3)], ["delay = 3", "first turn"]),
        ([row(session_id="a"), row(session_id="a", delay=-1)], ["line 2", "delay = -1", "at least 0"]),
        ([row(session_id="a"), row(session_id="a", delay=1, delay_ms=1)], ["only one of delay and delay_ms"]),
        ([row(output_token_ids=[1, 2])], ["output_token_ids", "output_length = 1"]),
        ([row(hash_ids=[-1])], ["hash_ids", "unsigned"]),
        ([row(), "{not json"], ["line 2", "not JSON"]),
        ([row(), "[1]"], ["line 2", "not a JSON object"]),
        ([row(timestamp=None)], ["line 1", "timestamp is missing", "session request_1"]),
        ([row(timestamp="soon")], ["timestamp = 'soon'", "finite"]),
        ([], ["no rows"]),
    ],
)
def test_a_wrong_trace_is_answered_with_what_would_be_right(tmp_path: Path, rows: list[Any], words: list[str]) -> None:
    with pytest.raises(TraceError) as error:
        mooncake(tmp_path, *rows)
    assert all(word in str(error.value) for word in ["trace.jsonl", *words]), str(error.value)


def test_a_missing_trace_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load_mooncake(tmp_path / "none.jsonl", 64)


def test_csv_rows_get_blocks_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "vidur.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,100,3\n0.5,64,0\n")
    first, second = load_csv(path, 64)
    assert [(s.first_arrival_ms, s.turns[0].prompt_tokens, list(s.turns[0].blocks)) for s in (first, second)] == [
        (0.0, 64, [2]),
        (1000.0, 100, [0, 1]),
    ]
    azure = tmp_path / "azure.csv"
    rows = "2023-11-16 18:15:46.6805900,10,4\n2023-11-16 18:15:47.6805900,9,4\n"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert [session.first_arrival_ms for session in load_csv(azure, 64)] == [0.0, 1000.0]
    path.write_text("when,how_much\n1,2\n")
    with pytest.raises(TraceError, match=r"vidur.csv, line 1: header = 'when,how_much'"):
        load_csv(path, 64)
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1.5,3\n")
    with pytest.raises(TraceError, match=r"line 2: num_prefill_tokens = '1.5'"):
        load_csv(path, 64)


def test_bailian_chats_of_one_root_are_one_session(tmp_path: Path) -> None:
    path = tmp_path / "bailian.jsonl"
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 10.0},
        {"chat_id": 2, "parent_chat_id": -1, "timestamp": 10.5},
        {"chat_id": 3, "parent_chat_id": 1, "timestamp": 12.0},
    ]
    path.write_text("\n".join(json.dumps(r | {"input_length": 16, "output_length": 2, "hash_ids": [5]}) for r in rows))
    first, second = load_bailian(path, 16)
    assert ([turn.delay_ms for turn in first.turns], second.first_arrival_ms) == ([0.0, 2000.0], 500.0)


def _pair() -> list[Session]:
    return [
        Session("a", 0.0, [Turn(64, 1, [3]), Turn(128, 1, [3, 4], 10.0)], 0),
        Session("b", 40.0, [Turn(64, 1, [5])], 1),
    ]


def test_transforms_stretch_deepen_copy_and_split() -> None:
    deep, _ = transformed(_pair(), Transform(multiply_prefix_depth=2), 0)
    assert (deep.turns[1].prompt_tokens, deep.turns[1].blocks) == (256, [6, 7, 8, 9])
    copies = transformed(_pair(), Transform(duplicate=2), 0)
    assert [(s.session_id, s.number, s.turns[0].blocks) for s in copies] == [
        ("a", 0, [3]), ("a_copy_1", 2, [9]), ("b", 1, [5]), ("b_copy_1", 3, [11]),
    ]  # fmt: skip
    assert [s.session_id for s in transformed(_pair(), Transform(split=2, split_part=1), 0)] == ["b"]
    parts = [transformed(_pair(), Transform(split=2, split_part=part, split_at_random=True), 5) for part in (0, 1)]
    assert sorted(s.session_id for part in parts for s in part) == ["a", "b"]
    assert [s.first_arrival_ms for s in transformed(_pair(), Transform(rescale_starts_ms=20.0), 0)] == [0.0, 20.0]
    ready = transformed(_pair(), Transform(rescale_ready_ms=80.0), 0)
    assert (ready[1].first_arrival_ms, ready[0].turns[1].delay_ms) == (80.0, 20.0)


def test_synthetic_sessions_follow_from_their_seed() -> None:
    settings = Synthetic(
        100, 5, 50, turns_per_session=2, shared_prefix_ratio=0.5, num_prefix_groups=3, request_rate=10.0
    )
    once, again = list(synthetic_sessions(settings, 16)), list(synthetic_sessions(settings, 16))
    assert [(s.first_arrival_ms, [list(t.blocks) for t in s.turns]) for s in once] == [
        (s.first_arrival_ms, [list(t.blocks) for t in s.turns]) for s in again
    ]
    assert once[0].first_arrival_ms == 0.0
    mean_ms = (once[-1].first_arrival_ms or 0.0) / 49
    assert 60.0 < mean_ms < 150.0
    assert {turn.blocks[0] for session in once for turn in session.turns} == {0, 4, 8}
    fresh = [block for session in once for turn in session.turns for block in turn.blocks[4:]]
    assert len(fresh) == len(set(fresh)) == 50 * 2 * 3


def test_a_turn_waits_for_the_one_before_and_a_failure_ends_the_session() -> None:
    source = SessionSource(_pair(), speedup_ratio=2.0)
    (first,) = source.take_ready(0.0)
    assert source.next_ready_ms() == 20.0
    source.on_end(first, TerminalStatus.COMPLETED, 7.0)
    assert source.next_ready_ms() == 12.0, "delays are divided too"
    (second,) = source.take_ready(12.0)
    source.on_end(second, TerminalStatus.FAILED, 15.0)
    (third,) = source.take_ready(20.0)
    assert (third.session.session_id, source.is_drained) == ("b", False)
    source.on_end(third, TerminalStatus.CANCELED, 21.0)
    assert source.is_drained


def test_concurrency_counts_sessions_and_starts_the_next_when_one_ends() -> None:
    source = SessionSource(_pair(), max_in_flight=1, speedup_ratio=9.0)
    (first,) = source.take_ready(0.0)
    source.on_end(first, TerminalStatus.REJECTED, 5.0)
    assert source.next_ready_ms() == 15.0, "the speed-up has no effect"
    (second,) = source.take_ready(15.0)
    source.on_end(second, TerminalStatus.COMPLETED, 30.0)
    assert [arrival.session.session_id for arrival in source.take_ready(30.0)] == ["b"]


def test_a_list_in_concurrency_mode_never_wakes_anybody_up() -> None:
    source = RequestListSource(_pair(), max_in_flight=1)
    assert source.next_ready_ms() is None
    (first,) = source.take_ready(3.0)
    assert (first.at_ms, source.take_ready(3.0)) == (3.0, [])
    source.on_end(first, TerminalStatus.COMPLETED, 4.0)
    assert source.next_ready_ms() is None
    assert source.take_ready(4.0)[0].at_ms == 4.0


def test_names_of_tokens_are_equal_exactly_for_equal_prefixes() -> None:
    tokens = list(range(40))
    names = block_names(tokens, 8)
    assert len(names) == 5
    assert block_names(tokens[:-1], 8) == names[:4]
    other = block_names([*tokens[:8], 99, *tokens[9:]], 8)
    assert [a == b for a, b in zip(names, other, strict=True)] == [True, False, False, False, False]
    assert all(0 <= name < 2**64 for name in names)


@pytest.mark.parametrize(("trace_size", "engine_size"), [(64, 64), (512, 64), (64, 512), (64, 48), (1, 16)])
def test_names_of_trace_blocks_say_what_names_of_their_tokens_would(trace_size: int, engine_size: int) -> None:
    prompts = [[1, 2, 3, 4, 1, 1, 5, 6], [1, 2, 3, 9, 1, 1], [2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 7]]
    names = TraceNames(trace_size, engine_size)
    ours, theirs = [], []
    for prompt in prompts:
        tokens = [block for block in prompt for _ in range(trace_size)][:-1]
        ours += names.names(prompt, len(tokens))
        theirs += block_names(tokens, engine_size)
    assert [[a == b for b in ours] for a in ours] == [[a == b for b in theirs] for a in theirs]


def test_ids_are_names_only_where_each_follows_always_the_same() -> None:
    assert TraceNames(64, 64).adopt_ids([[1, 2, 3], [1, 2], [5]])
    assert not TraceNames(64, 64).adopt_ids([[1, 2, 3], [4, 3]])
    assert not TraceNames(64, 64).adopt_ids([[1, 2], [2]])
    assert not TraceNames(64, 32).adopt_ids([[1]])
