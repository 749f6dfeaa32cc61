"""What a handoff session needs of an engine: two methods. Plug in your own engine here.

A session drives one side of one handoff. It asks its engine to carry out actions, and it listens to what the engine
observes of that handoff:

    class MyEngine:
        async def execute(self, call: ControlCall) -> Outcome | ControlReply:
            match call.action:
                case ActionName.SUBMIT_PREFILL:
                    await self.scheduler.submit(self.request)
                    return SUBMITTED
                ...

        async def next_event(self) -> LifecycleEvent | None:
            return await self.observations.get()

Rules that make a handoff safe:

* **One command at a time.** The commands of one handoff take effect in the order in which `execute` was called, even
  if the session stopped waiting for an earlier one (its call is then canceled by Trio). A cancel that answers ``noop``
  is the proof that nothing is held; it is none if a submission can still be on its way.
* **Cancels are always answered.** ``cancel_source`` and ``cancel_destination`` may come at any time, more than once,
  and before anything was submitted. They free whatever there is, and a request that was never submitted.
* **Events may overtake answers.** A session keeps a fact that comes before the answer it depends on.
* A raised exception is a failed outcome with the exception's text.

`Outcome` values are those of `handoff.journal.coordinator`: ``SUBMITTED``, ``ACCEPTED``, ``APPLIED``, ``NOOP`` and
``failed(text)``. Which action admits which is in `ADMITTED_OUTCOMES` there.
"""

from typing import Protocol

from attrs import frozen

from handoff.journal.coordinator import Outcome
from handoff.journal.transfer_timing import TransferTiming
from handoff.journal.vocabulary import ActionId, ActionName, FactName, Seq

SOURCE_ACTIONS = frozenset({ActionName.SUBMIT_PREFILL, ActionName.RELEASE_SOURCE, ActionName.CANCEL_SOURCE})
"""What a source's engine is asked to do."""

DESTINATION_ACTIONS = frozenset(
    {ActionName.RESERVE_DESTINATION, ActionName.ACTIVATE_DESTINATION, ActionName.CANCEL_DESTINATION}
)
"""What a destination's engine is asked to do."""


@frozen
class ControlCall:
    """One thing that a session asks of its engine.

    Attributes:
        action: what to do.
        action_id: the coordinator's number of the action; None for the cancel at the end of a failed session.
        row: number of the journal row that holds the intent; an engine of ours names it as the cause of its command.
    """

    action: ActionName
    action_id: ActionId | None = None
    row: Seq | None = None


@frozen
class ControlReply:
    """An answer with more behind it than its outcome.

    Attributes:
        outcome: what the session works with.
        raw: the scheduler's own result where it differs, such as ``noop`` behind ``applied``; it is journaled.
        cause: number of the journal row that holds the engine's own answer, whose name, action id, outcome (`raw`, or
            `outcome` when there is no `raw`) and message this reply repeats; None for engines that write no rows.
    """

    outcome: Outcome
    raw: Outcome | None = None
    cause: Seq | None = None


@frozen
class LifecycleEvent:
    """Something that an engine observed of the handoff.

    Attributes:
        name: ``source_held`` or ``destination_reserved``.
        transfer_timing: what the transfer will cost; with ``source_held``.
        transferable_prompt_tokens: tokens that the destination lacks; with ``destination_reserved``.
        cause: number of the engine's own row with the same name and figures, or None.
    """

    name: FactName
    transfer_timing: TransferTiming | None = None
    transferable_prompt_tokens: int | None = None
    cause: Seq | None = None


def source_held(transfer_timing: TransferTiming, cause: Seq | None = None) -> LifecycleEvent:
    """The prompt's KV is complete and kept for the transfer."""
    return LifecycleEvent(FactName.SOURCE_HELD, transfer_timing=transfer_timing, cause=cause)


def destination_reserved(transferable_prompt_tokens: int, cause: Seq | None = None) -> LifecycleEvent:
    """Room for the prompt's KV is reserved; so many of its tokens have to be transferred."""
    return LifecycleEvent(
        FactName.DESTINATION_RESERVED, transferable_prompt_tokens=transferable_prompt_tokens, cause=cause
    )


class EngineBoundary(Protocol):
    """One engine's side of one handoff."""

    async def execute(self, call: ControlCall) -> Outcome | ControlReply:
        """Carry out an action and answer how it went.

        The session cancels the wait when the handoff fails meanwhile; the command itself must not be lost by that.
        """
        ...

    async def next_event(self) -> LifecycleEvent | None:
        """Wait for the next observation; None when there will be no more, which fails a handoff that still runs."""
        ...
