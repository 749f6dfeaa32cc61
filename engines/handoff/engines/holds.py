"""Who owns KV for a handoff: sources that wait for their release, destinations that wait for their blocks.

Both ledgers are keyed by handoff. A source is *pending* while its prefill runs and *held* from its completion to its
release. A destination is *pending* (accepted, owns nothing), then *reserved* (owns the prompt's blocks), then
*active* (an ordinary request of the scheduler that still answers to its handoff).

Pending destinations are served in order, and only the head is tried: at most once for each state of the engine's
capacity, counted by `generation`. An engine bumps it whenever somebody gave up blocks or a slot, so a head that did
not fit costs nothing until it could.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

from handoff.engines.engine_core import BlockHolder, DuplicateId, EngineRequest
from handoff.journal.vocabulary import HandoffId, RequestId

Sequence_ = TypeVar("Sequence_")


class Destination:
    """A destination before its activation.

    Attributes:
        handoff_id, request: who it is for.
        tried_at: the capacity generation of its last try, -1 for none.
        is_reserved: whether it owns its blocks.
        blocks: blocks that its prompt needs; they are its own once it is reserved.
        keys: cached blocks among them that its reservation pinned (the engine's own kind of key).
        anchor: what else the reservation holds on to (SGLang: the locked node of its prefix).
    """

    __slots__ = ("anchor", "blocks", "handoff_id", "is_reserved", "keys", "request", "tried_at")

    def __init__(self, handoff_id: HandoffId, request: EngineRequest, blocks: int) -> None:
        self.handoff_id = handoff_id
        self.request = request
        self.tried_at = -1
        self.is_reserved = False
        self.keys: list[int] = []
        self.blocks = blocks
        self.anchor: object = None


class DestinationQueue:
    """Destinations that are pending or reserved.

    Attributes:
        generation: the state of the engine's capacity.
        pending: by handoff, in order of acceptance.
        reserved: by handoff, in order of reservation.
    """

    __slots__ = ("generation", "pending", "reserved")

    def __init__(self) -> None:
        self.generation = 0
        self.pending: OrderedDict[HandoffId, Destination] = OrderedDict()
        self.reserved: dict[HandoffId, Destination] = {}

    def accept(self, destination: Destination) -> None:
        """Queue a destination."""
        self.pending[destination.handoff_id] = destination

    def head_to_try(self) -> Destination | None:
        """The head of the queue, if a try could now end otherwise than its last one; the try is noted."""
        if not self.retry_is_due:
            return None
        head = self._head()
        head.tried_at = self.generation
        return head

    @property
    def retry_is_due(self) -> bool:
        """Whether the next `head_to_try` would return a destination."""
        return bool(self.pending) and self._head().tried_at != self.generation

    def reserve_head(self) -> None:
        """The head got its blocks."""
        handoff_id, head = self.pending.popitem(last=False)
        head.is_reserved = True
        self.reserved[handoff_id] = head

    def _head(self) -> Destination:
        return next(iter(self.pending.values()))

    def handoff_of(self, request_id: RequestId) -> HandoffId:
        """The handoff of a pending or reserved destination's request."""
        for destination in (*self.pending.values(), *self.reserved.values()):
            if destination.request.request_id == request_id:
                return destination.handoff_id
        raise KeyError(request_id)

    def holders(self) -> list[BlockHolder]:
        """Who owns blocks by reservation."""
        return [
            BlockHolder(destination.request.request_id, "reserved destination", destination.blocks)
            for destination in self.reserved.values()
        ]

    def requests(self) -> list[EngineRequest]:
        """Pending, then reserved, in order."""
        return [destination.request for destination in (*self.pending.values(), *self.reserved.values())]


class HandoffIndex(Generic[Sequence_]):
    """Everything that an engine knows by name: requests, sources, active destinations.

    Attributes:
        requests: every request that was submitted or accepted and has not left; None while it is a destination
            that is not active yet.
        sources: pending and held sources.
        held: handoffs whose source is held, in order of completion.
        active: activated destinations that still run.
    """

    __slots__ = ("active", "held", "requests", "sources")

    def __init__(self) -> None:
        self.requests: dict[RequestId, Sequence_ | None] = {}
        self.sources: dict[HandoffId, Sequence_] = {}
        self.held: dict[HandoffId, Sequence_] = {}
        self.active: dict[HandoffId, Sequence_] = {}

    def check_request_is_new(self, request_id: RequestId) -> None:
        """Raises `DuplicateId` for a known request."""
        if request_id in self.requests:
            raise DuplicateId("request", request_id)

    def check_handoff_is_new(self, handoff_id: HandoffId, queue: DestinationQueue) -> None:
        """Raises `DuplicateId` for a handoff that is known in any part."""
        if (
            handoff_id in self.sources
            or handoff_id in self.held
            or handoff_id in self.active
            or handoff_id in queue.reserved
            or handoff_id in queue.pending
        ):
            raise DuplicateId("handoff", handoff_id)
