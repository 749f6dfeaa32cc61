"""The vLLM-style scheduler: one pass mixes prefill chunks and decode steps under one token budget.

A request waits, runs, and may be preempted: it then loses its blocks, keeps its generated tokens, and goes back to
the front of the queue to be computed again. A pass has three parts:

1. every running request computes what it can: the next chunk of its prompt, or the one token that the last pass
   generated. If blocks run out, the last (or first) running request is preempted, perhaps the asking one itself;
2. if nobody was preempted, waiting requests are admitted in order while a slot, the budget and the pool allow. While
   a destination waits for its reservation, only activated destinations are admitted, so that a reservation cannot
   starve behind fresh work;
3. every request whose whole sequence is computed gets one token.

Requests that got a token and can only go on decoding live in the steady batch, which takes part 1 and part 3 at the
cost of what changes (`decode_batch`). The others are stepped one by one. The steady ones always come first in the
running order, so the budget and the preemption order see the same list as if all were stepped. When a step of the
batch could need a preemption, the batch is dissolved for one pass.

Deviations in names only: a source's single token is counted here, and hidden by whoever reports.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from handoff.engines.block_pool import BlockPool
from handoff.engines.decode_batch import DecodeBatch, DecodeRun
from handoff.engines.engine_core import (
    NOTHING_TO_DO,
    Admission,
    Blocked,
    BlockHolder,
    DestinationReserved,
    DestinationTooLarge,
    EndKind,
    EngineMetrics,
    EngineRequest,
    ForwardPassMetrics,
    KvEvent,
    PassResult,
    PressureRecord,
    Reply,
    RequestEnd,
    SourceHeld,
)
from handoff.engines.engine_settings import EngineSettings, FullHit, PreemptionMode
from handoff.engines.holds import Destination, DestinationQueue, HandoffIndex
from handoff.engines.kv_event_log import KvEventLog
from handoff.engines.pass_metrics import PassWork
from handoff.engines.timing_model import TimingModel
from handoff.engines.token_gaps import GapLog
from handoff.engines.token_sequence import TokenSequence
from handoff.journal.vocabulary import HandoffId, RequestId, WorkerRole

_UNLIMITED: Final = 1 << 62
_BLOCKED: Final = -1
_PREEMPTED_ITSELF: Final = -2


class VllmSequence(TokenSequence):
    """A request of this scheduler.

    Attributes:
        computed: tokens whose KV exists or is being computed; stale in the steady batch.
        owned: blocks that it owns.
        keys: keys of its cached blocks; they come before its private ones.
        preempted: whether it was preempted and not readmitted yet.
        materialized: whether it waits as an activated destination.
    """

    __slots__ = ("computed", "keys", "materialized", "owned", "preempted")

    def __init__(self, request: EngineRequest, limit: int) -> None:
        super().__init__(request, limit)
        self.computed = 0
        self.owned = 0
        self.keys: list[int] = []
        self.preempted = False
        self.materialized = False


class _Pass:
    """What a pass in progress has done so far."""

    __slots__ = (
        "batch_cached", "batch_requests", "batch_tokens", "budget", "members", "preempted", "result", "stable",
        "steps", "work",
    )  # fmt: skip

    def __init__(self, result: PassResult, budget: int, work: PassWork | None) -> None:
        self.result = result
        self.budget = budget
        self.members = 0
        """Requests of the steady batch that this pass has stepped."""
        self.preempted = False
        self.stable = True
        """Whether waiting requests will be refused again in the next pass, if only tokens are added."""
        self.batch_requests = 0
        self.batch_tokens = 0
        self.batch_cached = 0
        self.steps: dict[RequestId, tuple[int, int, int]] = {}
        """Scheduled one by one: (tokens, prompt end, prompt start), kept so that a preemption can take it back."""
        self.work = work


class VllmCore:
    """A vLLM-style engine core; see `EngineCore` for the contract.

    Args:
        settings: how it is set up.
        timing: how long passes take; engines of one pool may share it.
        capture_kv_events: whether cache events are kept (only with prefix caching).
        capture_metrics: whether each pass reports its metrics; passes are then never prolonged into runs.
        gap_log: where waits between tokens are kept, if anybody wants them.
    """

    def __init__(
        self,
        settings: EngineSettings,
        timing: TimingModel,
        *,
        capture_kv_events: bool = False,
        capture_metrics: bool = False,
        gap_log: GapLog | None = None,
    ) -> None:
        self.settings = settings
        self._timing = timing
        self._capture_metrics = capture_metrics
        self._gap_log = gap_log
        self._events = KvEventLog() if capture_kv_events and settings.enable_prefix_caching else None
        self._pool = BlockPool(settings.num_gpu_blocks, self._events)
        self._block_size = settings.block_size
        self._caching = settings.enable_prefix_caching
        self._is_prefill = settings.worker_role is WorkerRole.PREFILL
        self._is_decode = settings.worker_role is WorkerRole.DECODE
        self._budget = settings.max_num_batched_tokens or _UNLIMITED
        self._slots = settings.max_num_seqs or _UNLIMITED
        self._waiting: deque[VllmSequence] = deque()
        self._running: list[VllmSequence] = []
        self._batch: DecodeBatch[VllmSequence] = DecodeBatch(self._block_size)
        self._index: HandoffIndex[VllmSequence] = HandoffIndex()
        self._queue = DestinationQueue()
        self._preemptions = 0
        self._run: DecodeRun | None = None
        self._may_extend = False
        self._boundary_ms = 0.0
        self._newcomers: list[VllmSequence] = []
        """Members of the batch with exactly one token: their second is still to be noted."""

    # -- commands -------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a pass could do anything."""
        return bool(self._running or self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is left here."""
        return not self._index.requests

    def submit(self, request: EngineRequest) -> None:
        """Queue an ordinary request."""
        self._index.check_request_is_new(request.request_id)
        self._enqueue(self._sequence(request, request.max_output_tokens))

    def submit_handoff_prefill(self, handoff_id: HandoffId, request: EngineRequest) -> None:
        """Queue a prefill that will be held."""
        self._index.check_request_is_new(request.request_id)
        self._index.check_handoff_is_new(handoff_id, self._queue)
        sequence = self._sequence(request, min(1, request.max_output_tokens))
        sequence.source_of = handoff_id
        self._index.sources[handoff_id] = sequence
        self._enqueue(sequence)

    def _sequence(self, request: EngineRequest, limit: int) -> VllmSequence:
        longest = self.settings.max_model_len
        if longest is not None:
            limit = min(limit, max(0, longest - request.prompt_tokens))
        return VllmSequence(request, limit)

    def _enqueue(self, sequence: VllmSequence) -> None:
        self._index.requests[sequence.request_id] = sequence
        self._waiting.append(sequence)

    def release_source(self, handoff_id: HandoffId) -> Reply:
        """Free a held source, or unregister a pending one."""
        held = self._index.held.pop(handoff_id, None)
        if held is None:
            pending = self._index.sources.pop(handoff_id, None)
            if pending is None:
                return NOTHING_TO_DO
            pending.source_of = None
            return Reply(True)
        self._release_blocks(held)
        del self._index.requests[held.request_id]
        self._queue.generation += 1
        return Reply(True, self.retry_pending_destinations())

    def cancel_source(self, handoff_id: HandoffId) -> Reply:
        """Free a held source, or drop a pending one."""
        pending = self._index.sources.get(handoff_id)
        if pending is None:
            return self.release_source(handoff_id)
        self._drop(pending)
        return Reply(True, self.retry_pending_destinations())

    def reserve_destination(self, handoff_id: HandoffId, request: EngineRequest, *, busy: bool) -> Reply:
        """Queue a destination."""
        self._index.check_request_is_new(request.request_id)
        self._index.check_handoff_is_new(handoff_id, self._queue)
        needed = self._blocks_for(request.prompt_tokens)
        if needed > self._pool.capacity:
            raise DestinationTooLarge(request.request_id, needed, self._pool.capacity)
        self._index.requests[request.request_id] = None
        self._queue.accept(Destination(handoff_id, request))
        return Reply(True, None if busy else self.retry_pending_destinations())

    def activate_destination(self, handoff_id: HandoffId) -> Reply:
        """Make a reservation runnable: its complete prompt blocks become visible, and it waits, computed."""
        destination = self._queue.reserved.pop(handoff_id, None)
        if destination is None:
            return NOTHING_TO_DO
        request = destination.request
        sequence = self._sequence(request, request.max_output_tokens)
        sequence.destination_of = handoff_id
        sequence.materialized = True
        sequence.keys = destination.keys
        sequence.owned = destination.blocks
        sequence.computed = request.prompt_tokens
        self._publish_complete(sequence)
        self._index.active[handoff_id] = sequence
        self._enqueue(sequence)
        return Reply(True, self.retry_pending_destinations())

    def cancel_destination(self, handoff_id: HandoffId) -> Reply:
        """Drop a destination in whatever state it is."""
        pending = self._queue.pending.pop(handoff_id, None)
        reserved = self._queue.reserved.pop(handoff_id, None)
        destination = pending or reserved
        if destination is not None:
            self._pool.release(destination.keys, destination.blocks - len(destination.keys))
            del self._index.requests[destination.request.request_id]
            self._queue.generation += 1
        else:
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
        head = self._queue.head_to_try()
        if head is None or len(self._running) >= self._slots:
            return None
        request = head.request
        complete = request.prompt_tokens // self._block_size
        keys = self._pool.match(request.block_names[:complete]) if self._caching else []
        needed = self._blocks_for(request.prompt_tokens)
        if not self._pool.acquire(keys, needed - len(keys)):
            return None
        head.keys = keys
        head.blocks = needed
        self._queue.reserve_head()
        fresh_tokens = (needed - len(keys)) * self._block_size
        return DestinationReserved(head.handoff_id, request.request_id, fresh_tokens)

    # -- passes ---------------------------------------------------------------------------------------

    def execute_pass(self, now_ms: float) -> PassResult:
        """Run one pass."""
        result = PassResult(now_ms, now_ms, now_ms)
        current = _Pass(result, self._budget, PassWork() if self._capture_metrics else None)
        self._step_batch(current)
        self._step_running(current)
        if not current.preempted:
            self._admit(current)
        if current.work is not None:
            self._note_decodes(current, current.work)
        if current.batch_requests and not self._is_decode:
            result.end_ms = now_ms + self._timing.prefill_ms(
                current.batch_requests, current.batch_tokens, current.batch_cached
            )
        self._emit(current)
        if current.work is not None:
            result.metrics = self._metrics_of(current.work, result)
        if result.end_ms == now_ms:
            result.effect = bool(current.steps or current.members or result.ends or result.held or result.pressure)
        self._run = None
        self._may_extend = current.stable and not (current.preempted or result.ends or result.held)
        return result

    def _step_batch(self, current: _Pass) -> None:
        """Part 1 for the steady batch, unless it has to be dissolved."""
        batch = self._batch
        members = batch.size
        if not members:
            return
        if members > current.budget or (batch.passes_to_crossing() == 0 and not self._take_blocks(1)):
            self._dissolve(current)
            return
        current.members = members
        current.budget -= members
        if self._events is not None:
            for sequence in self._running[:members]:
                sequence.computed = sequence.offset + batch.step
                self._publish_complete(sequence)

    def _take_blocks(self, passes: int) -> bool:
        """Give the batch's members the blocks that the next passes need, if there are enough."""
        crossings = self._batch.take_crossings(passes)
        needed = 0
        for _, blocks in crossings:
            needed += blocks
        if not self._pool.acquire((), needed):
            return False
        for sequence, blocks in crossings:
            sequence.owned += blocks
        return True

    def _dissolve(self, current: _Pass) -> None:
        """Step every member by itself from here on; if this pass has stepped them together, note it for each."""
        members = self._running[: self._batch.size]
        for sequence in members:
            self._leave_batch(sequence)
            if current.members:
                sequence.computed = sequence.tokens
                current.steps[sequence.request_id] = (1, sequence.prompt_tokens, sequence.prompt_tokens)
        current.members = 0

    def _leave_batch(self, sequence: VllmSequence) -> None:
        self._batch.leave(sequence)
        sequence.computed = sequence.tokens - 1
        sequence.last_ms = self._boundary_ms
        if self._gap_log is not None:
            sequence.leave_stretch(self._gap_log.position)

    def _step_running(self, current: _Pass) -> None:
        """Part 1 for requests outside of the batch, in order."""
        running = self._running
        index = self._batch.size
        while index < len(running) and current.budget > 0:
            used = self._schedule(running[index], current, (), 0, from_waiting=False)
            if used == _BLOCKED:
                current.stable = False
                return
            if used != _PREEMPTED_ITSELF:
                index += 1

    def _admit(self, current: _Pass) -> None:
        """Part 2. Only refusals that more tokens cannot lift leave the pass stable."""
        settings = self.settings
        while len(self._running) < self._slots:
            head = self._pick()
            if head is None:
                return
            if settings.max_model_len is not None and head.prompt_tokens >= settings.max_model_len:
                self._reject(head, current)
                continue
            keys: Sequence[int] = ()
            cached = head.prompt_tokens
            if not head.materialized:
                needed = self._blocks_for(head.tokens)
                if not head.preempted and needed > self._pool.capacity:
                    self._reject(head, current)
                    continue
                keys, cached, active_blocks = self._look_up(head)
                if needed - active_blocks > self._pool.available:
                    return
            budget = current.budget
            if self._schedule(head, current, keys, cached, from_waiting=True) < 0:
                current.stable = False
                return
            if budget == 0:
                current.stable = False
                return

    def _pick(self) -> VllmSequence | None:
        waiting = self._waiting
        if not waiting:
            return None
        if not self._queue.pending:
            return waiting[0]
        for sequence in waiting:
            if sequence.materialized:
                return sequence
        return None

    def _reject(self, sequence: VllmSequence, current: _Pass) -> None:
        self._waiting.remove(sequence)
        self._forget(sequence)
        current.result.ends.append(sequence.end(EndKind.REJECTED))

    def _look_up(self, sequence: VllmSequence) -> tuple[Sequence[int], int, int]:
        """What the cache holds of a sequence: (keys, tokens to reuse, active blocks among them)."""
        if not self._caching:
            return (), 0, 0
        size = self._block_size
        keys = self._pool.match(sequence.names_to(sequence.tokens // size))
        cached = len(keys) * size
        active = self._pool.count_active(keys)
        if (
            cached >= sequence.tokens
            and not sequence.is_complete
            and self.settings.full_hit is FullHit.RECOMPUTE_LAST
        ):
            cached = (sequence.tokens - 1) // size * size
            active = min(active, cached // size)
        return keys, cached, active

    def _schedule(
        self, sequence: VllmSequence, current: _Pass, keys: Sequence[int], cached: int, *, from_waiting: bool
    ) -> int:
        """Compute the next part of one sequence. Returns its tokens, or why not."""
        size = self._block_size
        if sequence.computed:
            cached = 0
        elif not from_waiting:
            keys, cached, _ = self._look_up(sequence)
        before = sequence.computed + cached if not sequence.materialized else sequence.computed
        remaining = sequence.tokens - before
        budget = current.budget
        prompt_before = min(before, sequence.prompt_tokens)
        prompt_left = sequence.prompt_tokens - prompt_before
        if prompt_left > budget and not self.settings.enable_chunked_prefill:
            return _BLOCKED
        used = min(remaining, budget)
        if used == 0 and remaining > 0:
            return _BLOCKED
        target = before + used
        needed = -(-target // size) - sequence.owned
        if needed > 0:
            shared = keys[: cached // size]
            while not self._pool.acquire(shared, needed - len(shared)):
                victim = self._victim()
                if victim is None:
                    return _BLOCKED
                self._preempt(victim, current)
                if victim is sequence:
                    return _PREEMPTED_ITSELF
            sequence.owned += needed
            if shared:
                sequence.keys = list(shared)
        sequence.computed = target
        if self._caching and target // size > len(sequence.keys):
            self._publish_complete(sequence)
        self._note_step(sequence, current, used, prompt_before, min(target, sequence.prompt_tokens))
        if from_waiting:
            self._start_running(sequence, current, 0 if sequence.materialized else cached)
        return used

    def _note_step(
        self, sequence: VllmSequence, current: _Pass, used: int, prompt_before: int, prompt_end: int
    ) -> None:
        current.steps[sequence.request_id] = (used, prompt_end, prompt_before)
        current.budget -= used
        if prompt_end > prompt_before:
            if not self._is_decode:
                current.batch_requests += 1
                current.batch_tokens += prompt_end
                current.batch_cached += prompt_before
            if current.work is not None:
                current.work.add_prefill(sequence, prompt_end - prompt_before, prompt_before)

    def _start_running(self, sequence: VllmSequence, current: _Pass, reused: int) -> None:
        if self._waiting[0] is sequence:
            self._waiting.popleft()
        else:
            self._waiting.remove(sequence)
        sequence.materialized = False
        sequence.preempted = False
        self._running.append(sequence)
        current.result.admissions.append(Admission(sequence.request_id, reused))

    def _victim(self) -> VllmSequence | None:
        if not self._running:
            return None
        return self._running[-1 if self.settings.preemption_mode is PreemptionMode.LIFO else 0]

    def _preempt(self, victim: VllmSequence, current: _Pass) -> None:
        before = self._load()
        current.preempted = True
        self._preemptions += 1
        if victim.in_batch:
            self._dissolve(current)
        step = current.steps.pop(victim.request_id, None)
        if step is not None:
            used, prompt_end, prompt_before = step
            current.budget += used
            if prompt_end > prompt_before:
                if not self._is_decode:
                    current.batch_requests -= 1
                    current.batch_tokens -= prompt_end
                    current.batch_cached -= prompt_before
                if current.work is not None:
                    current.work.remove_prefill(victim)
        self._running.remove(victim)
        self._release_blocks(victim)
        victim.computed = 0
        victim.preempted = True
        self._waiting.appendleft(victim)
        self._queue.generation += 1
        current.result.pressure.append(PressureRecord(victim.request_id, *before, *self._load()))

    def _emit(self, current: _Pass) -> None:
        """Part 3: one token for every sequence that is computed; those that are complete leave."""
        result = current.result
        batch = self._batch
        ready = []
        for sequence in self._running[batch.size :]:
            if sequence.computed == sequence.tokens:
                if sequence.is_complete:
                    self._finish(sequence, result)
                else:
                    ready.append(sequence)
        members = batch.size
        if not members and not ready:
            return
        load = batch.load_tokens
        for sequence in ready:
            load += sequence.tokens
        only_decode = result.end_ms == result.start_ms
        if not self._is_prefill:
            result.end_ms += self._timing.decode.duration_ms(load, members + len(ready))
        end_ms = result.end_ms
        result.token_sequences = [*self._running[:members], *ready]
        if members:
            self._advance_batch(1, end_ms, (load, members + len(ready)) if only_decode else None, result)
        for sequence in ready:
            sequence.add_token(end_ms)
            if sequence.is_complete:
                self._finish(sequence, result)
        if ready:
            self._join_batch(end_ms)

    def _advance_batch(
        self, passes: int, end_ms: float, decode: tuple[int, int] | None, result: PassResult
    ) -> None:
        """Note so many passes of the batch, and let the finished go.

        Args:
            passes: how many.
            end_ms: when the last one ends.
            decode: (load, requests) of the first one, or None if it was not a pure decode pass.
            result: of the pass.
        """
        if self._gap_log is not None:
            if decode is None:
                self._gap_log.add_pass(end_ms - result.start_ms)
            else:
                self._gap_log.add_run(*decode, passes)
        if self._newcomers:
            second_ms = end_ms
            if passes > 1 and self._run is not None:
                second_ms = self._run.first_end_ms + self._run.durations_ms[0]
            for sequence in self._newcomers:
                if sequence.in_batch and sequence.second_ms is None:
                    sequence.second_ms = second_ms
            self._newcomers = []
        batch = self._batch
        batch.advance(passes)
        if batch.passes_to_finish() <= 0:
            for sequence in batch.take_finished():
                sequence.computed = sequence.tokens - 1
                sequence.last_ms = end_ms
                self._finish(sequence, result)

    def _join_batch(self, end_ms: float) -> None:
        """Take those that got a token now into the batch, as long as no other comes before them."""
        size = self._block_size
        batch = self._batch
        for sequence in self._running[batch.size :]:
            if sequence.last_ms != end_ms or sequence.computed != sequence.tokens - 1:
                return
            batch.join(sequence, sequence.owned * size - sequence.tokens + 1)
            if self._gap_log is not None:
                sequence.gap_start = self._gap_log.position
            if sequence.second_ms is None:
                self._newcomers.append(sequence)

    def _finish(self, sequence: VllmSequence, result: PassResult) -> None:
        """A running sequence is complete: it leaves, and its blocks are freed or held."""
        self._running.remove(sequence)
        if self._gap_log is not None:
            sequence.count_gaps(self._gap_log)
        result.ends.append(sequence.end(EndKind.COMPLETED))
        self._queue.generation += 1
        handoff_id = sequence.source_of
        if handoff_id is None:
            self._release_blocks(sequence)
            self._forget(sequence)
            return
        del self._index.sources[handoff_id]
        self._index.held[handoff_id] = sequence
        timing = self.settings.transfer_timing(sequence.prompt_tokens)
        result.held.append(SourceHeld(handoff_id, sequence.request_id, timing))

    # -- runs -----------------------------------------------------------------------------------------

    def extend_pass(self, result: PassResult) -> None:
        """Prolong a pass into a run that ends with the next completion, or before blocks run out."""
        batch = self._batch
        if (
            not self._may_extend
            or not batch.size
            or batch.size != len(self._running)
            or self._capture_metrics
            or self._queue.retry_is_due
        ):
            return
        passes = batch.passes_within(self._pool.available, batch.passes_to_finish())
        if self._events is not None:
            passes = min(passes, self._passes_without_events())
        if passes <= 0:
            return
        durations = self._timing.decode.run_ms(batch.load_tokens, batch.size, passes)
        if durations[0] > 0.0:
            self._run = DecodeRun(result, durations)

    def _passes_without_events(self) -> int:
        """How many passes complete no block."""
        size = self._block_size
        return min(-(sequence.offset + self._batch.step) % size for sequence in self._running)

    def cut_pass(self, result: PassResult, at_ms: float) -> None:
        """Shorten a run."""
        if self._run is not None:
            self._run.cut(result, at_ms)

    def settle_pass(self, result: PassResult) -> None:
        """Apply the rest of a run."""
        extra = result.passes - 1
        if extra:
            batch = self._batch
            if batch.passes_to_crossing() < extra and not self._take_blocks(extra):
                raise AssertionError("a run was planned beyond the blocks that the pool has")
            self._advance_batch(extra, result.end_ms, (batch.load_tokens, batch.size), result)
        self._run = None
        self._boundary_ms = result.end_ms
        if self._events is not None:
            result.kv_events = self._events.take()

    # -- blocks ---------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _publish_complete(self, sequence: VllmSequence) -> None:
        """Make the blocks that are complete by now visible."""
        have = len(sequence.keys)
        complete = sequence.computed // self._block_size
        if complete > have and self._caching:
            names = sequence.names_to(complete)
            new = self._pool.publish(names[have - 1] if have else None, names[have:])
            sequence.keys = [*sequence.keys, *new]

    def _release_blocks(self, sequence: VllmSequence) -> None:
        """Free what a sequence owns.

        Blocks of generated tokens get their names only now: nobody else can ask for them, but the sequence itself
        can, after a preemption.
        """
        self._publish_complete(sequence)
        self._pool.release(sequence.keys, sequence.owned - len(sequence.keys))
        sequence.keys = []
        sequence.owned = 0

    def _drop(self, sequence: VllmSequence) -> None:
        """Remove a sequence that waits or runs, between passes."""
        if sequence.in_batch:
            self._leave_batch(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release_blocks(sequence)
        self._forget(sequence)
        self._queue.generation += 1

    def _forget(self, sequence: VllmSequence) -> None:
        del self._index.requests[sequence.request_id]
        if sequence.source_of is not None:
            self._index.sources.pop(sequence.source_of, None)
        if sequence.destination_of is not None:
            self._index.active.pop(sequence.destination_of, None)

    # -- looking --------------------------------------------------------------------------------------

    def take_kv_events(self) -> list[KvEvent]:
        """The cache events of commands."""
        return self._events.take() if self._events is not None else []

    def token_times(self, request_id: RequestId) -> RequestEnd | None:
        """A present request's tokens so far."""
        sequence = self._index.requests.get(request_id)
        if sequence is None:
            return None
        if sequence.in_batch:
            sequence.tokens = sequence.offset + self._batch.step
            sequence.last_ms = self._boundary_ms
        return sequence.end(EndKind.COMPLETED)

    def metrics(self) -> EngineMetrics:
        """The engine's load."""
        queue = self._queue
        waiting = len(self._waiting) + len(queue.pending) + len(queue.reserved)
        return EngineMetrics(
            active_blocks=self._pool.active,
            inactive_blocks=len(self._pool.inactive),
            total_blocks=self._pool.capacity,
            running=len(self._running),
            waiting=waiting,
            preemptions_total=self._preemptions,
        )

    def _load(self) -> tuple[int, int, int]:
        return len(self._running), len(self._waiting), self._pool.active

    def _note_decodes(self, current: _Pass, work: PassWork) -> None:
        batch = self._batch
        for sequence in self._running[: batch.size]:
            work.decodes.append(sequence.offset + batch.step)
        for sequence in self._running[batch.size :]:
            step = current.steps.get(sequence.request_id)
            if step is not None and step[1] <= step[2] and not sequence.is_complete:
                work.decodes.append(sequence.tokens)

    def _metrics_of(self, work: PassWork, result: PassResult) -> ForwardPassMetrics:
        for sequence in self._waiting:
            if sequence.preempted or sequence.materialized:
                work.queued_decodes.append(sequence.tokens)
            else:
                work.queued_prefills.append(sequence.prompt_tokens)
        for request in self._queue.requests():
            work.queued_decodes.append(request.prompt_tokens)
        return work.metrics(result.end_ms - result.start_ms)

    def blocked(self) -> list[Blocked]:
        """Who waits for what."""
        available = self._pool.available
        result = []
        for sequence in (*self._running, *self._waiting):
            lacking = max(0, self._blocks_for(sequence.tokens) - sequence.owned - available)
            what = "blocks" if lacking else "the requests before it in the queue"
            result.append(Blocked(sequence.request_id, what, lacking))
        for destination in self._queue.pending.values():
            lacking = max(0, self._blocks_for(destination.request.prompt_tokens) - available)
            result.append(Blocked(destination.request.request_id, "its reservation", lacking))
        return result

    def holders(self) -> list[BlockHolder]:
        """Who owns blocks."""
        result = [
            BlockHolder(sequence.request_id, state, sequence.owned)
            for state, sequences in (
                ("running", self._running),
                ("waiting", self._waiting),
                ("held source", self._index.held.values()),
            )
            for sequence in sequences
            if sequence.owned
        ]
        return [
            *result,
            *(
                BlockHolder(destination.request.request_id, "reserved destination", destination.blocks)
                for destination in self._queue.reserved.values()
            ),
        ]
