"""The cache events of one engine, numbered, until somebody takes them."""

from collections.abc import Iterable

from handoff.engines.engine_core import KvEvent, KvEventKind


class KvEventLog:
    """Collects events in order."""

    __slots__ = ("_events", "_next_id")

    def __init__(self) -> None:
        self._events: list[KvEvent] = []
        self._next_id = 0

    def stored(self, parent: int | None, names: Iterable[int]) -> None:
        """A contiguous run of blocks became visible."""
        self._add(KvEventKind.STORED, parent, names)

    def removed(self, names: Iterable[int]) -> None:
        """Blocks vanished."""
        self._add(KvEventKind.REMOVED, None, names)

    def take(self) -> list[KvEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def _add(self, kind: KvEventKind, parent: int | None, names: Iterable[int]) -> None:
        self._events.append(KvEvent(self._next_id, kind, parent, tuple(names)))
        self._next_id += 1
