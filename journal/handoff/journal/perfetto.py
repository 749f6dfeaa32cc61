"""A journal as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: what ran where, and what led to what.

Each worker is a process, each handoff that it served a track in it: prefill, hold and transfer at the source, the wait
for the reservation, the reserved time and the decode at the destination. Arrows follow a handoff from the end of its
prefill to its reservation and from its transfer to its activation. What is wrong is an instant with the finding's
sentence. Written handoff by handoff in the trace event format, so a long journal needs no more memory than its
longest handoff. Times are microseconds since the run's start.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from attrs import define, field

from handoff.journal.chronicle import SIDE_OF_ACTION, Chronicle, Role, chronicles
from handoff.journal.event import Event
from handoff.journal.event_source import EventSource
from handoff.journal.examination import Examination, examine
from handoff.journal.terms import Kind
from handoff.journal.vocabulary import ActionName, FactName, Side

TraceEvent = Mapping[str, Any]


@define
class PerfettoWriter:
    """Writes the trace events of handoffs, one handoff after the other.

    Attributes:
        examined: the findings to mark.
    """

    examined: Examination
    _processes: dict[str, int] = field(factory=dict)
    _flows: int = 0

    def events(self, chronicle: Chronicle) -> Iterator[TraceEvent]:
        """The events of one handoff."""
        pids = {}
        for side in Side:
            name = self._worker(chronicle, side)
            if name not in self._processes:
                self._processes[name] = len(self._processes) + 1
                yield _named("process_name", self._processes[name], 0, name)
            pids[side] = self._processes[name]
            yield _named("thread_name", pids[side], chronicle.number, chronicle.handoff_id)
        spans = _spans(chronicle)
        for side, name, begin_ms, end_ms, arguments in spans:
            yield {
                "ph": "X", "cat": "handoff", "name": name, "pid": pids[side], "tid": chronicle.number,
                "ts": begin_ms * 1000.0, "dur": (end_ms - begin_ms) * 1000.0, "args": dict(arguments),
            }  # fmt: skip
        yield from self._arrows(pids, chronicle, {name: (begin, end) for _, name, begin, end, _ in spans})
        yield from self._marks(pids, chronicle)

    def _worker(self, chronicle: Chronicle, side: Side) -> str:
        for actor, role in chronicle.roles.items():
            if role is Role(side.value) and chronicle.labels.get(actor):
                return chronicle.labels[actor]
        return side.value

    def _arrows(
        self, pids: Mapping[Side, int], chronicle: Chronicle, spans: Mapping[str, tuple[float, float]]
    ) -> Iterator[TraceEvent]:
        source, destination = (pids[Side.SOURCE], chronicle.number), (pids[Side.DESTINATION], chronicle.number)
        links = (
            ("prefill", source, "reserved", destination),
            ("transfer", source, "decode", destination),
        )
        for from_span, (from_pid, from_tid), to_span, (to_pid, to_tid) in links:
            if from_span not in spans or to_span not in spans:
                continue
            self._flows += 1
            common = {"cat": "handoff", "name": chronicle.handoff_id, "id": self._flows}
            yield {**common, "ph": "s", "pid": from_pid, "tid": from_tid, "ts": spans[from_span][1] * 1000.0}
            yield {**common, "ph": "f", "bp": "e", "pid": to_pid, "tid": to_tid, "ts": spans[to_span][0] * 1000.0}

    def _marks(self, pids: Mapping[Side, int], chronicle: Chronicle) -> Iterator[TraceEvent]:
        by_seq: dict[int, Event] = {event.seq: event for event in chronicle.events}
        for finding in self.examined.about(chronicle.handoff_id):
            row = next((by_seq[seq] for seq in reversed(finding.rows) if seq in by_seq), None)
            if row is None:
                continue
            side = SIDE_OF_ACTION.get(str(row.name), Side.SOURCE)
            yield {
                "ph": "i", "s": "t", "cat": "finding", "name": finding.code, "pid": pids[side],
                "tid": chronicle.number, "ts": row.at_ms * 1000.0,
                "args": {"sentence": finding.sentence, "root": finding.consequence_of is None, "row": row.seq},
            }  # fmt: skip


Span = tuple[Side, str, float, float, Mapping[str, Any]]


def _spans(chronicle: Chronicle) -> list[Span]:
    """What a handoff spent its time with, as far as rows tell of both ends; open ends reach to its last row."""
    end = chronicle.last_event.at_ms
    moments = _moments(chronicle)
    given_up = _first(moments, "answer:release_source", "answer:cancel_source")
    canceled = _first(moments, "answer:cancel_destination")
    finished = [event.at_ms for event in chronicle.resources("destination_finished")]
    finished += [event.at_ms for event in chronicle.of(Role.WORKER, Kind.ENGINE_FINISHED) if event.name == "completed"]
    ended = max(finished, default=canceled)
    timing = {} if chronicle.core is None or chronicle.core.transferable_prompt_tokens is None else {
        "transferable_prompt_tokens": chronicle.core.transferable_prompt_tokens
    }  # fmt: skip
    wanted: tuple[tuple[Side, str, float | None, float | None, Mapping[str, Any]], ...] = (
        (Side.SOURCE, "prefill", moments["order:submit_prefill"], moments["fact:source_held"], {}),
        (Side.SOURCE, "held", moments["fact:source_held"], given_up, {}),
        (Side.SOURCE, "transfer", moments["answer:start_transfer"], moments["fact:transfer_completed"], timing),
        (
            Side.DESTINATION, "waiting for blocks", moments["order:reserve_destination"],
            moments["fact:destination_reserved"], {},
        ),
        (
            Side.DESTINATION, "reserved", moments["fact:destination_reserved"],
            _first(moments, "answer:activate_destination") or canceled, {},
        ),
        (Side.DESTINATION, "decode", moments["answer:activate_destination"], ended, {}),
    )  # fmt: skip
    return [
        (side, name, begin, max(begin, end if until is None else until), arguments)
        for side, name, begin, until, arguments in wanted
        if begin is not None
    ]


def _moments(chronicle: Chronicle) -> dict[str, float | None]:
    """When each action was ordered and answered, and each fact taken; None where it was not."""
    moments: dict[str, float | None] = {}
    for name in ActionName:
        record = chronicle.action(name)
        moments[f"order:{name}"] = None if record is None else record.at_ms
        moments[f"answer:{name}"] = None if record is None or record.outcome is None else record.outcome.at_ms
    for fact in FactName:
        offer = chronicle.fact(fact)
        moments[f"fact:{fact}"] = None if offer is None else offer.at_ms
    return moments


def _first(moments: Mapping[str, float | None], *names: str) -> float | None:
    return next((moments[name] for name in names if moments[name] is not None), None)


def _named(what: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def export_perfetto(source: EventSource, to: TextIO) -> int:
    """Write a journal as a trace; gives the number of trace events."""
    writer = PerfettoWriter(examine(source))
    count = 0
    to.write('{"displayTimeUnit":"ms","traceEvents":[')
    for chronicle in chronicles(source, source.handoffs()):
        for event in writer.events(chronicle):
            to.write(("," if count else "") + "\n" + json.dumps(event, ensure_ascii=False))
            count += 1
    to.write("\n]}\n")
    return count
