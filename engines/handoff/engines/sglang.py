"""The SGLang-style scheduler: a prefill batch, then one decode step for everybody, in each pass.

A request waits, is admitted with a prefix match that it keeps locked, prefills (in chunks if it must, waiting at the
front of the queue between them), and then decodes. Admission sets room aside for the output that running requests may
still produce, scaled by a ratio that decays with every pass and jumps back when the guess was too bold. If a decode
step lacks pages, the request with the least output is *retracted*: it loses its pages and goes back to the front of
the queue.

Unlike vLLM's, a source's pages become shareable only when the source is released, a new token's slot is taken at
once, and a fully cached prompt costs nothing.

Everybody who runs decodes in every pass, so the running requests are exactly the steady batch (`decode_batch`), but
for one case: a request that runs alone and can get no page. It stands still, outside of the batch, until a pass
finds one.

There is no rejection: a request that can never be admitted waits for ever, and blocks those behind it. Whoever drives
the engine has to notice (see `blocked`).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

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
from handoff.engines.engine_settings import EngineSettings, SchedulePolicy
from handoff.engines.holds import Destination
from handoff.engines.page_advertisement import PageAdvertisement
from handoff.engines.pass_metrics import PassWork
from handoff.engines.radix_cache import RadixCache, RadixNode
from handoff.engines.timing_model import TimingModel
from handoff.engines.token_gaps import GapLog
from handoff.engines.token_sequence import TokenSequence
from handoff.journal.vocabulary import WorkerRole

_UNLIMITED: Final = 1 << 62
_LPM_QUEUE_LIMIT: Final = 128
_LPM_PREFIX_TOKENS: Final = 32
_INITIAL_RATIO: Final = 0.7
_MINIMUM_SHARE: Final = 0.14
_DECAY_PASSES: Final = 600.0


class SglangSequence(TokenSequence):
    """A request of this scheduler.

    Attributes:
        materialized: tokens that have a slot, outside of the batch (in it, all of them have).
        pages: pages that it has, matched ones included.
        cached: leading pages that are in the tree, at `node`, which it locks.
    """

    __slots__ = ("cached", "materialized", "node", "pages")

    def __init__(self, request: EngineRequest, limit: int, root: RadixNode) -> None:
        super().__init__(request, limit)
        self.names = list(request.block_names)
        self.materialized = 0
        self.pages = 0
        self.cached = 0
        self.node = root


class SglangCore(CommandedCore[SglangSequence]):
    """An SGLang-style engine core; see `EngineCore` for the contract.

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
        self._capture_metrics = capture_metrics
        self._names_tokens = names_tokens
        self._advertised = PageAdvertisement(self._events) if self._events is not None else None
        self._cache = RadixCache(settings.num_gpu_blocks, self._advertised)
        self._is_decode = settings.worker_role is WorkerRole.DECODE
        self._slots = settings.max_num_seqs or _UNLIMITED
        self._sorts = self._caching and settings.sglang.schedule_policy is SchedulePolicy.LPM
        self._clip = settings.sglang.clip_max_new_tokens
        self._initial_ratio = _INITIAL_RATIO * settings.sglang.schedule_conservativeness
        self._minimum_ratio = _MINIMUM_SHARE * self._initial_ratio
        self._decay = (self._initial_ratio - self._minimum_ratio) / _DECAY_PASSES
        self._ratio = self._initial_ratio
        self._waiting: deque[SglangSequence] = deque()
        self._prebuilt: deque[SglangSequence] = deque()
        self._running: list[SglangSequence] = []
        self._batch: DecodeBatch[SglangSequence] = DecodeBatch(self._block_size, completions=True)
        self._joined: list[SglangSequence] = []
        """Joined the batch in this pass, or have exactly one token: their next token's time is still to be noted."""
        self._retractions = 0
        self._hit_tokens = 0
        self._seen_tokens = 0
        self._run: DecodeRun | None = None
        self._may_extend = False

    @property
    def has_work(self) -> bool:
        """Whether a pass could do anything."""
        return bool(self._running or self._waiting or self._prebuilt)

    # -- what commands do -----------------------------------------------------------------------------

    def _sequence(self, request: EngineRequest, limit: int) -> SglangSequence:
        return SglangSequence(request, limit, self._cache.root)

    def _enqueue(self, sequence: SglangSequence) -> None:
        self._waiting.append(sequence)

    def _free_held(self, sequence: SglangSequence) -> None:
        self._put_into_cache(sequence)

    def _free_reserved(self, destination: Destination) -> None:
        if isinstance(destination.anchor, RadixNode):
            self._cache.available += destination.blocks - len(destination.keys)
            self._cache.unlock(destination.anchor)

    def _take_blocks_for(self, destination: Destination) -> bool:
        request = destination.request
        names: list[int] = []
        node, matched = self._cache.root, 0
        if self._caching:
            names = list(request.block_names[: request.prompt_tokens // self._block_size])
            node, matched = self._cache.match_and_lock(names)
        if not self._cache.allocate(destination.blocks - matched):
            self._cache.unlock(node)
            return False
        destination.anchor = node
        destination.keys = names[:matched]
        return True

    def _activate(self, destination: Destination) -> SglangSequence:
        """Its complete pages enter the tree, and it waits to be promoted."""
        request = destination.request
        sequence = self._sequence(request, request.max_output_tokens)
        sequence.materialized = request.prompt_tokens
        sequence.pages = destination.blocks
        sequence.cached = len(destination.keys)
        if isinstance(destination.anchor, RadixNode):
            sequence.node = destination.anchor
        available = self._cache.available
        self._advertise(sequence, sequence.cached, request.prompt_tokens // self._block_size)
        self._cache_complete(sequence, request.prompt_tokens)
        if self._cache.available > available:
            self._queue.generation += 1
        self._prebuilt.append(sequence)
        return sequence

    def _drop(self, sequence: SglangSequence) -> None:
        if sequence.in_batch:
            self._leave_batch(sequence)
        for place in (self._running, self._waiting, self._prebuilt):
            if sequence in place:
                place.remove(sequence)
        self._free_private(sequence)
        self._cache.unlock(sequence.node)
        self._forget(sequence)
        if sequence.pages:
            self._queue.generation += 1

    def _settle_length(self, sequence: SglangSequence) -> None:
        if sequence.in_batch:
            sequence.tokens = sequence.offset + self._batch.step
            sequence.last_ms = self._boundary_ms if sequence.first_ms is not None else None

    # -- passes ---------------------------------------------------------------------------------------

    def execute_pass(self, now_ms: float) -> PassResult:
        """Run one pass."""
        result = PassResult(now_ms)
        work = PassWork() if self._capture_metrics else None
        ratio, step = self._ratio, self._batch.step
        members = self._batch.size
        for sequence in self._running[members:]:
            self._join(sequence)
        while self._prebuilt and len(self._running) < self._slots:
            sequence = self._prebuilt.popleft()
            result.admissions.append(Admission(sequence.request_id, 0))
            self._start_running(sequence)
        if self._sorts and self._waiting:
            self._sort_waiting()
        stable = True
        admits = self._waiting and not self._prebuilt and not self._queue.pending and len(self._running) < self._slots
        if admits:
            stable = False
            self._prefill(result, work)
        elif self._waiting and self._sorts:
            stable = False
        retracted = self._decode(result, work)
        if retracted:
            self._waiting.extendleft(reversed(retracted))
            self._ratio = self._initial_ratio
        self._decay_ratio(1)
        if work is not None:
            result.metrics = self._metrics_of(work, result)
        if result.end_ms == now_ms:
            result.effect = bool(
                result.admissions or result.ends or result.held or result.pressure or self._batch.step != step
            )
            # The deployed scheduler repeats a pass that did nothing, and all that comes of it is the ratio's decay.
            if not result.effect and self._ratio < ratio:
                self._ratio = self._minimum_ratio
        self._run = None
        self._may_extend = stable and not (retracted or result.ends or result.held)
        return result

    def _decay_ratio(self, passes: int) -> None:
        ratio, minimum = self._ratio, self._minimum_ratio
        while passes and ratio > minimum:
            ratio = max(ratio - self._decay, minimum)
            passes -= 1
        self._ratio = ratio

    def _sort_waiting(self) -> None:
        """Longest match first; of several with the same unknown beginning, only the first keeps its place."""
        if len(self._waiting) > _LPM_QUEUE_LIMIT:
            return
        page = self._block_size
        beginning = -(-_LPM_PREFIX_TOKENS // page)
        seen: dict[int, None] = {}
        ranked: list[tuple[bool, int, int, SglangSequence]] = []
        for sequence in self._waiting:
            names = sequence.names_to(sequence.tokens // page)
            matched = self._cache.match_length(names) * page
            late = False
            if matched <= _LPM_PREFIX_TOKENS and len(names) >= beginning:
                late = names[beginning - 1] in seen
                seen[names[beginning - 1]] = None
            ranked.append((late, -matched, len(ranked), sequence))
        ranked.sort(key=_rank)
        self._waiting = deque(sequence for _, _, _, sequence in ranked)

    # -- prefill --------------------------------------------------------------------------------------

    def _prefill(self, result: PassResult, work: PassWork | None) -> None:
        """Admit what fits into this pass, charge for it, and move the complete prompts to the batch."""
        options = self.settings.sglang
        page = self._block_size
        room = self._cache.obtainable * page - self._set_aside()
        input_left = options.max_prefill_tokens
        chunk_left = options.chunked_prefill_size
        slots = self._slots - len(self._running)
        admitted: list[SglangSequence] = []
        total_tokens = total_cached = 0
        while len(admitted) < slots and self._waiting:
            sequence = self._waiting[0]
            extend = sequence.tokens - sequence.materialized
            chunk = extend if extend <= options.chunked_prefill_size else min(chunk_left // page * page, extend)
            if chunk == 0:
                break
            charged = -(-chunk // page) * page
            output = 0 if chunk < extend else min(sequence.limit - sequence.generated, self._clip)
            if charged + output >= room or charged > input_left or charged > chunk_left:
                break
            end = sequence.materialized + chunk
            before = sequence.pages
            prefix = self._allocate_chunk(sequence, end)
            if prefix is None:
                self._ratio = self._initial_ratio
                break
            self._waiting.popleft()
            admitted.append(sequence)
            result.admissions.append(Admission(sequence.request_id, prefix))
            room -= (self._blocks_for(end) - before) * page + output
            input_left -= charged
            chunk_left -= charged
            total_tokens += end
            total_cached += prefix
            if work is not None and end > prefix:
                work.add_prefill(sequence, end - prefix, prefix)
            if chunk_left <= 0:
                break
        if not admitted:
            return
        self._hit_tokens, self._seen_tokens = total_cached, total_tokens
        if not self._is_decode:
            result.end_ms += self._timing.prefill_ms(len(admitted), total_tokens, total_cached)
        for sequence in admitted:
            if sequence.materialized < sequence.tokens:
                self._cache_complete(sequence, sequence.materialized)
                self._waiting.appendleft(sequence)
            else:
                self._start_running(sequence)

    def _set_aside(self) -> float:
        """Room for the output that running requests may still produce, each term scaled by the ratio."""
        ratio, clip, step = self._ratio, self._clip, self._batch.step
        room = 0.0
        for sequence in self._running:
            left = sequence.finish_step - step if sequence.in_batch else sequence.limit - sequence.generated
            room += min(left, clip) * ratio
        return room

    def _allocate_chunk(self, sequence: SglangSequence, end: int) -> int | None:
        """Get the pages up to token `end`; returns the tokens that were there already, or None for no room."""
        complete = end // self._block_size
        if sequence.pages:
            had = sequence.pages
            if not self._cache.allocate(self._blocks_for(end) - had):
                return None
            prefix = sequence.materialized
            first = prefix // self._block_size
        else:
            node, matched = self._cache.root, 0
            if self._caching:
                node, matched = self._cache.match_and_lock(sequence.names_to(complete))
            if not self._cache.allocate(self._blocks_for(end) - matched):
                self._cache.unlock(node)
                return None
            sequence.node = node
            sequence.cached = first = matched
            prefix = matched * self._block_size
        sequence.pages = self._blocks_for(end)
        sequence.materialized = end
        self._advertise(sequence, first, complete)
        return prefix

    # -- decode ---------------------------------------------------------------------------------------

    def _start_running(self, sequence: SglangSequence) -> None:
        self._running.append(sequence)
        if not sequence.is_complete:
            self._join(sequence)

    def _join(self, sequence: SglangSequence) -> None:
        self._batch.join(sequence, sequence.pages * self._block_size - sequence.tokens)
        self._joined.append(sequence)

    def _leave_batch(self, sequence: SglangSequence) -> None:
        self._batch.leave(sequence)
        sequence.materialized = sequence.tokens
        if sequence.first_ms is not None:
            sequence.last_ms = self._boundary_ms
        if self._gap_log is not None:
            sequence.leave_stretch(self._gap_log.position)
        sequence.gap_start = -1

    def _decode(self, result: PassResult, work: PassWork | None) -> list[SglangSequence]:
        """One token for everybody. Returns those that were retracted for it, in order."""
        batch = self._batch
        if batch.size < len(self._running):
            for sequence in [sequence for sequence in self._running if sequence.is_complete and not sequence.in_batch]:
                self._finish(sequence, result)
        if not batch.size:
            return []
        if work is not None:
            work.decodes.extend(sequence.offset + batch.step for sequence in self._running)
        crossings = [member for member, _ in batch.take_crossings(1)] if batch.passes_to_crossing() == 0 else []
        retracted = []
        while len(crossings) > self._cache.obtainable and batch.size > 1:
            victim = min(self._running, key=_output_in_batch)
            self._retract(victim, result)
            retracted.append(victim)
            if victim in crossings:
                crossings.remove(victim)
        if not self._cache.allocate(len(crossings)):
            self._leave_batch(self._running[0])
            self._joined.clear()
            return retracted
        for member in crossings:
            member.pages += 1
        load = batch.load_tokens
        only_decode = result.end_ms == result.start_ms
        result.end_ms += self._timing.decode.duration_ms(load, batch.size)
        if self._names_tokens:
            result.token_sequences = self._running[:]
        self._advance_batch(1, result, only_decode=only_decode)
        return retracted

    def _advance_batch(self, passes: int, result: PassResult, *, only_decode: bool) -> None:
        """Note so many passes of the batch: pages that they complete, times, and who is finished."""
        batch = self._batch
        log = self._gap_log
        end_ms = result.end_ms
        if log is not None:
            if only_decode:
                log.add_run(batch.load_tokens, batch.size, passes)
            else:
                log.add_pass(end_ms - result.start_ms)
        completed = batch.take_completions(passes)
        batch.advance(passes)
        for sequence, _ in completed:
            self._cache_complete(sequence, sequence.offset + batch.step)
        if self._joined:
            self._note_joined(passes, end_ms)
        if batch.passes_to_finish() <= 0:
            for sequence in batch.take_finished():
                sequence.materialized = sequence.tokens
                sequence.last_ms = end_ms
                self._finish(sequence, result)

    def _note_joined(self, passes: int, end_ms: float) -> None:
        """First and second tokens, and the prompts that become shareable with their first token."""
        log = self._gap_log
        step = self._batch.step
        still: list[SglangSequence] = []
        for sequence in self._joined:
            if not sequence.in_batch:
                continue
            if sequence.gap_start < 0:
                if sequence.last_ms is not None:
                    sequence.add_own_gap(end_ms - sequence.last_ms)
                sequence.gap_start = 0 if log is None else log.position
                sequence.note_token(end_ms)
                if sequence.finish_step > step:
                    self._cache_complete(sequence, sequence.offset + step)
            elif sequence.second_ms is None:
                run = self._run
                second_ms = end_ms if passes == 1 or run is None else run.first_end_ms + run.durations_ms[0]
                sequence.second_ms = second_ms
            if sequence.second_ms is None:
                still.append(sequence)
        self._joined = still

    def _retract(self, victim: SglangSequence, result: PassResult) -> None:
        before = self._load()
        self._leave_batch(victim)
        self._running.remove(victim)
        self._free_private(victim)
        self._cache.unlock(victim.node)
        victim.node = self._cache.root
        victim.cached = victim.pages = victim.materialized = 0
        self._retractions += 1
        self._queue.generation += 1
        result.pressure.append(PressureRecord(victim.request_id, *before, *self._load()))

    def _finish(self, sequence: SglangSequence, result: PassResult) -> None:
        """A running sequence is complete: it leaves, and its pages are cached or held."""
        self._running.remove(sequence)
        if self._gap_log is not None:
            sequence.count_gaps(self._gap_log)
        result.ends.append(sequence.end(EndKind.COMPLETED))
        if sequence.source_of is None:
            self._put_into_cache(sequence)
            self._forget(sequence)
            self._queue.generation += 1
        else:
            result.held.append(self._hold(sequence, sequence.source_of))

    # -- runs -----------------------------------------------------------------------------------------

    def extend_pass(self, result: PassResult) -> None:
        """Prolong a pass into a run that ends with the next completion, or before pages run out."""
        batch = self._batch
        if (
            not self._may_extend
            or not batch.size
            or batch.size != len(self._running)
            or self._capture_metrics
            or self._queue.retry_is_due
        ):
            return
        passes = batch.passes_within(self._cache.obtainable, batch.passes_to_finish())
        if self._events is not None:
            passes = min(passes, self._passes_without_events())
        if passes <= 0:
            return
        durations = self._timing.decode.run_ms(batch.load_tokens, batch.size, passes)
        if durations[0] > 0.0:
            self._run = DecodeRun(result, durations)

    def _passes_without_events(self) -> int:
        """How many passes complete no page and take none."""
        page = self._block_size
        return min((-(sequence.offset + self._batch.step) - 1) % page for sequence in self._running)

    def cut_pass(self, result: PassResult, at_ms: float) -> None:
        """Shorten a run."""
        if self._run is not None:
            self._run.cut(result, at_ms)

    def settle_pass(self, result: PassResult) -> None:
        """Apply the rest of a run."""
        extra = result.passes - 1
        if extra:
            batch = self._batch
            if batch.passes_to_crossing() < extra:
                crossings = batch.take_crossings(extra)
                if not self._cache.allocate(sum(pages for _, pages in crossings)):
                    raise AssertionError("a run was planned beyond the pages that the pool has")
                for sequence, pages in crossings:
                    sequence.pages += pages
            self._advance_batch(extra, result, only_decode=True)
            self._decay_ratio(extra)
        self._run = None
        self._boundary_ms = result.end_ms
        if self._events is not None:
            result.kv_events = self._events.take()

    # -- pages ----------------------------------------------------------------------------------------

    def _advertise(self, sequence: SglangSequence, first: int, stop: int) -> None:
        """Private pages `first` .. `stop` carry their names from now on."""
        if self._advertised is not None and stop > first:
            names = sequence.names_to(stop)
            self._advertised.advertise(names[first - 1] if first else None, names[first:])

    def _cache_complete(self, sequence: SglangSequence, materialized: int) -> None:
        """Put the complete pages that are not in the tree yet there, and lock their new end instead of the old."""
        complete = materialized // self._block_size
        if complete <= sequence.cached or not self._caching:
            return
        if complete > len(sequence.request.block_names) or sequence.in_batch:
            self._advertise_generated(sequence, complete)
        names = sequence.names_to(complete)
        node, _ = self._cache.insert(sequence.node, names[sequence.cached :])
        self._cache.move_lock(sequence.node, node)
        sequence.node = node
        sequence.cached = complete

    def _advertise_generated(self, sequence: SglangSequence, complete: int) -> None:
        """Pages that generated tokens completed carry their names only when they enter the tree."""
        first = max(sequence.cached, sequence.prompt_tokens // self._block_size)
        self._advertise(sequence, first, complete)

    def _put_into_cache(self, sequence: SglangSequence) -> None:
        """Give up a sequence's pages: the complete ones stay in the tree, the rest is free."""
        if self._caching:
            self._cache_complete(sequence, sequence.materialized)
            self._cache.available += sequence.pages - sequence.cached
            self._cache.unlock(sequence.node)
        else:
            self._cache.available += sequence.pages
        sequence.pages = 0

    def _free_private(self, sequence: SglangSequence) -> None:
        """Free the pages that are not in the tree."""
        self._cache.available += sequence.pages - sequence.cached
        if self._advertised is not None:
            complete = sequence.materialized // self._block_size
            known = min(complete, sequence.prompt_tokens // self._block_size)
            if known > sequence.cached:
                self._advertised.withdraw(list(reversed(sequence.names_to(known)[sequence.cached :])))

    # -- looking --------------------------------------------------------------------------------------

    def metrics(self) -> EngineMetrics:
        """The engine's load."""
        queue = self._queue
        return EngineMetrics(
            active_blocks=self._cache.capacity - self._cache.available,
            inactive_blocks=0,
            total_blocks=self._cache.capacity,
            running=len(self._running),
            waiting=len(self._waiting) + len(self._prebuilt) + len(queue.pending) + len(queue.reserved),
            preemptions_total=self._retractions,
            cache_hit_tokens=self._hit_tokens,
            cache_total_tokens=self._seen_tokens,
        )

    def _load(self) -> tuple[int, int, int]:
        return len(self._running), len(self._waiting), self._cache.capacity - self._cache.available

    def _metrics_of(self, work: PassWork, result: PassResult) -> ForwardPassMetrics:
        for sequence in self._waiting:
            if sequence.generated:
                work.queued_decodes.append(sequence.tokens)
            else:
                work.queued_prefills.append(sequence.prompt_tokens)
        work.queued_decodes.extend(sequence.prompt_tokens for sequence in self._prebuilt)
        work.queued_decodes.extend(request.prompt_tokens for request in self._queue.requests())
        return work.metrics(result.end_ms - result.start_ms)

    def blocked(self) -> list[Blocked]:
        """Who waits for what."""
        obtainable = self._cache.obtainable
        result = []
        for sequence in (*self._running, *self._prebuilt, *self._waiting):
            output = min(sequence.limit - sequence.generated, self._clip)
            lacking = max(0, self._blocks_for(sequence.tokens + output) - sequence.pages - obtainable)
            what = "pages for its prompt and output" if lacking else "the requests before it in the queue"
            result.append(Blocked(sequence.request_id, what, lacking))
        for destination in self._queue.pending.values():
            lacking = max(0, destination.blocks - obtainable)
            result.append(Blocked(destination.request.request_id, "its reservation", lacking))
        return result

    def holders(self) -> list[BlockHolder]:
        """Who owns pages."""
        groups: tuple[tuple[str, Sequence[SglangSequence]], ...] = (
            ("running", self._running),
            ("activated destination", tuple(self._prebuilt)),
            ("waiting", tuple(self._waiting)),
            ("held source", tuple(self._index.held.values())),
        )
        return [
            *(
                BlockHolder(sequence.request_id, state, sequence.pages)
                for state, sequences in groups
                for sequence in sequences
                if sequence.pages
            ),
            *self._queue.holders(),
        ]


def _rank(entry: tuple[bool, int, int, SglangSequence]) -> tuple[bool, int, int]:
    return entry[:3]


def _output_in_batch(sequence: SglangSequence) -> int:
    """Output so far; `tokens` of a member is stale, its offset orders likewise."""
    return sequence.offset - sequence.prompt_tokens
