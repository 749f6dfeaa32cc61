"""A scenario is read whole, and a mistake in it is answered with its line and what would be right."""

import pytest

from handoff.engines.engine_settings import EngineSettings, InvalidSetting, SglangSettings
from handoff.engines.scenario import FaultDeed, FaultPlace, RouterMode, ScenarioError, load_scenario, parse_scenario
from handoff.journal.vocabulary import EngineType, TimingMode, WorkerRole

WHOLE = """\
[scenario]
name = "chat-2p2d"
seed = 7

[workload]
trace = "chat.jsonl"
trace_block_size = 512
max_in_flight = 4
max_sim_time_ms = 60000
limit = 500

[cluster]
engine_type = "vllm"
num_prefill_workers = 2
num_decode_workers = 2
router_mode = "kv_router"
[cluster.kv_router]
router_queue_threshold = 1.25

[engine]
block_size = 64
num_gpu_blocks = 16384
full_hit = "reuse_all"
startup_time = 0.02
[prefill]
kv_transfer_bandwidth = 100.0
kv_bytes_per_token = 131072
kv_transfer_timing_mode = "destination_missing"
[decode]
num_gpu_blocks = 9

[live]
port = 0
max_sessions = 64

[[fault]]
on = "outcome:activate_destination"
do = "drop"
handoff = 3

[[fault]]
on = "frame:register"
do = "delay"
delay_ms = 50.0
"""


def test_every_table_reaches_its_value() -> None:
    scenario = parse_scenario(WHOLE, folder="somewhere")
    assert (scenario.name, scenario.seed, scenario.workload.concurrency) == ("chat-2p2d", 7, 4)
    assert str(scenario.trace_path) == "somewhere/chat.jsonl"
    assert scenario.cluster.router_mode is RouterMode.KV_ROUTER
    assert scenario.cluster.kv_router.router_queue_threshold == 1.25
    assert scenario.prefill.kv_transfer_timing_mode is TimingMode.DESTINATION_MISSING
    assert (scenario.prefill.worker_role, scenario.decode.worker_role) == (WorkerRole.PREFILL, WorkerRole.DECODE)
    assert (scenario.prefill.num_gpu_blocks, scenario.decode.num_gpu_blocks) == (16384, 9)
    assert (scenario.prefill.startup_time, scenario.live.max_sessions) == (0.02, 64)
    first, second = scenario.faults
    assert (first.place, first.name, first.do, first.needs_wire) == (
        FaultPlace.OUTCOME, "activate_destination", FaultDeed.DROP, False,
    )  # fmt: skip
    assert scenario.wire_fault() is second
    assert parse_scenario(WHOLE, folder="elsewhere").digest() == scenario.digest()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("router_mode =", "router_mod =", ["line 16", "cluster.router_mod", '"router_mode" (did you mean']),
        ('"kv_router"', '"kv-router"', ["line 16", 'cluster.router_mode = "kv-router"', '"kv_router" (did you mean']),
        ('"vllm"', '"trtllm"', ["line 13", "does not support TRT-LLM"]),
        ("block_size = 64", 'block_size = "x"', ["line 21", "engine.block_size", "a whole number"]),
        ("block_size = 64", "block_size = true", ["line 21", "a whole number"]),
        ("num_gpu_blocks = 9", "num_gpu_blocks = 0", ["line 30", "decode.num_gpu_blocks = 0", "at least 1"]),
        ("num_gpu_blocks = 9", "block_size = 32", ["decode.block_size = 32", "prefill pool, 64"]),
        ("max_in_flight = 4", "max_in_flight = 0", ["line 8", "workload.max_in_flight = 0", "at least 1"]),
        ("port = 0", "port = 70000", ["line 33", "live.port = 70000", "0 to 65535"]),
        ('"drop"', '"drip"', ["line 38", "fault.do", '"drop" (did you mean']),
        (
            "num_prefill_workers = 2",
            "num_prefill_workers = 100000000000",
            ["cluster.num_prefill_workers", "from 1 to 65536"],
        ),
        ("outcome:activate_destination", "outcome:applied", ["line 37", "fault.on", "outcome: and"]),
        ("outcome:activate", "outcome:activ8", ["line 37", "fault.on", '"activate_destination" (did you mean']),
        ('do = "delay"\n', 'do = "delay"\nhandoff = 0\n', ["line 44", "fault.handoff = 0", "from 1"]),
        ("delay_ms = 50.0", "", ["fault.delay_ms is missing", "above 0"]),
        ('trace = "chat.jsonl"', "", ["workload.trace is missing", "[workload.synthetic]"]),
        ('"chat.jsonl"', '"chat.jsonl"\ntrace_format = "mooncake-delta"', ["not supported for disaggregated replay"]),
        ("[workload]", "[workload.synthetic]\ninput_tokens = 1\n[workload]", ["output_tokens is missing"]),
        ("[live]", "[lvie]", ["lvie", '"live" (did you mean']),
        ("seed = 7", "seed = ", ["not TOML"]),
    ],
)
def test_a_mistake_is_answered_with_its_line_and_what_would_be_right(old: str, new: str, words: list[str]) -> None:
    assert old in WHOLE
    with pytest.raises(ScenarioError) as error:
        parse_scenario(WHOLE.replace(old, new, 1), "chat.toml")
    assert all(word in str(error.value) for word in ["chat.toml", *words]), str(error.value)


def test_a_missing_file_says_so() -> None:
    with pytest.raises(ScenarioError, match=r"nowhere.toml: the file cannot be read"):
        load_scenario("nowhere.toml")


def test_the_page_size_of_sglang_is_its_block_size() -> None:
    text = WHOLE.replace('"vllm"', '"sglang"').replace("\nblock_size = 64\n", "\n")
    text = text.replace("[prefill]", "[engine.sglang]\npage_size = 16\n[prefill]")
    assert parse_scenario(text).prefill.block_size == 16


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"engine_type": EngineType.SGLANG, "enable_chunked_prefill": False}, "enable_chunked_prefill"),
        ({"engine_type": EngineType.SGLANG, "max_model_len": 10}, "max_model_len"),
        ({"engine_type": EngineType.SGLANG, "block_size": 3}, "chunked_prefill_size"),
        ({"engine_type": EngineType.SGLANG, "block_size": 4, "sglang": SglangSettings(page_size=8)}, "page_size"),
        ({"block_size": 1}, "block_size"),
        ({"speedup_ratio": float("nan")}, "speedup_ratio"),
        ({"dp_size": 2}, "dp_size"),
    ],
)
def test_settings_that_no_engine_can_have_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        EngineSettings(**values)  # type: ignore[arg-type]


def test_block_sizes_default_by_engine() -> None:
    assert EngineSettings().block_size == 64
    assert EngineSettings(engine_type=EngineType.SGLANG).block_size == 1
    assert EngineSettings(engine_type=EngineType.SGLANG, sglang=SglangSettings(page_size=32)).block_size == 32
