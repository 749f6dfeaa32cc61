"""`handoff simulate` as users and scripts meet it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from handoff.cli.app import run
from handoff.cli.simulate_view import simulate_view
from handoff.engines.scenario import load_scenario
from handoff.engines.simulation import simulate as run_simulation

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "simulate.schema.json"
SCENARIO = """
[scenario]
name = "small"
seed = 3
[workload.synthetic]
input_tokens = 300
output_tokens = 20
request_count = {count}
request_rate = 50.0
shared_prefix_ratio = 0.5
num_prefix_groups = 2
[cluster]
num_prefill_workers = 2
num_decode_workers = 2
router_mode = "kv_router"
[prefill]
kv_transfer_bandwidth = 10.0
kv_bytes_per_token = 131072
{extra}
"""


def scenario(folder: Path, count: int = 40, extra: str = "") -> Path:
    path = folder / "small.toml"
    path.write_text(SCENARIO.format(count=count, extra=extra))
    return path


def test_a_narrow_terminal_gets_fewer_columns_of_whole_figures(tmp_path: Path) -> None:
    simulation = run_simulation(load_scenario(scenario(tmp_path)))
    out = Console(width=80, file=io.StringIO(), record=True)
    out.print(simulate_view(simulation, width=80))
    lines = out.export_text().splitlines()
    assert lines[2].split() == ["mean", "median", "p90", "p99"]
    (first,) = [line for line in lines if line.startswith("first token, ms")]
    expected = [f"{simulation.report[f'{column}_ttft_ms']:,.3f}" for column in lines[2].split()]
    assert first.removeprefix("first token, ms").split() == expected


def test_people_get_a_table_and_files_get_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, report, page = tmp_path / "records.jsonl", tmp_path / "report.json", tmp_path / "page.html"
    options = ["--per-request", str(records), "--report", str(report), "--html", str(page), "--sla-ttft-ms", "100"]
    assert run(["simulate", str(scenario(tmp_path)), *options]) == 0
    out = capsys.readouterr().out
    assert "40 requests completed of 40" in out
    assert "first token, ms" in out
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert [row["arrival_time_ms"] for row in rows] == sorted(row["arrival_time_ms"] for row in rows)
    assert {row["terminal_status"] for row in rows} == {"completed"}
    figures = json.loads(report.read_text())
    assert (figures["schema"], figures["completed_requests"]) == ("handoff.report/1", 40)
    assert figures["mean_ttft_ms"] == pytest.approx(sum(row["ttft_ms"] for row in rows) / 40)
    assert figures["goodput_completed_requests"] == sum(row["ttft_ms"] <= 100 for row in rows)
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    assert re.findall(r'(?:src|href)="(?!#)', html) == [], "the page needs nothing from outside"
    assert html.count("<svg") == 6


def test_programs_get_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(scenario(tmp_path)), "--json"]) == 0
    captured = capsys.readouterr()
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(captured.out))
    assert captured.err == ""


def test_the_same_scenario_gives_the_same_bytes_under_every_hash_seed(tmp_path: Path) -> None:
    path, outputs = scenario(tmp_path), set()
    for seed in ("0", "0", "1"):
        records = tmp_path / "records.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", "handoff", "simulate", path, "--json", "--per-request", records],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        )
        outputs.add((done.stdout, records.read_bytes()))
    assert len(outputs) == 1


@pytest.mark.parametrize("name", ["frame:register", "request"])
def test_a_fault_of_the_wire_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deed = "drop" if name.startswith("frame") else "disconnect"
    path = scenario(tmp_path, extra=f'[[fault]]\non = "{name}"\ndo = "{deed}"')
    assert run(["simulate", str(path)]) == 2
    assert "--wire" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("on", "do", "status", "failure"),
    [
        ("action:reserve_destination", "fail", "failed", "injected"),
        ("outcome:reserve_destination", "drop", "failed", "the answer to reserve_destination"),
        ("fact:source_held", "drop", "failed", "a fact that never came"),
        ("fact:transfer_completed", "delay", "completed", ""),
        ("outcome:release_source", "duplicate", "completed", ""),
        ("outcome:release_source", "drop", "completed", ""),
        ("request", "cancel", "canceled", ""),
        ("action:cancel_source", "drop", "completed", ""),
    ],
)
def test_faults_without_a_wire_strike_in_virtual_time(
    on: str, do: str, status: str, failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = f'[[fault]]\non = "{on}"\ndo = "{do}"\nhandoff = 3\n' + ("delay_ms = 500.0\n" if do == "delay" else "")
    records = tmp_path / "records.jsonl"
    code = run(["simulate", str(scenario(tmp_path, extra=extra)), "--json", "--per-request", str(records)])
    document = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(rows) == 40
    assert rows[2]["terminal_status"] == status
    assert failure in (rows[2]["failure"] or "")
    assert [row["terminal_status"] for row in rows if row is not rows[2]] == ["completed"] * 39
    assert code == (1 if document["stalls"] else 0)


def test_ctrl_c_leaves_a_report_of_what_was_done(tmp_path: Path) -> None:
    records, report = tmp_path / "records.jsonl", tmp_path / "report.json"
    command = [sys.executable, "-m", "handoff", "simulate", str(scenario(tmp_path, 5_000_000))]
    files = ["--per-request", str(records), "--report", str(report)]
    running = subprocess.Popen([*command, *files], stdout=subprocess.PIPE, text=True)
    while not (records.exists() and records.stat().st_size):
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in out
    figures = json.loads(report.read_text())
    assert figures["interrupted"]
    assert 0 < figures["completed_requests"] == len(records.read_text().splitlines()) < 5_000_000


def test_a_wrong_service_level_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(scenario(tmp_path)), "--sla-ttft-ms", "1", "--sla-e2e-ms", "1"]) == 2
    assert "excludes" in capsys.readouterr().err
