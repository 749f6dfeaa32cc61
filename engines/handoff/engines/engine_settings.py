"""How an engine is set up: the names, defaults and limits that users write in a scenario.

The values are those of the deployed mock engine, with one choice of ours: `full_hit`. When a whole prompt is found in
a vLLM-style cache, older releases reuse all of it, newer ones recompute its last block so that there is something to
run. Both are lawful; the older is the default.
"""

import math
from enum import StrEnum
from typing import Any

from attrs import Attribute, define, field, frozen

from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import EngineType, TimingMode, WorkerRole


@define
class InvalidSetting(ValueError):
    """A setting that no engine can have.

    Attributes:
        key: its name, as written in a scenario.
        value: what was given.
        expected: what would be right, in plain words.
    """

    key: str
    value: object
    expected: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: expected {self.expected}"


class FullHit(StrEnum):
    """What a vLLM-style engine does with a prompt that its cache holds completely."""

    REUSE_ALL = "reuse_all"
    RECOMPUTE_LAST = "recompute_last"


class PreemptionMode(StrEnum):
    """Which running request gives way when blocks run out (vLLM)."""

    LIFO = "lifo"
    FIFO = "fifo"


class SchedulePolicy(StrEnum):
    """In which order SGLang looks at waiting requests: arrival, or longest prefix match."""

    FIFO = "fifo"
    FCFS = "fcfs"
    LPM = "lpm"


