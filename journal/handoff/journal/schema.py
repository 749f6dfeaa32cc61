"""The tables and views of a journal file, format version 1.

``row`` is the log; everything else can be derived from it. ``term`` gives the words behind the numbers; ``run``,
``handoff``, ``actor`` and ``source`` repeat what the declaring rows say, so that SQL need not parse JSON; ``chain``
holds the digests. The writer fills the derived tables in the transaction of the declaring row, through the same
function (`declaration`) by which ``verify`` checks them and ``salvage`` rebuilds them.

The views (`views`) are plain SQL without functions of ours, so sqlite3, sqlite-utils and Datasette read them. The text
of the whole schema is part of the format: ``verify`` compares it to the letter.

Triggers refuse UPDATE and DELETE. They stop accidents, not INSERT OR REPLACE; what gets past them the chain finds.
The only index would be on ``handoff``. It would cost a third of the write rate, and a scan reads a million rows in a
fraction of a second, so there is none.
"""

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

from handoff.journal.event import payload_from_json
from handoff.journal.port import Row
from handoff.journal.terms import TERM_CODE, TERMS, Kind
from handoff.journal.views import VIEWS

APPLICATION_ID = 0x484E4446
"""``HNDF``: what SQLite's header says about whose file it is."""

FORMAT_VERSION = 1
"""SQLite's user_version of the files that this code writes."""

_ROW = """CREATE TABLE row (
  seq INTEGER PRIMARY KEY,
  grp INTEGER NOT NULL,
  run INTEGER NOT NULL,
  handoff INTEGER,
  actor INTEGER,
  source INTEGER,
  at_ms REAL NOT NULL,
  at_min_ms REAL,
  at_max_ms REAL,
  kind INTEGER NOT NULL,
  name INTEGER,
  action_id INTEGER,
  outcome INTEGER,
  verdict INTEGER,
  cause INTEGER,
  rank INTEGER,
  generation INTEGER,
  attempt INTEGER,
  payload TEXT
) STRICT"""

_TERM = """CREATE TABLE term (
  code INTEGER PRIMARY KEY,
  word TEXT NOT NULL
) STRICT"""

_RUN = """CREATE TABLE run (
  seq INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  mark TEXT NOT NULL,
  tool TEXT,
  wall_ns INTEGER,
  clock TEXT,
  trace_digest TEXT,
  state TEXT,
  reason TEXT
) STRICT"""

_HANDOFF = """CREATE TABLE handoff (
  handoff INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  handoff_id TEXT NOT NULL,
  handoff_order TEXT,
  engine_type TEXT,
  request TEXT,
  room TEXT,
  attempt INTEGER,
  parent_request TEXT
) STRICT"""

_ACTOR = """CREATE TABLE actor (
  actor INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  handoff INTEGER,
  kind TEXT NOT NULL,
  label TEXT NOT NULL,
  parent INTEGER
) STRICT"""

_SOURCE = """CREATE TABLE source (
  source INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  name TEXT NOT NULL,
  role TEXT,
  engine_type TEXT,
  engine_version TEXT,
  clock TEXT,
  resolution_ms REAL
) STRICT"""

_CHAIN = """CREATE TABLE chain (
  seq INTEGER PRIMARY KEY,
  digest BLOB NOT NULL
) STRICT"""

TABLES: dict[str, str] = {
    "row": _ROW, "term": _TERM, "run": _RUN, "handoff": _HANDOFF, "actor": _ACTOR, "source": _SOURCE, "chain": _CHAIN,
}  # fmt: skip


_REFUSALS = {
    (table, f"{table}_is_not_{past}"): f"CREATE TRIGGER {table}_is_not_{past} BEFORE {verb} ON {table}\n"
    f"BEGIN SELECT raise(ABORT, 'a journal is only ever appended to: {table} cannot be {past}'); END"
    for table in TABLES
    for verb, past in (("UPDATE", "changed"), ("DELETE", "deleted"))
}
TRIGGERS: dict[str, str] = {name: text for (_, name), text in _REFUSALS.items()}

SCHEMA: dict[str, str] = {**TABLES, **VIEWS, **TRIGGERS}
"""Every object of the schema and its text, in the order of creation."""

