"""An engine as an actor of the log: a pure machine around a scheduler core on its model clock.

The model clock is the run's clock: a speed-up divides the durations that the model predicts. Three inputs exist. A
request is *prepared* (it gets a number, nothing is scheduled), a *command* arrives, or the driver woke up
(`EngineAdvanced`). Whatever comes, the machine first lets every pass end that ends by then, in order, each with what
it brought; then it takes the command; then it starts the next pass, which is computed whole and ends at a time that
the driver can ask for (`next_wakeup_ms`). Passes are no inputs, since they follow.

**Boundaries.** A pass ends at its boundary: its results become visible, one pending destination is tried, the commands
that were held back are carried out in their order, and the next pass starts. Activations, releases and cancels that
reach a busy engine are held back; submissions and reservations are taken at once and act at the boundary.

**Runs.** While every request of the batch has had its first token, a pass is prolonged into a run of passes in which
only tokens are added, so an engine with a speed-up of 1000 costs a wake-up per change and not per token. A command
cuts the run at the first boundary at or after its own time. Prolonging waits for first tokens because a client waits
for them.

**What becomes rows.** Whatever others see: answers, holds, reservations, admissions, ends, preemptions. The tokens
and cache events of all passes in one step are a single row with counts and a digest; their content is handed to the
driver beside the step (`output`), who feeds streams and sinks with it. Each effect says at which model time it
happened. It may lie before the row's time, because a driver wakes up late.

**Order of effects in a step.** Pass by pass: pressure, lifecycle, ends; then retries and held-back answers of that
boundary; admissions when the next pass starts; the row of tokens behind all passes; the answer of the step's own
command last.

Rejected: a wake-up for every pass (a thousand a second that nobody sees), and deriving the model clock from the
number of wake-ups (then a busy machine would change the result; here it changes only when results are seen).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import define, field, frozen

from handoff.engines.core_factory import build_core, build_timing
from handoff.engines.engine_core import (
    DestinationReserved,
    EndKind,
    EngineCore,
    EngineError,
    EngineRequest,
    ForwardPassMetrics,
    KvEvent,
    PassResult,
    PressureRecord,
    Reply,
    RequestEnd,
)
from handoff.engines.engine_rows import (
    EngineAdmitted,
    EngineAdvanced,
    EngineAnswered,
    EngineCommand,
    EngineFinished,
    EngineInput,
    EngineLifecycle,
    EngineOrder,
    EnginePressure,
    RequestPrepared,
)
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.pass_clock import PassClock
from handoff.engines.prompt_shape import from_runs
from handoff.engines.stored_settings import settings_from_config, settings_to_config
from handoff.engines.token_gaps import GapLog
from handoff.engines.token_tally import TokenTally
from handoff.journal.step import Step, StepBuilder
from handoff.journal.terms import ActorKind
from handoff.journal.vocabulary import FactName, HandoffId, OutcomeName, RequestId, TerminalStatus, Verdict

_HELD_BACK = frozenset(
    {
        EngineOrder.ACTIVATE_DESTINATION,
        EngineOrder.RELEASE_SOURCE,
        EngineOrder.CANCEL_SOURCE,
        EngineOrder.CANCEL_DESTINATION,
        EngineOrder.CANCEL_REQUEST,
    }
)

NOT_RUNNING = "the engine is not running"

_ENDS_REQUEST = frozenset(
    {
        EngineOrder.CANCEL_SOURCE,
        EngineOrder.CANCEL_DESTINATION,
        EngineOrder.CANCEL_REQUEST,
        EngineOrder.DROP_REGISTRATION,
    }
)


@frozen
class TokenRun:
    """Tokens that one request got.

    Attributes:
        request: its number.
        count: tokens, at least 1.
        until_ms: model time of the last of them.
    """

    request: int
    count: int
    until_ms: float


@frozen
class StreamEnd:
    """A request left the engine by itself."""

    request: int
    rejected: bool
    at_ms: float


@frozen
class StreamStart:
    """A request was taken into the batch for the first time or again."""

    request: int
    reused_tokens: int


Output = StreamStart | TokenRun | StreamEnd


@define
class StepOutput:
    """What streams and sinks get of a step; the rows hold its counts and digest.

    Attributes:
        output: for the clients' streams, in order.
        kv_events: cache events, in order.
        metrics: one snapshot a pass.
    """

    output: list[Output] = field(factory=list)
    kv_events: list[KvEvent] = field(factory=list)
    metrics: list[ForwardPassMetrics] = field(factory=list)


@define
class _Request:
    """A request that is prepared, or inside the scheduler."""

    number: int
    handoff: int | None
    prompt_tokens: int
    max_output_tokens: int
    block_runs: tuple[int, ...]
    used: bool = False

    core_handoff: HandoffId | None = None
    """The core's name of the handoff that it entered for."""

    def for_core(self) -> EngineRequest:
        return EngineRequest(
            RequestId(str(self.number)), self.prompt_tokens, self.max_output_tokens, from_runs(self.block_runs)
        )


