"""The permits of a worker at work: each is an object that comes back once, whoever brings it."""

from attrs import define

from handoff.engines.admission import Admission, PermitRefused, PermitRequested, PermitReturned, PermitTaken, PoolClosed
from handoff.engines.clock import RunClock
from handoff.engines.step_writer import StepWriter
from handoff.journal.port import JournalPort
from handoff.journal.vocabulary import Seq


@define
class NoPermit(Exception):
    """The worker is full, or shutting down.

    Attributes:
        refused: the reason, and how full it is.
    """

    refused: PermitRefused

    def __str__(self) -> str:
        return f"{self.refused.reason}: {self.refused.active} of {self.refused.limit} inside"


@define
class AlreadyInside(Exception):
    """The handoff has a permit of this worker already."""

    handoff: int

    def __str__(self) -> str:
        return f"handoff {self.handoff} is inside already"


class Permit:
    """One handoff's place in a worker."""

    __slots__ = ("_pool", "handoff")

    def __init__(self, pool: "PermitPool", handoff: int) -> None:
        self._pool: PermitPool | None = pool
        self.handoff = handoff

    def release(self, reason: str | None = None) -> None:
        """Give the place back; giving it back again does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.take_back(self.handoff, reason)


class PermitPool:
    """The permits of one worker.

    Args:
        limit: how many handoffs may be inside at once.
        label: a name for people.
    """

    def __init__(self, limit: int, label: str, journal: JournalPort, clock: RunClock) -> None:
        self._writer = StepWriter(Admission(limit), label, journal, clock)

    @property
    def available(self) -> int:
        """Permits that are free."""
        return self._writer.machine.limit - self._writer.machine.active

    @property
    def inside(self) -> tuple[int, ...]:
        """Handoffs that hold a permit."""
        return self._writer.machine.inside

    def take(self, handoff: int, cause: Seq | None = None) -> Permit:
        """Take a permit at once.

        Raises:
            NoPermit: there is none.
            AlreadyInside: the handoff has one.
        """
        effects = [entry.value for entry, _row in self._writer.offer(PermitRequested(handoff), cause)]
        match effects:
            case [PermitTaken()]:
                return Permit(self, handoff)
            case [PermitRefused() as refused]:
                raise NoPermit(refused)
            case _:
                raise AlreadyInside(handoff)

    def take_back(self, handoff: int, reason: str | None) -> None:
        """A permit comes back."""
        self._writer.offer(PermitReturned(handoff, reason))

    def close(self) -> None:
        """Let nobody in any more."""
        self._writer.offer(PoolClosed())
