"""Set-ups as the configuration that an `actor_started` row keeps.

Every setting is written, defaults too, so that a later change of a default does not change what a journal means.
"""

from collections.abc import Mapping
from typing import Any

from cattrs import Converter

from handoff.engines.engine_settings import EngineSettings
from handoff.engines.scenario import Cluster

_whole = Converter(forbid_extra_keys=True, prefer_attrib_converters=True)


def settings_to_config(settings: EngineSettings) -> dict[str, Any]:
    """An engine's set-up as plain values."""
    config: dict[str, Any] = _whole.unstructure(settings)
    return config


def settings_from_config(config: Mapping[str, Any]) -> EngineSettings:
    """The inverse of `settings_to_config`; unknown keys are errors."""
    return _whole.structure(config, EngineSettings)


def cluster_to_config(cluster: Cluster) -> dict[str, Any]:
    """The pools and their router as plain values."""
    config: dict[str, Any] = _whole.unstructure(cluster)
    return config


def cluster_from_config(config: Mapping[str, Any]) -> Cluster:
    """The inverse of `cluster_to_config`; unknown keys are errors."""
    return _whole.structure(config, Cluster)
