"""A journal's incidents as one offline page: ladder, scrubber, ledger at each row, findings, search.

The page is one file without anything to load. It holds the handoffs that have findings, or those that are asked for; a
healthy million is not for a page. Rows are drawn as they scroll into view, so a handoff of thousands of rows scrolls
as one of three.
"""

import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from handoff.journal.event_source import EventSource, HandoffDeclaration
from handoff.journal.examination import examine
from handoff.journal.finding_codes import CODES
from handoff.journal.ladder import Lane, Rung, ladder_of
from handoff.journal.ledger import Asset
from handoff.journal.postings import Book
from handoff.journal.postmortem import PostMortem, explain

MOST_HANDOFFS = 500
"""A page holds no more handoffs than this; the summary says how many there are."""


def incident_page(source: EventSource, title: str, handoffs: Iterable[HandoffDeclaration] | None = None) -> str:
    """The page as text.

    Args:
        source: the journal.
        title: what the page is called, such as the journal's name.
        handoffs: which handoffs to show; by default those with findings, or the first ones if none has any.
    """
    chosen = None if handoffs is None else list(handoffs)
    examined = examine(source, only=[each.number for each in chosen or ()])
    told = list(explain(source, examined, chosen))
    if not told and chosen is None:
        told = list(explain(source, examined, [each for each, _ in zip(source.handoffs(), range(20), strict=False)]))
    total = sum(1 for _ in source.handoffs())
    shown = told[:MOST_HANDOFFS]
    troubled = sum(1 for postmortem in told if postmortem.findings)
    data = {
        "title": title,
        "summary": f"{troubled:,} of {total:,} handoffs have findings; {len(shown):,} shown",
        "handoffs": [_handoff(postmortem) for postmortem in shown],
    }
    template = files("handoff.journal").joinpath("incident_page.html").read_text(encoding="utf-8")
    # "</" would end the script element whatever stands around it
    return template.replace("__DATA__", json.dumps(data, ensure_ascii=False).replace("</", "<\\/"))


def _handoff(postmortem: PostMortem) -> dict[str, Any]:
    chronicle = postmortem.chronicle
    codes = sorted({finding.code for finding in postmortem.findings if finding.consequence_of is None})
    every = sorted({finding.code for finding in postmortem.findings})
    return {
        "name": chronicle.handoff_id,
        "phase": postmortem.phase,
        "codes": codes,
        "search": " ".join([chronicle.handoff_id, chronicle.request or "", *every]).lower(),
        "story": [*postmortem.sentences, *(side.sentence for side in postmortem.sides)],
        "findings": [
            {
                "code": finding.code,
                "certainty": finding.certainty.value,
                "root": finding.consequence_of is None,
                "rows": list(finding.rows),
                "sentence": finding.sentence,
                "remedy": CODES[finding.code].remedy,
            }
            for finding in postmortem.findings
        ],
        "rows": [_row(rung) for rung in ladder_of(chronicle)],
        "postings": _postings(postmortem),
    }


def _row(rung: Rung) -> dict[str, Any]:
    blocks = "" if rung.blocks is None else f"  blocks {' '.join(map(str, rung.blocks[:16]))}"
    text = rung.text + blocks
    wire = "" if rung.wire is None else f"{rung.wire} →" if rung.rightwards else f"← {rung.wire}"
    return {
        "seq": rung.event.seq,
        "at": f"{rung.event.at_ms:.3f}".rstrip("0").rstrip("."),
        "s": text if rung.lane in (Lane.SOURCE, Lane.BOTH) else "",
        "w": wire,
        "d": text if rung.lane is Lane.DESTINATION else "",
        "weight": rung.weight.value,
        "title": f"row {rung.event.seq}: {rung.event.kind}",
    }


def _postings(postmortem: PostMortem) -> list[dict[str, Any]]:
    book = Book()
    told = []
    homes: dict[str, str] = {}
    for event in postmortem.chronicle.events:
        for posting in book.post(event):
            own = posting.asset in (Asset.SESSION, Asset.PERMIT)
            key = f"{posting.asset}/{event.actor}" if own else posting.asset.value
            homes.setdefault(key, posting.giver)
            told.append(
                {
                    "seq": posting.seq,
                    "key": key,
                    "asset": posting.asset.value.replace("_", " "),
                    "to": posting.taker,
                    "home": homes[key],
                    "amount": posting.blocks,
                }
            )
    return told
