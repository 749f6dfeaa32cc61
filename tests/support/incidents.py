"""The incident fixtures under tests/fixtures/incidents, and small ways to write event lines."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from handoff.journal.event_source import EventList
from handoff.journal.importer import ImportReport, import_lines
from handoff.journal.port import MemoryJournal

INCIDENTS = Path(__file__).parent.parent / "fixtures" / "incidents"


def incident_paths() -> list[Path]:
    """Every incident file, by name."""
    return sorted(INCIDENTS.glob("*.json"))


def written(path: Path, lines: Iterable[Mapping[str, Any] | str]) -> Path:
    """A file of event lines; text goes in as it is."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


def imported(*paths: Path, end_ms: float | None = None) -> tuple[MemoryJournal, ImportReport]:
    """The files imported into a journal in memory."""
    journal = MemoryJournal(run=0)
    return journal, import_lines(paths, journal, end_ms=end_ms)


def rows_of(journal: MemoryJournal) -> EventList:
    """The journal's rows, for readers."""
    return EventList(journal.events)


def healthy_lines(handoff: str, at_ms: float = 0.0, **opened: Any) -> list[dict[str, Any]]:
    """A source-first handoff that goes well, as one observer writes it down."""
    timing = {"mode": "full_prompt", "full_prompt_tokens": 8, "kv_bytes_per_token": 1000000, "bandwidth_gb_s": 1.0}
    steps: Sequence[tuple[float, dict[str, Any]]] = (
        (0.0, {"open": {"order": "source_first", "engine_type": "vllm", **opened}}),
        (0.0, {"action": "submit_prefill", "id": 0}),
        (0.2, {"outcome": "submitted", "id": 0}),
        (5.0, {"resource": "source_held", "blocks": [0, 1]}),
        (5.0, {"fact": "source_held", "transfer_timing": timing}),
        (5.0, {"action": "reserve_destination", "id": 1}),
        (5.2, {"outcome": "accepted", "id": 1}),
        (5.4, {"resource": "destination_blocks", "blocks": [0, 1]}),
        (5.4, {"fact": "destination_reserved", "transferable_prompt_tokens": 8}),
        (5.5, {"action": "start_transfer", "id": 2, "delay_ms": 8.0}),
        (5.5, {"outcome": "scheduled", "id": 2}),
        (13.5, {"fact": "transfer_completed"}),
        (13.5, {"action": "activate_destination", "id": 3}),
        (13.7, {"outcome": "applied", "id": 3}),
        (13.8, {"action": "release_source", "id": 4}),
        (13.9, {"resource": "source_freed", "blocks": [0, 1]}),
        (14.0, {"outcome": "applied", "id": 4}),
        (14.0, {"action": "complete", "id": 5}),
        (17.0, {"resource": "destination_finished", "blocks": [0, 1]}),
    )
    return [{"at_ms": at_ms + moment, "handoff": handoff, **fields} for moment, fields in steps]


def many_healthy(count: int) -> list[dict[str, Any]]:
    """Healthy handoffs that overlap and use each other's blocks again as soon as they are free."""
    lines = []
    for number in range(count):
        first = 2 * (number % 4)
        for line in healthy_lines(f"h{number}", number * 4.7, request=f"r{number}", attempt=1):
            if "blocks" in line:
                line["blocks"] = [first, first + 1]
            lines.append(line)
    return sorted(lines, key=lambda line: line["at_ms"])
