"""Findings that need several handoffs: who wrote over whom, who waits for whom, whose name is whose.

Only handoffs that are suspicious by themselves are looked at in full; the rest of the journal is consulted where a rule
asks for it (who got these blocks? who has this room?). Of each examined handoff a `Brief` is kept, not its rows.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attrs import define, field

from handoff.journal.brief import Brief, OpenWrite, pool_of, resource_of
from handoff.journal.case import blocks_of, overlap
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource
from handoff.journal.finding import Certainty, Finding, cited
from handoff.journal.row_order import before, certainty_of
from handoff.journal.terms import Kind
from handoff.journal.vocabulary import ActionName, FactName, Side

_STORM_HANDOFFS = 4
"""So many handoffs for one request, with at most one success, are a storm."""


@define
class Fleet:
    """The rules over several handoffs of one journal.

    Attributes:
        source: the journal.
        briefs: the examined handoffs by number.
        others: names of handoffs that were not examined and have part in a finding, by number.
    """

    source: EventSource
    briefs: dict[int, Brief]
    others: dict[int, str] = field(factory=dict, init=False)

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong between handoffs."""
        siblings, rooms, requests, expected = self._openings()
        yield from self._id_mismatch()
        yield from self._orphan_siblings(siblings)
        yield from self._duplicate_rooms(rooms)
        yield from self._silent_side()
        yield from self._capacity_deadlock()
        yield from self._queues()
        yield from self._reaper_starved()
        yield from self._retry_storm(requests)
        yield from self._retry_refused_early(requests)
        yield from self._no_handoff(expected, requests)
        for brief in self.briefs.values():
            if brief.open_write is not None:
                yield from self._unsafe_reuse(brief, brief.open_write)

    def _name(self, number: int) -> str:
        if number in self.briefs:
            return self.briefs[number].name
        name = self.others.get(number)
        if name is None:
            opened = next(self.source.events(handoff=number, kinds=(Kind.HANDOFF_OPENED.value,)), None)
            name = self.others[number] = str(number if opened is None else opened.payload.get("handoff_id"))
        return name

    def _openings(
        self,
    ) -> tuple[dict[str, list[Event]], dict[str, list[Event]], dict[str, list[Event]], list[Event]]:
        """Openings by parent request, by room and by request, where several share one; and what was expected."""
        parents = {brief.parent for brief in self.briefs.values() if brief.parent}
        siblings: dict[str, list[Event]] = defaultdict(list)
        rooms: dict[str, list[Event]] = defaultdict(list)
        requests: dict[str, list[Event]] = defaultdict(list)
        for event in self.source.events(kinds=(Kind.HANDOFF_OPENED.value,)):
            text = event.payload_json or ""
            if not ('"room"' in text or '"request"' in text or '"parent_request"' in text):
                continue
            payload = event.payload
            if payload.get("parent_request") in parents:
                siblings[payload["parent_request"]].append(event)
            if payload.get("room") is not None:
                rooms[f"{event.run}/{payload['room']}"].append(event)
            if payload.get("request") is not None:
                requests[payload["request"]].append(event)
        expected = [
            event
            for event in self.source.events(kinds=(Kind.RESOURCE.value,))
            if event.handoff is None and event.payload.get("resource") == "handoff_expected"
        ]
        return siblings, rooms, requests, expected

    # -- names ----------------------------------------------------------------------------------------

    def _id_mismatch(self) -> Iterator[Finding]:
        """One side was addressed under a name that only resembles the handoff's (or shares its key)."""
        orphans = [brief for brief in self.briefs.values() if brief.silent or "orphan_rendezvous" in brief.codes]
        wronged = [b for b in self.briefs.values() if b.codes & _WRONGED and not b.silent]
        for orphan in orphans:
            for brief in wronged:
                by = None if brief.number == orphan.number else _resemblance(brief, orphan)
                if by is not None and brief.opened.run == orphan.opened.run:
                    wrongs = {row for f in brief.findings if f.code in _WRONGED for row in f.rows}
                    rows = (*sorted(wrongs), orphan.opened.seq)
                    yield _between(
                        "id_mismatch",
                        (brief, orphan),
                        rows,
                        f"{orphan.name} is a name that only one side knows and that shares its {by} with {brief.name}",
                        by=by,
                    )
                    break

    def _orphan_siblings(self, families: dict[str, list[Event]]) -> Iterator[Finding]:
        """Children of one request were held at the source, and only some of them were claimed."""
        for parent, opened in families.items():
            if len(opened) < 2:
                continue
            children = [self.briefs.get(event.handoff or 0) for event in opened]
            orphans = [b for b in children if b is not None and b.is_unclaimed]
            if orphans and len(orphans) < len(opened):
                rows = tuple(row.seq for b in orphans for row in (b.opened, b.held) if row is not None)
                names = ", ".join(b.name for b in orphans)
                yield Finding(
                    "orphan_sibling",
                    Certainty.PROVED,
                    tuple(b.name for b in orphans),
                    rows,
                    cited(f"{len(orphans)} of {len(opened)} children of {parent} were never claimed: {names}", rows),
                    {"parent": parent, "children": len(opened), "unclaimed": len(orphans)},
                )

    def _duplicate_rooms(self, rooms: dict[str, list[Event]]) -> Iterator[Finding]:
        """A second handoff opened under a room while the first one was active."""
        for key, opened in rooms.items():
            for first, second in pairwise(opened):
                end = self._end_of(first)
                certainty = Certainty.PROVED if end is None else certainty_of(before(second, end))
                if certainty is not None and first.handoff is not None and second.handoff is not None:
                    rows = (first.seq, second.seq)
                    room = key.partition("/")[2]
                    yield Finding(
                        "duplicate_room",
                        certainty,
                        (self._name(first.handoff), self._name(second.handoff)),
                        rows,
                        cited(f"room {room} was opened again while its first handoff was active", rows),
                        {"room": room},
                    )

    def _end_of(self, opened: Event) -> Event | None:
        """The row that completed a handoff or ended its source session."""
        kinds = (Kind.ACTION_ISSUED.value, Kind.SESSION_ENDED.value)
        for event in self.source.events(handoff=opened.handoff, kinds=kinds):
            if event.kind == Kind.SESSION_ENDED or event.name == ActionName.COMPLETE:
                return event
        return None

    def _no_handoff(self, expected: list[Event], requests: dict[str, list[Event]]) -> Iterator[Finding]:
        """The router decided for a handoff of a request for which none was opened."""
        for event in expected:
            extra = event.payload.get("extra") or {}
            request = extra.get("request")
            if request not in requests:
                rows = (event.seq,)
                sentence = cited(f"a handoff was expected for request {request}, and none was opened", rows)
                yield Finding("no_handoff", Certainty.PROVED, (), rows, sentence, {"request": request})

    # -- peers and pools ------------------------------------------------------------------------------

    def _silent_side(self) -> Iterator[Finding]:
        """From one instant on a side answered nobody any more: several handoffs' orders to it were lost."""
        for side in Side:
            lost = [(b, f) for b in self.briefs.values() for f in b.findings if _is_lost_to(f, side)]
            if len({b.number for b, _ in lost}) < 2 or any(b.waits and _by_capacity(b) for b, _ in lost):
                continue
            first = min(row for _, finding in lost for row in finding.rows)
            if any("peer_lost" in b.codes for b, _ in lost) or self._alive_after(side, first):
                continue
            rows = tuple(sorted({finding.rows[0] for _, finding in lost}))
            names = tuple(dict.fromkeys(b.name for b, _ in lost))
            yield Finding(
                "peer_lost",
                Certainty.POSSIBLE,
                names,
                rows,
                cited(f"the {side} answered none of {len(names)} handoffs any more", rows),
                {"side": side.value, "handoffs": len(names)},
                None,
                f"the {side}'s connection closing, or its process ending",
            )

    def _alive_after(self, side: Side, seq: int) -> bool:
        """Whether anything was heard of a side after a row."""
        facts = {Side.SOURCE: FactName.SOURCE_HELD, Side.DESTINATION: FactName.DESTINATION_RESERVED}
        kinds = (Kind.FACT_APPLIED.value, Kind.FACT_IGNORED.value, Kind.RESOURCE.value, Kind.FACT_OBSERVED.value)
        for event in self.source.events(first=seq + 1, kinds=kinds):
            name = str(event.payload.get("resource") if event.kind == Kind.RESOURCE else event.name)
            if name == facts[side] or (name.startswith(side.value) and name != "source_lease_expired"):
                return True
        return False

    def _capacity_deadlock(self) -> Iterator[Finding]:
        """Every handoff that holds destination blocks waits for the destination itself."""
        waiting = [b for b in self.briefs.values() if b.waits and _by_capacity(b)]
        if len(waiting) < 2:
            return
        first = min(wait.seq for b in waiting for wait in b.waits)
        finished = self.source.events(first=first, kinds=(Kind.RESOURCE.value,))
        if any(resource_of(e) in ("destination_finished", "destination_freed") for e in finished):
            return
        held = [blocks for b in waiting for wait in b.waits for blocks in [wait.holds or ()]]
        total = sum(map(len, held))
        sizes = {wait.pool_size for b in waiting for wait in b.waits if wait.pool_size is not None}
        full = bool(sizes) and total >= max(sizes)
        rows = tuple(sorted(wait.seq for b in waiting for wait in b.waits))
        parts = ", ".join(f"{b.name} ({len(b.waits[0].holds or ())})" for b in waiting)
        yield Finding(
            "capacity_deadlock",
            Certainty.PROVED if full else Certainty.POSSIBLE,
            tuple(b.name for b in waiting),
            rows,
            cited(f"all {total} reserved blocks are held by handoffs that wait to be activated: {parts}", rows),
            {"blocks": total, "waiting": [b.name for b in waiting]},
            None,
            None if full else "the destination pool's size, and what an activation needs",
        )

    def _queues(self) -> Iterator[Finding]:
        """Requests that wait behind one that does not fit, and prefills that no block is left for."""
        by_name = {brief.name: brief for brief in self.briefs.values()}
        for brief in self.briefs.values():
            for event in brief.queued:
                extra = event.payload.get("extra") or {}
                need, free = extra.get("need"), extra.get("free")
                if not isinstance(need, int) or not isinstance(free, int) or not (brief.struck or brief.over):
                    continue
                ahead = [by_name[name] for name in extra.get("ahead", ()) if name in by_name]
                blocking = [other for other in ahead if _does_not_fit(other)]
                if resource_of(event) == "destination_queued" and need <= free and blocking and not brief.claimed:
                    rows = (event.seq, *(e.seq for other in blocking for e in other.queued))
                    sentence = f"it needs {need} of {free} free blocks, behind {blocking[0].name}, which needs more"
                    yield _between("head_of_line", (brief, blocking[0]), rows, sentence, need=need, free=free)
                elif resource_of(event) == "source_queued" and need > free and brief.held is None:
                    yield from self._source_starved(brief, event, need, free)

    def _source_starved(self, brief: Brief, event: Event, need: int, free: int) -> Iterator[Finding]:
        waiting = [
            other
            for other in self.briefs.values()
            if other.number != brief.number and other.is_holding_at(event.seq) and not other.claimed
        ]
        if waiting:
            rows = (event.seq, *(other.held.seq for other in waiting if other.held is not None))
            sentence = f"it needs {need} blocks and {free} are free; {len(waiting)} holds wait for a destination"
            yield _between("source_starved", (brief, *waiting), rows, sentence, need=need, free=free)

    def _reaper_starved(self) -> Iterator[Finding]:
        """Several leases were over at once, and none was collected in between."""
        late = [b for b in self.briefs.values() if b.overdue is not None and b.held is not None]
        by_pool: dict[object, list[Brief]] = defaultdict(list)
        for brief in late:
            by_pool[pool_of(brief.held)].append(brief)  # type: ignore[arg-type]
        for briefs in by_pool.values():
            if len(briefs) < 2:
                continue
            first = min(b.held.seq for b in briefs if b.held is not None)
            collected = self.source.events(first=first, kinds=(Kind.RESOURCE.value,))
            if any(resource_of(event) == "source_lease_expired" for event in collected):
                continue
            rows = tuple(sorted({row for b in briefs if b.overdue is not None for row in b.overdue.rows}))
            sentence = cited(f"{len(briefs)} leases were over, and no lease was collected after them", rows)
            names = tuple(b.name for b in briefs)
            yield Finding("reaper_starved", Certainty.PROVED, names, rows, sentence, {"leases": len(briefs)})

    def _retry_storm(self, requests: dict[str, list[Event]]) -> Iterator[Finding]:
        """A request was tried again and again with at most one success."""
        for request, opened in requests.items():
            numbers = [event.handoff for event in opened if event.handoff is not None]
            if len(numbers) < _STORM_HANDOFFS:
                continue
            failed = [n for n in numbers if n in self.briefs and not self.briefs[n].succeeded]
            if len(numbers) - len(failed) <= 1:
                rows = tuple(event.seq for event in opened)
                text = f"request {request} was handed over {len(numbers)} times, {len(failed)} without success"
                sentence = cited(text, rows)
                yield Finding(
                    "retry_storm", Certainty.PROVED, tuple(map(self._name, numbers)), rows, sentence,
                    {"request": request, "handoffs": len(numbers), "failed": len(failed)},
                )  # fmt: skip

    def _retry_refused_early(self, requests: dict[str, list[Event]]) -> Iterator[Finding]:
        """A retry was refused while the attempt before it had delivered its completion and kept its permit (E22)."""
        kinds = (Kind.COMPLETION_DELIVERED.value, Kind.PERMIT_RETURNED.value)
        for brief in self.briefs.values():
            refused = next(iter(self.source.events(handoff=brief.number, kinds=(Kind.PERMIT_REFUSED.value,))), None)
            if refused is None or brief.request is None:
                continue
            for opened in requests.get(brief.request, ()):
                if opened.handoff in (None, brief.number):
                    continue
                told = list(self.source.events(handoff=opened.handoff, kinds=kinds))
                delivered = next((e for e in told if e.kind == Kind.COMPLETION_DELIVERED), None)
                returned = any(e.kind == Kind.PERMIT_RETURNED and e.seq < refused.seq for e in told)
                if delivered is not None and delivered.seq < refused.seq and not returned:
                    rows = (delivered.seq, refused.seq)
                    ago_ms = refused.at_ms - delivered.at_ms
                    text = f"a permit was refused; the attempt before had completed {ago_ms:g} ms ago and kept its own"
                    yield _between("retry_refused_early", (brief,), rows, text)

    # -- blocks ---------------------------------------------------------------------------------------

    def _unsafe_reuse(self, brief: Brief, write: OpenWrite) -> Iterator[Finding]:
        """Blocks that a transfer was writing to went to another handoff."""
        for event in self.source.events(first=brief.opened.seq, kinds=(Kind.RESOURCE.value,)):
            earliest = event.at_ms if event.at_min_ms is None else event.at_min_ms
            if earliest > write.until_ms:
                return
            given = resource_of(event) == "destination_blocks" and event.handoff not in (None, brief.number)
            if not given or pool_of(event) != write.pool:
                continue
            both = overlap(write.blocks, blocks_of(event))
            closed = None if write.closed is None else before(event, write.closed)
            certainty = certainty_of(before(write.freed, event), before(write.opened, event), closed)
            if both and certainty is not None and event.handoff is not None:
                ended = () if write.closed is None else (write.closed.seq,)
                rows = (write.opened.seq, write.freed.seq, event.seq, *ended)
                victim = self._name(event.handoff)
                yield Finding(
                    "unsafe_reuse",
                    certainty,
                    (brief.name, victim),
                    rows,
                    cited(
                        f"blocks {both} went to {victim} at {event.at_ms:g} ms while a transfer to them, from "
                        f"{write.opened.at_ms:g} to {write.until_ms:g} ms, was under way for {brief.name}",
                        rows,
                    ),
                    {"writer": brief.name, "owner": victim, "blocks": both},
                    None,
                    None if write.closed is not None else "the end of the write",
                )
                return


