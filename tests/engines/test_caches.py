"""The block pool and the radix cache against plain models of themselves, and what their invariants promise."""

from collections.abc import Iterator
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.engines.block_pool import BlockPool
from handoff.engines.engine_core import KvEventKind
from handoff.engines.kv_event_log import KvEventLog
from handoff.engines.page_advertisement import PageAdvertisement
from handoff.engines.radix_cache import RadixCache, RadixNode

CHAINS = [
    [chain * 10 + depth if depth >= shared else depth for depth in range(6)]
    for chain, shared in enumerate((6, 2, 3, 0), 1)
]
"""Prompts as block names; some share a prefix."""


class PlainPool:
    """A block pool that keeps every block as an object and does nothing clever."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.blocks: list[list[int]] = []
        self.serial: Iterator[int] = count()

    def visible(self, name: int) -> list[list[int]]:
        return [block for block in self.blocks if block[0] == name]

    def match(self, names: list[int]) -> list[list[int]]:
        found = []
        for name in names:
            copies = self.visible(name)
            if not copies:
                break
            found.append(copies[0])
        return found

    def acquire(self, hits: list[list[int]], fresh: int) -> bool:
        lacking = fresh - self.free
        evictable = [block for block in self.blocks if block[1] == 0 and not any(block is hit for hit in hits)]
        if lacking > len(evictable):
            return False
        for hit in hits:
            hit[1] += 1
        for block in sorted(evictable, key=lambda block: block[2])[: max(0, lacking)]:
            self.blocks = [other for other in self.blocks if other is not block]
            self.free += 1
        self.free -= fresh
        return True

    def publish(self, names: list[int]) -> list[list[int]]:
        new = [[name, 1, 0] for name in names]
        self.blocks += new
        return new

    def release(self, owned: list[list[int]], private: int) -> None:
        self.free += private
        for block in reversed(owned):
            block[1] -= 1
            block[2] = next(self.serial)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), max_size=40), st.integers(4, 14))
def test_the_block_pool_does_what_a_plain_one_does(steps: list[tuple[int, int, bool]], capacity: int) -> None:
    events = KvEventLog()
    pool, plain = BlockPool(capacity, events), PlainPool(capacity)
    owners: list[tuple[list[int], list[list[int]], int]] = []
    announced: set[int] = set()
    for chain, depth, releases in steps:
        if releases and owners:
            keys, blocks, private = owners.pop(depth % len(owners))
            pool.release(keys, private)
            plain.release(blocks, private)
        else:
            names = CHAINS[chain][:depth]
            keys, hits = pool.match(names), plain.match(names)
            assert len(keys) == len(hits)
            assert pool.count_active(keys) == sum(hit[1] > 0 for hit in hits)
            granted = pool.acquire(keys, depth + 1 - len(keys))
            assert granted == plain.acquire(hits, depth + 1 - len(hits))
            if granted:
                rest = names[len(keys) :]
                parent = names[len(keys) - 1] if keys else None
                own = [*keys, *(pool.publish(parent, rest) if rest else ())]
                owners.append((own, [*hits, *plain.publish(rest)], 1))
        assert pool.free == plain.free
        assert len(pool.inactive) == sum(block[1] == 0 for block in plain.blocks)
        for event in events.take():
            if event.kind is KvEventKind.STORED:
                assert announced.isdisjoint(event.block_names)
                announced.update(event.block_names)
            else:
                announced.difference_update(event.block_names)
        assert announced == {block[0] for block in plain.blocks}
        for names in CHAINS:
            visible = [bool(plain.visible(name)) for name in names]
            assert visible == sorted(visible, reverse=True), "the ancestors of a visible block are visible"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), max_size=40), st.integers(4, 14))
def test_the_radix_cache_accounts_for_every_page(steps: list[tuple[int, int, bool]], capacity: int) -> None:
    events = KvEventLog()
    cache = RadixCache(capacity, PageAdvertisement(events))
    owners: list[tuple[RadixNode, list[int], int]] = []
    announced: set[int] = set()
    for chain, depth, finishes in steps:
        if finishes and owners:
            node, names, matched = owners.pop(depth % len(owners))
            end, _ = cache.insert(node, names[matched:])
            cache.move_lock(node, end)
            cache.unlock(end)
        else:
            names = CHAINS[chain][:depth]
            expected = cache.match_length(names)
            node, matched = cache.match_and_lock(names)
            assert matched == expected
            if cache.allocate(depth - matched):
                owners.append((node, names, matched))
                parent = names[matched - 1] if matched else None
                cache_of(cache).advertise(parent, names[matched:])
            else:
                cache.unlock(node)
        nodes = list(_nodes(cache.root))
        assert cache.evictable == sum(len(node.names) for node in nodes if node.lock == 0)
        in_tree = sum(len(node.names) for node in nodes)
        private = sum(len(names) - matched for _, names, matched in owners)
        assert cache.available + in_tree + private == capacity
        for event in events.take():
            (announced.update if event.kind is KvEventKind.STORED else announced.difference_update)(event.block_names)
        held = {name for node in nodes for name in node.names} | {name for _, names, _ in owners for name in names}
        assert announced == held


def cache_of(cache: RadixCache) -> PageAdvertisement:
    advertised = cache.advertised
    assert advertised is not None
    return advertised


def _nodes(node: RadixNode) -> Iterator[RadixNode]:
    for child in node.children.values():
        yield child
        yield from _nodes(child)


def test_eviction_trims_the_oldest_leaf_from_its_end() -> None:
    cache = RadixCache(6, None)
    assert cache.allocate(6)
    cache.insert(cache.root, [1, 2, 3])
    cache.insert(cache.root, [7, 8, 9])
    assert cache.allocate(2)
    assert (cache.match_length([1, 2, 3]), cache.match_length([7, 8, 9])) == (1, 3)


def test_two_requests_that_compute_the_same_block_keep_a_copy_each() -> None:
    pool = BlockPool(4, None)
    assert pool.acquire((), 2)
    first, second = list(pool.publish(None, [5])), list(pool.publish(None, [5]))
    assert first != second
    pool.release(first, 0)
    assert (pool.active, pool.match([5])) == (1, first), "a lookup takes the oldest copy, used or not"
    pool.release(second, 0)
    assert pool.acquire((), 3)
    assert pool.match([5]) == second
    assert pool.acquire((), 1)
    assert pool.match([5]) == []
