"""How fast `handoff simulate` is: whole processes, both writing per-request records and the full summary.

    python benchmarks/simulate.py --trace conversation.jsonl --reference-python /opt/reference/bin/python

Measures the conversation trace (Mooncake FAST'25: 8 + 8 workers, 8,192 blocks of 512 tokens) and a random trace of
20,000 requests (4 + 4 workers, 16,384 blocks of 64 tokens) for both engines and routers, ten times the random
requests, and a synthetic workload of `--synthetic` sessions. With ``--reference-python``, a Python that has ``ai-
dynamo-runtime==1.5.1``, the deployed simulator is timed on the same files and the ratio printed; for the KV router
its figures are compared as well, between the lowest and highest of `--reference-runs` runs, widened by half their
distance, since it breaks ties at random.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from attrs import frozen

FIGURES = (
    "mean_ttft_ms", "p95_ttft_ms", "mean_e2e_latency_ms", "p95_e2e_latency_ms", "prefix_cache_reused_ratio",
    "duration_ms",
)  # fmt: skip

QUESTION = """
import json, sys
from dynamo._core import MockEngineArgs, SglangArgs, run_mocker_trace_replay
def engine(raw):
    if "sglang" in raw:
        raw["sglang"] = SglangArgs(**raw["sglang"])
    return MockEngineArgs(**raw)
config = json.load(open(sys.argv[1]))
rest = {key: value for key, value in config.items() if key not in ("prefill", "decode")}
result = run_mocker_trace_replay(
    [sys.argv[2]], prefill_engine_args=engine(config["prefill"]), decode_engine_args=engine(config["decode"]),
    report_jsonl_path=sys.argv[3], **rest)
print(json.dumps({key: value for key, value in result.summary.items() if not isinstance(value, (dict, list))}))
"""


@frozen
class Cluster:
    """One set-up to measure."""

    name: str
    trace: Path
    engine_type: str
    router_mode: str
    workers: int
    blocks: int
    block_size: int

    def toml(self) -> str:
        """As a scenario."""
        return (
            f'[scenario]\nname = "{self.name}"\n[workload]\ntrace = "{self.trace}"\n'
            f"trace_block_size = {self.block_size}\n"
            f'[cluster]\nengine_type = "{self.engine_type}"\nnum_prefill_workers = {self.workers}\n'
            f'num_decode_workers = {self.workers}\nrouter_mode = "{self.router_mode}"\n'
            f"[engine]\nblock_size = {self.block_size}\nnum_gpu_blocks = {self.blocks}\n"
            'full_hit = "recompute_last"\n[prefill]\nkv_transfer_bandwidth = 100.0\nkv_bytes_per_token = 131072\n'
        )

    def reference(self) -> dict[str, Any]:
        """As the deployed simulator's arguments."""
        engine: dict[str, Any] = {
            "engine_type": self.engine_type,
            "block_size": self.block_size,
            "num_gpu_blocks": self.blocks,
        }
        if self.engine_type == "sglang":
            engine["sglang"] = {"page_size": self.block_size}
        link = {"kv_transfer_bandwidth": 100.0, "kv_bytes_per_token": 131072}
        return {
            "prefill": engine | link | {"worker_type": "prefill"},
            "decode": engine | {"worker_type": "decode"},
            "num_prefill_workers": self.workers,
            "num_decode_workers": self.workers,
            "router_mode": self.router_mode,
            "trace_block_size": self.block_size,
        }


