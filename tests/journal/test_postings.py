"""Ownership as double entries: what is taken is given up, and nobody owns what another has."""

import json

import pytest
from incidents import healthy_lines, imported, incident_paths, rows_of, written

from handoff.journal.ledger import Asset
from handoff.journal.postings import Book, ImbalanceKind, keep_books, postings_of


@pytest.mark.parametrize("path", incident_paths(), ids=lambda path: path.stem.partition("_")[0])
def test_after_every_row_what_is_out_is_what_was_taken_and_not_given_up(path):
    journal, _ = imported(path)
    book = Book()
    for event in journal.events:
        book.post(event)
        out = dict.fromkeys(Asset, 0)
        for holding in book.ledger.holdings():
            out[holding.asset] += 1
        assert out == {asset: taken - given for asset, (taken, given) in book.turnover.items()}


@pytest.mark.parametrize("path", incident_paths(), ids=lambda path: path.stem.partition("_")[0])
def test_the_books_of_an_incident_balance_when_it_says_that_nothing_is_left(path):
    fixture = json.loads(path.read_text())
    book = keep_books(rows_of(imported(path, end_ms=fixture["end_ms"])[0]))
    held = {h.handoff for h in book.ledger.holdings() if h.blocks is not None and h.owed}
    assert bool(held) is bool(fixture["source_held"] or fixture["destination_held"])


def test_the_postings_of_a_handoff_tell_its_life(tmp_path):
    journal, _ = imported(written(tmp_path / "a.jsonl", healthy_lines("h1")))
    told = [(p.asset.value, p.giver, p.taker) for p in postings_of(rows_of(journal), 1)]
    assert told == [
        ("source_kv", "source pool", "handoff?"),
        ("source_kv", "handoff?", "handoff"),
        ("destination_kv", "destination pool", "handoff?"),
        ("destination_kv", "handoff?", "handoff"),
        ("transfer", "transport", "handoff"),
        ("transfer", "handoff", "transport"),
        ("destination_kv", "handoff", "decode"),
        ("source_kv", "handoff", "source pool"),
        ("destination_kv", "decode", "destination pool"),
    ]
    assert keep_books(rows_of(journal)).balanced()


def test_blocks_that_two_handoffs_own_are_an_imbalance(tmp_path):
    lines = [*healthy_lines("h1")[:9], *healthy_lines("h2", 1.0)[:9]]
    book = keep_books(rows_of(imported(written(tmp_path / "a.jsonl", lines))[0]))
    assert [(w.kind, w.handoffs, w.blocks) for w in book.imbalances] == [
        (ImbalanceKind.OWNED_TWICE, (1, 2), (0, 1)),
        (ImbalanceKind.OWNED_TWICE, (1, 2), (0, 1)),
    ]


def test_giving_up_what_one_does_not_own_is_an_imbalance(tmp_path):
    lines = healthy_lines("h1")
    lines[15]["blocks"] = [0, 1, 7]
    book = keep_books(rows_of(imported(written(tmp_path / "a.jsonl", lines))[0]))
    assert [(w.kind, w.blocks) for w in book.imbalances] == [(ImbalanceKind.GIVEN_UP_UNOWNED, (7,))]


def test_the_books_at_a_row_know_nothing_of_later_rows(tmp_path):
    journal, _ = imported(written(tmp_path / "a.jsonl", healthy_lines("h1")))
    source = rows_of(journal)
    at = next(e.seq for e in journal.events if e.name == "destination_reserved")
    holdings = keep_books(source, at).ledger.holdings()
    assert [(h.asset, h.blocks, h.duty) for h in holdings] == [
        (Asset.SOURCE_KV, (0, 1), "coordinator"), (Asset.DESTINATION_KV, (0, 1), "coordinator"),
    ]  # fmt: skip


def test_a_lease_says_until_when_a_hold_lasts(tmp_path):
    lines = healthy_lines("h1")[:5]
    lines[3]["lease_deadline_ms"] = 35.0
    lines.append({"at_ms": 20.0, "handoff": "h1", "resource": "lease_renewed", "lease_deadline_ms": 65.0})
    journal, _ = imported(written(tmp_path / "a.jsonl", lines))
    (hold,) = keep_books(rows_of(journal)).ledger.holdings()
    assert hold.until_ms == 65.0
