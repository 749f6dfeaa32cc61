"""The permits of one worker: a pure machine that admits a handoff or refuses it at once.

A worker can serve as many handoffs as its engine has capacity, and a request takes a permit before anything else.
Nobody waits for a permit: a queue here would hide from the client that the worker is full, and from the journal who
was refused and why. Two rules:

* a permit is asked for once and taken or refused in the same step; a second request for the same handoff is a
  duplicate and takes nothing;
* a permit is given back once, whoever brings it (the registration that was dropped, or the session that ended); giving
  it back again changes nothing. So the balance of taken and returned rows is the number of handoffs inside.

After the pool was closed every request is refused, and permits still come back.

A permit belongs to a handoff's number in the journal, which is what the ledger sums up. Rejected: a semaphore. It
counts, but it cannot say whose permit leaked.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import define, field, frozen

from handoff.journal.row_codec import row
from handoff.journal.step import Step, StepBuilder
from handoff.journal.terms import ActorKind, Kind
from handoff.journal.vocabulary import Verdict


@row(Kind.PERMIT_REQUESTED)
@frozen
class PermitRequested:
    """A handoff wants to enter the worker."""

    handoff: int


@row(Kind.PERMIT_RETURNED)
@frozen
class PermitReturned:
    """A handoff left the worker; `reason` says what brought its permit back."""

    handoff: int
    reason: str | None = None


@row(Kind.POOL_CLOSED)
@frozen
class PoolClosed:
    """The worker is shutting down: nobody enters any more."""


@row(Kind.PERMIT_TAKEN)
@frozen
class PermitTaken:
    """The handoff is inside; `active` counts it in."""

    handoff: int
    active: int


@row(Kind.PERMIT_REFUSED)
@frozen
class PermitRefused:
    """The handoff stays outside.

    Attributes:
        reason: for people, such as ``handoff session limit reached``.
        limit: permits of the worker.
        active: permits taken.
    """

    handoff: int
    reason: str
    limit: int
    active: int


AdmissionInput = PermitRequested | PermitReturned | PoolClosed

LIMIT_REACHED = "handoff session limit reached"
SHUTTING_DOWN = "the worker is shutting down"


@define
class Admission:
    """The permits of one worker.

    Attributes:
        limit: how many handoffs may be inside at once, at least 1.
        closed: whether entering is over.
    """

    SLOTS: ClassVar[tuple[ActorKind, ...]] = (ActorKind.ADMISSION,)

    limit: int
    closed: bool = field(default=False, init=False)
    _inside: dict[int, None] = field(factory=dict, init=False)

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> "Admission":
        """The machine that an `actor_started` row with this configuration describes."""
        return cls(config["limit"])

    def config(self) -> dict[str, Any]:
        """The configuration for the `actor_started` row."""
        return {"limit": self.limit}

    @property
    def active(self) -> int:
        """Permits taken."""
        return len(self._inside)

    @property
    def inside(self) -> tuple[int, ...]:
        """The handoffs that hold a permit, in the order in which they took it."""
        return tuple(self._inside)

    def step(self, value: AdmissionInput, at_ms: float) -> Step:
        """Take one input; time plays no part."""
        del at_ms
        builder = StepBuilder()
        builder.add(value)
        return builder.finish(self._take(value, builder))

    def _take(self, value: AdmissionInput, builder: StepBuilder) -> Verdict:
        match value:
            case PermitRequested():
                return self._request(value.handoff, builder)
            case PermitReturned():
                if value.handoff not in self._inside:
                    return Verdict.DUPLICATE
                del self._inside[value.handoff]
                return Verdict.APPLIED
            case PoolClosed():
                already, self.closed = self.closed, True
                return Verdict.DUPLICATE if already else Verdict.APPLIED

    def _request(self, handoff: int, builder: StepBuilder) -> Verdict:
        if handoff in self._inside:
            return Verdict.DUPLICATE
        reason = SHUTTING_DOWN if self.closed else LIMIT_REACHED if self.active >= self.limit else None
        if reason is not None:
            builder.add(PermitRefused(handoff, reason, self.limit, self.active))
        else:
            self._inside[handoff] = None
            builder.add(PermitTaken(handoff, self.active))
        return Verdict.APPLIED
