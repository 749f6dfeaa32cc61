"""The permits of a worker: taken or refused at once, returned once, and never more than there are."""

from hypothesis import given
from hypothesis import strategies as st
from recorded_steps import RecordedMachine, assert_replays

from handoff.engines.admission import (
    LIMIT_REACHED,
    SHUTTING_DOWN,
    Admission,
    PermitRefused,
    PermitRequested,
    PermitReturned,
    PermitTaken,
    PoolClosed,
)
from handoff.journal.vocabulary import Verdict


def test_a_permit_is_taken_while_there_is_one_and_refused_with_the_reason_after_that() -> None:
    admission = Admission(1)
    assert admission.step(PermitRequested(1), 0.0).effects == (PermitTaken(1, 1),)
    assert admission.step(PermitRequested(2), 0.0).effects == (PermitRefused(2, LIMIT_REACHED, 1, 1),)
    assert admission.step(PermitReturned(1, "session ended"), 0.0).verdict is Verdict.APPLIED
    assert admission.step(PermitRequested(2), 0.0).effects == (PermitTaken(2, 1),)


def test_a_permit_is_neither_taken_nor_returned_twice() -> None:
    admission = Admission(2)
    admission.step(PermitRequested(1), 0.0)
    again = admission.step(PermitRequested(1), 0.0)
    assert (again.verdict, again.effects) == (Verdict.DUPLICATE, ())
    assert admission.step(PermitReturned(1), 0.0).verdict is Verdict.APPLIED
    assert admission.step(PermitReturned(1), 0.0).verdict is Verdict.DUPLICATE
    assert admission.active == 0


def test_a_closed_pool_refuses_everybody_and_still_takes_permits_back() -> None:
    admission = Admission(2)
    admission.step(PermitRequested(1), 0.0)
    assert admission.step(PoolClosed(), 0.0).verdict is Verdict.APPLIED
    assert admission.step(PoolClosed(), 0.0).verdict is Verdict.DUPLICATE
    assert admission.step(PermitRequested(2), 0.0).effects == (PermitRefused(2, SHUTTING_DOWN, 2, 1),)
    assert admission.step(PermitReturned(1), 0.0).verdict is Verdict.APPLIED


HANDOFFS = st.integers(1, 6)
INPUTS = st.lists(
    st.one_of(st.builds(PermitRequested, HANDOFFS), st.builds(PermitReturned, HANDOFFS), st.just(PoolClosed())),
    max_size=40,
)


@given(limit=st.integers(1, 4), inputs=INPUTS)
def test_taken_less_returned_is_what_is_inside_and_every_row_replays(
    limit: int, inputs: list[PermitRequested | PermitReturned | PoolClosed]
) -> None:
    recorded = RecordedMachine(Admission(limit))
    balance = 0
    for value in inputs:
        step = recorded.offer(value)
        balance += sum(isinstance(effect, PermitTaken) for effect in step.effects)
        balance -= isinstance(value, PermitReturned) and step.verdict is Verdict.APPLIED
        assert 0 <= balance <= limit
        assert balance == recorded.machine.active
    if inputs:
        assert_replays(recorded.journal)