@define
class EngineActor:
    """One engine. See the module for its rules.

    Attributes:
        settings: how the engine is set up.
        captures_kv_events: whether cache events are reported (for sinks and cache-aware routing).
        captures_metrics: whether each pass reports what it worked on; there are no runs of passes then.
        core: the scheduler.
        gap_log: the waits between the tokens of completed requests, for a report.
        closed: whether it was shut down.
        output: what streams and sinks get of the last step.
    """

    SLOTS: ClassVar[tuple[ActorKind, ...]] = (ActorKind.ENGINE,)

    settings: EngineSettings
    captures_kv_events: bool = False
    captures_metrics: bool = False
    core: EngineCore = field(init=False)
    gap_log: GapLog = field(init=False)
    closed: bool = field(default=False, init=False)
    output: StepOutput = field(factory=StepOutput, init=False)
    _clock: PassClock = field(init=False)
    _requests: dict[int, _Request] = field(factory=dict, init=False)
    _entered: dict[HandoffId, int] = field(factory=dict, init=False)
    _held_back: list[EngineCommand] = field(factory=list, init=False)
    _tokenless: dict[RequestId, None] = field(factory=dict, init=False)
    _tally: TokenTally | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        timing = build_timing(self.settings)
        self.gap_log = GapLog(timing.decode)
        self.core = build_core(
            self.settings,
            timing=timing,
            capture_kv_events=self.captures_kv_events,
            capture_metrics=self.captures_metrics,
            gap_log=self.gap_log,
        )
        self._clock = PassClock(self.core, leaps=False)

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> "EngineActor":
        """The machine that an `actor_started` row with this configuration describes."""
        return cls(settings_from_config(config["settings"]), config["kv_events"], config["metrics"])

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row: every setting, defaults filled in."""
        return {
            "settings": settings_to_config(self.settings),
            "kv_events": self.captures_kv_events,
            "metrics": self.captures_metrics,
        }

    @property
    def next_wakeup_ms(self) -> float | None:
        """When the pass in flight ends on the model clock; None while the engine rests."""
        running = self._clock.running
        return None if running is None else running.end_ms

    def step(self, value: EngineInput, at_ms: float) -> Step:
        """Take one input at `at_ms` on the model clock, after everything that ended by then."""
        builder = StepBuilder()
        builder.add(value)
        self.output = StepOutput()
        while (end_ms := self.next_wakeup_ms) is not None and end_ms <= at_ms:
            self._boundary(end_ms, builder)
            if end_ms < at_ms:
                self._start_passes(end_ms, builder)
        after: list[Any] = []
        verdict = self._take(value, at_ms, after)
        self._start_passes(at_ms, builder)
        self._add_token_row(builder)
        for effect in after:
            builder.add(effect)
        return builder.finish(verdict)

    # -- commands -----------------------------------------------------------------------------------------------

    def _take(self, value: EngineInput, at_ms: float, after: list[Any]) -> Verdict:
        match value:
            case EngineAdvanced():
                return Verdict.APPLIED
            case RequestPrepared():
                if value.request in self._requests:
                    return Verdict.DUPLICATE
                self._requests[value.request] = _Request(
                    value.request, value.handoff, value.prompt_tokens, value.max_output_tokens, value.block_runs
                )
                return Verdict.APPLIED
            case EngineCommand():
                return self._command(value, at_ms, after)

    def _command(self, command: EngineCommand, at_ms: float, after: list[Any]) -> Verdict:
        if self.closed:
            after.append(_answer(command, OutcomeName.FAILED, at_ms, NOT_RUNNING))
            return Verdict.LATE
        self._clock.touch(at_ms)
        if self._clock.running is not None and command.name in _HELD_BACK:
            self._held_back.append(command)
            return Verdict.KEPT
        try:
            effects = self._carry_out(command, at_ms)
        except EngineError as error:
            after.append(_answer(command, OutcomeName.FAILED, at_ms, str(error)))
            return Verdict.INVALID
        after.extend(effects)
        return Verdict.APPLIED

    def _carry_out(self, command: EngineCommand, at_ms: float) -> list[Any]:
        """Tell the core; gives the answer and what follows from it.

        Raises:
            EngineError: the core refused; nothing changed.
        """
        core = self.core
        handoff = _core_handoff(command)
        match command.name:
            case EngineOrder.SUBMIT | EngineOrder.SUBMIT_PREFILL | EngineOrder.RESERVE_DESTINATION:
                return self._enter(command, handoff, at_ms)
            case EngineOrder.ACTIVATE_DESTINATION:
                reply = core.activate_destination(handoff)
            case EngineOrder.RELEASE_SOURCE:
                reply = core.release_source(handoff)
            case EngineOrder.CANCEL_SOURCE:
                reply = core.cancel_source(handoff)
            case EngineOrder.CANCEL_DESTINATION:
                reply = core.cancel_destination(handoff)
            case EngineOrder.CANCEL_REQUEST:
                reply = core.cancel_request(RequestId(str(command.request)))
            case EngineOrder.DROP_REGISTRATION:
                reply = Reply(self._drop_registration(command.request))
            case EngineOrder.SHUTDOWN:
                return self._shut_down(command, at_ms)
        if reply.applied and command.name in _ENDS_REQUEST:
            self._forget(command.request if command.request is not None else self._entered.get(handoff, -1))
        self._collect_kv_events(at_ms)
        answered = _answer(command, OutcomeName.APPLIED if reply.applied else OutcomeName.NOOP, at_ms)
        return [answered] if reply.reserved is None else [answered, _reserved(reply.reserved, at_ms)]

    def _enter(self, command: EngineCommand, handoff: HandoffId, at_ms: float) -> list[Any]:
        request = self._requests.get(-1 if command.request is None else command.request)
        if request is None or request.used:
            message = f"request {command.request} is not prepared, or was submitted already"
            return [_answer(command, OutcomeName.FAILED, at_ms, message)]
        reply = Reply(applied=True)
        match command.name:
            case EngineOrder.SUBMIT:
                self.core.submit(request.for_core())
                outcome = OutcomeName.SUBMITTED
            case EngineOrder.SUBMIT_PREFILL:
                self.core.submit_handoff_prefill(handoff, request.for_core())
                outcome = OutcomeName.SUBMITTED
            case _:
                busy = self._clock.running is not None
                reply = self.core.reserve_destination(handoff, request.for_core(), busy=busy)
                outcome = OutcomeName.ACCEPTED
        request.used = True
        if command.name is not EngineOrder.SUBMIT:
            request.core_handoff = handoff
            self._entered[handoff] = request.number
        request.handoff = request.handoff if command.handoff is None else command.handoff
        answered = _answer(command, outcome, at_ms)
        return [answered] if reply.reserved is None else [answered, _reserved(reply.reserved, at_ms)]

    def _shut_down(self, command: EngineCommand, at_ms: float) -> list[Any]:
        """Stop in the middle of whatever runs; commands that were held back fail."""
        self.closed = True
        self._clock.running = None
        held_back, self._held_back = self._held_back, []
        failed = [_answer(other, OutcomeName.FAILED, at_ms, NOT_RUNNING) for other in held_back]
        return [*failed, _answer(command, OutcomeName.APPLIED, at_ms)]

    def _drop_registration(self, number: int | None) -> bool:
        request = self._requests.get(-1 if number is None else number)
        return request is not None and not request.used

    # -- passes -------------------------------------------------------------------------------------------------

    def _start_passes(self, now_ms: float, builder: StepBuilder) -> None:
        """Start the next pass; passes that take no time end at once, until one does nothing."""
        while self._clock.is_ready and not self.closed:
            result = self._clock.start(now_ms)
            for admission in result.admissions:
                number = int(admission.request_id)
                self._tokenless[admission.request_id] = None
                self.output.output.append(StreamStart(number, admission.reused_tokens))
                builder.add(EngineAdmitted(number, admission.reused_tokens, now_ms, self._handoff(number)))
            if result.end_ms > now_ms:
                if not self._tokenless:
                    self.core.extend_pass(result)
                return
            self._boundary(now_ms, builder)

    def _boundary(self, now_ms: float, builder: StepBuilder) -> None:
        """End the pass in flight, and carry out what was held back."""
        result, reserved = self._clock.finish()
        self._count_pass(result)
        for pressure in result.pressure:
            builder.add(_pressure(pressure, now_ms, self._handoff(int(pressure.request_id))))
        for end in result.ends:
            builder.add(self._finished(end, now_ms))
        for held in result.held:
            handoff, handoff_id = _log_handoff(held.handoff_id)
            builder.add(EngineLifecycle(FactName.SOURCE_HELD, now_ms, handoff, handoff_id, held.transfer_timing))
        if reserved is not None:
            builder.add(_reserved(reserved, now_ms))
        commands, self._held_back = self._held_back, []
        for command in commands:
            self._clock.touch(now_ms)
            for effect in self._carry_out(command, now_ms):
                builder.add(effect)

    def _finished(self, end: RequestEnd, now_ms: float) -> EngineFinished:
        number = int(end.request_id)
        rejected = end.kind is EndKind.REJECTED
        self.output.output.append(StreamEnd(number, rejected, now_ms))
        return EngineFinished(
            TerminalStatus.REJECTED if rejected else TerminalStatus.COMPLETED,
            number, end.output_tokens, now_ms, end.first_token_ms, end.second_token_ms, self._forget(number),
        )  # fmt: skip

    def _count_pass(self, result: PassResult) -> None:
        request_ids = result.token_requests
        numbers = [int(request_id) for request_id in request_ids]
        tally = self._tally_from(result.start_ms)
        tally.add_pass(result.end_ms, result.passes, numbers)
        for request_id, number in zip(request_ids, numbers, strict=True):
            self._tokenless.pop(request_id, None)
            self.output.output.append(TokenRun(number, result.passes, result.end_ms))
        self._take_kv_events(tally, result.kv_events)
        if result.metrics is not None:
            self.output.metrics.append(result.metrics)

    def _collect_kv_events(self, at_ms: float) -> None:
        """Count the cache events of commands."""
        events = self.core.take_kv_events()
        if events:
            self._take_kv_events(self._tally_from(at_ms), events)

    def _take_kv_events(self, tally: TokenTally, events: list[KvEvent]) -> None:
        tally.add_kv_events(events)
        self.output.kv_events.extend(events)

    def _tally_from(self, from_ms: float) -> TokenTally:
        if self._tally is None:
            self._tally = TokenTally(from_ms)
        return self._tally

    def _add_token_row(self, builder: StepBuilder) -> None:
        """Passes without tokens are counted with the next that have some, in whichever step those end."""
        if self._tally is not None and self._tally.is_worth_a_row:
            builder.add(self._tally.row(self.core.metrics().active_blocks))
            self._tally = None

    def _handoff(self, number: int) -> int | None:
        request = self._requests.get(number)
        return None if request is None else request.handoff

    def _forget(self, number: int) -> int | None:
        request = self._requests.pop(number, None)
        self._tokenless.pop(RequestId(str(number)), None)
        if request is None:
            return None
        if request.core_handoff is not None:
            self._entered.pop(request.core_handoff, None)
        return request.handoff


_NAMED = "id:"


def _core_handoff(command: EngineCommand) -> HandoffId:
    """The core's name of the handoff: its number in the journal, or its own name when it has none."""
    return HandoffId(str(command.handoff) if command.handoff is not None else f"{_NAMED}{command.handoff_id}")


