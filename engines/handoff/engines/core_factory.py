"""Makes the core that a set-up asks for."""

from handoff.engines.engine_core import EngineCore
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.planner_profile import load_profile
from handoff.engines.sglang import SglangCore
from handoff.engines.timing_model import PolynomialTiming, TimingModel
from handoff.engines.token_gaps import GapLog
from handoff.engines.vllm import VllmCore
from handoff.journal.vocabulary import EngineType


def build_timing(settings: EngineSettings) -> TimingModel:
    """The timing model of a set-up: a measured profile if it names one, else the fitted formulas."""
    if settings.planner_profile_data is not None:
        return load_profile(settings.planner_profile_data, settings.prefill_speedup, settings.decode_speedup)
    return PolynomialTiming(settings.capacity_tokens, settings.prefill_speedup, settings.decode_speedup)


def build_core(
    settings: EngineSettings,
    *,
    timing: TimingModel | None = None,
    capture_kv_events: bool = False,
    capture_metrics: bool = False,
    gap_log: GapLog | None = None,
    names_tokens: bool = True,
) -> EngineCore:
    """A new engine core.

    Args:
        settings: how it is set up.
        timing: shared with other engines of its pool, or None for one of its own.
        capture_kv_events: whether it keeps cache events.
        capture_metrics: whether each pass reports its metrics.
        gap_log: where it notes waits between tokens.
        names_tokens: whether each pass lists who got a token.
    """
    scheduler = SglangCore if settings.engine_type is EngineType.SGLANG else VllmCore
    return scheduler(
        settings,
        timing or build_timing(settings),
        capture_kv_events=capture_kv_events,
        capture_metrics=capture_metrics,
        gap_log=gap_log,
        names_tokens=names_tokens,
    )
