"""Makes the core that a set-up asks for."""

from handoff.engines.engine_core import EngineCore
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.sglang import SglangCore
from handoff.engines.timing_model import PolynomialTiming
from handoff.engines.vllm import VllmCore
from handoff.journal.vocabulary import EngineType


def build_core(
    settings: EngineSettings, *, capture_kv_events: bool = False, capture_metrics: bool = False
) -> EngineCore:
    """A new engine core with a timing model of its own."""
    timing = PolynomialTiming(settings.capacity_tokens, settings.prefill_speedup, settings.decode_speedup)
    scheduler = SglangCore if settings.engine_type is EngineType.SGLANG else VllmCore
    return scheduler(settings, timing, capture_kv_events=capture_kv_events, capture_metrics=capture_metrics)
