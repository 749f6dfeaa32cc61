"""Asks the deployed simulator about further random scenarios and compares its answers with ours.

    python tests/conformance/ask_reference.py 0 300 --python /opt/reference/bin/python

One scenario for each seed from the first number up to the second. The Python named with ``--python`` must have
``ai-dynamo-runtime==1.5.1``; it is asked in a process of its own, at most ten seconds each. Scenarios that it has no
end for are counted and run here only, where they must end. Exits 1 if anything differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from conformance_case import compare_case, run_case

QUESTION = """
import json, sys
from dynamo._core import MockEngineArgs, SglangArgs, run_mocker_trace_replay

def engine(raw):
    if "sglang" in raw:
        raw["sglang"] = SglangArgs(**raw["sglang"])
    return MockEngineArgs(**raw)

config = json.load(open(sys.argv[1]))["config"]
rest = {key: value for key, value in config.items() if key not in ("prefill", "decode")}
result = run_mocker_trace_replay(
    [sys.argv[2]], prefill_engine_args=engine(config["prefill"]), decode_engine_args=engine(config["decode"]),
    report_jsonl_path=sys.argv[3], **rest)
print(json.dumps({key: value for key, value in result.summary.items() if not isinstance(value, (dict, list))}))
"""


def scenario(seed: int) -> dict[str, Any]:
    """A random scenario: sizes, budgets, pressure, policies, sharing, sessions, arrivals."""
    random = Random(seed)
    engine_type = random.choice(["vllm", "sglang"])
    block_size = random.choice([4, 16, 48, 64] if engine_type == "vllm" else [1, 16, 32, 64])
    longest = random.choice([64, 200, 600]) * max(1, block_size // 16)
    pressed = random.random() < 0.6

    def blocks() -> int:
        return max(2, int(longest / block_size * random.choice([1.1, 1.5, 2, 3, 6]))) if pressed else 4096

    engine: dict[str, Any] = {
        "engine_type": engine_type,
        "block_size": block_size,
        "max_num_batched_tokens": random.choice([None, 16, 64, 100, 256, 2048, 8192]),
        "max_num_seqs": random.choice([None, 1, 2, 8, 64]),
        "enable_prefix_caching": random.random() < 0.8,
        "enable_chunked_prefill": engine_type == "sglang" or random.random() < 0.85,
        "speedup_ratio": random.choice([1.0, 2.0, 10.0, 0.3, 1000.0, 0.0]),
        "decode_speedup_ratio": random.choice([1.0, 3.0, 0.7]),
    }
    if engine_type == "vllm":
        if random.random() < 0.3:
            engine["preemption_mode"] = "fifo"
        if random.random() < 0.1:
            engine["max_model_len"] = longest
    else:
        engine["sglang"] = {"page_size": block_size} | {
            key: value
            for key, value in {
                "chunked_prefill_size": block_size * random.choice([1, 4, 16]),
                "schedule_policy": random.choice(["lpm", "fcfs"]),
                "schedule_conservativeness": random.choice([0.0, 0.3, 1.0, 1.5, 3.0]),
                "max_prefill_tokens": block_size * random.choice([2, 8, 32]),
                "clip_max_new_tokens": random.choice([1, 8, 64]),
            }.items()
            if random.random() < 0.4
        }
    timing_mode = random.choice(["full_prompt", "destination_missing"])
    prefill = engine | {"num_gpu_blocks": blocks(), "worker_type": "prefill", "kv_transfer_timing_mode": timing_mode}
    if random.random() < 0.8:
        prefill["kv_transfer_bandwidth"] = random.choice([0.0, 1.0, 25.0, 100.0])
    if random.random() < 0.8:
        prefill["kv_bytes_per_token"] = random.choice([131072, 1000000])
    decode = engine | {"num_gpu_blocks": blocks(), "worker_type": "decode", "kv_transfer_timing_mode": "full_prompt"}
    if random.random() < 0.2:
        decode["enable_prefix_caching"] = not decode["enable_prefix_caching"]
    cache_aware = random.random() < 0.2
    trace_block_size = random.choice([block_size, block_size, 64, 512])
    return {
        "config": {
            "prefill": prefill,
            "decode": decode,
            "num_prefill_workers": 1 if cache_aware else random.choice([1, 2, 3]),
            "num_decode_workers": 1 if cache_aware else random.choice([1, 2, 3]),
            "router_mode": "kv_router" if cache_aware else "round_robin",
            "trace_block_size": trace_block_size,
            "replay_concurrency": random.choice([None, None, 1, 4, 8]),
            "arrival_speedup_ratio": random.choice([1.0, 0.5, 4.0]),
        },
        "trace": _rows(random, longest, trace_block_size),
    }


def _rows(random: Random, longest: int, trace_block_size: int) -> list[dict[str, Any]]:
    count = random.choice([1, 5, 20, 40, 60, 120])
    prefixes = [range(start, start + longest // trace_block_size + 1) for start in (0, 1000, 2000)]
    has_sessions = random.random() < 0.4
    seen: dict[str, None] = {}
    at_ms, fresh = 0.0, 10_000
    rows = []
    for _ in range(count):
        at_ms += 0.0 if random.random() < 0.3 else random.expovariate(1 / random.choice([1, 10, 40]))
        length = random.randint(1, longest)
        blocks = -(-length // trace_block_size)
        shared = random.choice([0, 0, blocks // 2, blocks])
        ids = [*random.choice(prefixes)[:shared], *range(fresh, fresh + blocks)][:blocks]
        fresh += blocks
        output = random.choice([0, 1, 2, 3, 10, 30, 80]) if random.random() < 0.9 else 200
        row: dict[str, Any] = {"input_length": length, "output_length": output, "hash_ids": ids}
        if has_sessions:
            row["session_id"] = f"s{random.randrange(max(1, count // 3))}"
        if row.get("session_id") in seen:
            row["delay"] = random.choice([0.0, 5.0, round(random.random() * 30, 3)])
        else:
            row["timestamp"] = at_ms
        if has_sessions:
            seen[row["session_id"]] = None
        rows.append(row)
    return rows


def ask(python: str, case: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The deployed simulator's answer, or None if it does not come to an end."""
    (folder / "case.json").write_text(json.dumps(case))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case["trace"]))
    try:
        answer = subprocess.run(
            [python, "-c", QUESTION, folder / "case.json", folder / "rows.jsonl", folder / "records.jsonl"],
            env=os.environ | {"DYN_LOG": "error"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return {"per_request": records, "summary": json.loads(answer.stdout)}


def main() -> int:
    """Ask and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--python", required=True)
    arguments = parser.parse_args()
    agreed = endless = differed = 0
    largest_ms = largest_ratio = 0.0
    for seed in range(arguments.first, arguments.last):
        case = scenario(seed)
        with tempfile.TemporaryDirectory() as name:
            expected = ask(arguments.python, case, Path(name))
            if expected is None:
                endless += 1
                runtime, _ = run_case(case, Path(name))
                assert runtime.is_done
                continue
            comparison = compare_case(case | {"expected": expected}, Path(name))
        largest_ms = max(largest_ms, comparison.largest_ms)
        largest_ratio = max(largest_ratio, comparison.largest_ratio)
        if comparison.mismatches:
            differed += 1
            print(f"seed {seed}: {len(comparison.mismatches)} differences, first: {comparison.mismatches[0]}")
        else:
            agreed += 1
    print(
        f"{agreed} agree, {differed} differ, {endless} have no end there and end here; "
        f"largest difference {largest_ms} ms, {largest_ratio:.1e} of a summary figure"
    )
    return 1 if differed else 0


if __name__ == "__main__":
    sys.exit(main())
