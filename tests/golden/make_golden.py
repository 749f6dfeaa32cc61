"""Makes the golden journals of the current format version anew.

    PYTHONPATH=tests/support python tests/golden/make_golden.py

Once a version is released, its golden journals are never made again: they are what users have on their disks. Until
then, run this after a change of the format.
"""

from pathlib import Path

from journal_files import sync_journal
from recorded_handoffs import record_six

from handoff.journal.event import COLUMNS
from handoff.journal.event_lines import LineWriter
from handoff.journal.reader import JournalReader
from handoff.journal.schema import FORMAT_VERSION
from handoff.journal.terms import TERM_CODE, EndState
from handoff.journal.vocabulary import ActionName

HERE = Path(__file__).parent
PAGE_BYTES = 512
DIVERGES_AT_NAME = (TERM_CODE[ActionName.START_TRANSFER], TERM_CODE[ActionName.ACTIVATE_DESTINATION])


def main() -> None:
    """Write the journal, the one that diverges, and the rows of the first as event lines."""
    sound = HERE / f"version{FORMAT_VERSION}.journal"
    diverging = HERE / f"version{FORMAT_VERSION}-diverging.journal"
    for path in (sound, diverging):
        for side in ("", "-receipt"):
            path.with_name(path.name + side).unlink(missing_ok=True)
    with sync_journal(sound, PAGE_BYTES) as journal:
        journal.begin_run(tool="golden", wall_ns=1_700_000_000_000_000_000, scenario={"seed": 7, "share": float("inf")})
        record_six(journal)
        journal.end_run(EndState.FINISHED, 50.0)
    with JournalReader(sound) as reader:
        writer = LineWriter()
        lines = [writer.line(event) for event in reader.events()]
        rows = list(reader.rows())
    (HERE / f"version{FORMAT_VERSION}.jsonl").write_text("\n".join(lines) + "\n")
    name = COLUMNS.index("name")
    recorded, falsified = DIVERGES_AT_NAME
    at = next(index for index, row in enumerate(rows) if row[name] == recorded)
    rows[at] = (*rows[at][:name], falsified, *rows[at][name + 1 :])
    with sync_journal(diverging, PAGE_BYTES) as journal:
        journal.append_rows(rows)


if __name__ == "__main__":
    main()
