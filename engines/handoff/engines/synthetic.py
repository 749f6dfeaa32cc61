"""Workloads without a trace: sessions of equal turns, with arrivals and shared prefixes drawn from a seed.

Sessions are made when they are needed, so a million of them cost no memory beforehand.
"""

import math
from collections.abc import Iterator

from handoff.engines.scenario import Synthetic
from handoff.engines.seeded_stream import SeededStream
from handoff.engines.workload import Session, Turn


def synthetic_sessions(settings: Synthetic, block_size: int) -> Iterator[Session]:
    """The sessions of a synthetic workload, in order of arrival.

    A group's blocks come first among the ids, then fresh ones, so each id always follows the same one: ids are names.

    Args:
        settings: what they are like.
        block_size: tokens of a block id.
    """
    blocks = -(-settings.input_tokens // block_size)
    shared = 0
    if settings.shared_prefix_ratio > 0.0 and settings.num_prefix_groups > 0:
        shared = math.floor(blocks * settings.shared_prefix_ratio + 0.5)
    groups = SeededStream(settings.arrival_seed, "synthetic/groups")
    gaps = SeededStream(settings.arrival_seed, "synthetic/arrivals")
    next_block = settings.num_prefix_groups * shared
    at_ms = 0.0
    for number in range(settings.request_count):
        if settings.arrival_interval_ms is not None:
            at_ms = number * settings.arrival_interval_ms
        elif settings.request_rate is not None and number:
            at_ms += gaps.exponential(1000.0 / settings.request_rate)
        prefix = range(0)
        if shared:
            group = groups.below(settings.num_prefix_groups)
            prefix = range(group * shared, (group + 1) * shared)
        turns = []
        for index in range(settings.turns_per_session):
            fresh = range(next_block, next_block + blocks - shared)
            next_block += blocks - shared
            own = [*prefix, *fresh] if shared else fresh
            delay_ms = settings.inter_turn_delay_ms if index else 0.0
            turns.append(Turn(settings.input_tokens, settings.output_tokens, own, delay_ms))
        is_named = settings.turns_per_session > 1
        yield Session(f"session_{number + 1}", at_ms, turns, number, is_named=is_named)
