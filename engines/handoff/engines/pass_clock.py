"""The rules of a busy engine, once, for live use and for virtual time.

A `PassClock` owns a core and the pass that it is in. It knows three states: *idle*, *in a pass* (or run of passes)
until `end_ms`, and *asleep*: the last pass did nothing, so none is started again until something reaches the engine.

Its user calls, in the order of time:

* `touch(at_ms)` before any command: a run is cut at the first boundary at or after that time, so that the command is
  held back no longer than the single pass that it falls into;
* `start(now_ms)` on an idle engine with work;
* `finish()` at `end_ms`: the pass's result, then the boundary's one retry of pending destinations.

Who holds commands back, and in what order other engines' events come, is the user's business.
"""

from handoff.engines.engine_core import DestinationReserved, EngineCore, PassResult


class PassClock:
    """One engine on its model clock.

    Attributes:
        core: the engine.
        running: the pass in progress, or None.
        asleep: whether the last pass did nothing.
        leaps: whether passes are prolonged into runs.
    """

    __slots__ = ("asleep", "core", "leaps", "running")

    def __init__(self, core: EngineCore, *, leaps: bool) -> None:
        self.core = core
        self.leaps = leaps
        self.running: PassResult | None = None
        self.asleep = False

    @property
    def is_ready(self) -> bool:
        """Whether a pass may start: idle, awake, and with work."""
        return self.running is None and not self.asleep and self.core.has_work

    def touch(self, at_ms: float) -> bool:
        """Something reaches the engine at `at_ms`; whether that moved the end of a run."""
        self.asleep = False
        return self.cut(at_ms)

    def cut(self, at_ms: float) -> bool:
        """Let a run end with its first boundary at or after `at_ms`; whether that moved its end."""
        result = self.running
        if result is None or result.passes == 1:
            return False
        end_ms = result.end_ms
        self.core.cut_pass(result, at_ms)
        return result.end_ms != end_ms

    def start(self, now_ms: float) -> PassResult:
        """Start a pass; the engine must be idle."""
        result = self.running = self.core.execute_pass(now_ms)
        if self.leaps:
            self.core.extend_pass(result)
        return result

    def finish(self) -> tuple[PassResult, DestinationReserved | None]:
        """End the pass: its completed result, and the reservation that the boundary's retry made."""
        result = self.running
        assert result is not None
        self.running = None
        core = self.core
        core.settle_pass(result)
        reserved = core.retry_pending_destinations()
        self.asleep = not result.effect and reserved is None
        return result, reserved
