"""The block pool of a vLLM-style engine.

A physical block is *free*, *private* to one request, or *cached*: named, and found by whoever looks for that prefix.
A cached block without references is *inactive*; inactive blocks form one queue, least recently released first, from
which blocks are evicted when free ones run out. A block that is referenced again leaves its place in the queue
behind, counted as outdated, to be skipped when its turn comes. Two requests that compute the same block at the same
time each keep their own copy; a lookup uses the oldest.

Blocks have no numbers here. A cached block is known by a *key*: its name, or, for a further copy of that name, a
negative number. Free and private blocks are only counted.

What makes this fast rests on one invariant: **the ancestors of a visible name are visible.** Whoever holds a block
holds copies of all blocks before it and releases the deepest first, so a block is always queued for eviction ahead
of some copy of each of its ancestors. Hence a prefix match can be bisected, and if the first of a run of new blocks
is not visible, none of them is.
"""

from collections import deque
from collections.abc import Sequence

from handoff.engines.kv_event_log import KvEventLog


class BlockPool:
    """Counts and names of the blocks of one engine.

    Attributes:
        capacity: all blocks.
        free: blocks that hold nothing.
        inactive: keys of cached blocks without references.
    """

    __slots__ = (
        "_copies", "_extra", "_name_of_copy", "_next_copy", "_outdated", "_queue", "_visible", "capacity", "events",
        "free", "inactive",
    )  # fmt: skip

    def __init__(self, capacity: int, events: KvEventLog | None) -> None:
        self.capacity = capacity
        self.free = capacity
        self.inactive: set[int] = set()
        self.events = events
        self._queue: deque[list[int]] = deque()
        """Inactive keys as they were released, next to be evicted first, between outdated entries of earlier times."""
        self._outdated: dict[int, int] = {}
        """How many entries of a key, its first ones, are outdated."""
        self._visible: set[int] = set()
        self._extra: dict[int, int] = {}
        """References beyond the first, by key."""
        self._copies: dict[int, list[int]] = {}
        """Keys of a name, oldest first, unless that is just the name itself."""
        self._name_of_copy: dict[int, int] = {}
        self._next_copy = -1

    @property
    def active(self) -> int:
        """Blocks that are referenced or reserved."""
        return self.capacity - self.free - len(self.inactive)

    @property
    def available(self) -> int:
        """Blocks that could be had: free ones and inactive ones."""
        return self.free + len(self.inactive)

    def match(self, names: Sequence[int]) -> list[int]:
        """The keys of the longest visible prefix of `names`."""
        visible = self._visible
        low, high = 0, len(names)
        if not high or names[0] not in visible:
            return []
        while low < high:
            middle = (low + high) // 2
            if names[middle] in visible:
                low = middle + 1
            else:
                high = middle
        if not self._copies:
            return list(names[:low])
        copies = self._copies
        return [copies[name][0] if name in copies else name for name in names[:low]]

    def count_active(self, keys: Sequence[int]) -> int:
        """How many of these cached blocks are referenced."""
        return len(keys) - sum(map(self.inactive.__contains__, keys))

    def acquire(self, keys: Sequence[int], fresh: int) -> bool:
        """Reference cached blocks and take fresh ones, evicting as needed; all or nothing."""
        inactive = self.inactive
        lacking = fresh - self.free
        if lacking > 0 and lacking > len(inactive) - sum(map(inactive.__contains__, keys)):
            return False
        extra = self._extra
        for key in keys:
            if key in inactive:
                inactive.remove(key)
                self._outdated[key] = self._outdated.get(key, 0) + 1
            else:
                extra[key] = extra.get(key, 0) + 1
        if lacking > 0:
            self._evict(lacking)
        self.free -= fresh
        return True

    def publish(self, parent: int | None, names: Sequence[int]) -> Sequence[int]:
        """Make private blocks, a contiguous run, visible. Returns their keys."""
        visible = self._visible
        duplicates = 0
        if names[0] in visible:
            while duplicates < len(names) and names[duplicates] in visible:
                duplicates += 1
        new = names[duplicates:] if duplicates else names
        if new:
            visible.update(new)
            if self.events is not None:
                self.events.stored(names[duplicates - 1] if duplicates else parent, new)
        if not duplicates:
            return names
        return [*map(self._add_copy, names[:duplicates]), *new]

    def release(self, keys: Sequence[int], private: int) -> None:
        """Give up one reference of each key and all private blocks, the deepest first."""
        self.free += private
        if not keys:
            return
        inactive, extra = self.inactive, self._extra
        if not extra or extra.keys().isdisjoint(keys):
            inactive.update(keys)
            self._queue.append(list(reversed(keys)))
            return
        freed = []
        for key in reversed(keys):
            count = extra.get(key)
            if count is None:
                freed.append(key)
            elif count == 1:
                del extra[key]
            else:
                extra[key] = count - 1
        if freed:
            inactive.update(freed)
            self._queue.append(freed)

    def _add_copy(self, name: int) -> int:
        key = self._next_copy
        self._next_copy -= 1
        self._copies.setdefault(name, [name]).append(key)
        self._name_of_copy[key] = name
        return key

    def _evict(self, count: int) -> None:
        queue, outdated = self._queue, self._outdated
        keys: list[int] = []
        while True:
            lacking = count - len(keys)
            run = queue[0]
            if outdated and not outdated.keys().isdisjoint(run):
                run[:] = self._without_outdated(run)
            if len(run) > lacking:
                keys += run[:lacking]
                del run[:lacking]
                break
            keys += run
            queue.popleft()
            if len(run) == lacking:
                break
        self.free += count
        self.inactive.difference_update(keys)
        gone = [name for name in map(self._remove_copy, keys) if name is not None] if self._copies else keys
        self._visible.difference_update(gone)
        if self.events is not None and gone:
            self.events.removed(gone)

    def _without_outdated(self, run: list[int]) -> list[int]:
        """The keys of a run at the queue's front that still count."""
        outdated = self._outdated
        kept = []
        for key in run:
            skips = outdated.get(key)
            if skips is None:
                kept.append(key)
            elif skips == 1:
                del outdated[key]
            else:
                outdated[key] = skips - 1
        return kept

    def _remove_copy(self, key: int) -> int | None:
        """Forget one block; returns its name if that was the last copy."""
        name = self._name_of_copy.pop(key, key)
        keys = self._copies.get(name)
        if keys is None:
            return name
        keys.remove(key)
        if keys == [name]:
            del self._copies[name]
        elif not keys:
            del self._copies[name]
            return name
        return None
