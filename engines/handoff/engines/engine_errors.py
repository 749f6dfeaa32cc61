"""What a live engine refuses, and why."""

from attrs import define

from handoff.journal.vocabulary import HandoffId, RequestId


class LiveEngineError(Exception):
    """A call that a live engine refused; nothing changed."""


@define
class NotRunning(LiveEngineError):
    """The engine was shut down, or has failed."""

    label: str

    def __str__(self) -> str:
        return f"engine {self.label} is not running"


@define
class EngineGone(LiveEngineError):
    """The engine that a handoff's control belonged to does not exist any more."""

    handoff_id: HandoffId

    def __str__(self) -> str:
        return f"handoff {self.handoff_id}: the engine no longer exists"


@define
class EmptyOutput(LiveEngineError):
    """A request that asks for no token has no stream to answer on."""

    request_id: RequestId

    def __str__(self) -> str:
        return f"request {self.request_id} needs at least one output token"


@define
class RequestActive(LiveEngineError):
    """The client's name for a request is in use in this engine."""

    request_id: RequestId

    def __str__(self) -> str:
        return f"request {self.request_id} is already active"


@define
class ForeignRegistration(LiveEngineError):
    """A prepared request belongs to another engine."""

    request_id: RequestId

    def __str__(self) -> str:
        return f"request {self.request_id} was prepared by another engine"


@define
class RegistrationUsed(LiveEngineError):
    """A prepared request can be submitted once, and this one was, or it was dropped."""

    request_id: RequestId

    def __str__(self) -> str:
        return f"the registration of request {self.request_id} was used more than once"


@define
class RouteTaken(LiveEngineError):
    """The handoff is registered with this engine already."""

    handoff_id: HandoffId

    def __str__(self) -> str:
        return f"handoff {self.handoff_id} already has a lifecycle route"


@define
class CommandRunning(LiveEngineError):
    """A command of an earlier registration of the handoff has not been answered yet."""

    handoff_id: HandoffId

    def __str__(self) -> str:
        return f"a command of an earlier registration of handoff {self.handoff_id} is still running"


@define
class EarlierRegistration(LiveEngineError):
    """The control belongs to a registration that was dropped or replaced."""

    handoff_id: HandoffId

    def __str__(self) -> str:
        return f"this control belongs to an earlier registration of handoff {self.handoff_id}"


@define
class CommandRefused(LiveEngineError):
    """The scheduler refused a command.

    Attributes:
        name: the command.
        message: the scheduler's own words.
    """

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@define
class EngineFailed(LiveEngineError):
    """The engine stopped because something inside it went wrong.

    Attributes:
        label: which engine.
        cause: the first failure.
    """

    label: str
    cause: BaseException

    def __str__(self) -> str:
        return f"engine {self.label} failed: {self.cause!r}"
