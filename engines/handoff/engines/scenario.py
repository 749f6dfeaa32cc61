"""A scenario: everything that a run depends on, in one TOML file.

Tables: ``[scenario]``, ``[workload]`` (a trace file or ``[workload.synthetic]``), ``[cluster]``, ``[engine]`` for
both pools with ``[prefill]`` and ``[decode]`` on top, ``[live]`` and any number of ``[[fault]]``. Every default is
filled in here, so the value that `load_scenario` returns is the whole truth of a run, and `resolved` is what gets
stored with it.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from handoff.engines.engine_settings import EngineSettings, InvalidSetting
from handoff.engines.table_reader import ScenarioError, TableReader, suggestion
from handoff.journal.vocabulary import ActionName, EngineType, FactName, WorkerRole

__all__ = [
    "Cluster",
    "Fault",
    "FaultDeed",
    "FaultPlace",
    "KvRouterSettings",
    "LiveSettings",
    "QueuePolicy",
    "RouterMode",
    "Scenario",
    "ScenarioError",
    "Synthetic",
    "TraceFormat",
    "Transform",
    "Workload",
    "load_scenario",
    "parse_scenario",
]


class RouterMode(StrEnum):
    """How requests are spread over a pool."""

    ROUND_ROBIN = "round_robin"
    KV_ROUTER = "kv_router"


class QueuePolicy(StrEnum):
    """Order of a router's queue among requests of equal strict priority."""

    FCFS = "fcfs"
    LCFS = "lcfs"
    WSPT = "wspt"


class TraceFormat(StrEnum):
    """How a trace file is written."""

    MOONCAKE = "mooncake"
    MOONCAKE_DELTA = "mooncake-delta"
    VIDUR = "vidur"
    BAILIAN = "bailian"


class FaultPlace(StrEnum):
    """What kind of thing a fault strikes."""

    ACTION = "action"
    OUTCOME = "outcome"
    FACT = "fact"
    FRAME = "frame"
    REQUEST = "request"


class FaultDeed(StrEnum):
    """What a fault does."""

    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    FAIL = "fail"
    CRASH_SOURCE = "crash_source"
    CRASH_DESTINATION = "crash_destination"
    DISCONNECT = "disconnect"
    CANCEL = "cancel"
    TIMEOUT = "timeout"


MAX_WORKERS = 65_536
"""Workers of a pool; far more than anybody runs, and few enough that all can be built."""

FRAME_NAMES = (
    "register",
    "registered",
    "action",
    "action_ack",
    "fact",
    "complete",
    "abort",
    "overloaded",
    "protocol_error",
)

_NAMES_AT: dict[FaultPlace, tuple[str, ...]] = {
    FaultPlace.ACTION: tuple(ActionName),
    # An outcome is named by the action that it answers; nobody answers a completion.
    FaultPlace.OUTCOME: tuple(name for name in ActionName if name is not ActionName.COMPLETE),
    FaultPlace.FACT: tuple(FactName),
    FaultPlace.FRAME: FRAME_NAMES,
    FaultPlace.REQUEST: (),
}

_NEEDS_WIRE = frozenset({FaultDeed.DISCONNECT, FaultDeed.CRASH_SOURCE, FaultDeed.CRASH_DESTINATION, FaultDeed.TIMEOUT})


def _require(condition: bool, key: str, value: object, expected: str) -> None:
    if not condition:
        raise InvalidSetting(key, value, expected)


