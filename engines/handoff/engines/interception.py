"""Where faults can strike a session, and what each does there.

A driver shows everything that passes a *point* to its interceptor, and does with it what the answer says. The points:

* ``action``: an action is about to be carried out, on the side that carries it out. The source does ``submit_prefill``,
  ``start_transfer``, ``release_source``, ``cancel_source`` and ``complete``; the destination does the other three. The
  cancel at the end of a failed session is no action: nothing may keep it from being carried out.
* ``outcome``: an outcome is about to reach the source session, which asked for it: a reply of its own engine, or an
  acknowledgement that arrived from the destination. (The session answers ``start_transfer`` and ``complete`` itself.)
* ``fact``: a fact is about to reach the session of its own side: ``source_held``, ``destination_reserved``, or
  ``transfer_completed``, which comes when the source's transfer timer fires.
* ``frame``: a frame is about to be put on the wire, by the side that sends it. Names are those of `WireName`.
* ``request``: a request is about to enter a worker; that is the worker's business, not a session's.

What an interference does, and what it leaves in the journal beside its own `fault` row:

* *drop*. An action is never carried out, so its intent row stays without an answer. An outcome or a fact is never
  seen, so there is no input row. A frame is lost on its way: it counts as sent (`wire_flushed`), and is not received.
* *delay*. The same, `delay_ms` later. Frames and acknowledgements behind it wait too, as they would in TCP.
* *duplicate*. An action is carried out twice, and the second reply is a duplicate. An outcome or a fact is offered
  twice. A frame is sent twice, received twice and flushed once.
* *fail*. An action is not carried out and answered with `failed(message)`. An outcome is replaced by
  `failed(message)`, a root input. For a fact, the engine's stream breaks (`lifecycle_ended`) or the transfer fails
  (`transport_error`). A frame cannot be sent (`wire_failed`).
* *crash_source*, *crash_destination*. That side's session stops dead: no row, no cleanup, no goodbye; its socket is
  closed as by the kernel. The thing is carried out only if it is the other side that crashes.
* *disconnect*. The connection is cut: `peer_closed` or `transport_error` on both sides. The thing goes on; a frame
  is lost.
* *cancel*. The request of the side where it strikes is canceled (`cancel_requested`); then the thing goes on.
* *timeout*. The deadline of the side where it strikes fires at once (`deadline_fired`); then the thing goes on.

Every interference is lawful at each of the four points. ``complete`` as an action has no answer: dropping it leaves
the session waiting for its deadline, and failing it fails its frame. ``start_transfer`` is the session's own timer:
dropping it means that nothing is ever transferred, and failing it is a transfer that fails.
"""

from enum import StrEnum
from typing import Protocol

from attrs import frozen

from handoff.engines.signals import Signal
from handoff.journal.vocabulary import HandoffId, Side


class InterceptionPoint(StrEnum):
    """Where a fault can strike."""

    ACTION = "action"
    OUTCOME = "outcome"
    FACT = "fact"
    FRAME = "frame"
    REQUEST = "request"


class FaultKind(StrEnum):
    """What a fault does."""

    PASS = "pass"  # noqa: S105 - the absence of a fault, not a password
    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    FAIL = "fail"
    CRASH_SOURCE = "crash_source"
    CRASH_DESTINATION = "crash_destination"
    DISCONNECT = "disconnect"
    CANCEL = "cancel"
    TIMEOUT = "timeout"


@frozen
class Interference:
    """What shall be done with the thing that was shown.

    Attributes:
        do: what.
        delay_ms: for how long; with ``delay``.
        message: the text of the failure; with ``fail``.
    """

    do: FaultKind
    delay_ms: float = 0.0
    message: str = "injected failure"


PASS = Interference(FaultKind.PASS)


class Interceptor(Protocol):
    """Decides whether a fault strikes. It is asked once for each thing that passes, and writes the `fault` row."""

    def intercept(self, point: InterceptionPoint, name: str, handoff_id: HandoffId) -> Interference:
        """What shall be done with the thing called `name` (snake_case) at `point`."""
        ...


class NoFaults:
    """Lets everything pass."""

    def intercept(self, point: InterceptionPoint, name: str, handoff_id: HandoffId) -> Interference:
        """Always `PASS`."""
        del point, name, handoff_id
        return PASS


no_faults = NoFaults()


class CrashSwitches:
    """How a fault that strikes one side's session reaches the other's in the same process.

    Sessions that live in another process have no switch here: crashing them means killing that process.
    """

    def __init__(self) -> None:
        self._switches: dict[tuple[HandoffId, Side], Signal] = {}

    def install(self, handoff_id: HandoffId, side: Side) -> Signal:
        """The switch of a session that starts."""
        switch = Signal()
        self._switches[handoff_id, side] = switch
        return switch

    def remove(self, handoff_id: HandoffId, side: Side, switch: Signal) -> None:
        """Forget the switch of a session that ended."""
        if self._switches.get((handoff_id, side)) is switch:
            del self._switches[handoff_id, side]

    def crash(self, handoff_id: HandoffId, side: Side) -> None:
        """Stop the session dead, if it lives here."""
        switch = self._switches.get((handoff_id, side))
        if switch is not None:
            switch.set()
