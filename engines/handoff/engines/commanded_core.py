"""What both schedulers do alike: the commands of handoffs, and who is known under which name.

A scheduler derives from `CommandedCore` and says how it queues a request, frees or drops one, and turns a
destination into blocks and blocks into a request. Whatever frees capacity bumps the generation of the destination
queue, and every command that was applied tries the head of that queue once.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from handoff.engines.engine_core import (
    NOTHING_TO_DO,
    DestinationReserved,
    DestinationTooLarge,
    EndKind,
    EngineRequest,
    KvEvent,
    Reply,
    RequestEnd,
    SourceHeld,
)
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.holds import Destination, DestinationQueue, HandoffIndex
from handoff.engines.kv_event_log import KvEventLog
from handoff.engines.token_gaps import GapLog
from handoff.engines.token_sequence import TokenSequence
from handoff.journal.vocabulary import HandoffId, RequestId

Scheduled = TypeVar("Scheduled", bound=TokenSequence)

_APPLIED = Reply(applied=True)


class CommandedCore(ABC, Generic[Scheduled]):
    """A scheduler's commands and holds.

    Args:
        settings: how it is set up.
        capture_kv_events: whether cache events are kept (only with prefix caching).
        gap_log: where waits between tokens are kept, if anybody wants them.
    """

    def __init__(self, settings: EngineSettings, *, capture_kv_events: bool, gap_log: GapLog | None) -> None:
        self.settings = settings
        self._block_size = settings.block_size
        self._caching = settings.enable_prefix_caching
        self._events = KvEventLog() if capture_kv_events and self._caching else None
        self._gap_log = gap_log
        self._index: HandoffIndex[Scheduled] = HandoffIndex()
        self._queue = DestinationQueue()
        self._boundary_ms = 0.0

    # -- what a scheduler supplies --------------------------------------------------------------------

    @abstractmethod
    def _sequence(self, request: EngineRequest, limit: int) -> Scheduled:
        """A request of its own kind."""

    @abstractmethod
    def _enqueue(self, sequence: Scheduled) -> None:
        """Let a new request wait for admission."""

    @abstractmethod
    def _free_held(self, sequence: Scheduled) -> None:
        """Free the blocks of a held source."""

    @abstractmethod
    def _drop(self, sequence: Scheduled) -> None:
        """Remove a request that waits or runs, and forget it; bump the generation if that freed something."""

    @abstractmethod
    def _free_reserved(self, destination: Destination) -> None:
        """Free the blocks of a destination that is pending or reserved."""

    @abstractmethod
    def _take_blocks_for(self, destination: Destination) -> bool:
        """Try to get the blocks of a prompt, sharing what is cached; all or nothing."""

    @abstractmethod
    def _activate(self, destination: Destination) -> Scheduled:
        """Make a reserved destination a request that is ready to decode."""

    @abstractmethod
    def _settle_length(self, sequence: Scheduled) -> None:
        """Make a running request's `tokens` and `last_ms` right."""

    # -- commands -------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nobody is left here."""
        return not self._index.requests

    def submit(self, request: EngineRequest) -> None:
        """Queue an ordinary request."""
        self._index.check_request_is_new(request.request_id)
        sequence = self._sequence(request, request.max_output_tokens)
        self._index.requests[request.request_id] = sequence
        self._enqueue(sequence)

    def submit_handoff_prefill(self, handoff_id: HandoffId, request: EngineRequest) -> None:
        """Queue a prefill that will be held."""
        index = self._index
        index.check_request_is_new(request.request_id)
        index.check_handoff_is_new(handoff_id, self._queue)
        sequence = self._sequence(request, min(1, request.max_output_tokens))
        sequence.source_of = handoff_id
        index.sources[handoff_id] = sequence
        index.requests[request.request_id] = sequence
        self._enqueue(sequence)

    def release_source(self, handoff_id: HandoffId) -> Reply:
        """Free a held source, or unregister a pending one."""
        held = self._index.held.pop(handoff_id, None)
        if held is None:
            pending = self._index.sources.pop(handoff_id, None)
            if pending is None:
                return NOTHING_TO_DO
            pending.source_of = None
            return _APPLIED
        self._free_held(held)
        del self._index.requests[held.request_id]
        return self._freed()

    def cancel_source(self, handoff_id: HandoffId) -> Reply:
        """Free a held source, or drop a pending one."""
        pending = self._index.sources.get(handoff_id)
        if pending is None:
            return self.release_source(handoff_id)
        self._drop(pending)
        return Reply(True, self.retry_pending_destinations())

    def reserve_destination(self, handoff_id: HandoffId, request: EngineRequest, *, busy: bool) -> Reply:
        """Queue a destination."""
        index = self._index
        index.check_request_is_new(request.request_id)
        index.check_handoff_is_new(handoff_id, self._queue)
        needed = self._blocks_for(request.prompt_tokens)
        total = self.settings.num_gpu_blocks
        if needed > total:
            raise DestinationTooLarge(request.request_id, needed, total)
        index.requests[request.request_id] = None
        self._queue.accept(Destination(handoff_id, request, needed))
        return _APPLIED if busy else Reply(True, self.retry_pending_destinations())

    def activate_destination(self, handoff_id: HandoffId) -> Reply:
        """Make a reservation runnable."""
        destination = self._queue.reserved.pop(handoff_id, None)
        if destination is None:
            return NOTHING_TO_DO
        sequence = self._activate(destination)
        sequence.destination_of = handoff_id
        self._index.active[handoff_id] = sequence
        self._index.requests[sequence.request_id] = sequence
        return Reply(True, self.retry_pending_destinations()) if self._queue.pending else _APPLIED

    def cancel_destination(self, handoff_id: HandoffId) -> Reply:
        """Drop a destination in whatever state it is."""
        queue = self._queue
        destination = queue.pending.pop(handoff_id, None) or queue.reserved.pop(handoff_id, None)
        if destination is not None:
            self._free_reserved(destination)
            del self._index.requests[destination.request.request_id]
            return self._freed()
        sequence = self._index.active.get(handoff_id)
        if sequence is None:
            return NOTHING_TO_DO
        self._drop(sequence)
        return Reply(True, self.retry_pending_destinations())

    def cancel_request(self, request_id: RequestId) -> Reply:
        """Drop a request; one that a handoff owns is dropped as that handoff's cancel would."""
        if request_id not in self._index.requests:
            return NOTHING_TO_DO
        sequence = self._index.requests[request_id]
        if sequence is None:
            return self.cancel_destination(self._queue.handoff_of(request_id))
        if sequence.source_of in self._index.held:
            return self.cancel_source(sequence.source_of)
        self._drop(sequence)
        return Reply(True, self.retry_pending_destinations())

    def retry_pending_destinations(self) -> DestinationReserved | None:
        """Try the head of the queue once for each state of capacity."""
        if not self._queue.pending:
            return None
        head = self._queue.head_to_try()
        if head is None or not self._take_blocks_for(head):
            return None
        self._queue.reserve_head()
        fresh_tokens = (head.blocks - len(head.keys)) * self._block_size
        return DestinationReserved(head.handoff_id, head.request.request_id, fresh_tokens)

    def _freed(self) -> Reply:
        """Capacity was given up by a command."""
        self._queue.generation += 1
        return Reply(True, self.retry_pending_destinations()) if self._queue.pending else _APPLIED

    # -- ends -----------------------------------------------------------------------------------------

    def _hold(self, sequence: Scheduled, handoff_id: HandoffId) -> SourceHeld:
        """Keep a completed source for its handoff."""
        del self._index.sources[handoff_id]
        self._index.held[handoff_id] = sequence
        return SourceHeld(handoff_id, sequence.request_id, self.settings.transfer_timing(sequence.prompt_tokens))

    def _forget(self, sequence: Scheduled) -> None:
        """A request has left; a source that was not held loses its registration."""
        del self._index.requests[sequence.request_id]
        if sequence.source_of is not None:
            self._index.sources.pop(sequence.source_of, None)
        if sequence.destination_of is not None:
            self._index.active.pop(sequence.destination_of, None)

    # -- looking --------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def take_kv_events(self) -> list[KvEvent]:
        """The cache events of commands."""
        return self._events.take() if self._events is not None else []

    def token_times(self, request_id: RequestId) -> RequestEnd | None:
        """A present request's tokens so far."""
        sequence = self._index.requests.get(request_id)
        if sequence is None:
            return None
        self._settle_length(sequence)
        return sequence.end(EndKind.COMPLETED)