@frozen
class Transform:
    """What is done to a trace's sessions before they run, in the order of the fields.

    Attributes:
        multiply_prefix_depth: each block becomes so many, and prompts as much longer.
        duplicate: so many copies of the whole trace with block ids of their own.
        split: of how many parts one is kept, or None.
        split_part: which one, from 0.
        split_at_random: draw each session's part instead of dealing them out.
        rescale_starts_ms: stretch the sessions' first arrivals to this span.
        rescale_ready_ms: stretch first arrivals and delays so that the last turn is ready after this span.
    """

    multiply_prefix_depth: int = 1
    duplicate: int = 1
    split: int | None = None
    split_part: int = 0
    split_at_random: bool = False
    rescale_starts_ms: float | None = None
    rescale_ready_ms: float | None = None

    def __attrs_post_init__(self) -> None:
        _require(self.multiply_prefix_depth >= 1, "multiply_prefix_depth", self.multiply_prefix_depth, "at least 1")
        _require(self.duplicate >= 1, "duplicate", self.duplicate, "at least 1")
        _require(self.split is None or self.split >= 1, "split", self.split, "at least 1")
        _require(0 <= self.split_part < (self.split or 1), "split_part", self.split_part, "a part from 0 below split")
        for key in ("rescale_starts_ms", "rescale_ready_ms"):
            value = getattr(self, key)
            _require(value is None or 0.0 <= value < float("inf"), key, value, "a finite number of at least 0")


@frozen
class Synthetic:
    """A workload without a trace.

    Attributes:
        input_tokens, output_tokens: of every turn.
        request_count: sessions.
        turns_per_session: turns of each.
        shared_prefix_ratio: share of a prompt's blocks that a group has in common, 0 to 1.
        num_prefix_groups: groups; 0 shares nothing.
        inter_turn_delay_ms: from the end of a turn to the next one's arrival.
        arrival_seed: of the generator for arrivals and groups.
        replay_concurrency, request_rate, arrival_interval_ms: exactly one: sessions at once, sessions a second with
            exponential gaps, or a fixed gap.
    """

    input_tokens: int
    output_tokens: int
    request_count: int
    turns_per_session: int = 1
    shared_prefix_ratio: float = 0.0
    num_prefix_groups: int = 0
    inter_turn_delay_ms: float = 0.0
    arrival_seed: int = 42
    replay_concurrency: int | None = None
    request_rate: float | None = None
    arrival_interval_ms: float | None = None

    def __attrs_post_init__(self) -> None:
        _require(self.input_tokens >= 1, "input_tokens", self.input_tokens, "at least 1")
        _require(self.output_tokens >= 0, "output_tokens", self.output_tokens, "at least 0")
        _require(self.request_count >= 1, "request_count", self.request_count, "at least 1")
        _require(self.turns_per_session >= 1, "turns_per_session", self.turns_per_session, "at least 1")
        _require(0.0 <= self.shared_prefix_ratio <= 1.0, "shared_prefix_ratio", self.shared_prefix_ratio, "0 to 1")
        _require(self.num_prefix_groups >= 0, "num_prefix_groups", self.num_prefix_groups, "at least 0")
        _require(
            0.0 <= self.inter_turn_delay_ms < float("inf"),
            "inter_turn_delay_ms",
            self.inter_turn_delay_ms,
            "a finite number of at least 0",
        )
        arrivals = ("replay_concurrency", "request_rate", "arrival_interval_ms")
        given = [key for key in arrivals if getattr(self, key) is not None]
        _require(len(given) == 1, given[-1] if given else arrivals[1], None, f"exactly one of {', '.join(arrivals)}")
        if self.replay_concurrency is not None:
            _require(self.replay_concurrency >= 1, "replay_concurrency", self.replay_concurrency, "at least 1")
        if self.request_rate is not None:
            _require(
                0.0 < self.request_rate < float("inf"), "request_rate", self.request_rate, "a finite number above 0"
            )
        if self.arrival_interval_ms is not None:
            _require(
                0.0 <= self.arrival_interval_ms < float("inf"),
                "arrival_interval_ms",
                self.arrival_interval_ms,
                "a finite number of at least 0",
            )


