"""Rules about content: blocks that were freed or given away while a transfer used them.

These are the silent failures: the answer looks normal and is wrong. Only rows that carry block ids, or at least say
when blocks were held and freed, can prove them. The transfer's window is from its scheduling to its completion.
"""

from collections.abc import Iterator

from handoff.journal.case import Case, window_of
from handoff.journal.event import Event
from handoff.journal.finding import Finding
from handoff.journal.row_order import before, certainty_of
from handoff.journal.terms import Kind
from handoff.journal.vocabulary import ActionName, FactName, OutcomeName


def source_freed_during_transfer(case: Case) -> Iterator[Finding]:
    """The source's blocks were freed between the transfer's scheduling and its completion."""
    window = window_of(case)
    if window is None or window.closed is None:
        return
    for event in case.annotated("source_freed"):
        if _released_in_order(case, event):
            continue
        certainty = certainty_of(before(window.opened, event), before(event, window.closed))
        if certainty is not None:
            yield case.finding(
                "source_freed_during_transfer",
                [event.seq, window.opened.seq, window.closed.seq],
                f"the source's blocks were freed at {event.at_ms:g} ms, inside the transfer from "
                f"{window.opened.at_ms:g} to {window.closed.at_ms:g} ms",
                certainty,
                blocks=event.payload.get("blocks"),
            )
            return


def _released_in_order(case: Case, freed: Event) -> bool:
    """Whether a release, which is only ordered after the completion, may have freed the blocks."""
    release = case.chronicle.action(ActionName.RELEASE_SOURCE)
    return release is not None and before(case.by_seq[release.seq], freed) is not False


def stale_source_read(case: Case) -> Iterator[Finding]:
    """The transfer began or ended after the source's hold was over by its lease."""
    window = window_of(case)
    if window is None or window.closed is None:
        return
    for event in case.annotated("source_lease_expired"):
        certainty = certainty_of(before(event, window.closed))
        if certainty is not None:
            yield case.finding(
                "stale_source_read",
                [event.seq, window.opened.seq, window.closed.seq],
                f"the hold ended at {event.at_ms:g} ms, and the transfer from {window.opened.at_ms:g} to "
                f"{window.closed.at_ms:g} ms read its blocks all the same",
                certainty,
                blocks=event.payload.get("blocks"),
            )
            return


def re_request_after_release(case: Case) -> Iterator[Finding]:
    """A destination reserved again after the source had been released."""
    released = case.outcome_row(case.chronicle.action(ActionName.RELEASE_SOURCE))
    if released is None or released.outcome not in (OutcomeName.APPLIED, OutcomeName.NOOP):
        return
    again = [
        *case.annotated("destination_blocks", "reserve_requested"),
        *(event for event in case.fact_rows if event.name == FactName.DESTINATION_RESERVED),
    ]
    for event in sorted(again, key=lambda row: row.seq):
        if before(released, event) is True:
            yield case.finding(
                "re_request_after_release",
                [released.seq, event.seq],
                f"a reservation followed {event.at_ms - released.at_ms:g} ms after the source had been released",
            )
            return


def stale_peer_generation(case: Case) -> Iterator[Finding]:
    """The engine that transfers is another process than the one that was reserved with."""
    seen: dict[str, tuple[object, Event]] = {}
    for event in case.chronicle.events:
        for side, generation in _generations(case, event):
            known = seen.setdefault(side, (generation, event))
            if known[0] != generation:
                yield case.finding(
                    "stale_peer_generation",
                    [known[1].seq, event.seq],
                    f"the {side}'s engine was generation {known[0]}, and then {generation}",
                    side=side,
                    expected=str(known[0]),
                    actual=str(generation),
                )
                return


def _generations(case: Case, event: Event) -> Iterator[tuple[str, object]]:
    """The engine generations that a row tells of, by side."""
    if event.kind not in (Kind.RESOURCE, Kind.FACT_APPLIED, Kind.FACT_IGNORED, Kind.FACT_OBSERVED):
        return
    if event.payload_json is not None and "_engine_generation" in event.payload_json:
        for side in ("source", "destination"):
            generation = case.said(event, f"{side}_engine_generation")
            if generation is not None:
                yield side, generation
    if event.generation is not None:
        word = str(event.name or event.payload.get("resource"))
        yield ("destination" if word.startswith("destination") else "source"), event.generation


def wrong_rank(case: Case) -> Iterator[Finding]:
    """The room implies one data-parallel rank, and another one served the handoff."""
    opened = case.chronicle.events[0]
    room, size = opened.payload.get("room"), case.said(opened, "dp_size")
    if not isinstance(size, int) or size < 1 or room is None or not str(room).isdigit():
        return
    implied = int(room) % size
    for event in case.chronicle.events:
        rank = case.said(event, "dp_rank") if event.payload_json and "dp_rank" in event.payload_json else None
        if isinstance(rank, int) and rank != implied:
            yield case.finding(
                "wrong_rank",
                [opened.seq, event.seq],
                f"room {room} implies rank {implied} of {size}, and rank {rank} served it",
                implied=implied,
                actual=rank,
            )
            return


def never_fits(case: Case) -> Iterator[Finding]:
    """The request needs more blocks than the pool has."""
    for event in case.annotated("destination_queued", "source_queued", "rejected"):
        need, have = case.said(event, "need"), case.said(event, "pool")
        if isinstance(need, int) and isinstance(have, int) and need > have:
            sentence = f"it needs {need} blocks and the pool has {have}"
            yield case.finding("never_fits", [event.seq], sentence, need=need, have=have)
            return


def silent_fallback(case: Case) -> Iterator[Finding]:
    """The prompt was computed locally although the handoff was due."""
    for event in case.annotated("computed_locally")[:1]:
        tokens = case.said(event, "tokens")
        how_much = "" if tokens is None else f" ({tokens} tokens)"
        yield case.finding("silent_fallback", [event.seq], f"the destination computed the prompt itself{how_much}")