_MASTER = {
    **{name: ("table", name, name, text) for name, text in TABLES.items()},
    **{name: ("view", name, name, text) for name, text in VIEWS.items()},
    **{name: ("trigger", name, table, text) for (table, name), text in _REFUSALS.items()},
}
"""What SQLite keeps of each object: its type, its name, the table that it belongs to, and its text."""


def create_schema(connection: sqlite3.Connection) -> None:
    """Fill an empty database with the tables, views, triggers and words of this version, in one transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    for statement in SCHEMA.values():
        connection.execute(statement)
    add_terms(connection, known=0)
    connection.execute("COMMIT")


def add_terms(connection: sqlite3.Connection, known: int) -> None:
    """Store the words that came after the first `known` ones."""
    words = enumerate(TERMS[known:], start=known + 1)
    connection.executemany("INSERT INTO term VALUES (?, ?)", words)


def schema_differences(connection: sqlite3.Connection) -> list[str]:
    """The objects that are not those of this version to the letter, are missing, or are not ours."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY rowid"
    stored = {line[1]: line for line in connection.execute(query)}
    names = [name for name, line in _MASTER.items() if stored.get(name) != line]
    return names + sorted(stored.keys() - _MASTER.keys(), key=str)


_MARKS = {
    TERM_CODE[Kind.RUN_STARTED]: "started",
    TERM_CODE[Kind.RUN_RESUMED]: "resumed",
    TERM_CODE[Kind.RUN_ENDED]: "ended",
}
_OPENED = TERM_CODE[Kind.HANDOFF_OPENED]
_STARTED = TERM_CODE[Kind.ACTOR_STARTED]
_DECLARED = TERM_CODE[Kind.SOURCE_DECLARED]

DECLARING = frozenset((*_MARKS, _OPENED, _STARTED, _DECLARED))
"""Numbers of the kinds whose rows have a line in a derived table."""

DERIVED: dict[str, int] = {"run": 9, "handoff": 10, "actor": 7, "source": 9}
"""The derived tables, and how many columns each has."""

_FIELDS = {
    "run": ("tool", "wall_ns", "clock", "trace_digest"),
    "handoff": ("order", "engine_type", "request", "room", "attempt", "parent_request"),
    "source": ("role", "engine_type", "engine_version", "clock", "resolution_ms"),
}


def declaration(row: Row) -> tuple[str, tuple[Any, ...]]:
    """The derived table, and its line, that a declaring row stands for.

    Args:
        row: a stored row whose kind is one of `DECLARING`.

    Raises:
        ValueError, KeyError, TypeError: the payload is not what its kind promises.
    """
    seq, _, run, handoff, _, source, _, _, _, kind, name, _, _, _, _, _, _, attempt, text = row
    payload = {} if text is None else payload_from_json(text)
    if kind in _MARKS:
        state = None if name is None else TERMS[name - 1]
        kept = (payload.get(field) for field in _FIELDS["run"])
        return "run", (seq, run, _MARKS[kind], *kept, state, payload.get("reason"))
    if kind == _OPENED:
        payload["attempt"] = attempt
        return "handoff", (
            handoff, run, seq, payload["handoff_id"], *(payload.get(field) for field in _FIELDS["handoff"]),
        )  # fmt: skip
    if kind == _STARTED:
        return "actor", (
            payload["actor"], run, seq, handoff, payload["kind"], payload["label"], payload.get("parent"),
        )  # fmt: skip
    assert kind == _DECLARED
    return "source", (
        source, run, seq, payload["source"], *(payload.get(field) for field in _FIELDS["source"]),
    )  # fmt: skip


def _shown(value: Any) -> Any:
    """A value as a derived table holds it: text that has no UTF-8 with question marks for what cannot be shown."""
    return value.encode(errors="replace").decode() if isinstance(value, str) and not value.isascii() else value


@cache
def insert_statement(table: str, columns: int) -> str:
    """The statement that stores one line of a table."""
    return f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"  # noqa: S608 our own names


def derived_lines(rows: Sequence[Row]) -> dict[str, list[tuple[Any, ...]]]:
    """The lines of derived tables that these rows stand for, by table and in order."""
    lines: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        if row[9] in DECLARING:
            table, line = declaration(row)
            lines.setdefault(table, []).append(tuple(map(_shown, line)))
    return lines