def _log_handoff(handoff_id: HandoffId) -> tuple[int | None, HandoffId | None]:
    """The inverse of `_core_handoff`."""
    if handoff_id.startswith(_NAMED):
        return None, HandoffId(handoff_id.removeprefix(_NAMED))
    return int(handoff_id), None


def _reserved(reserved: DestinationReserved, model_ms: float) -> EngineLifecycle:
    handoff, handoff_id = _log_handoff(reserved.handoff_id)
    tokens = reserved.transferable_prompt_tokens
    return EngineLifecycle(
        FactName.DESTINATION_RESERVED, model_ms, handoff, handoff_id, transferable_prompt_tokens=tokens
    )


def _answer(
    command: EngineCommand, outcome: OutcomeName, model_ms: float, message: str | None = None
) -> EngineAnswered:
    return EngineAnswered(
        command.name,
        outcome,
        model_ms,
        command.handoff,
        command.handoff_id,
        command.action_id,
        command.request,
        message,
    )


def _pressure(record: PressureRecord, model_ms: float, handoff: int | None) -> EnginePressure:
    return EnginePressure(
        int(record.request_id), record.running_before, record.waiting_before, record.active_blocks_before,
        record.running_after, record.waiting_after, record.active_blocks_after, model_ms, handoff,
    )  # fmt: skip
