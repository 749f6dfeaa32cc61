"""The command as users and scripts meet it: answers, documents, statuses, and one line for every mistake."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen
from jsonschema import Draft202012Validator
from recorded_handoffs import open_handoff, record_file, record_six
from rich.console import Console

from handoff.cli.app import run
from handoff.cli.ladder_view import ladder_view
from handoff.cli.list_view import list_view
from handoff.journal.chronicle import chronicles
from handoff.journal.durable_journal import Journal
from handoff.journal.handoff_list import list_handoffs
from handoff.journal.reader import JournalReader
from handoff.journal.sync_journal import SyncJournal

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


@frozen
class Answer:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> Answer:
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_file(tmp_path_factory.mktemp("recorded") / "run.db")


@pytest.fixture
def journal(recorded: Path, tmp_path: Path) -> Path:
    for name in recorded.parent.iterdir():
        shutil.copy(name, tmp_path)
    return tmp_path / recorded.name


def conforms(document: Any, schema: str) -> bool:
    text = (SCHEMAS / f"{schema}.schema.json").read_text()
    Draft202012Validator(json.loads(text)).validate(document)
    return True


DOCUMENTS: Sequence[tuple[str, int, list[str]]] = [
    ("replay", 0, ["replay"]),
    ("replay", 0, ["replay", "--tier", "full"]),
    ("list", 0, ["list"]),
    ("list", 0, ["list", "--failed"]),
    ("show", 0, ["show", "timed"]),
    ("why", 1, ["why"]),
    ("why", 0, ["why", "healthy-source"]),
    ("verify", 0, ["verify"]),
]


@pytest.mark.parametrize(("schema", "status", "arguments"), DOCUMENTS, ids=str)
def test_json_is_one_document_of_its_schema_and_nothing_else(
    call: Call, journal: Path, schema: str, status: int, arguments: list[str]
) -> None:
    answer = call(arguments[0], journal, *arguments[1:], "--json")
    assert (answer.status, answer.err) == (status, "")
    assert answer.out.count("\n") == 1
    assert next(iter(answer.document)) == "schema"
    assert answer.document["schema"] == f"handoff.{schema}/1"
    assert conforms(answer.document, schema)


def test_every_schema_is_one() -> None:
    for path in SCHEMAS.glob("*.json"):
        Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize(("schema", "status", "arguments"), DOCUMENTS, ids=str)
def test_without_a_terminal_output_is_plain_text(
    call: Call, journal: Path, schema: str, status: int, arguments: list[str]
) -> None:
    answer = call(arguments[0], journal, *arguments[1:])
    assert answer.status == status
    assert answer.out
    assert "\x1b" not in answer.out


def test_without_a_terminal_no_line_ends_in_blanks(call: Call, journal: Path) -> None:
    lines = [line for command in ("list", "why", "replay") for line in call(command, journal).out.splitlines()]
    assert lines == [line.rstrip() for line in lines]


def test_a_narrow_list_keeps_each_handoff_on_one_line(journal: Path) -> None:
    with JournalReader(journal) as reader:
        found = list(list_handoffs(reader))
    alike = [evolve(summary, handoff_id=f"0123456789-{summary.number}") for summary in found]
    out = Console(width=80, file=io.StringIO(), record=True)
    out.print(list_view(alike, width=80))
    lines = out.export_text().splitlines()
    rows = [line for line in lines if "0123456789-" in line]
    assert [row.split()[:2] for row in rows] == [[str(each.number), each.handoff_id] for each in alike]
    assert "opened ms  took ms  source" in lines[0]


def test_a_narrow_ladder_cuts_no_word(journal: Path) -> None:
    with JournalReader(journal) as reader:
        (chronicle,) = chronicles(reader, [reader.find_handoff("timed-out")])
    out = Console(width=80, file=io.StringIO(), record=True)
    out.print(ladder_view(chronicle, width=80))
    text = out.export_text()
    assert "…" not in text
    assert any(line.split()[-2:] == ["lane", "what"] for line in text.splitlines())


def test_list_shows_each_handoff_and_what_failed(call: Call, journal: Path) -> None:
    lines = call("list", journal).out.splitlines()
    assert sum("healthy" in line for line in lines) == 2
    assert lines[-1] == "6 handoffs, 2 failed, 2 without an end"


def test_list_failed_leaves_the_healthy_out(call: Call, journal: Path) -> None:
    handoffs = call("list", journal, "--failed", "--json").document["handoffs"]
    assert [handoff["handoff"] for handoff in handoffs] == ["refused", "timed-out"]
    assert handoffs[0]["failure"] == "release_source was answered with a failure (worker busy)"


def test_list_follow_gives_each_handoff_as_it_ends_and_stops_with_the_run(call: Call, journal: Path) -> None:
    documents = [json.loads(line) for line in call("list", journal, "--follow", "--json").out.splitlines()]
    assert [document["number"] for document in documents] == [1, 2, 3, 4, 5, 6]
    assert all(conforms(document, "list-line") for document in documents)


def test_show_names_every_row(call: Call, journal: Path) -> None:
    document = call("show", journal, "refused", "--json").document
    rows = [rung["row"]["seq"] for rung in document["rungs"]]
    assert rows == list(range(rows[0], rows[-1] + 1))
    answer = call("show", journal, "refused", "--all")
    assert all(f"#{row}" in answer.out for row in rows)


def test_why_cites_rows_that_exist_and_names_root_causes(call: Call, journal: Path) -> None:
    document = call("why", journal, "--json").document
    last = call("verify", journal, "--json").document["last_seq"]
    assert all(1 <= row <= last for finding in document["findings"] for row in finding["rows"])
    causes = {cause["code"] for cause in document["root_causes"]}
    assert {"conflicting_outcome", "lost_outcome", "healthy_decode_canceled"} <= causes
    early = next(finding for finding in document["findings"] if finding["code"] == "early_fact")
    assert document["findings"][early["consequence_of"]]["code"] == "lost_outcome"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nobody", "no handoff is called 'nobody'"), ("healthy", "fits several"), ("2:refused", "no handoff is called")],
)
def test_a_wrong_handoff_is_one_line(call: Call, journal: Path, name: str, reason: str) -> None:
    answer = call("show", journal, name)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert reason in answer.err


def test_why_says_how_many_handoffs_the_journal_stops_before_the_end_of(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "running.db"
    with SyncJournal.create(path) as journal:
        journal.begin_run(tool="test", wall_ns=0)
        record_six(journal)
        journal.commit()
        last = call("why", path).out.splitlines()[-1]
    assert last == "2 handoffs without an end: the journal stops before it."


def test_a_run_may_be_named_before_the_handoff(call: Call, journal: Path) -> None:
    assert call("show", journal, "1:refused", "--json").document["handoff"] == "refused"


@pytest.mark.parametrize("command", ["replay", "list", "why", "verify"])
def test_what_cannot_be_read_is_status_three(call: Call, tmp_path: Path, command: str) -> None:
    strange = tmp_path / "strange"
    strange.write_text("not a journal")
    for path in (strange, tmp_path / "absent"):
        answer = call(command, path)
        assert (answer.status, answer.out) == (3, "")
        assert answer.err.startswith(f"error: {path}: ")
        assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["replay"],
        ["replay", "x", "--tier", "half"],
        ["list", "x", "--sideways"],
        ["list", "x", "--run", "y"],
    ],
)
def test_wrong_usage_is_status_two_and_one_line(call: Call, arguments: list[str]) -> None:
    answer = call(*arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1


def test_a_damaged_row_is_found_by_verify(call: Call, journal: Path) -> None:
    content = bytearray(journal.read_bytes())
    place = content.index(b"worker busy")
    content[place] ^= 1
    journal.write_bytes(content)
    answer = call("verify", journal, "--json")
    assert answer.status == 1
    assert answer.document["state"] == "damaged"


def test_a_reader_leaves_the_file_as_it_was(call: Call, journal: Path) -> None:
    before = {path.name: path.read_bytes() for path in journal.parent.iterdir()}
    for _, _, arguments in DOCUMENTS:
        call(arguments[0], journal, *arguments[1:])
    assert {path.name: path.read_bytes() for path in journal.parent.iterdir()} == before


def test_ctrl_c_is_status_130_and_no_traceback(tmp_path: Path) -> None:
    journal = SyncJournal.create(tmp_path / "live.db")
    journal.begin_run(tool="test", wall_ns=0)
    open_handoff(journal, "h").proceed()
    journal.commit()
    command = [sys.executable, "-m", "handoff", "list", str(journal.path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("h  ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    journal.close()
    assert (process.returncode, out, err) == (130, "", "")


def run_apart(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "handoff", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options)


def test_a_closed_standard_output_is_no_error(journal: Path) -> None:
    done = run_apart("list", journal, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_had_enough_is_no_finding(journal: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run_apart("export", journal, "--format", "jsonl", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("descriptor", [-1, 977, 10**30])
def test_durable_rows_are_reported_to_a_descriptor_that_can_be_written(
    call: Call, tmp_path: Path, descriptor: int
) -> None:
    answer = call("record", "nothing.toml", "--journal", tmp_path / "run.db", "--report-durable", descriptor)
    assert answer.status == 2
    assert "open for writing" in answer.err
    assert answer.err.count("\n") == 1


def test_a_trace_without_an_end_is_refused(call: Call, tmp_path: Path) -> None:
    scenario = tmp_path / "endless.toml"
    scenario.write_text('[workload]\ntrace = "/dev/zero"\n')
    answer = call("record", scenario, "--journal", tmp_path / "run.db")
    assert answer.status == 2
    assert "the trace is a pipe or a device" in answer.err


def test_salvage_keeps_what_is_proved_and_says_what_is_lost(call: Call, journal: Path, tmp_path: Path) -> None:
    content = bytearray(journal.read_bytes())
    content[content.index(b"worker busy")] ^= 1
    journal.write_bytes(content)
    new = tmp_path / "rescued.db"
    answer = call("salvage", journal, "--journal", new, "--json")
    assert conforms(answer.document, "salvage")
    assert answer.document["kept"] + answer.document["lost_rows"] == answer.document["last_seq"]
    assert answer.status == (1 if answer.document["lost"] else 0)
    assert call("verify", new).status == 0


def test_salvage_refuses_to_overwrite(call: Call, journal: Path) -> None:
    before = journal.read_bytes()
    answer = call("salvage", journal, "--journal", journal)
    assert (answer.status, answer.out) == (3, "")
    assert journal.read_bytes() == before


SMALL = """
[scenario]
name = "tiny"
seed = 3
[workload.synthetic]
input_tokens = 64
output_tokens = 2
request_count = 3
request_rate = 100.0
[cluster]
engine_type = "vllm"
num_prefill_workers = 1
num_decode_workers = 1
[engine]
block_size = 16
num_gpu_blocks = 256
speedup_ratio = 1000.0
[live]
session_timeout_ms = 10000
"""


def test_record_writes_a_journal_that_every_reader_reads(call: Call, tmp_path: Path) -> None:
    scenario, journal = tmp_path / "tiny.toml", tmp_path / "run.db"
    scenario.write_text(SMALL)
    requests, report = tmp_path / "requests.jsonl", tmp_path / "report.json"
    answer = call(
        "record", scenario, "--journal", journal, "--per-request", requests, "--report", report,
        "--require-success", "--durability", "normal", "--json",
    )  # fmt: skip
    assert answer.status == 0, answer.err
    assert conforms(answer.document, "record")
    assert (answer.document["handoffs"], answer.document["state"]) == (3, "finished")
    assert [json.loads(line)["terminal_status"] for line in requests.read_text().splitlines()] == ["completed"] * 3
    assert json.loads(report.read_text())["completed_requests"] == 3
    assert call("verify", journal).status == 0
    assert call("replay", journal, "--tier", "full").status == 0
    assert call("list", journal).out.splitlines()[-1] == "3 handoffs, 0 failed"
    assert call("why", journal).status == 0
    ladder = call("show", journal, call("list", journal, "--json").document["handoffs"][0]["handoff"])
    assert "─▶" in ladder.out


def test_a_scenario_that_cannot_be_used_is_one_line_with_file_line_and_key(call: Call, tmp_path: Path) -> None:
    scenario = tmp_path / "bad.toml"
    scenario.write_text(SMALL.replace("num_gpu_blocks", "num_gpu_block"))
    answer = call("record", scenario, "--journal", tmp_path / "run.db")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert f"error: {scenario}, line 16: engine.num_gpu_block" in answer.err
    assert not (tmp_path / "run.db").exists()


def test_a_journal_in_an_absent_folder_is_one_line_about_the_folder(call: Call, tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.toml"
    scenario.write_text(SMALL)
    answer = call("record", scenario, "--journal", tmp_path / "no" / "run.db")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == f"error: {tmp_path / 'no'}: No such file or directory\n"


def test_an_absent_folder_is_one_line(call: Call, tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.toml"
    scenario.write_text(SMALL)
    answer = call("record", scenario, "--journal", tmp_path / "run.db", "--per-request", tmp_path / "no" / "file")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == f"error: {tmp_path / 'no' / 'file'}: No such file or directory\n"


def test_a_port_that_is_taken_is_one_line_about_the_address(call: Call, tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        scenario.write_text(SMALL.replace("[live]", f"[live]\nport = {port}"))
        answer = call("record", scenario, "--journal", tmp_path / "run.db")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"error: live.host, live.port = '127.0.0.1:{port}': expected an address")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anyone_listens_stops_the_run_in_order(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def report_durable(_journal: Journal, _descriptor: int) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(Journal, "report_durable", report_durable)
    scenario, journal = tmp_path / "tiny.toml", tmp_path / "run.db"
    scenario.write_text(SMALL)
    answer = call("record", scenario, "--journal", journal, "--report-durable", 1)
    assert answer.status == 130, answer.err
    assert f"reason: {number.name}" in answer.out
    assert call("verify", journal).status == 0
    assert call("replay", journal, "--tier", "full").status == 0


def test_figures_for_which_there_is_no_room_are_one_line(call: Call, tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.toml"
    scenario.write_text(SMALL)
    answer = call("record", scenario, "--journal", tmp_path / "run.db", "--report", "/dev/full")
    assert answer.status == 1
    assert answer.err == "error: No space left on device; free some and try again\n"
    assert call("verify", tmp_path / "run.db").status == 0
