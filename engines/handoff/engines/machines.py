"""Which machine each kind of actor is, so that replay can re-execute everything that this package decides."""

from collections.abc import Mapping

from handoff.engines.admission import Admission
from handoff.engines.conductor import Conductor
from handoff.engines.destination_session import DestinationSession
from handoff.engines.engine_actor import EngineActor
from handoff.engines.rendezvous import Rendezvous
from handoff.engines.source_session import SourceSession
from handoff.journal.replayer import MACHINES as JOURNAL_MACHINES
from handoff.journal.step import MachineFactory
from handoff.journal.terms import ActorKind

MACHINES: Mapping[ActorKind, MachineFactory] = {
    **JOURNAL_MACHINES,
    ActorKind.ADMISSION: Admission.build,
    ActorKind.CONDUCTOR: Conductor.build,
    ActorKind.ENGINE: EngineActor.build,
    ActorKind.RENDEZVOUS: Rendezvous.build,
    ActorKind.SOURCE_SESSION: SourceSession.build,
    ActorKind.DESTINATION_SESSION: DestinationSession.build,
}
"""Actor kind to factory. A witness is somebody else's program and has none: its rows are recorded, not re-executed."""
