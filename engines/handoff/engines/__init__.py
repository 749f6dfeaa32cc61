"""What happens: engine cores, live sessions over TCP, and virtual time.

The names that people need, each loaded when it is first asked for:

* plug in an engine of one's own: `EngineBoundary` (two methods), with `ControlCall`, `ControlReply`, `LifecycleEvent`,
  `source_held` and `destination_reserved`
* the mock engines, live: `LiveEngine`, `LiveRequest`, `EngineSettings`, `live_handoff_boundary`
* run a scenario: `load_scenario`, `record_scenario` (real TCP, real time), `simulate` (virtual time)
* replay everything that this package decides: `MACHINES`, to be given to `handoff.journal.replay`
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handoff.engines.boundary import ControlCall as ControlCall
    from handoff.engines.boundary import ControlReply as ControlReply
    from handoff.engines.boundary import EngineBoundary as EngineBoundary
    from handoff.engines.boundary import LifecycleEvent as LifecycleEvent
    from handoff.engines.boundary import destination_reserved as destination_reserved
    from handoff.engines.boundary import source_held as source_held
    from handoff.engines.engine_settings import EngineSettings as EngineSettings
    from handoff.engines.live_boundary import live_handoff_boundary as live_handoff_boundary
    from handoff.engines.live_engine import LiveEngine as LiveEngine
    from handoff.engines.live_engine import LiveRequest as LiveRequest
    from handoff.engines.machines import MACHINES as MACHINES
    from handoff.engines.record import record_scenario as record_scenario
    from handoff.engines.scenario import load_scenario as load_scenario
    from handoff.engines.simulation import simulate as simulate

_ROOMS = {
    "MACHINES": "machines",
    "ControlCall": "boundary",
    "ControlReply": "boundary",
    "EngineBoundary": "boundary",
    "EngineSettings": "engine_settings",
    "LifecycleEvent": "boundary",
    "LiveEngine": "live_engine",
    "LiveRequest": "live_engine",
    "destination_reserved": "boundary",
    "live_handoff_boundary": "live_boundary",
    "load_scenario": "scenario",
    "record_scenario": "record",
    "simulate": "simulation",
    "source_held": "boundary",
}
"""In which module each public name lives. No name may also be a module's: the module would hide it."""

__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)
