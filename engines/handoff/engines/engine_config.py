"""An engine's set-up as the configuration that an `actor_started` row keeps."""

from collections.abc import Mapping
from typing import Any

from cattrs import Converter

from handoff.engines.engine_settings import EngineSettings

_whole = Converter(forbid_extra_keys=True, prefer_attrib_converters=True)


def settings_to_config(settings: EngineSettings) -> dict[str, Any]:
    """Every setting, defaults filled in, so that a later change of a default does not change what a journal means."""
    config: dict[str, Any] = _whole.unstructure(settings)
    return config


def settings_from_config(config: Mapping[str, Any]) -> EngineSettings:
    """The inverse of `settings_to_config`; unknown keys are errors."""
    return _whole.structure(config, EngineSettings)