def random_trace(path: Path, requests: int) -> Path:
    """Lognormal lengths of about 4,000 tokens with shared prefixes, and arrivals that keep 4 + 4 workers busy."""
    random = Random(20_000)
    at_ms, fresh = 0.0, 1_000_000
    with path.open("w") as file:
        for _ in range(requests):
            at_ms += random.expovariate(1 / 60.0)
            length = max(1, min(60_000, int(random.lognormvariate(8.0, 0.8))))
            blocks = -(-length // 64)
            prefix = random.randrange(20) * 1000
            shared = random.choice([0, 4, 16, blocks // 2])
            ids = [*range(prefix, prefix + min(shared, blocks)), *range(fresh, fresh + blocks - min(shared, blocks))]
            fresh += blocks
            row = {"timestamp": at_ms, "input_length": length, "output_length": random.randint(1, 400), "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return path


def timed(command: list[Any], environment: dict[str, str] | None = None) -> tuple[float, float, str]:
    """A process's wall time in s, peak memory in MB, and standard output."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed with {process.returncode}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024, output


def measure(cluster: Cluster, folder: Path, runs: int) -> tuple[float, float, dict[str, Any]]:
    """Our best wall time of several, peak memory, and the report."""
    scenario, records, report = folder / "scenario.toml", folder / "records.jsonl", folder / "report.json"
    scenario.write_text(cluster.toml())
    command = [sys.executable, "-m", "handoff", "simulate", scenario, "--per-request", records, "--report", report]
    results = [timed(command) for _ in range(runs)]
    return min(result[0] for result in results), max(result[1] for result in results), json.loads(report.read_text())


def ask(cluster: Cluster, folder: Path, python: str, runs: int) -> tuple[float, list[dict[str, Any]]]:
    """The deployed simulator's best wall time of several, and its summaries."""
    config = folder / "config.json"
    config.write_text(json.dumps(cluster.reference()))
    command = [python, "-c", QUESTION, config, cluster.trace, folder / "reference.jsonl"]
    results = [timed(command, os.environ | {"DYN_LOG": "error"}) for _ in range(runs)]
    return min(result[0] for result in results), [json.loads(result[2]) for result in results]


def compare_figures(report: dict[str, Any], summaries: list[dict[str, Any]]) -> str:
    """Which figures lie outside of what the deployed simulator shows from run to run."""
    outside = []
    for figure in FIGURES:
        values = [summary[figure] for summary in summaries]
        margin = (max(values) - min(values)) / 2
        if not min(values) - margin <= report[figure] <= max(values) + margin:
            outside.append(f"{figure} {report[figure]:.6g} not in {min(values):.6g}..{max(values):.6g}")
    return ", ".join(outside) or "all figures within"


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, help="the conversation trace")
    parser.add_argument("--reference-python")
    parser.add_argument("--reference-runs", type=int, default=10, help="for the KV router's spread")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--synthetic", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = random_trace(folder / "random.jsonl", 20_000), random_trace(folder / "large.jsonl", 200_000)
        setups = []
        for engine_type in ("vllm", "sglang"):
            for router_mode in ("round_robin", "kv_router"):
                if arguments.trace is not None:
                    trace = arguments.trace.resolve()
                    setups.append(Cluster("conversation", trace, engine_type, router_mode, 8, 8192, 512))
                setups.append(Cluster("random", small, engine_type, router_mode, 4, 16_384, 64))
        for setup in setups:
            ours_s, ours_mb, report = measure(setup, folder, arguments.runs)
            line = f"{setup.name:13} {setup.engine_type:7} {setup.router_mode:12} {ours_s:6.2f} s {ours_mb:5.0f} MB"
            if arguments.reference_python:
                spread = setup.router_mode == "kv_router"
                runs = arguments.reference_runs if spread else arguments.runs
                theirs_s, summaries = ask(setup, folder, arguments.reference_python, runs)
                line += f"   reference {theirs_s:6.2f} s, {theirs_s / ours_s:4.1f} times"
                line += f", {compare_figures(report, summaries)}" if spread else ""
            print(line, flush=True)
        scale(small, large, folder, arguments.runs)
        synthetic(folder, arguments.synthetic)


def scale(small: Path, large: Path, folder: Path, runs: int) -> None:
    """Ten times the requests must take at most eleven times as long."""
    times = []
    for trace in (small, large):
        seconds, _, _ = measure(Cluster("scale", trace, "vllm", "round_robin", 4, 16_384, 64), folder, runs)
        times.append(seconds)
    print(f"ten times the requests: {times[0]:.2f} s, {times[1]:.2f} s, {times[1] / times[0]:.1f} times")


def synthetic(folder: Path, sessions: int) -> None:
    """A workload that is made while it runs."""
    scenario = folder / "synthetic.toml"
    scenario.write_text(
        f"[workload.synthetic]\ninput_tokens = 1000\noutput_tokens = 100\nrequest_count = {sessions}\n"
        "request_rate = 40.0\n[cluster]\nnum_prefill_workers = 4\nnum_decode_workers = 4\n"
        "[prefill]\nkv_transfer_bandwidth = 100.0\nkv_bytes_per_token = 131072\n"
    )
    command = [sys.executable, "-m", "handoff", "simulate", scenario, "--report", folder / "report.json"]
    seconds, megabytes, _ = timed(command)
    print(f"synthetic, {sessions:,} sessions: {seconds:.1f} s, {megabytes:.0f} MB")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
