"""docs/journal-format.md says what the code does."""

import re
import struct
from pathlib import Path

import stranger

from handoff.journal import verify
from handoff.journal.canonical import canonical_bytes
from handoff.journal.chain import GENESIS, block_digest
from handoff.journal.event import COLUMNS
from handoff.journal.receipt import Durability, Receipt, ReceiptState, pack_receipt
from handoff.journal.schema import APPLICATION_ID, DERIVED, FORMAT_VERSION, TABLES, VIEWS

PAGE = (Path(__file__).parents[2] / "docs" / "journal-format.md").read_text()
ROW = (1, 1, 1, None, None, None, 0.5, None, None, 12, *[None] * 8, '{"text":"é"}')


def section(title: str) -> str:
    found = re.search(rf"^(#+) {title}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[2]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)


def test_the_columns_are_those_of_the_table() -> None:
    assert tuple(first_cells(section("`row`: the log"))) == COLUMNS == stranger.COLUMNS
    for column, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", section("`row`: the log"), re.MULTILINE):
        assert re.search(rf"^  {column} {kind}\b", TABLES["row"], re.MULTILINE)


def test_the_derived_tables_have_the_columns_that_are_told() -> None:
    text = section("Tables that follow from the rows")
    for table, columns in re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", text, re.MULTILINE):
        told = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", columns))
        assert told == re.findall(r"^  (\w+) ", TABLES[table], re.MULTILINE)
        assert DERIVED.get(table, 2) == len(told)
    assert re.findall(r"`(\w+)`", section("Views")) == list(VIEWS)


def test_identity_and_version_are_told() -> None:
    assert f"`0x{APPLICATION_ID:X}`" in PAGE
    assert f"Version {FORMAT_VERSION}." in PAGE


def test_the_example_has_the_bytes_and_the_digest_that_are_told() -> None:
    shown = re.search(r"84 bytes:\n\n((?:    [0-9a-f ]+\n)+)", PAGE)
    assert shown is not None
    assert canonical_bytes([ROW]) == bytes.fromhex(shown[1])
    assert f"`{block_digest(GENESIS, [ROW]).hex()}`" in PAGE


def test_a_receipts_fields_lie_where_the_table_says() -> None:
    table = re.findall(r"^\| (\d+)-(\d+) \| (\w+) \| (.*) \|$", section("Receipt"), re.MULTILINE)
    assert [int(first) for first, *_ in table] == [0, *(int(last) + 1 for _, last, *_ in table[:-1])]
    receipt = Receipt(ReceiptState.CLOSED, 5, bytes(range(32)), Durability.NORMAL, 77, bytes(range(32, 64)), 9)
    slot = pack_receipt(receipt)
    assert len(slot) == int(table[-1][1]) + 1
    values = [
        struct.unpack("<I" if kind == "uint32" else "<Q", part)[0] if kind.startswith("uint") else part
        for kind, part in ((kind, slot[int(first) : int(last) + 1]) for first, last, kind, _ in table)
    ]
    assert values[:-1] == [b"HNDFRCPT", 1, 2, 9, 5, 1, 0, bytes(range(32)), 77, bytes(range(32, 64))]


def test_every_problem_and_state_is_told() -> None:
    text = section("Verifying")
    code = Path(verify.__file__).read_text()
    found = set(re.findall(r"add\(\s*\"(\w+)\"", code))
    assert set(first_cells(text)) - set(verify.VerifyState) - found == set()
    assert found | set(verify.VerifyState) == set(first_cells(text))
    for problem, state in re.findall(r"^\| `(\w+)` \| .* \| (\w+) \|$", text, re.MULTILINE):
        assert re.search(rf"add\(\s*\"{problem}\", VerifyState.{state.upper()}", code)