@frozen
class Workload:
    """Where requests come from.

    Attributes:
        trace: path of a trace file as written, or None for a synthetic workload.
        trace_format: how it is written.
        trace_block_size: tokens that one block id of the trace stands for.
        arrival_speedup_ratio: divides arrivals and delays; without effect in concurrency mode.
        max_in_flight: concurrency mode: so many sessions at once, arrivals ignored.
        max_sim_time_ms: stop after this moment.
        limit: the first rows only.
        transform: what is done to the trace.
        synthetic: the workload if there is no trace.
    """

    trace: str | None = None
    trace_format: TraceFormat = field(default=TraceFormat.MOONCAKE, converter=TraceFormat)
    trace_block_size: int = 512
    arrival_speedup_ratio: float = 1.0
    max_in_flight: int | None = None
    max_sim_time_ms: float | None = None
    limit: int | None = None
    transform: Transform = field(factory=Transform)
    synthetic: Synthetic | None = None

    def __attrs_post_init__(self) -> None:
        either = (self.trace is None) != (self.synthetic is None)
        _require(either, "trace", self.trace, "a trace file or [workload.synthetic]")
        _require(
            self.trace_format is not TraceFormat.MOONCAKE_DELTA,
            "trace_format",
            self.trace_format.value,
            "mooncake, vidur or bailian: mooncake-delta trace format is not supported for disaggregated replay",
        )
        _require(self.trace_block_size >= 1, "trace_block_size", self.trace_block_size, "at least 1")
        _require(
            0.0 < self.arrival_speedup_ratio < float("inf"),
            "arrival_speedup_ratio",
            self.arrival_speedup_ratio,
            "a finite number above 0",
        )
        _require(
            self.max_in_flight is None or self.max_in_flight >= 1, "max_in_flight", self.max_in_flight, "at least 1"
        )
        _require(
            self.max_sim_time_ms is None or 0.0 <= self.max_sim_time_ms < float("inf"),
            "max_sim_time_ms",
            self.max_sim_time_ms,
            "a finite number of at least 0",
        )
        _require(self.limit is None or self.limit >= 1, "limit", self.limit, "at least 1")

    @property
    def concurrency(self) -> int | None:
        """Sessions at once in concurrency mode, else None."""
        if self.max_in_flight is None and self.synthetic is not None:
            return self.synthetic.replay_concurrency
        return self.max_in_flight


@frozen
class KvRouterSettings:
    """How a KV-aware router weighs workers.

    Attributes:
        overlap_score_credit: how much a cached block is worth, in blocks of prefill.
        overlap_score_credit_decay: how fast that credit falls with a worker's surplus of prefill work.
        prefill_load_scale: weight of prefill work.
        decode_active_request_weight: weight of a worker's number of requests.
        router_temperature: 0 takes the cheapest worker; more draws, cheaper ones more often.
        router_queue_threshold: queue while all workers' prefill work exceeds this share of the token budget; None
            never queues.
        router_queue_policy: order of that queue.
        router_track_active_blocks: count blocks of running requests.
        router_assume_kv_reuse: count blocks that a worker's requests share once.
        router_track_prefill_tokens: count prefill work.
        break_ties_at_random: draw among equally cheap workers, from the run's seed, as the deployed router does from
            nowhere; else take the lowest id.
    """

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    router_temperature: float = 0.0
    router_queue_threshold: float | None = None
    router_queue_policy: QueuePolicy = field(default=QueuePolicy.FCFS, converter=QueuePolicy)
    router_track_active_blocks: bool = True
    router_assume_kv_reuse: bool = True
    router_track_prefill_tokens: bool = True
    break_ties_at_random: bool = True

    def __attrs_post_init__(self) -> None:
        for key in (
            "overlap_score_credit",
            "overlap_score_credit_decay",
            "prefill_load_scale",
            "decode_active_request_weight",
            "router_temperature",
        ):
            value = getattr(self, key)
            _require(0.0 <= value < float("inf"), key, value, "a finite number of at least 0")
        threshold = self.router_queue_threshold
        _require(
            threshold is None or 0.0 <= threshold < float("inf"),
            "router_queue_threshold",
            threshold,
            "a finite number of at least 0",
        )