_WRONGED = frozenset({"release_not_applied", "lost_outcome", "lost_fact", "rendezvous_timeout", "orphan_rendezvous"})


def _resemblance(one: Brief, other: Brief) -> str | None:
    if one.room is not None and one.room == other.room:
        return "room"
    if one.request is not None and one.request == other.request:
        return "request"
    short, long = sorted((one.name, other.name), key=len)
    return "prefix" if len(short) >= 2 and long.startswith(short) else None


def _is_lost_to(finding: Finding, side: Side) -> bool:
    return finding.code == "lost_outcome" and finding.fields.get("side") == side.value


def _by_capacity(brief: Brief) -> bool:
    return any(wait.action == ActionName.ACTIVATE_DESTINATION and wait.holds is not None for wait in brief.waits)


def _does_not_fit(brief: Brief) -> bool:
    for event in brief.queued:
        extra = event.payload.get("extra") or {}
        need, free = extra.get("need"), extra.get("free")
        if isinstance(need, int) and isinstance(free, int) and need > free:
            return True
    return False


def _between(code: str, briefs: tuple[Brief, ...], rows: tuple[int, ...], sentence: str, **fields: Any) -> Finding:
    told = tuple(dict.fromkeys(rows))
    return Finding(code, Certainty.PROVED, tuple(b.name for b in briefs), told, cited(sentence, told), fields)
