"""The page of all finding codes, docs/findings.md: its table is made from the codes themselves.

Run it to write the table anew: ``python tests/support/codes_page.py``.
"""

from pathlib import Path

from handoff.journal.finding_codes import CODES, Tier

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
BEGIN, END = "<!-- codes -->", "<!-- /codes -->"
HEADINGS = {
    Tier.IDENTITY: "Names and places: they look like a leak on one side and a hang on the other",
    Tier.PEER: "Peers and pools: these silence many handoffs at once",
    Tier.STEP: "Steps: something went wrong within one handoff",
    Tier.AFTERMATH: "Aftermath: what is left behind",
    Tier.END: "Mere ends: told only when nothing else is wrong",
}


def table() -> str:
    parts = []
    for tier, heading in HEADINGS.items():
        rows = [
            f"| `{code}` | {entry.title} | {entry.meaning} | {entry.remedy} |"
            for code, entry in CODES.items()
            if entry.tier is tier
        ]
        head = "| code | in short | meaning | what to do |\n| --- | --- | --- | --- |"
        parts.append("\n".join([f"### {heading}", "", head, *rows]))
    return "\n\n".join(parts)


def page_with_table(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
