"""Canonical bytes, the digest chain and the receipt."""

import struct
from pathlib import Path

import pytest
import stranger
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_files import closed_journal, note, sync_journal

from handoff.journal.canonical import canonical_bytes
from handoff.journal.chain import BLOCK_ROWS, GENESIS, Chain, block_digest
from handoff.journal.event import COLUMNS
from handoff.journal.receipt import (
    Durability,
    Receipt,
    ReceiptFile,
    ReceiptState,
    pack_receipt,
    read_receipt,
    receipt_path,
    unpack_receipt,
)

NONE_ROW = (1, 1, 1, None, None, None, 0.5, None, None, 7, None, None, None, None, None, None, None, None, None)

int64 = st.integers(-(2**63), 2**63 - 1)
optional_int64 = st.none() | int64
finite = st.floats(allow_nan=False).map(lambda value: value + 0.0)
rows = st.tuples(
    *(
        st.none() | finite if name in ("at_min_ms", "at_max_ms")
        else finite if name == "at_ms"
        else st.none() | st.text(st.characters(exclude_categories=("Cs",)))
        if name == "payload"
        else int64 if name in ("seq", "grp", "run", "kind")
        else optional_int64
        for name in COLUMNS
    )
)  # fmt: skip


def numbered(count: int) -> list[tuple[object, ...]]:
    return [(seq, seq, 1, *NONE_ROW[3:-1], f'{{"text":"{seq}"}}') for seq in range(1, count + 1)]


def test_a_row_without_optional_values_has_these_bytes() -> None:
    one = struct.pack("<q", 1)
    expected = (
        struct.pack("<I", 1) + (b"\1" + one) * 3 + b"\0" * 3 + b"\1" + struct.pack("<d", 0.5) + b"\0" * 2
        + b"\1" + struct.pack("<q", 7) + b"\0" * 9
    )  # fmt: skip
    assert canonical_bytes([NONE_ROW]) == expected


def test_a_value_that_only_some_rows_have_is_preceded_by_who_has_it() -> None:
    with_text = (2, *NONE_ROW[1:-1], "é")
    assert canonical_bytes([NONE_ROW, with_text]).endswith(b"\2\0\1" + struct.pack("<q", 2) + "é".encode())


@given(st.lists(rows, min_size=1, max_size=5))
def test_the_bytes_are_those_that_a_stranger_computes(block: list[tuple[object, ...]]) -> None:
    assert canonical_bytes(block) == stranger.canonical(block)


@given(st.lists(rows, min_size=1, max_size=3), st.lists(rows, min_size=1, max_size=3))
def test_different_rows_have_different_bytes(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> None:
    assert (canonical_bytes(one) == canonical_bytes(other)) == (repr(one) == repr(other))


@pytest.mark.parametrize("value", ["1", 1.5, b"1"])
def test_a_value_of_a_wrong_type_has_no_bytes(value: object) -> None:
    with pytest.raises(struct.error):
        canonical_bytes([(value, *NONE_ROW[1:])])


@given(st.lists(st.integers(1, 200), max_size=8))
def test_the_chain_does_not_depend_on_how_rows_were_grouped(sizes: list[int]) -> None:
    everything = numbered(sum(sizes))
    chain = Chain()
    entries = []
    start = 0
    for size in sizes:
        entries += chain.extend(everything[start : start + size])
        start += size
    expected = stranger.chain_of(everything)
    assert dict(entries) == {seq: digest for seq, digest in expected.items() if seq % BLOCK_ROWS == 0}
    assert chain.running() == (expected[len(everything)] if everything else GENESIS)


def test_a_digest_covers_all_rows_before() -> None:
    first = block_digest(GENESIS, numbered(1))
    assert block_digest(GENESIS, numbered(2)) != block_digest(first, numbered(2)[1:])


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_files_whose_commits_were_grouped_differently_have_one_chain(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    heads = []
    for grouped in (sizes, [sum(sizes)]):
        path = tmp_path_factory.mktemp("grouped") / "journal"
        with sync_journal(path) as journal:
            for size in grouped:
                note(journal, size)
                journal.commit()
        receipt = read_receipt(path)
        assert receipt is not None
        heads.append((receipt.last_seq, receipt.digest))
    assert heads[0] == heads[1]


def test_a_stranger_finds_a_closed_journal_sound(tmp_path: Path) -> None:
    path = closed_journal(tmp_path / "journal")
    assert stranger.verify(path) == "sound"


def test_receipts_are_written_in_turn_and_the_newest_counts(tmp_path: Path) -> None:
    file = ReceiptFile(tmp_path / "journal")
    for seq in range(5):
        file.write(Receipt(ReceiptState.RECORDING, seq, GENESIS, Durability.FULL))
    file.close()
    newest = read_receipt(tmp_path / "journal")
    assert newest is not None
    assert (newest.last_seq, newest.generation) == (4, 4)
    assert [slot["last_seq"] for slot in stranger.receipts_of(tmp_path / "journal")] == [3, 4]


@pytest.mark.parametrize("kept", range(0, 144, 13))
def test_a_torn_receipt_leaves_the_one_before(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "journal"
    file = ReceiptFile(path)
    for seq in range(2):
        file.write(Receipt(ReceiptState.RECORDING, seq, GENESIS, Durability.FULL))
    before = receipt_path(path).read_bytes()
    file.write(Receipt(ReceiptState.RECORDING, 2, GENESIS, Durability.FULL))
    file.close()
    after = receipt_path(path).read_bytes()
    receipt_path(path).write_bytes(after[:kept] + before[kept:])
    found = read_receipt(path)
    assert found is not None
    assert found.last_seq == 1


def test_every_bit_of_a_receipt_counts() -> None:
    slot = pack_receipt(Receipt(ReceiptState.CLOSED, 7, bytes(range(32)), Durability.NORMAL, 9, bytes(range(32, 64))))
    assert unpack_receipt(slot) is not None
    for bit in range(8 * len(slot)):
        flipped = bytearray(slot)
        flipped[bit // 8] ^= 1 << bit % 8
        assert unpack_receipt(bytes(flipped)) is None


def test_a_journal_without_a_receipt_has_none(tmp_path: Path) -> None:
    assert read_receipt(tmp_path / "journal") is None
