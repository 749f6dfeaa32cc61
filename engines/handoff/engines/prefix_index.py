"""What a router knows of the workers' prefix caches: block names by worker, from their cache events.

Only what was announced counts, when it was announced. A worker announces a block only while it has all blocks before
it, and withdraws the deepest first, so the blocks that a worker has of a prompt are a prefix of it, and the prefix
can be bisected.
"""

from collections.abc import Iterable, Sequence

from handoff.engines.engine_core import KvEvent, KvEventKind


class PrefixIndex:
    """Announced blocks of each worker."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[int, set[int]] = {}

    def apply(self, worker: int, events: Iterable[KvEvent]) -> None:
        """Take a worker's events, in order."""
        names = self._names.get(worker)
        if names is None:
            names = self._names[worker] = set()
        for event in events:
            if event.kind is KvEventKind.STORED:
                names.update(event.block_names)
            else:
                names.difference_update(event.block_names)

    def forget(self, worker: int) -> None:
        """The worker is gone."""
        self._names.pop(worker, None)

    def overlap(self, worker: int, names: Sequence[int]) -> int:
        """How many leading blocks of a prompt the worker has."""
        known = self._names.get(worker)
        if not known or not names or names[0] not in known:
            return 0
        low, high = 1, len(names)
        while low < high:
            middle = (low + high) // 2
            if names[middle] in known:
                low = middle + 1
            else:
                high = middle
        return low

    def block_counts(self) -> dict[int, int]:
        """Announced blocks by worker."""
        return {worker: len(names) for worker, names in sorted(self._names.items())}