def _at_least(minimum: int) -> Any:
    def check(_instance: object, attribute: "Attribute[int]", value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InvalidSetting(attribute.name, value, f"a whole number of at least {minimum}")

    return check


def _none_or_at_least(minimum: int) -> Any:
    check_number = _at_least(minimum)

    def check(instance: object, attribute: "Attribute[int | None]", value: int | None) -> None:
        if value is not None:
            check_number(instance, attribute, value)

    return check


def _finite_not_negative(_instance: object, attribute: "Attribute[float]", value: float) -> None:
    if isinstance(value, bool) or not (math.isfinite(value) and value >= 0.0):
        raise InvalidSetting(attribute.name, value, "a finite number of at least 0")


def _none_or_finite_not_negative(instance: object, attribute: Any, value: float | None) -> None:
    if value is not None:
        _finite_not_negative(instance, attribute, value)


def _only_one(_instance: object, attribute: "Attribute[int]", value: int) -> None:
    if value != 1:
        raise InvalidSetting(attribute.name, value, "1: a disaggregated worker has one rank")


@frozen
class SglangSettings:
    """What only an SGLang-style engine has.

    Attributes:
        page_size: tokens of a page; None means the engine's `block_size`. They must agree if both are given.
        schedule_policy: the order in which waiting requests are looked at; ``fcfs`` is another name of ``fifo``.
        chunked_prefill_size: prefill tokens of one pass, a multiple of the page size.
        max_prefill_tokens: prefill tokens of one pass, counted before cached ones are subtracted.
        clip_max_new_tokens: at most so many output tokens are set aside for a request.
        schedule_conservativeness: scales how much of the running requests' output is set aside.
    """

    page_size: int | None = field(default=None, validator=_none_or_at_least(1))
    schedule_policy: SchedulePolicy = field(default=SchedulePolicy.FIFO, converter=SchedulePolicy)
    chunked_prefill_size: int = field(default=8192, validator=_at_least(1))
    max_prefill_tokens: int = field(default=16384, validator=_at_least(1))
    clip_max_new_tokens: int = field(default=4096, validator=_at_least(1))
    schedule_conservativeness: float = field(default=1.0, validator=_finite_not_negative)


@frozen
class EngineSettings:
    """One engine's set-up. Times in ms unless the name says otherwise, sizes in tokens or blocks.

    Attributes:
        engine_type: the scheduler; TensorRT-LLM is refused.
        worker_role: aggregated, prefill or decode. A decode worker charges no prefill time, a vLLM prefill worker
            no decode time.
        block_size: tokens of a block (a page, for SGLang); None means 64 for vLLM, the page size or 1 for SGLang.
        num_gpu_blocks: blocks of the pool.
        max_num_batched_tokens: tokens scheduled in one pass, None for no limit (vLLM).
        max_num_seqs: running requests, None for no limit.
        enable_prefix_caching: whether blocks are shared between requests.
        enable_chunked_prefill: whether a prompt may be computed in several passes (vLLM; SGLang demands it).
        speedup_ratio: divides every duration; 0 leaves it as it is.
        decode_speedup_ratio: divides decode durations besides.
        preemption_mode: who gives way (vLLM).
        full_hit: what happens to a prompt that is cached completely (vLLM).
        max_model_len: longest sequence, None for no limit (vLLM).
        kv_transfer_bandwidth: decimal GB/s between prefill and decode; None or 0: transfers take no time.
        kv_bytes_per_token: bytes of KV a token, or None.
        kv_transfer_timing_mode: which tokens a transfer is charged for.
        startup_time: seconds that a worker added by scaling takes to start, or None for no time.
        planner_profile_data: path of a measured profile that replaces the fitted formulas, or None.
        dp_size: ranks of a worker; only 1 is modelled.
        handoff_session_timeout_ms: how long a live handoff may take, without its transfer.
        sglang: what only SGLang has.
    """

    engine_type: EngineType = field(default=EngineType.VLLM, converter=EngineType)
    worker_role: WorkerRole = field(default=WorkerRole.AGGREGATED, converter=WorkerRole)
    block_size: int = field(default=None, validator=_none_or_at_least(1))
    num_gpu_blocks: int = field(default=16384, validator=_at_least(1))
    max_num_batched_tokens: int | None = field(default=8192, validator=_none_or_at_least(1))
    max_num_seqs: int | None = field(default=256, validator=_none_or_at_least(1))
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    speedup_ratio: float = field(default=1.0, validator=_finite_not_negative)
    decode_speedup_ratio: float = field(default=1.0, validator=_finite_not_negative)
    preemption_mode: PreemptionMode = field(default=PreemptionMode.LIFO, converter=PreemptionMode)
    full_hit: FullHit = field(default=FullHit.REUSE_ALL, converter=FullHit)
    max_model_len: int | None = field(default=None, validator=_none_or_at_least(1))
    kv_transfer_bandwidth: float | None = field(default=None, validator=_none_or_finite_not_negative)
    kv_bytes_per_token: int | None = field(default=None, validator=_none_or_at_least(0))
    kv_transfer_timing_mode: TimingMode = field(default=TimingMode.FULL_PROMPT, converter=TimingMode)
    startup_time: float | None = field(default=None, validator=_none_or_finite_not_negative)
    planner_profile_data: str | None = None
    dp_size: int = field(default=1, validator=_only_one)
    handoff_session_timeout_ms: float = field(default=300_000.0, validator=_finite_not_negative)
    sglang: SglangSettings = field(factory=SglangSettings)

    def __attrs_post_init__(self) -> None:
        if self.engine_type is EngineType.TRTLLM:
            raise InvalidSetting(
                "engine_type", "trtllm", "vllm or sglang: disaggregated handoff does not support TRT-LLM"
            )
        if self.block_size is None:
            object.__setattr__(self, "block_size", self._default_block_size())
        if self.engine_type is EngineType.SGLANG:
            self._check_sglang()
        elif self.block_size < 2:
            raise InvalidSetting("block_size", self.block_size, "a whole number of at least 2 for vllm")

    def _default_block_size(self) -> int:
        if self.engine_type is EngineType.SGLANG:
            return self.sglang.page_size or 1
        return 64

    def _check_sglang(self) -> None:
        page_size = self.sglang.page_size
        if page_size is not None and page_size != self.block_size:
            raise InvalidSetting("sglang.page_size", page_size, f"the block_size, {self.block_size}")
        if self.sglang.chunked_prefill_size % self.block_size:
            raise InvalidSetting(
                "sglang.chunked_prefill_size",
                self.sglang.chunked_prefill_size,
                f"a multiple of the page size {self.block_size}",
            )
        if not self.enable_chunked_prefill:
            raise InvalidSetting("enable_chunked_prefill", False, "true: sglang always prefills in chunks")
        if self.max_model_len is not None:
            raise InvalidSetting("max_model_len", self.max_model_len, "no value: it is a setting of vllm only")

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.num_gpu_blocks * self.block_size

    @property
    def prefill_speedup(self) -> float:
        """Divisor of prefill durations."""
        return self.speedup_ratio

    @property
    def decode_speedup(self) -> float:
        """Divisor of decode durations."""
        return self.speedup_ratio * self.decode_speedup_ratio

    def transfer_timing(self, prompt_tokens: int) -> TransferTiming:
        """What a transfer of a prompt from this engine costs; a bandwidth of 0 means that it is not modelled."""
        return TransferTiming(
            self.kv_transfer_timing_mode,
            prompt_tokens,
            self.kv_bytes_per_token,
            self.kv_transfer_bandwidth or None,
        )
