"""Which page names an SGLang-style engine advertises to routers.

A page is advertised while any live page carries its name: in the tree, or private to a request that computed it.
The first page with a name makes a ``stored`` event, the last one to go a ``removed`` event.
"""

from collections.abc import Sequence

from handoff.engines.kv_event_log import KvEventLog


class PageAdvertisement:
    """Live pages by name."""

    __slots__ = ("_pages", "events")

    def __init__(self, events: KvEventLog) -> None:
        self.events = events
        self._pages: dict[int, int] = {}

    def advertise(self, parent: int | None, names: Sequence[int]) -> None:
        """A contiguous run of pages now carries these names."""
        pages = self._pages
        run: list[int] = []
        run_parent = parent
        for name in names:
            count = pages.get(name, 0)
            pages[name] = count + 1
            if count == 0:
                run.append(name)
                continue
            if run:
                self.events.stored(run_parent, run)
                run = []
            run_parent = name
        if run:
            self.events.stored(run_parent, run)

    def withdraw(self, names: Sequence[int]) -> None:
        """One page of each name is gone."""
        pages = self._pages
        gone = []
        for name in names:
            count = pages[name] - 1
            if count:
                pages[name] = count
            else:
                del pages[name]
                gone.append(name)
        if gone:
            self.events.removed(gone)