@frozen
class Cluster:
    """The two pools and how requests are spread over them."""

    engine_type: EngineType = field(default=EngineType.VLLM, converter=EngineType)
    num_prefill_workers: int = 1
    num_decode_workers: int = 1
    router_mode: RouterMode = field(default=RouterMode.ROUND_ROBIN, converter=RouterMode)
    kv_router: KvRouterSettings = field(factory=KvRouterSettings)

    def __attrs_post_init__(self) -> None:
        _require(
            self.engine_type is not EngineType.TRTLLM,
            "engine_type",
            "trtllm",
            "vllm or sglang: disaggregated handoff does not support TRT-LLM",
        )
        expected = f"from 1 to {MAX_WORKERS}"
        for key in ("num_prefill_workers", "num_decode_workers"):
            _require(1 <= getattr(self, key) <= MAX_WORKERS, key, getattr(self, key), expected)


@frozen
class LiveSettings:
    """What only a live run needs.

    Attributes:
        host, port: where the source side listens; port 0 picks a free one.
        max_sessions: handoffs at once for a source, or None for what the engine can take.
        session_timeout_ms: limit of one handoff, without its transfer.
        rendezvous_timeout_ms: how long one side waits for the other.
    """

    host: str = "127.0.0.1"
    port: int = 0
    max_sessions: int | None = None
    session_timeout_ms: float | None = None
    rendezvous_timeout_ms: float = 30_000.0

    def __attrs_post_init__(self) -> None:
        _require(0 <= self.port <= 65_535, "port", self.port, "0 to 65535")
        _require(self.max_sessions is None or self.max_sessions >= 1, "max_sessions", self.max_sessions, "at least 1")
        for key in ("session_timeout_ms", "rendezvous_timeout_ms"):
            value = getattr(self, key)
            _require(value is None or 0.0 < value < float("inf"), key, value, "a finite number above 0")


@frozen
class Fault:
    """Something that goes wrong on purpose.

    Attributes:
        on: what it strikes, as written: ``kind:name`` or ``request``.
        do: what it does.
        handoff: which handoff of the run, from 1, or None for any.
        probability: how likely each time, 0 to 1.
        delay_ms: for ``delay``: how long; for the others: how long after the struck thing.
        message: for ``fail``: the text of the failure.
        place, name: `on`, taken apart; the name is empty for ``request``.
    """

    on: str
    do: FaultDeed = field(converter=FaultDeed)
    handoff: int | None = None
    probability: float = 1.0
    delay_ms: float = 0.0
    message: str = "injected fault"
    place: FaultPlace = field(init=False)
    name: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        place, _, name = self.on.partition(":")
        _require(place in tuple(FaultPlace), "on", self.on, f"{suggestion(place, tuple(FaultPlace))} before the colon")
        object.__setattr__(self, "place", FaultPlace(place))
        object.__setattr__(self, "name", name)
        names = _NAMES_AT[self.place]
        if names:
            _require(name in names, "on", self.on, f"{place}: and {suggestion(name, names)}")
        else:
            _require(not name, "on", self.on, "request alone, without a name")
        _require(self.handoff is None or self.handoff >= 1, "handoff", self.handoff, "a number from 1")
        _require(0.0 <= self.probability <= 1.0, "probability", self.probability, "a number from 0 to 1")
        _require(0.0 <= self.delay_ms < float("inf"), "delay_ms", self.delay_ms, "a finite number of at least 0")
        _require(self.do is not FaultDeed.DELAY or self.delay_ms > 0.0, "delay_ms", None, "a number above 0 for delay")

    @property
    def needs_wire(self) -> bool:
        """Whether only a run with sessions can suffer it."""
        return self.place is FaultPlace.FRAME or self.do in _NEEDS_WIRE


