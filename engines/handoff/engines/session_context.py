"""What the drivers of one process share: journal, clock, limits, faults, and who is who.

Two small tables join what the journal has to say of both sides of a handoff:

* `HandoffNumbers`: the number that a handoff has in the journal. Whoever meets it first opens it.
* `WireLinks`: which row sent the frame that arrives. TCP keeps order, so the n-th frame received in one direction of a
  connection is the n-th one put on it; the contents are compared all the same, and a frame whose sender is unknown (it
  lives in another process) has no cause and is stored whole.

Both are bounded and forget the oldest first, so that handoffs whose other side is elsewhere leave nothing behind.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any

from attrs import Factory, field, frozen

from handoff.engines.clock import RunClock
from handoff.engines.identity import HandoffIdentity
from handoff.engines.interception import CrashSwitches, Interceptor, no_faults
from handoff.engines.rendezvous import RENDEZVOUS_TIMEOUT_MS
from handoff.engines.signals import Signal
from handoff.journal.declarations import HandoffOpened
from handoff.journal.port import JournalPort
from handoff.journal.vocabulary import EngineType, HandoffId, HandoffOrder, Seq

SESSION_TIMEOUT_MS = 300_000.0
_ROOM = 65_536


class HandoffNumbers:
    """The journal's numbers of the handoffs met last."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[HandoffId, int] = OrderedDict()

    def learn(self, handoff_id: HandoffId, number: int) -> None:
        """Note the number of a handoff that was opened elsewhere."""
        self._numbers[handoff_id] = number
        if len(self._numbers) > _ROOM:
            self._numbers.popitem(last=False)

    def get(self, handoff_id: HandoffId) -> int | None:
        """The number of a handoff, or None for one that was not met lately."""
        return self._numbers.get(handoff_id)


class WireLinks:
    """Rows of frames that are on their way, by the direction of a connection."""

    def __init__(self) -> None:
        self._sent: OrderedDict[Hashable, deque[tuple[Seq, Any]]] = OrderedDict()

    def sent(self, direction: Hashable, row: Seq, contents: Any) -> None:
        """A frame is put on the wire."""
        frames = self._sent.get(direction)
        if frames is None:
            frames = self._sent[direction] = deque()
            if len(self._sent) > _ROOM:
                self._sent.popitem(last=False)
        frames.append((row, contents))

    def received(self, direction: Hashable, contents: Any) -> Seq | None:
        """The row that sent the frame that arrived; None when it was not sent here."""
        frames = self._sent.get(direction)
        if not frames or frames[0][1] != contents:
            return None
        return frames.popleft()[0]

    def forget(self, direction: Hashable) -> None:
        """Nothing more is received in this direction."""
        self._sent.pop(direction, None)


@frozen
class SessionContext:
    """What sessions and their manager are given.

    Attributes:
        journal: where rows go.
        clock: the run's clock.
        shutdown: ends everything, in order.
        session_timeout_ms: how long a session may last, not counting the transfer, in ms.
        rendezvous_timeout_ms: how long a participant waits for the other, in ms.
        interceptor: decides where faults strike.
    """

    journal: JournalPort
    clock: RunClock = Factory(RunClock)
    shutdown: Signal = Factory(Signal)
    session_timeout_ms: float = SESSION_TIMEOUT_MS
    rendezvous_timeout_ms: float = RENDEZVOUS_TIMEOUT_MS
    interceptor: Interceptor = no_faults
    numbers: HandoffNumbers = field(factory=HandoffNumbers)
    links: WireLinks = field(factory=WireLinks)
    crashes: CrashSwitches = field(factory=CrashSwitches)

    def handoff_number(self, identity: HandoffIdentity, order: HandoffOrder, engine_type: EngineType) -> int:
        """The handoff's number in the journal; it is opened if nobody has met it before."""
        number = self.numbers.get(identity.handoff_id)
        if number is None:
            opened = HandoffOpened(
                identity.handoff_id, order, engine_type, identity.request_id, str(identity.bootstrap_room), 1
            )
            number = self.journal.open_handoff(opened, self.clock.now_ms())
            self.numbers.learn(identity.handoff_id, number)
        return number
