"""A mock engine in real time: what a worker does with it, and what a client sees.

An engine runs in a nursery of its user's, who shuts it down when sessions no longer need it:

    async with trio.open_nursery() as nursery:
        engine = LiveEngine.start(nursery, settings)
        with await engine.submit(LiveRequest(prompt=range(8), max_output_tokens=2)) as stream:
            async for signal in stream: ...
        await engine.shutdown()

**Requests.** `prepare_request` registers an output route and schedules nothing. The registration can be used once, by
a `submit` or by a handoff; closing it unused removes the route, ends the stream and frees the client's name.

**Handoffs.** `register_handoff` gives a control and the handoff's events. There is one registration for each name at
a time; closing the events frees the name. An older control still releases, activates and cancels while no newer
registration took the name, so that cleanup works to the end; it can no longer submit or reserve. A control does not
keep its engine alive.

**Closing.** Where the deployed system relies on destructors, streams, registrations and events have `close` and are
context managers. What is forgotten is closed when it is collected, an engine too; that is a net and not a way of work.
"""

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import trio
from attrs import Factory, frozen

from handoff.engines.block_names import block_names
from handoff.engines.clock import RunClock
from handoff.engines.engine_actor import EngineActor
from handoff.engines.engine_core import EngineMetrics, ForwardPassMetrics, KvEvent
from handoff.engines.engine_driver import EngineDriver
from handoff.engines.engine_errors import (
    CommandRefused,
    EngineFailed,
    EngineGone,
    ForeignRegistration,
    RegistrationUsed,
)
from handoff.engines.engine_routes import HandoffRegistration, PendingCommand, RequestRoute, RouteState
from handoff.engines.engine_rows import EngineLifecycle, EngineOrder
from handoff.engines.engine_settings import EngineSettings
from handoff.engines.request_stream import RequestStream
from handoff.journal.port import JournalPort, MemoryJournal
from handoff.journal.vocabulary import ActionId, HandoffId, OutcomeName, RequestId, Seq


@frozen
class LiveRequest:
    """A request as a client makes it.

    Attributes:
        prompt: token ids, or None when `prompt_tokens` and `block_names` say what the prompt is.
        max_output_tokens: tokens to generate, at least 1; `output_token_ids` overrules it by its length.
        output_token_ids: the very tokens to generate, for tests.
        request_id: the client's name of it, unused in the engine; None for one of the engine's choice.
        prompt_tokens: length of the prompt.
        block_names: names of its complete blocks, in the engine's block size.
    """

    prompt: Sequence[int] | None = None
    max_output_tokens: int = 1
    output_token_ids: tuple[int, ...] | None = None
    request_id: RequestId | None = None
    prompt_tokens: int | None = None
    block_names: tuple[int, ...] = ()

    @property
    def output_length(self) -> int:
        """Tokens that the request will get."""
        return self.max_output_tokens if self.output_token_ids is None else len(self.output_token_ids)


@frozen
class LiveEngineConfig:
    """What an engine is connected to.

    Attributes:
        kv_sinks: called with each cache event, in order, before the output of its pass.
        metrics_sink: called with the metrics of each pass; passes are then never prolonged into runs.
        watcher: called with the value of each of the engine's effect rows, in order.
        journal: where the engine's rows go.
        clock: the run's clock; None for one that starts now.
        label: a name for people.
    """

    kv_sinks: tuple[Callable[[KvEvent], None], ...] = ()
    metrics_sink: Callable[[ForwardPassMetrics], None] | None = None
    watcher: Callable[[Any], None] | None = None
    journal: JournalPort = Factory(MemoryJournal)
    clock: RunClock | None = None
    label: str = "engine"