@frozen
class Scenario:
    """One run's whole description.

    Attributes:
        name, seed: from ``[scenario]``.
        prefill, decode: the pools' engines, with ``[engine]`` and the overrides merged.
        faults: in order of the file.
        folder: where relative paths start, as written on the command line.
    """

    name: str
    seed: int
    workload: Workload
    cluster: Cluster
    prefill: EngineSettings
    decode: EngineSettings
    live: LiveSettings
    faults: tuple[Fault, ...]
    folder: str = "."

    @property
    def trace_path(self) -> Path | None:
        """The trace file, or None for a synthetic workload."""
        return None if self.workload.trace is None else Path(self.folder) / self.workload.trace

    def wire_fault(self) -> Fault | None:
        """The first fault that a run without a wire cannot suffer."""
        return next((fault for fault in self.faults if fault.needs_wire), None)

    def resolved(self) -> dict[str, Any]:
        """Everything but the folder, with all defaults, as JSON values."""
        values = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "folder")
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    def digest(self) -> str:
        """A digest of `resolved`."""
        text = json.dumps(self.resolved(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ScenarioError: when it cannot be read or used.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(str(path), None, "", None, f"the file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(str(path), None, "", None, f"the file is not UTF-8 text: {error.reason}") from error
    return parse_scenario(text, str(path), str(path.parent))


def parse_scenario(text: str, file: str = "scenario", folder: str = ".") -> Scenario:
    """Read a scenario's text.

    Args:
        text: TOML.
        file: its name, for errors.
        folder: where its relative paths start.

    Raises:
        ScenarioError: when it cannot be used.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(file, None, "", None, f"the file is not TOML: {error}") from error
    reader = TableReader(file, text)
    tables = ("scenario", "workload", "cluster", "engine", "prefill", "decode", "live", "fault")
    reader.check_keys(document, tables, "")
    for name in tables:
        expected, shape = ("an array of tables, [[fault]]", list) if name == "fault" else ("a table", dict)
        if not isinstance(document.get(name, shape()), shape):
            raise reader.error(name, document[name], expected)
    head = reader.read(_Head, document.get("scenario", {}), "scenario")
    if "workload" not in document:
        raise reader.error("workload", None, "a table with a trace or [workload.synthetic]")
    cluster = reader.read(Cluster, document.get("cluster", {}), "cluster")
    prefill = _engine(reader, document, cluster.engine_type, WorkerRole.PREFILL)
    decode = _engine(reader, document, cluster.engine_type, WorkerRole.DECODE)
    if prefill.block_size != decode.block_size:
        raise reader.error(
            "decode.block_size", decode.block_size, f"the block_size of the prefill pool, {prefill.block_size}"
        )
    return Scenario(
        name=head.name,
        seed=head.seed,
        workload=reader.read(Workload, document["workload"], "workload"),
        cluster=cluster,
        prefill=prefill,
        decode=decode,
        live=reader.read(LiveSettings, document.get("live", {}), "live"),
        faults=tuple(
            reader.read(Fault, table, "fault", occurrence=index)
            for index, table in enumerate(document.get("fault", []))
        ),
        folder=folder,
    )


@frozen
class _Head:
    name: str = "unnamed"
    seed: int = 0


def _engine(
    reader: TableReader, document: Mapping[str, Any], engine_type: EngineType, role: WorkerRole
) -> EngineSettings:
    """One pool's engine: its own table over ``[engine]``. An error names the table that said the wrong thing."""
    shared = document.get("engine", {})
    own = document.get(role.value, {})
    given = {"engine_type": engine_type, "worker_role": role}
    if engine_type is EngineType.SGLANG:
        shared, own = _with_page_size(shared), _with_page_size(own)
    merged = {**shared, **own}
    if isinstance(shared.get("sglang"), Mapping) and isinstance(own.get("sglang"), Mapping):
        merged["sglang"] = {**shared["sglang"], **own["sglang"]}
    try:
        return reader.read(EngineSettings, merged, "engine", given=given)
    except ScenarioError as error:
        key = error.key.removeprefix("engine.")
        if key.split(".")[0] in own:
            raise reader.error(f"{role.value}.{key}", error.value, error.expected) from error
        raise


def _with_page_size(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A table that names only the page size names the block size with it, and must not inherit another one."""
    sglang = table.get("sglang")
    if isinstance(sglang, Mapping) and "page_size" in sglang and "block_size" not in table:
        return {**table, "block_size": sglang["page_size"]}
    return table
