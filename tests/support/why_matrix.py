"""What `why` says of every fault at every point of a live handoff, as the table in docs/why-matrix.md.

Run it to write the table anew: ``python tests/support/why_matrix.py``. It takes a minute, since each cell is a live
handoff that was struck.
"""

from pathlib import Path

from struck_runs import THINGS, struck_run

from handoff.engines.scenario import FaultDeed
from handoff.journal.event_source import EventList
from handoff.journal.examination import examine
from handoff.journal.ledger import Asset, Holding
from handoff.journal.postmortem import PostMortem, explain

PAGE = Path(__file__).parents[2] / "docs" / "why-matrix.md"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"


def examined(engine_type: str, deed: FaultDeed) -> tuple[dict[str, PostMortem | None], list[PostMortem]]:
    """The post-mortem of each struck handoff by what was struck (None: healthy), and those of any other handoff."""
    events = struck_run(engine_type, deed).events
    source = EventList(events)
    told = {each.chronicle.number: each for each in explain(source, examine(source))}
    struck = {event.payload["on"]: event.handoff for event in events if event.kind == "fault"}
    others = [each for number, each in told.items() if number not in struck.values()]
    return {on: told.get(number or 0) for on, number in struck.items()}, others


def is_a_duty(holding: Holding) -> bool:
    """Whether something is to be given up; a session that crashed is not."""
    return holding.asset is not Asset.SESSION


def cell(postmortem: PostMortem | None) -> str:
    """The root cause, and whose duty is left."""
    if postmortem is None:
        return "healthy"
    roots = ", ".join(finding.code for finding in postmortem.root_causes)
    left = [holding for side in postmortem.sides for holding in side.holds if holding.owed and is_a_duty(holding)]
    return roots + ("" if not left else f" ({', '.join(sorted({holding.duty for holding in left}))} owes)")


def table(engine_type: str) -> str:
    columns = list(FaultDeed)
    results = {deed: examined(engine_type, deed)[0] for deed in columns}
    head = "| struck | " + " | ".join(deed.value for deed in columns) + " |"
    rows = [f"| `{on}` | " + " | ".join(cell(results[deed][on]) for deed in columns) + " |" for on in THINGS]
    return "\n".join([f"### {engine_type}", "", head, "| --- " * (len(columns) + 1) + "|", *rows])


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table('vllm')}\n\n{table('sglang')}\n\n{END}{after}")
