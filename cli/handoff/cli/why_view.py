"""How a post-mortem looks on a terminal."""

import re
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from handoff.cli.output import counted
from handoff.journal.finding import Finding
from handoff.journal.finding_codes import CODES
from handoff.journal.postmortem import PostMortem

_CITATION = re.compile(r"\[#\d+\]")


def why_view(
    examined: Sequence[PostMortem], total: int, elsewhere: Sequence[Finding] = (), still_open: int = 0
) -> RenderableType:
    """What is wrong beside all handoffs, each post-mortem in turn, then how often each root cause came up.

    Args:
        examined: the post-mortems.
        total: how many handoffs were examined.
        elsewhere: the findings about no handoff.
        still_open: how many of the handoffs have no end because the journal ends before them.
    """
    parts: list[RenderableType] = [_finding(finding, root=True) for finding in elsewhere]
    for postmortem in sorted(examined, key=_cause):
        parts += [_postmortem(postmortem), Text()]
    summary = _summary(examined, total)
    if still_open:
        summary.append(
            f"\n{counted(still_open, 'handoff')} without an end: the journal stops before it.", style="yellow"
        )
    parts.append(summary)
    return Group(*parts)


def _cause(postmortem: PostMortem) -> tuple[int, str]:
    """Handoffs of one cause stand together, the deepest causes first; within it the order of the journal stays."""
    codes = [finding.code for finding in postmortem.root_causes]
    return (CODES[codes[0]].tier, codes[0]) if codes else (len(CODES), "")


def _postmortem(postmortem: PostMortem) -> Group:
    chronicle = postmortem.chronicle
    heading = Text.assemble((chronicle.handoff_id, "bold"), f"  {postmortem.phase}")
    if chronicle.request:
        heading.append(f"  request {chronicle.request}", style="dim")
    parts: list[RenderableType] = [heading]
    if postmortem.healthy:
        parts.append(Padding(Text("nothing is wrong with it", style="green"), (0, 0, 0, 2), expand=False))
    for index, finding in enumerate(postmortem.findings):
        if finding.consequence_of is None:
            parts.append(_finding(finding, root=True))
            next_step = Text(f"next: {CODES[finding.code].remedy}", style="green")
            parts.append(Padding(next_step, (0, 0, 0, 4), expand=False))
            parts += [_finding(other, root=False) for other in postmortem.findings if other.consequence_of == index]
    story = [*postmortem.sentences, *(side.sentence for side in postmortem.sides)]
    parts += [Padding(_cited(sentence), (0, 0, 0, 4), expand=False) for sentence in story]
    return Group(*parts)


def _finding(finding: Finding, *, root: bool) -> Padding:
    mark, style = ("■ ", "bold red") if root else ("└ ", "yellow")
    text = Text.assemble((finding.code, style), "  ", _cited(finding.sentence))
    if finding.certainty != "proved":
        text.append(f"  {finding.certainty}", style="magenta")
    if finding.would_settle:
        text.append(f"; to settle it: {finding.would_settle}", style="dim")
    marked = Table.grid()
    marked.add_row(Text(mark, style), text)
    return Padding(marked, (0, 0, 0, 2 if root else 4), expand=False)


def _cited(sentence: str) -> Text:
    text = Text(sentence)
    text.highlight_regex(_CITATION, "cyan")
    return text


def _summary(examined: Sequence[PostMortem], total: int) -> Text:
    troubled = [postmortem for postmortem in examined if not postmortem.healthy]
    if not troubled:
        return Text(f"{counted(total, 'handoff')} examined: nothing is wrong.", style="green")
    roots = {(f.code, f.handoffs, f.rows) for postmortem in troubled for f in postmortem.root_causes}
    causes = Counter(code for code, _, _ in roots)
    text = Text(f"{len(troubled):,} of {total:,} handoffs with findings; root causes: ", style="bold")
    text.append(", ".join(f"{code} {count}" for code, count in sorted(causes.items(), key=lambda c: (-c[1], c[0]))))
    return text
