"""The engine as an actor: boundaries, held-back commands, runs of passes, and rows that replay."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from live_engines import fixture_settings
from recorded_steps import RecordedMachine, assert_replays, replay_of

from handoff.engines.engine_actor import EngineActor, StreamEnd, TokenRun
from handoff.engines.engine_rows import (
    EngineAdmitted,
    EngineAdvanced,
    EngineAnswered,
    EngineCommand,
    EngineFinished,
    EngineLifecycle,
    EngineOrder,
    EngineTokens,
    RequestPrepared,
)
from handoff.journal.vocabulary import EngineType, FactName, OutcomeName, TerminalStatus, Verdict, WorkerRole

REAL_SPEED = {"speedup_ratio": 1.0, "decode_speedup_ratio": 1.0}


def engine(role: WorkerRole, engine_type: EngineType = EngineType.VLLM, **changes: Any) -> EngineActor:
    return EngineActor(fixture_settings(engine_type, role, **changes), captures_kv_events=True)


def prepared(number: int, prompt_tokens: int = 8, output_tokens: int = 1) -> RequestPrepared:
    """A prompt of its own: no two share a block."""
    return RequestPrepared(number, prompt_tokens, output_tokens, (number * 1000, prompt_tokens // 4), handoff=number)


def command(order: EngineOrder, handoff: int, *, request: bool = False) -> EngineCommand:
    return EngineCommand(order, handoff if request else None, handoff)


def names(effects: tuple[Any, ...]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_a_prefill_is_held_at_the_end_of_its_pass_and_released_once() -> None:
    source = engine(WorkerRole.PREFILL)
    source.step(prepared(1), 0.0)
    submitted = source.step(command(EngineOrder.SUBMIT_PREFILL, 1, request=True), 1.0)
    assert names(submitted.effects) == ["EngineAdmitted", "EngineAnswered"]
    end_ms = source.next_wakeup_ms
    assert end_ms is not None
    finished, held, tokens = source.step(EngineAdvanced(), end_ms + 5.0).effects
    assert isinstance(finished, EngineFinished)
    assert isinstance(held, EngineLifecycle)
    assert isinstance(tokens, EngineTokens)
    assert (held.name, held.model_ms, held.handoff) == (FactName.SOURCE_HELD, end_ms, 1)
    assert (tokens.tokens, tokens.stored, tokens.active_blocks) == (1, 2, 2)
    outcomes = [
        source.step(command(EngineOrder.RELEASE_SOURCE, 1), 10.0 + index).effects[-1].outcome for index in range(2)
    ]
    assert outcomes == [OutcomeName.APPLIED, OutcomeName.NOOP]


def test_an_activation_that_reaches_a_busy_engine_is_kept_until_the_boundary() -> None:
    destination = engine(WorkerRole.DECODE, **REAL_SPEED)
    for number in (1, 2):
        destination.step(prepared(number, output_tokens=30), 0.0)
        destination.step(command(EngineOrder.RESERVE_DESTINATION, number, request=True), 0.0)
    destination.step(command(EngineOrder.ACTIVATE_DESTINATION, 1), 1.0)
    end_ms = destination.next_wakeup_ms
    assert end_ms is not None
    kept = destination.step(command(EngineOrder.ACTIVATE_DESTINATION, 2), 2.0)
    assert (kept.verdict, kept.effects) == (Verdict.KEPT, ())
    effects = destination.step(EngineAdvanced(), end_ms).effects
    answers = [effect for effect in effects if isinstance(effect, EngineAnswered)]
    assert [(answer.handoff, answer.outcome, answer.model_ms) for answer in answers] == [
        (2, OutcomeName.APPLIED, end_ms)
    ]
    admitted = [effect.request for effect in effects if isinstance(effect, EngineAdmitted)]
    assert admitted == [2]


def test_a_command_cuts_a_run_of_passes_at_the_next_boundary() -> None:
    destination = EngineActor(fixture_settings(worker_role=WorkerRole.DECODE, num_gpu_blocks=4096, **REAL_SPEED))
    destination.step(prepared(1, output_tokens=400), 0.0)
    destination.step(command(EngineOrder.RESERVE_DESTINATION, 1, request=True), 0.0)
    destination.step(command(EngineOrder.ACTIVATE_DESTINATION, 1), 0.0)
    first_token_ms = destination.next_wakeup_ms
    assert first_token_ms is not None
    destination.step(EngineAdvanced(), first_token_ms)
    run_end_ms = destination.next_wakeup_ms
    assert run_end_ms is not None
    assert run_end_ms > first_token_ms * 300
    assert destination.step(command(EngineOrder.CANCEL_DESTINATION, 1), 100.0).verdict is Verdict.KEPT
    cut_ms = destination.next_wakeup_ms
    assert cut_ms is not None
    assert 100.0 <= cut_ms < 110.0
    effects = destination.step(EngineAdvanced(), 200.0).effects
    assert [type(effect) for effect in effects] == [EngineAnswered, EngineTokens]
    assert destination.next_wakeup_ms is None
    assert destination.core.is_empty


def test_a_wakeup_that_comes_late_gives_the_same_times_and_tokens() -> None:
    def finished(wakeups: list[float]) -> tuple[EngineFinished, int]:
        destination = engine(WorkerRole.DECODE, **REAL_SPEED)
        destination.step(prepared(1, output_tokens=20), 0.0)
        destination.step(command(EngineOrder.RESERVE_DESTINATION, 1, request=True), 0.0)
        destination.step(command(EngineOrder.ACTIVATE_DESTINATION, 1), 0.5)
        ends, tokens = [], 0
        for at_ms in wakeups:
            effects = destination.step(EngineAdvanced(), at_ms).effects
            ends += [effect for effect in effects if isinstance(effect, EngineFinished)]
            tokens += sum(effect.tokens for effect in effects if isinstance(effect, EngineTokens))
        (end,) = ends
        return end, tokens

    assert finished([10_000.0]) == finished([7.0, 7.1, 30.0, 90.0, 10_000.0])
    end, tokens = finished([10_000.0])
    assert (end.name, end.output_tokens, tokens) == (TerminalStatus.COMPLETED, 20, 20)


def test_output_for_streams_is_what_the_token_row_counts() -> None:
    destination = engine(WorkerRole.DECODE)
    destination.step(prepared(1, output_tokens=50), 0.0)
    destination.step(command(EngineOrder.RESERVE_DESTINATION, 1, request=True), 0.0)
    destination.step(command(EngineOrder.ACTIVATE_DESTINATION, 1), 1.0)
    step = destination.step(EngineAdvanced(), 1000.0)
    counted = sum(effect.tokens for effect in step.effects if isinstance(effect, EngineTokens))
    output = destination.output.output
    assert sum(item.count for item in output if isinstance(item, TokenRun)) == counted == 50
    assert isinstance(output[-1], StreamEnd)
    destination.step(EngineAdvanced(), 1001.0)
    assert destination.output.output == []


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (command(EngineOrder.RESERVE_DESTINATION, 9, request=True), "not prepared"),
        (command(EngineOrder.RESERVE_DESTINATION, 2, request=True), "needs 100 blocks"),
        (EngineCommand(EngineOrder.RESERVE_DESTINATION, 3, 1), "already known"),
    ],
)
def test_a_refused_command_is_answered_with_the_reason(refused: EngineCommand, text: str) -> None:
    destination = engine(WorkerRole.DECODE)
    destination.step(prepared(1), 0.0)
    destination.step(prepared(2, prompt_tokens=400), 0.0)
    destination.step(prepared(3), 0.0)
    destination.step(command(EngineOrder.RESERVE_DESTINATION, 1, request=True), 0.0)
    (answer,) = destination.step(refused, 1.0).effects
    assert answer.outcome is OutcomeName.FAILED
    assert text in answer.message


def test_after_its_shutdown_an_engine_refuses_commands_and_answers_those_held_back() -> None:
    destination = engine(WorkerRole.DECODE, **REAL_SPEED)
    destination.step(prepared(1, output_tokens=30), 0.0)
    destination.step(command(EngineOrder.RESERVE_DESTINATION, 1, request=True), 0.0)
    destination.step(command(EngineOrder.ACTIVATE_DESTINATION, 1), 0.0)
    destination.step(command(EngineOrder.CANCEL_DESTINATION, 1), 1.0)
    failed, shutdown = destination.step(EngineCommand(EngineOrder.SHUTDOWN), 2.0).effects
    assert (failed.name, failed.outcome) == (EngineOrder.CANCEL_DESTINATION, OutcomeName.FAILED)
    assert (shutdown.name, shutdown.outcome) == (EngineOrder.SHUTDOWN, OutcomeName.APPLIED)
    late = destination.step(command(EngineOrder.CANCEL_DESTINATION, 1), 3.0)
    assert late.verdict is Verdict.LATE
    assert destination.next_wakeup_ms is None


# -- replay -----------------------------------------------------------------------------------------------------------

ORDERS = st.tuples(
    st.sampled_from([order for order in EngineOrder if order is not EngineOrder.SHUTDOWN]), st.integers(1, 4)
)


@settings(max_examples=60, deadline=None)
@given(
    engine_type=st.sampled_from([EngineType.VLLM, EngineType.SGLANG]),
    role=st.sampled_from(list(WorkerRole)),
    blocks=st.sampled_from([6, 64]),
    orders=st.lists(st.tuples(ORDERS, st.floats(0.0, 40.0)), max_size=25),
)
def test_every_row_of_an_engine_follows_from_its_inputs(
    engine_type: EngineType, role: WorkerRole, blocks: int, orders: list[tuple[tuple[EngineOrder, int], float]]
) -> None:
    settings_ = fixture_settings(engine_type, role, num_gpu_blocks=blocks, **REAL_SPEED)
    recorded = RecordedMachine(EngineActor(settings_, captures_kv_events=True))
    for number in range(1, 5):
        recorded.offer(
            RequestPrepared(number, 8 + 4 * number, number * 3, (0, 2, number * 100, number), handoff=number)
        )
    at_ms = 0.0
    for (order, number), pause_ms in orders:
        at_ms += pause_ms
        recorded.offer(EngineCommand(order, number, number), at_ms)
        if recorded.machine.next_wakeup_ms is not None and pause_ms > 20.0:
            at_ms = max(at_ms, recorded.machine.next_wakeup_ms)
            recorded.offer(EngineAdvanced(), at_ms)
    recorded.offer(EngineAdvanced(), at_ms + 5000.0)
    assert_replays(recorded.journal)


def test_a_changed_digest_of_tokens_diverges() -> None:
    recorded = RecordedMachine(engine(WorkerRole.PREFILL))
    recorded.offer(prepared(1))
    recorded.offer(command(EngineOrder.SUBMIT_PREFILL, 1, request=True), 1.0)
    recorded.offer(EngineAdvanced(), 50.0)
    rows = list(recorded.journal.events)
    index = next(index for index, event in enumerate(rows) if event.kind == "engine_tokens")
    assert rows[index].payload_json is not None
    digest = rows[index].payload["digest"]
    rows[index] = evolve(rows[index], payload_json=rows[index].payload_json.replace(digest, "0" * 16))
    report = replay_of(rows)
    assert not report.agrees
    assert report.divergences[0].seq == rows[index].seq
