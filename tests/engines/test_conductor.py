"""Where requests go: by turns, or to the worker with the least work and the longest cached prefix."""

from typing import Any

import pytest
from live_engines import fixture_settings
from recorded_steps import RecordedMachine, assert_replays

from handoff.engines.conductor import Conductor
from handoff.engines.conductor_rows import (
    CacheChanged,
    ConductorStopped,
    PrefillEnded,
    RequestArrived,
    RequestEnded,
    RequestRouted,
)
from handoff.engines.scenario import Cluster, KvRouterSettings, RouterMode
from handoff.journal.vocabulary import TerminalStatus, Verdict, WorkerRole


def conductor(mode: RouterMode = RouterMode.ROUND_ROBIN, **router: Any) -> RecordedMachine:
    cluster = Cluster(
        num_prefill_workers=2, num_decode_workers=2, router_mode=mode, kv_router=KvRouterSettings(**router)
    )
    prefill = fixture_settings(worker_role=WorkerRole.PREFILL)
    return RecordedMachine(Conductor(cluster, prefill, fixture_settings(worker_role=WorkerRole.DECODE), seed=3))


def arrived(number: int, first_block: int | None = None, tokens: int = 16) -> RequestArrived:
    first = number * 100 if first_block is None else first_block
    return RequestArrived(number, number, 0.0, tokens, 2, (first, tokens // 4))


def routes(recorded: RecordedMachine, *values: Any) -> list[tuple[int, int, int]]:
    effects = [effect for value in values for effect in recorded.offer(value).effects]
    assert all(isinstance(effect, RequestRouted) for effect in effects)
    return [(effect.handoff, effect.prefill, effect.decode) for effect in effects]


def test_round_robin_takes_the_workers_of_each_pool_in_turn() -> None:
    recorded = conductor()
    assert routes(recorded, *(arrived(number) for number in (1, 2, 3))) == [(1, 0, 0), (2, 1, 1), (3, 0, 0)]
    assert recorded.machine.underway == (1, 2, 3)
    assert_replays(recorded.journal)


def test_a_request_ends_once() -> None:
    recorded = conductor()
    recorded.offer(arrived(1))
    assert recorded.offer(RequestEnded(1, TerminalStatus.COMPLETED)).verdict is Verdict.APPLIED
    assert recorded.offer(RequestEnded(1, TerminalStatus.CANCELED)).verdict is Verdict.DUPLICATE
    assert recorded.machine.underway == ()


def test_after_a_stop_nothing_is_routed_any_more() -> None:
    recorded = conductor(RouterMode.KV_ROUTER, router_queue_threshold=0.0)
    recorded.offer(arrived(1))
    recorded.offer(arrived(2))
    assert recorded.offer(arrived(3)).verdict is Verdict.KEPT
    assert recorded.offer(ConductorStopped("SIGINT")).verdict is Verdict.APPLIED
    assert recorded.offer(ConductorStopped("SIGINT")).verdict is Verdict.DUPLICATE
    late = recorded.offer(arrived(4))
    assert (late.verdict, late.effects) == (Verdict.LATE, ())
    assert routes(recorded, RequestEnded(1, TerminalStatus.CANCELED)) == []
    assert_replays(recorded.journal)


def test_a_cache_aware_conductor_prefers_the_worker_that_holds_the_prefix() -> None:
    recorded = conductor(RouterMode.KV_ROUTER, break_ties_at_random=False)
    assert routes(recorded, arrived(1, first_block=7)) == [(1, 0, 0)]
    recorded.offer(PrefillEnded(1))
    recorded.offer(RequestEnded(1, TerminalStatus.COMPLETED))
    recorded.offer(CacheChanged(1, stored=True, block_runs=(7, 4)))
    step = recorded.offer(arrived(2, first_block=7))
    (routed,) = step.effects
    assert (routed.prefill, routed.overlap_blocks) == (1, 4)
    recorded.offer(CacheChanged(1, stored=False, block_runs=(7, 4)))
    recorded.offer(RequestEnded(2, TerminalStatus.COMPLETED))
    assert routes(recorded, arrived(3, first_block=7)) == [(3, 0, 0)]
    assert_replays(recorded.journal)


def test_a_queued_request_is_routed_when_a_prefill_ends() -> None:
    recorded = conductor(RouterMode.KV_ROUTER, router_queue_threshold=0.0)
    assert len(routes(recorded, arrived(1), arrived(2), arrived(3))) == 2
    assert [route[0] for route in routes(recorded, PrefillEnded(1))] == [3]
    assert recorded.offer(PrefillEnded(1)).verdict is Verdict.DUPLICATE
    assert_replays(recorded.journal)


@pytest.mark.parametrize("value", [PrefillEnded(9), CacheChanged(0, stored=True, block_runs=(1, 1))])
def test_what_routing_by_turns_does_not_know_changes_nothing(value: Any) -> None:
    step = conductor().offer(value)
    assert (step.verdict, step.effects) == (Verdict.UNKNOWN, ())