class RequestRegistration:
    """A prepared request, to be used once."""

    __slots__ = ("__weakref__", "_driver", "_finalizer", "route")

    def __init__(self, driver: EngineDriver, route: RequestRoute) -> None:
        self._driver = driver
        self.route = route
        self._finalizer = weakref.finalize(self, driver.drop_unused_soon, route)
        self._finalizer.atexit = False

    def use(self, driver: EngineDriver) -> RequestRoute:
        """Consume the registration.

        Raises:
            ForeignRegistration: another engine made it.
            RegistrationUsed: it was consumed or closed before.
        """
        if driver is not self._driver:
            raise ForeignRegistration(self.route.request_id)
        if self._finalizer.detach() is None or self.route.state is not RouteState.PREPARED:
            raise RegistrationUsed(self.route.request_id)
        return self.route

    def close(self) -> None:
        """Free the request's name and end its stream, unless the registration was used."""
        if self._finalizer.detach() is not None:
            self._driver.drop_unused(self.route)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class LiveHandoffControl:
    """Gives a handoff's commands to its engine, one after the other. It can be shared freely."""

    __slots__ = ("_engine", "_registration")

    def __init__(self, engine: "LiveEngine", registration: HandoffRegistration) -> None:
        self._engine = weakref.ref(engine)
        self._registration = registration

    @property
    def handoff_id(self) -> HandoffId:
        """The handoff."""
        return self._registration.handoff_id

    def order(
        self,
        name: EngineOrder,
        registration: RequestRegistration | None = None,
        *,
        action_id: ActionId | None = None,
        cause: Seq | None = None,
    ) -> PendingCommand:
        """Order something, behind what was ordered before; `wait` on the answer.

        Args:
            name: one of the six commands of a handoff.
            registration: the prepared request, for ``submit_prefill`` and ``reserve_destination``.
            action_id: the coordinator's number of the action that this carries out.
            cause: the row that ordered it.

        Raises:
            EngineGone, NotRunning: there is nobody to give it to.
            EarlierRegistration: the handoff's name belongs to a newer registration.
            ForeignRegistration, RegistrationUsed: the prepared request cannot be used here.
        """
        engine = self._engine()
        if engine is None:
            raise EngineGone(self._registration.handoff_id)
        driver = engine.driver
        driver.check_command(self._registration, name)
        route = None if registration is None else registration.use(driver)
        return driver.command(self._registration, name, route, action_id=action_id, cause=cause)


