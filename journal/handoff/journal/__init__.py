"""What happened: the coordinator, the log, and everything that is read out of it.

The names that people need, each loaded when it is first asked for, so that importing one room does not open the whole
house:

* write a journal: `Journal` (Trio), `SyncJournal` (one thread), `Recorder` (any thread or framework)
* read it: `JournalReader`, whose `events` yields an `Event` a row; `verify_journal`, `salvage_journal`
* decide and re-decide: `Coordinator`, `replay`
* understand it: `keep_books` (the ledger), `examine` and `why` (findings and post-mortems), `list_handoffs`
* carry it elsewhere: `import_lines`, `export_lines`, `read_fixture`

Example:
    >>> from handoff.journal import JournalReader, replay
    >>> def agrees(path: str) -> bool:
    ...     with JournalReader(path) as journal:
    ...         return replay(journal).agrees
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handoff.journal.coordinator import Coordinator as Coordinator
    from handoff.journal.durable_journal import Journal as Journal
    from handoff.journal.event import Event as Event
    from handoff.journal.examination import examine as examine
    from handoff.journal.exporter import export_lines as export_lines
    from handoff.journal.fixture import read_fixture as read_fixture
    from handoff.journal.handoff_list import list_handoffs as list_handoffs
    from handoff.journal.importer import import_lines as import_lines
    from handoff.journal.postings import keep_books as keep_books
    from handoff.journal.postmortem import why as why
    from handoff.journal.reader import JournalReader as JournalReader
    from handoff.journal.receipt import Durability as Durability
    from handoff.journal.recorder import Recorder as Recorder
    from handoff.journal.replay_report import Tier as Tier
    from handoff.journal.replayer import replay as replay
    from handoff.journal.salvage import salvage_journal as salvage_journal
    from handoff.journal.sync_journal import SyncJournal as SyncJournal
    from handoff.journal.verify import verify_journal as verify_journal

_ROOMS = {
    "Coordinator": "coordinator",
    "Durability": "receipt",
    "Event": "event",
    "Journal": "durable_journal",
    "JournalReader": "reader",
    "Recorder": "recorder",
    "SyncJournal": "sync_journal",
    "Tier": "replay_report",
    "examine": "examination",
    "export_lines": "exporter",
    "import_lines": "importer",
    "keep_books": "postings",
    "list_handoffs": "handoff_list",
    "read_fixture": "fixture",
    "replay": "replayer",
    "salvage_journal": "salvage",
    "verify_journal": "verify",
    "why": "postmortem",
}
"""In which module each public name lives. No name may also be a module's: the module would hide it."""

__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)
