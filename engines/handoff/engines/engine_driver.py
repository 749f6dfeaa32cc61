"""Drives one engine in real time: feeds its machine, sleeps until the model says that something ends, delivers.

The machine is stepped wherever an input arises, in the task of whoever brings it: reading the clock, stepping and
appending never wait, so no lock is needed. One task of the driver's own sleeps until the pass in flight ends on the
model clock and steps the machine then; another delivers output to clients.

**What waits for the disk.** An answer or a fact goes to sessions that write to the same journal: whatever they do
about it becomes a later row, which cannot be durable before this one. So answers and facts are handed over at once.
Tokens leave for clients, who write to no journal of ours: they wait until their rows are durable, in order, without
holding up the engine.

**Commands of a handoff** go through a queue of their registration, and the next one is issued only when the one
before was answered, even if nobody waits for that answer any more. That is what makes "canceled: there was nothing"
a proof that nothing is held: an abandoned submit cannot come after it.

**Ends.** `stop` is asked for by `LiveEngine.shutdown`, or by the collection of a forgotten engine. Streams and
handoff routes are closed and commands answered as failed; nothing is left that could wait for ever. A failure inside
(a sink that raises, a machine that crashes) ends the engine in the same way and is reported by every `shutdown`. When
the journal fails, nothing more is accepted or delivered, but commands are still carried out: cleanup may not depend
on rows.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from attrs import define, field

from handoff.engines.clock import RunClock
from handoff.engines.engine_actor import NOT_RUNNING, EngineActor, StepOutput
from handoff.engines.engine_core import ForwardPassMetrics, KvEvent
from handoff.engines.engine_errors import (
    EmptyOutput,
    EngineFailed,
    NotRunning,
    RequestActive,
)
from handoff.engines.engine_routes import (
    STREAM_CAPACITY,
    HandoffRegistration,
    OutputBatch,
    PendingCommand,
    RequestRoute,
    RouteState,
)
from handoff.engines.engine_rows import (
    EngineAdvanced,
    EngineAnswered,
    EngineCommand,
    EngineFinished,
    EngineInput,
    EngineLifecycle,
    EngineOrder,
    EngineTokens,
    RequestPrepared,
)
from handoff.engines.handoff_registry import HandoffRegistry
from handoff.engines.output_delivery import OutputDelivery, batches_of
from handoff.engines.prompt_shape import to_runs
from handoff.journal.declarations import Lag
from handoff.journal.port import ActorHandle, JournalFailed, JournalPort
from handoff.journal.step import crashed
from handoff.journal.vocabulary import ActionId, HandoffId, OutcomeName, RequestId, Seq, WorkerRole

LAG_TO_TELL_MS = 100.0
"""A driver that wakes up so late, or twice as late as when it said so last, says so with a row."""


@define(eq=False)
class EngineDriver:
    """One running engine. `run` does its work; everything else returns at once.

    Attributes:
        machine: the engine.
        label: a name for people.
        failure: the first thing that went wrong inside.
        running: whether requests and handoffs are accepted.
        finished: set when everything is closed.
        changed: replaced and set whenever requests, routes or the load change.
    """

    machine: EngineActor
    label: str
    journal: JournalPort
    clock: RunClock
    kv_sinks: tuple[Callable[[KvEvent], None], ...] = ()
    metrics_sink: Callable[[ForwardPassMetrics], None] | None = None
    watcher: Callable[[Any], None] | None = None
    failure: BaseException | None = field(default=None, init=False)
    running: bool = field(default=True, init=False)
    finished: trio.Event = field(factory=trio.Event, init=False)
    changed: trio.Event = field(factory=trio.Event, init=False)
    _actor: ActorHandle = field(init=False)
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token, init=False)
    _requests: dict[int, RequestRoute] = field(factory=dict, init=False)
    _by_client: dict[RequestId, RequestRoute] = field(factory=dict, init=False)
    _prepared: int = field(default=0, init=False)
    _registry: HandoffRegistry = field(factory=HandoffRegistry, init=False)
    _request_commands: dict[tuple[EngineOrder, int | None], PendingCommand] = field(factory=dict, init=False)
    _to_issue: deque[PendingCommand] = field(factory=deque, init=False)
    _issuing: bool = field(default=False, init=False)
    _delivery: OutputDelivery = field(init=False)
    _lag_to_tell_ms: float = field(default=LAG_TO_TELL_MS, init=False)
    _wake: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._actor = self.journal.start_actor(
            self.machine.SLOTS, self.label, self.machine.config(), self.clock.now_ms()
        )
        self._delivery = OutputDelivery(self.journal, self._deliver, self._notify, self._refuse_clients)

    # -- requests -----------------------------------------------------------------------------------------------

    @property
    def active_requests(self) -> int:
        """Requests that are prepared or inside, or whose end is on its way to the client."""
        return len(self._requests)

    def prepare(
        self,
        request_id: RequestId | None,
        prompt_tokens: int,
        block_names: "tuple[int, ...]",
        max_output_tokens: int,
        planned: tuple[int, ...],
        *,
        handoff: int | None = None,
        cause: Seq | None = None,
    ) -> RequestRoute:
        """Register a request.

        Raises:
            NotRunning, EmptyOutput, RequestActive: it cannot be.
        """
        self._check_running()
        number = self._prepared + 1
        client = RequestId(f"{self.label}-{number}") if request_id is None else request_id
        if max_output_tokens < 1:
            raise EmptyOutput(client)
        if client in self._by_client:
            raise RequestActive(client)
        self._prepared = number
        settings = self.machine.settings
        delay_ms = None
        if settings.worker_role is WorkerRole.PREFILL:
            delay_ms = settings.transfer_timing(prompt_tokens).full_prompt_delay_ms()
        capacity = 1 if settings.worker_role is WorkerRole.PREFILL else min(max_output_tokens, STREAM_CAPACITY)
        route = RequestRoute(number, client, planned, capacity, delay_ms)
        self._requests[number] = route
        self._by_client[client] = route
        runs = to_runs(block_names)
        name = client if handoff is None else None
        self.offer(RequestPrepared(number, prompt_tokens, max_output_tokens, runs, handoff, name), cause)
        return route

    def drop(self, route: RequestRoute) -> None:
        """The client has lost interest: free what is prepared, cancel what is inside, in the background."""
        match route.state:
            case RouteState.PREPARED:
                self.order(EngineOrder.DROP_REGISTRATION, route)
                self._close_request(route)
            case RouteState.SUBMITTED:
                self.cancel(route)
                self._close_request(route)
            case RouteState.CLOSED:
                pass

    def drop_soon(self, route: RequestRoute) -> None:
        """`drop`, from any thread and from within garbage collection."""
        self._soon(self.drop, route)

    def drop_unused(self, route: RequestRoute) -> None:
        """The registration of a prepared request was closed."""
        if route.state is RouteState.PREPARED:
            self.drop(route)

    def drop_unused_soon(self, route: RequestRoute) -> None:
        """`drop_unused`, from any thread and from within garbage collection."""
        self._soon(self.drop_unused, route)

    def route_of(self, request_id: RequestId) -> RequestRoute | None:
        """The active request of this name."""
        return self._by_client.get(request_id)

    def cancel(self, route: RequestRoute) -> PendingCommand | None:
        """Ask the scheduler to drop a request; None when it must not be asked any more.

        A destination is canceled as part of its handoff, behind whatever was ordered before, and only while no
        newer registration has taken the handoff's name.
        """
        registration = route.destination_of
        if registration is None:
            return self.order(EngineOrder.CANCEL_REQUEST, route)
        if not self._registry.is_newest(registration):
            return None
        return self.command(registration, EngineOrder.CANCEL_DESTINATION)

    def order(self, name: EngineOrder, route: RequestRoute, cause: Seq | None = None) -> PendingCommand:
        """Order something for a request that no handoff is part of."""
        key = (name, route.number)
        pending = self._request_commands.get(key)
        if pending is None:
            pending = self._request_commands[key] = PendingCommand(EngineCommand(name, route.number), cause)
            self._issue(pending)
        return pending

    # -- handoffs -----------------------------------------------------------------------------------------------

    def register(self, handoff_id: HandoffId, handoff: int | None) -> HandoffRegistration:
        """Register a handoff.

        Raises:
            NotRunning, RouteTaken, CommandRunning: it cannot be.
        """
        self._check_running()
        return self._registry.add(handoff_id, handoff)

    def unregister(self, registration: HandoffRegistration) -> None:
        """Nobody wants the registration's events any more; its name is free."""
        if registration.open:
            self._registry.close(registration)
            self._notify()

    def unregister_soon(self, registration: HandoffRegistration) -> None:
        """`unregister`, from any thread and from within garbage collection."""
        self._soon(self.unregister, registration)

    def check_command(self, registration: HandoffRegistration, name: EngineOrder) -> None:
        """Whether `command` may be called.

        Raises:
            NotRunning, EarlierRegistration: it may not.
        """
        if self.machine.closed:
            raise NotRunning(self.label)
        self._registry.check(registration, name)

    def command(
        self,
        registration: HandoffRegistration,
        name: EngineOrder,
        route: RequestRoute | None = None,
        *,
        action_id: ActionId | None = None,
        cause: Seq | None = None,
    ) -> PendingCommand:
        """Order something for a handoff, behind what was ordered before.

        Raises:
            NotRunning, EarlierRegistration: it cannot be.
        """
        self.check_command(registration, name)
        if route is not None:
            registration.request = route
            if name is EngineOrder.RESERVE_DESTINATION:
                route.destination_of = registration
        handoff_id = registration.handoff_id if registration.handoff is None else None
        number = None if route is None else route.number
        pending = PendingCommand(EngineCommand(name, number, registration.handoff, handoff_id, action_id), cause)
        if self._registry.queue(registration, pending):
            self._issue(pending)
        return pending

    # -- the machine ----------------------------------------------------------------------------------------------

    def offer(self, value: EngineInput, cause: Seq | None = None) -> None:
        """Feed the machine one input and carry out what it answers.

        Raises:
            EngineFailed: the machine crashed.
        """
        at_ms = self.clock.now_ms()
        before = self.machine.next_wakeup_ms
        try:
            step = self.machine.step(value, at_ms)
        except Exception as error:
            self.journal.append(self._actor, crashed(value), at_ms, cause)
            self.fail(error)
            raise EngineFailed(self.label, error) from error
        if len(step.entries) > 1 or not isinstance(value, EngineAdvanced) or self.machine.next_wakeup_ms is None:
            first = self.journal.append(self._actor, step, at_ms, cause)
            self._carry_out(step.entries, first)
        else:
            self._feed_sinks(self.machine.output)
        if before is not None and at_ms - before >= self._lag_to_tell_ms:
            self._lag_to_tell_ms = 2.0 * (at_ms - before)
            self.journal.annotate(Lag(at_ms - before), at_ms)
        if self.machine.next_wakeup_ms != before:
            self._wake.set()

    def _carry_out(self, entries: tuple[Any, ...], first: Seq) -> None:
        rows: dict[int, Seq] = {}
        tokens_row = first
        for index, entry in enumerate(entries):
            if self.watcher is not None and index:
                self.watcher(entry.value)
            match entry.value:
                case EngineAnswered() as answer:
                    self._answer(answer, Seq(first + index))
                case EngineLifecycle() as fact:
                    self._registry.tell(fact, Seq(first + index))
                case EngineFinished() as finished:
                    rows[finished.request] = Seq(first + index)
                case EngineTokens():
                    tokens_row = Seq(first + index)
        output = self.machine.output
        self._feed_sinks(output)
        if output.output:
            batches = batches_of(output.output, self._requests, rows, tokens_row)
            if batches:
                self._delivery.put(Seq(first + len(entries) - 1), batches)
        self._notify()

    def _answer(self, answer: EngineAnswered, row: Seq) -> None:
        if answer.name is EngineOrder.SHUTDOWN:
            return
        pending = self._request_commands.pop((answer.name, answer.request), None)
        if pending is None:
            registration, pending = self._registry.answered(answer)
            self._after_answer(registration, answer)
            if registration.commands:
                self._issue(registration.commands[0])
        elif answer.name is EngineOrder.CANCEL_REQUEST and answer.request is not None:
            self._close_request(self._requests.get(answer.request))
        elif answer.name is EngineOrder.SUBMIT and answer.outcome is OutcomeName.SUBMITTED:
            self._requests[answer.request or 0].submitted()
        pending.resolve(answer, row)

    def _after_answer(self, registration: HandoffRegistration, answer: EngineAnswered) -> None:
        route = registration.request
        if route is None:
            return
        match answer.name, answer.outcome:
            case ((EngineOrder.SUBMIT_PREFILL | EngineOrder.RESERVE_DESTINATION), OutcomeName.FAILED):
                self._close_request(route)
            case ((EngineOrder.SUBMIT_PREFILL | EngineOrder.RESERVE_DESTINATION), _):
                route.submitted()
            case ((EngineOrder.CANCEL_SOURCE | EngineOrder.CANCEL_DESTINATION), _):
                self._close_request(route)
            case _:
                pass

    def _issue(self, pending: PendingCommand) -> None:
        """Offer a command; one that is issued while another's effects are carried out waits for their end."""
        self._to_issue.append(pending)
        if self._issuing:
            return
        self._issuing = True
        try:
            while self._to_issue:
                following = self._to_issue.popleft()
                self.offer(following.command, following.cause)
        finally:
            self._issuing = False

    def _feed_sinks(self, output: StepOutput) -> None:
        try:
            for event in output.kv_events:
                for sink in self.kv_sinks:
                    sink(event)
            if self.metrics_sink is not None:
                for metrics in output.metrics:
                    self.metrics_sink(metrics)
        except Exception as error:  # noqa: BLE001 - a sink is somebody else's code: whatever it raises ends the engine
            self.fail(error)

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stopped."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._delivery.run)
                await self._advance()
                self._close_everything()
                self._delivery.close()
        finally:
            self._close_everything()
            self.finished.set()

    def stop(self) -> None:
        """Accept nothing more and end `run`."""
        self.running = False
        self._wake.set()

    def stop_soon(self) -> None:
        """`stop`, from any thread and from within garbage collection."""
        self._soon(self.stop)

    def fail(self, error: BaseException) -> None:
        """Remember the first failure and stop."""
        self.failure = self.failure or error
        self.stop()

    async def _advance(self) -> None:
        while self.running:
            self._wake = trio.Event()
            due_ms = self.machine.next_wakeup_ms
            if due_ms is None:
                await self._wake.wait()
            elif self.clock.now_ms() >= due_ms:
                self._advance_now()
                await trio.lowlevel.checkpoint()
            else:
                with self.clock.move_on_at(due_ms):
                    await self._wake.wait()

    def _advance_now(self) -> None:
        try:
            self.offer(EngineAdvanced())
        except EngineFailed:
            self.stop()

    def _refuse_clients(self, error: JournalFailed) -> None:
        """The journal is lost: end every stream, and take nothing new."""
        self.failure = self.failure or error
        for route in tuple(self._requests.values()):
            self.drop(route)

    def _deliver(self, route: RequestRoute, batch: OutputBatch) -> None:
        if not route.deliver(batch):
            if not batch.completed and route.state is RouteState.SUBMITTED:
                self.cancel(route)
            self._close_request(route)
        elif batch.completed:
            self._close_request(route)

    def _close_everything(self) -> None:
        if self.machine.closed:
            return
        self.running = False
        try:
            self.offer(EngineCommand(EngineOrder.SHUTDOWN))
        except EngineFailed:
            self.machine.closed = True
        for pending in (*self._request_commands.values(), *self._registry.unanswered()):
            if pending.answer is None:
                command = pending.command
                pending.resolve(
                    EngineAnswered(command.name, OutcomeName.FAILED, self.clock.now_ms(), message=NOT_RUNNING), None
                )
        for route in tuple(self._requests.values()):
            self._close_request(route)
        for registration in self._registry.open:
            self.unregister(registration)

    # -- small things -----------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self.running or self.failure is not None:
            raise NotRunning(self.label)

    def _close_request(self, route: RequestRoute | None) -> None:
        if route is not None and self._requests.pop(route.number, None) is not None:
            self._by_client.pop(route.request_id, None)
            route.close()
            self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # the loop is gone, and everything of ours with it
            self._token.run_sync_soon(function, *arguments)