class LiveHandoffEvents:
    """What an engine reports of one handoff."""

    __slots__ = ("__weakref__", "_driver", "_finalizer", "_registration")

    def __init__(self, driver: EngineDriver, registration: HandoffRegistration) -> None:
        self._driver = driver
        self._registration = registration
        self._finalizer = weakref.finalize(self, driver.unregister_soon, registration)
        self._finalizer.atexit = False

    async def recv(self) -> tuple[EngineLifecycle, Seq] | None:
        """The next fact with the number of its row; None once no more will come."""
        registration = self._registration
        await trio.lowlevel.checkpoint_if_cancelled()
        while not registration.facts:
            if not registration.open:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return None
            registration.readable = trio.Event()
            await registration.readable.wait()
        return registration.facts.popleft()

    def close(self) -> None:
        """End the events and free the handoff's name. Closing twice is harmless."""
        if self._finalizer.detach() is not None:
            self._driver.unregister(self._registration)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class LiveEngine:
    """A running engine. See the module."""

    __slots__ = ("__weakref__", "_finalizer", "driver")

    def __init__(self, driver: EngineDriver) -> None:
        self.driver = driver
        self._finalizer = weakref.finalize(self, driver.stop_soon)
        self._finalizer.atexit = False

    @classmethod
    def start(cls, nursery: trio.Nursery, settings: EngineSettings) -> "LiveEngine":
        """Start an engine that nobody listens to; see `start_with_config`."""
        return cls.start_with_config(nursery, settings, LiveEngineConfig())

    @classmethod
    def start_with_config(
        cls, nursery: trio.Nursery, settings: EngineSettings, config: LiveEngineConfig
    ) -> "LiveEngine":
        """Start an engine in `nursery`, at once. Settings that no engine can have fail when they are made."""
        machine = EngineActor(settings, bool(config.kv_sinks), config.metrics_sink is not None)
        driver = EngineDriver(
            machine,
            config.label,
            config.journal,
            RunClock() if config.clock is None else config.clock,
            config.kv_sinks,
            config.metrics_sink,
            config.watcher,
        )
        nursery.start_soon(driver.run, name=f"engine {config.label}")
        return cls(driver)

    @property
    def settings(self) -> EngineSettings:
        """How the engine is set up."""
        return self.driver.machine.settings

    @property
    def metrics(self) -> EngineMetrics:
        """The engine's load as of its last step."""
        return self.driver.machine.core.metrics()

    @property
    def active_request_count(self) -> int:
        """Requests that are prepared or inside, or whose end is on its way to the client."""
        return self.driver.active_requests

    def prepare_request(
        self, request: LiveRequest, *, handoff: int | None = None, cause: Seq | None = None
    ) -> tuple[RequestRegistration, RequestStream]:
        """Register a request's output route without scheduling anything.

        Args:
            request: the request.
            handoff: number in the journal of the handoff that it is for.
            cause: the row that made it arrive here.

        Raises:
            EmptyOutput: it asks for no token.
            RequestActive: its name is in use.
            NotRunning: the engine was shut down.
        """
        prompt = request.prompt
        if prompt is not None:
            tokens, names = len(prompt), block_names(prompt, self.settings.block_size)
        else:
            tokens, names = request.prompt_tokens or 0, request.block_names
        route = self.driver.prepare(
            request.request_id, tokens, names, request.output_length, request.output_token_ids or (),
            handoff=handoff, cause=cause,
        )  # fmt: skip
        return RequestRegistration(self.driver, route), RequestStream(self.driver, route)

    async def submit(self, request: LiveRequest) -> RequestStream:
        """Prepare and submit an ordinary request.

        Raises:
            CommandRefused: the scheduler refused it; besides what `prepare_request` raises.
        """
        registration, stream = self.prepare_request(request)
        await self.submit_registration(registration)
        return stream

    async def submit_registration(self, registration: RequestRegistration) -> None:
        """Submit a prepared request as an ordinary one.

        Raises:
            CommandRefused: the scheduler refused it.
            ForeignRegistration, RegistrationUsed: it cannot be used here.
        """
        answer = await self.driver.order(EngineOrder.SUBMIT, registration.use(self.driver)).wait()
        if answer.outcome is OutcomeName.FAILED:
            raise CommandRefused(answer.name, answer.message or "")

    async def cancel(self, request_id: RequestId) -> bool:
        """Drop a request by the client's name of it; whether there was something to drop."""
        route = self.driver.route_of(request_id)
        if route is None:
            await trio.lowlevel.checkpoint()
            return False
        return await RequestStream.cancel_route(self.driver, route)

    def register_handoff(
        self, handoff_id: HandoffId, *, handoff: int | None = None
    ) -> tuple[LiveHandoffControl, LiveHandoffEvents]:
        """Register a handoff under its name.

        Args:
            handoff_id: its name, free in this engine.
            handoff: its number in the journal.

        Raises:
            RouteTaken: the name is in use.
            CommandRunning: a command of an earlier registration is not answered yet.
            NotRunning: the engine was shut down.
        """
        registration = self.driver.register(handoff_id, handoff)
        return LiveHandoffControl(self, registration), LiveHandoffEvents(self.driver, registration)

    async def wait_idle(self) -> None:
        """Wait until no request is active, running or waiting."""
        await trio.lowlevel.checkpoint()
        while True:
            changed = self.driver.changed
            metrics = self.metrics
            if self.active_request_count == 0 and metrics.running == 0 and metrics.waiting == 0:
                return
            await changed.wait()

    async def shutdown(self) -> None:
        """Stop, and wait until everything is closed. Every call gives the same result.

        Raises:
            EngineFailed: something inside went wrong, now or before.
        """
        self.driver.stop()
        await self.driver.finished.wait()
        failure = self.driver.failure
        if failure is not None:
            raise EngineFailed(self.driver.label, failure)
