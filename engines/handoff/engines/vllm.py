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

A source's single token is counted here like any other, and hidden by whoever reports.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from handoff.engines.block_pool import BlockPool
from handoff.engines.commanded_core import CommandedCore
from handoff.engines.decode_batch import DecodeBatch, DecodeRun
from handoff.engines.engine_core import (
    Admission,
    Blocked,
    BlockHolder,
    EndKind,
    EngineMetrics,
    EngineRequest,
    ForwardPassMetrics,
    PassResult,
    PressureRecord,
)
from handoff.engines.engine_settings import EngineSettings, FullHit, PreemptionMode
from handoff.engines.holds import Destination
from handoff.engines.pass_metrics import PassWork
from handoff.engines.timing_model import TimingModel
from handoff.engines.token_gaps import GapLog
from handoff.engines.vllm_sequence import VllmPass, VllmSequence
from handoff.journal.vocabulary import WorkerRole

_UNLIMITED: Final = 1 << 62
_BLOCKED: Final = -1
_PREEMPTED_ITSELF: Final = -2
_NOTHING_TO_COMPUTE: Final = (0, 0, 0)


class VllmCore(CommandedCore[VllmSequence]):
    """A vLLM-style engine core; see `EngineCore` for the contract.

    Args:
        settings: how it is set up.
        timing: how long passes take; engines of one pool may share it.
        capture_kv_events: whether cache events are kept (only with prefix caching).
        capture_metrics: whether each pass reports its metrics; passes are then never prolonged into runs.
        gap_log: where waits between tokens are kept, if anybody wants them.
        names_tokens: whether each pass lists who got a token.
    """

    def __init__(
        self,
        settings: EngineSettings,
        timing: TimingModel,
        *,
        capture_kv_events: bool = False,
        capture_metrics: bool = False,
        gap_log: GapLog | None = None,
        names_tokens: bool = True,
    ) -> None:
        super().__init__(settings, capture_kv_events=capture_kv_events, gap_log=gap_log)
        self._timing = timing
        self._decode_times = timing.decode
        self._capture_metrics = capture_metrics
        self._names_tokens = names_tokens
        self._pool = BlockPool(settings.num_gpu_blocks, self._events)
        self._is_prefill = settings.worker_role is WorkerRole.PREFILL
        self._is_decode = settings.worker_role is WorkerRole.DECODE
        self._budget = settings.max_num_batched_tokens or _UNLIMITED
        self._slots = settings.max_num_seqs or _UNLIMITED
        self._longest = settings.max_model_len or _UNLIMITED
        self._waiting: deque[VllmSequence] = deque()
        self._running: list[VllmSequence] = []
        self._batch: DecodeBatch[VllmSequence] = DecodeBatch(self._block_size)
        self._preemptions = 0
        self._run: DecodeRun | None = None
        self._may_extend = False
        self._newcomers: list[VllmSequence] = []
        """Members of the batch with exactly one token: their second is still to be noted."""

    @property
    def has_work(self) -> bool:
        """Whether a pass could do anything."""
        return bool(self._running or self._waiting)

    # -- what commands do -----------------------------------------------------------------------------

    def _sequence(self, request: EngineRequest, limit: int) -> VllmSequence:
        if request.prompt_tokens + limit > self._longest:
            limit = max(0, self._longest - request.prompt_tokens)
        return VllmSequence(request, limit)

    def _enqueue(self, sequence: VllmSequence) -> None:
        self._waiting.append(sequence)

    def _free_held(self, sequence: VllmSequence) -> None:
        self._release_blocks(sequence)

    def _free_reserved(self, destination: Destination) -> None:
        if destination.is_reserved:
            self._pool.release(destination.keys, destination.blocks - len(destination.keys))

    def _take_blocks_for(self, destination: Destination) -> bool:
        if len(self._running) >= self._slots:
            return False
        request = destination.request
        keys: list[int] = []
        if self._caching:
            keys = self._pool.match(request.block_names[: request.prompt_tokens // self._block_size])
        if not self._pool.acquire(keys, destination.blocks - len(keys)):
            return False
        destination.keys = keys
        return True

    def _activate(self, destination: Destination) -> VllmSequence:
        """Its complete prompt blocks become visible, and it waits, computed."""
        request = destination.request
        sequence = self._sequence(request, request.max_output_tokens)
        sequence.materialized = True
        sequence.keys = destination.keys
        sequence.owned = destination.blocks
        sequence.computed = request.prompt_tokens
        self._publish_complete(sequence)
        self._waiting.append(sequence)
        return sequence

    def _drop(self, sequence: VllmSequence) -> None:
        if sequence.in_batch:
            self._leave_batch(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release_blocks(sequence)
        self._forget(sequence)
        self._queue.generation += 1

    def _settle_length(self, sequence: VllmSequence) -> None:
        if sequence.in_batch:
            sequence.tokens = sequence.offset + self._batch.step
            sequence.last_ms = self._boundary_ms

    # -- passes ---------------------------------------------------------------------------------------

    def execute_pass(self, now_ms: float) -> PassResult:
        """Run one pass."""
        current = VllmPass(now_ms, self._budget, PassWork() if self._capture_metrics else None)
        members = self._batch.size
        if members:
            self._step_batch(current, members)
        if len(self._running) > self._batch.size:
            self._step_running(current)
        if self._waiting and not current.preempted:
            self._admit(current)
        if current.work is not None:
            self._note_decodes(current, current.work)
        if current.batch_requests and not self._is_decode:
            current.end_ms = now_ms + self._timing.prefill_ms(
                current.batch_requests, current.batch_tokens, current.batch_cached
            )
        self._emit(current)
        if current.work is not None:
            current.metrics = self._metrics_of(current.work, current)
        if current.end_ms == now_ms:
            current.effect = bool(current.steps or current.members or current.ends or current.pressure)
        self._run = None
        self._may_extend = current.stable and not (current.preempted or current.ends)
        return current

    def _step_batch(self, current: VllmPass, members: int) -> None:
        """Part 1 for the steady batch, unless it has to be dissolved."""
        batch = self._batch
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

    def _dissolve(self, current: VllmPass) -> None:
        """Step every member by itself from here on; if this pass has stepped them together, note it for each."""
        for sequence in self._running[: self._batch.size]:
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

    def _step_running(self, current: VllmPass) -> None:
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

    def _admit(self, current: VllmPass) -> None:
        """Part 2. Only refusals that more tokens cannot lift leave the pass stable."""
        pool = self._pool
        while len(self._running) < self._slots:
            head = self._pick()
            if head is None:
                return
            if head.prompt_tokens >= self._longest:
                self._reject(head, current)
                continue
            if head.materialized:
                current.steps[head.request_id] = _NOTHING_TO_COMPUTE
                self._start_running(head, current, 0)
                if current.budget == 0:
                    current.stable = False
                    return
                continue
            needed = self._blocks_for(head.tokens)
            if needed > pool.capacity and not head.preempted:
                self._reject(head, current)
                continue
            keys, cached, active_blocks = self._look_up(head)
            if needed - active_blocks > pool.available:
                return
            if self._schedule(head, current, keys, cached, from_waiting=True) < 0:
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

    def _reject(self, sequence: VllmSequence, current: VllmPass) -> None:
        self._waiting.remove(sequence)
        self._release_blocks(sequence)
        self._forget(sequence)
        current.ends.append(sequence.end(EndKind.REJECTED))

    def _look_up(self, sequence: VllmSequence) -> tuple[Sequence[int], int, int]:
        """What the cache holds of a sequence: (keys, tokens to reuse, active blocks among them)."""
        if not self._caching:
            return (), 0, 0
        size = self._block_size
        keys = self._pool.match(sequence.names_to(sequence.tokens // size))
        if not keys:
            return keys, 0, 0
        cached = len(keys) * size
        active = self._pool.count_active(keys)
        recomputes_last = self.settings.full_hit is FullHit.RECOMPUTE_LAST
        if cached >= sequence.tokens and recomputes_last and not sequence.is_complete:
            cached = (sequence.tokens - 1) // size * size
            active = min(active, cached // size)
        return keys, cached, active

    def _schedule(
        self, sequence: VllmSequence, current: VllmPass, keys: Sequence[int], cached: int, *, from_waiting: bool
    ) -> int:
        """Compute the next part of one sequence. Returns its tokens, or why not."""
        size = self._block_size
        if sequence.computed:
            cached = 0
        elif not from_waiting:
            keys, cached, _ = self._look_up(sequence)
        prompt_tokens = sequence.prompt_tokens
        before = sequence.computed + cached
        remaining = sequence.tokens - before
        budget = current.budget
        if not self.settings.enable_chunked_prefill and prompt_tokens - before > budget:
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
        if target // size > len(sequence.keys):
            self._publish_complete(sequence)
        current.note_step(sequence, used, before, counts_prefill=not self._is_decode)
        if from_waiting:
            self._start_running(sequence, current, cached)
        return used

    def _start_running(self, sequence: VllmSequence, current: VllmPass, reused: int) -> None:
        if self._waiting[0] is sequence:
            self._waiting.popleft()
        else:
            self._waiting.remove(sequence)
        sequence.materialized = False
        sequence.preempted = False
        self._running.append(sequence)
        current.admissions.append(Admission(sequence.request_id, reused))

    def _victim(self) -> VllmSequence | None:
        if not self._running:
            return None
        return self._running[-1 if self.settings.preemption_mode is PreemptionMode.LIFO else 0]

    def _preempt(self, victim: VllmSequence, current: VllmPass) -> None:
        before = self._load()
        current.preempted = True
        self._preemptions += 1
        if victim.in_batch:
            self._dissolve(current)
        current.take_back(victim.request_id, counts_prefill=not self._is_decode)
        self._running.remove(victim)
        self._release_blocks(victim)
        victim.computed = 0
        victim.preempted = True
        self._waiting.appendleft(victim)
        self._queue.generation += 1
        current.pressure.append(PressureRecord(victim.request_id, *before, *self._load()))

    def _emit(self, current: VllmPass) -> None:
        """Part 3: one token for every sequence that is computed; those that are complete leave."""
        batch = self._batch
        members, load = batch.size, batch.load_tokens
        ready: list[VllmSequence] = []
        if len(self._running) > members:
            for sequence in self._running[members:]:
                if sequence.computed == sequence.tokens:
                    if sequence.is_complete:
                        self._finish(sequence, current)
                    else:
                        ready.append(sequence)
                        load += sequence.tokens
        requests = members + len(ready)
        if not requests:
            return
        prefill_ended = current.end_ms
        if not self._is_prefill:
            current.end_ms = prefill_ended + self._decode_times.duration_ms(load, requests)
        if self._names_tokens:
            current.token_sequences = self._running[:members] + ready
        if members:
            if self._gap_log is not None:
                if prefill_ended == current.start_ms:
                    self._gap_log.add_run(load, requests, 1)
                else:
                    self._gap_log.add_pass(current.end_ms - current.start_ms)
            self._advance_batch(1, current)
        if ready:
            self._emit_first_tokens(ready, current)

    def _emit_first_tokens(self, ready: Sequence[VllmSequence], current: VllmPass) -> None:
        """Tokens of those outside of the batch. They join it, as long as no other comes before them."""
        end_ms = current.end_ms
        for sequence in ready:
            sequence.add_token(end_ms)
            if sequence.is_complete:
                self._finish(sequence, current)
        batch = self._batch
        if len(self._running) == batch.size:
            return
        size = self._block_size
        for sequence in self._running[batch.size :]:
            if sequence.last_ms != end_ms or sequence.computed != sequence.tokens - 1:
                return
            batch.join(sequence, sequence.owned * size - sequence.tokens + 1)
            if self._gap_log is not None:
                sequence.gap_start = self._gap_log.position
            if sequence.second_ms is None:
                self._newcomers.append(sequence)

    def _advance_batch(self, passes: int, current: PassResult) -> None:
        """So many passes of the batch are over: note second tokens, and let the finished go."""
        if self._newcomers:
            run = self._run
            second_ms = current.end_ms if passes == 1 or run is None else run.first_end_ms + run.durations_ms[0]
            for sequence in self._newcomers:
                if sequence.in_batch and sequence.second_ms is None:
                    sequence.second_ms = second_ms
            self._newcomers = []
        batch = self._batch
        batch.advance(passes)
        if batch.passes_to_finish() <= 0:
            for sequence in batch.take_finished():
                sequence.computed = sequence.tokens - 1
                sequence.last_ms = current.end_ms
                self._finish(sequence, current)

    def _finish(self, sequence: VllmSequence, current: PassResult) -> None:
        """A running sequence is complete: it leaves, and its blocks are freed or held."""
        self._running.remove(sequence)
        if self._gap_log is not None:
            sequence.count_gaps(self._gap_log)
        current.ends.append(sequence.end(EndKind.COMPLETED))
        self._queue.generation += 1
        if sequence.source_of is None:
            self._release_blocks(sequence)
            self._forget(sequence)
        else:
            current.held.append(self._hold(sequence, sequence.source_of))

    # -- runs -----------------------------------------------------------------------------------------

    def extend_pass(self, result: PassResult) -> None:
        """Prolong a pass into a run that ends with the next completion, or before blocks run out."""
        batch = self._batch
        size = batch.size
        if (
            not size
            or not self._may_extend
            or size != len(self._running)
            or self._capture_metrics
            or self._queue.retry_is_due
        ):
            return
        passes = batch.passes_within(self._pool.available, batch.passes_to_finish())
        if self._events is not None:
            passes = min(passes, self._passes_without_events())
        if passes <= 0:
            return
        durations = self._decode_times.run_ms(batch.load_tokens, size, passes)
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
            if self._gap_log is not None:
                self._gap_log.add_run(batch.load_tokens, batch.size, extra)
            self._advance_batch(extra, result)
        self._run = None
        self._boundary_ms = result.end_ms
        if self._events is not None:
            result.kv_events = self._events.take()

    # -- blocks ---------------------------------------------------------------------------------------

    def _publish_complete(self, sequence: VllmSequence) -> None:
        """Make the blocks that are complete by now visible."""
        have = len(sequence.keys)
        complete = sequence.computed // self._block_size
        if complete > have and self._caching:
            names = sequence.names_to(complete)
            if have:
                sequence.keys += self._pool.publish(names[have - 1], names[have:])
            else:
                sequence.keys = list(self._pool.publish(None, names))

    def _release_blocks(self, sequence: VllmSequence) -> None:
        """Free what a sequence owns.

        Blocks of generated tokens get their names only now: nobody else can ask for them, but the sequence itself
        can, after a preemption.
        """
        self._publish_complete(sequence)
        self._pool.release(sequence.keys, sequence.owned - len(sequence.keys))
        sequence.keys = []
        sequence.owned = 0

    # -- looking --------------------------------------------------------------------------------------

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

    def _note_decodes(self, current: VllmPass, work: PassWork) -> None:
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
            lacking = max(0, destination.blocks - available)
            result.append(Blocked(destination.request.request_id, "its reservation", lacking))
        return result

    def holders(self) -> list[BlockHolder]:
        """Who owns blocks."""
        owners = [
            *((sequence, "running") for sequence in self._running),
            *((sequence, "waiting") for sequence in self._waiting),
            *((sequence, "held source") for sequence in self._index.held.values()),
        ]
        return [
            *(BlockHolder(sequence.request_id, state, sequence.owned) for sequence, state in owners if sequence.owned),
            *self._queue.holders(),
        ]
