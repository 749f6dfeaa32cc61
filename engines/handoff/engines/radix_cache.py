"""The prefix cache of an SGLang-style engine: a compressed radix tree over page names.

A page is *available*, *private* to a request, or in the tree. A node of the tree holds a stretch of pages; requests
lock the path of nodes that they stand on. Pages of unlocked nodes are *evictable*: when pages run out, the unlocked
leaf that was used longest ago gives its last pages first, only as many as are needed, and keeps its age; an emptied
leaf disappears, and its parent may become the next to go.

Ages come from a counter: each operation takes one fresh value and gives it to all nodes that it touches.

Only the number of private and available pages matters, so pages themselves have no identity here. Names already
stand for whole prefixes, which is more than the tree needs; it keeps its edges honest all the same.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from handoff.engines.page_advertisement import PageAdvertisement


class RadixNode:
    """A stretch of pages below its parent."""

    __slots__ = ("children", "last_access", "lock", "names", "parent")

    def __init__(self, parent: "RadixNode | None", names: list[int], lock: int, last_access: int) -> None:
        self.parent = parent
        self.names = names
        self.children: dict[int, RadixNode] = {}
        self.lock = lock
        self.last_access = last_access


class RadixCache:
    """Pages of one engine.

    Attributes:
        capacity: all pages.
        available: pages that hold nothing.
        evictable: pages in unlocked nodes.
        root: the node of the empty prefix; never locked, never evicted.
        advertised: where live pages are announced, if anybody listens.
    """

    __slots__ = ("_clock", "_leaves", "_next_leaf", "advertised", "available", "capacity", "evictable", "root")

    def __init__(self, capacity: int, advertised: PageAdvertisement | None) -> None:
        self.capacity = capacity
        self.available = capacity
        self.evictable = 0
        self.root = RadixNode(None, [], 0, 0)
        self.advertised = advertised
        self._clock = 0
        self._leaves: list[tuple[int, int, RadixNode]] = []
        """Every evictable leaf is here at least once, perhaps under an older age; the rest is outdated."""
        self._next_leaf = 0

    @property
    def obtainable(self) -> int:
        """Pages that could be had."""
        return self.available + self.evictable

    def match_length(self, names: Sequence[int]) -> int:
        """How many leading pages the tree holds; touches nothing."""
        node, matched = self.root, 0
        while matched < len(names):
            child = node.children.get(names[matched])
            if child is None:
                return matched
            common = _common_length(child.names, names, matched)
            matched += common
            if common < len(child.names):
                return matched
            node = child
        return matched

    def match_and_lock(self, names: Sequence[int]) -> tuple[RadixNode, int]:
        """Find the longest prefix, make it end at a node, and lock the path to it.

        Returns:
            That node, and how many pages it stands for.
        """
        clock = self._tick()
        node, matched = self.root, 0
        while matched < len(names):
            child = node.children.get(names[matched])
            if child is None:
                break
            common = _common_length(child.names, names, matched)
            matched += common
            if common < len(child.names):
                node = self._split(child, common)
                break
            child.last_access = clock
            node = child
        self.lock(node)
        return node, matched

    def lock(self, node: RadixNode) -> None:
        """Keep the path to a node."""
        walk = node
        while walk.parent is not None:
            if walk.lock == 0:
                self.evictable -= len(walk.names)
            walk.lock += 1
            walk = walk.parent

    def unlock(self, node: RadixNode) -> None:
        """Give up one lock of the path to a node."""
        walk = node
        while walk.parent is not None:
            walk.lock -= 1
            if walk.lock == 0:
                self.evictable += len(walk.names)
                self._offer(walk)
            walk = walk.parent

    def insert(self, start: RadixNode, names: Sequence[int]) -> tuple[RadixNode, int]:
        """Put private pages below `start` into the tree.

        Returns:
            The node where they end, and how many of them the tree had already: those private pages are now free.
        """
        clock = self._tick()
        walk: RadixNode | None = start
        while walk is not None:
            walk.last_access = clock
            walk = walk.parent
        node, done, duplicates = start, 0, 0
        while done < len(names):
            if node.parent is not None and not node.children and (node.lock == 0 or (node is start and node.lock == 1)):
                node.names.extend(names[done:])
                if node.lock == 0:
                    self.evictable += len(names) - done
                break
            child = node.children.get(names[done])
            if child is None:
                child = RadixNode(node, list(names[done:]), 0, clock)
                node.children[names[done]] = child
                self.evictable += len(child.names)
                self._offer(child)
                node = child
                break
            common = _common_length(child.names, names, done)
            done += common
            duplicates += common
            if common < len(child.names):
                node = self._split(child, common)
            else:
                child.last_access = clock
                node = child
        self.available += duplicates
        if duplicates and self.advertised is not None:
            self.advertised.withdraw(names[:duplicates])
        return node, duplicates

    def move_lock(self, old: RadixNode, new: RadixNode) -> None:
        """Lock another path in exchange for one."""
        if old is not new:
            self.lock(new)
            self.unlock(old)

    def allocate(self, pages: int) -> bool:
        """Take pages, evicting exactly those that are lacking; all or nothing."""
        lacking = pages - self.available
        if lacking > 0:
            if lacking > self.evictable:
                return False
            self._evict(lacking)
        self.available -= pages
        return True

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _split(self, lower: RadixNode, length: int) -> RadixNode:
        """Divide a node; returns the new upper part, which inherits lock and age."""
        parent = lower.parent
        assert parent is not None
        upper = RadixNode(parent, lower.names[:length], lower.lock, lower.last_access)
        parent.children[upper.names[0]] = upper
        lower.names = lower.names[length:]
        lower.parent = upper
        upper.children[lower.names[0]] = lower
        return upper

    def _offer(self, node: RadixNode) -> None:
        """Note a leaf that may be evictable now."""
        if not node.children:
            heappush(self._leaves, (node.last_access, self._next_leaf, node))
            self._next_leaf += 1

    def _evict(self, pages: int) -> None:
        leaves = self._leaves
        while pages:
            age, _, leaf = heappop(leaves)
            parent = leaf.parent
            if leaf.lock or leaf.children or parent is None or not leaf.names:
                continue
            if leaf.last_access != age:
                self._offer(leaf)
                continue
            names = leaf.names
            taken = min(pages, len(names))
            gone = names[len(names) - taken :]
            pages -= taken
            self.evictable -= taken
            self.available += taken
            if taken == len(names):
                del parent.children[names[0]]
                leaf.names = []
                if parent.lock == 0:
                    self._offer(parent)
            else:
                del names[len(names) - taken :]
                self._offer(leaf)
            if self.advertised is not None:
                gone.reverse()
                self.advertised.withdraw(gone)


def _common_length(edge: Sequence[int], names: Sequence[int], start: int) -> int:
    """How many pages of an edge equal `names` from `start` on."""
    length = min(len(edge), len(names) - start)
    if edge[:length] == names[start : start + length]:
        return length
    for index in range(length):
        if edge[index] != names[start + index]:
            return index
    return length
