"""Every fault at every point of a live handoff: `why` finds it, names one root cause, and accuses nobody else."""

import pytest
from why_matrix import examined, is_a_duty

from handoff.engines.scenario import FaultDeed

ABSORBED = {
    FaultDeed.DELAY: None,  # all of them
    FaultDeed.DUPLICATE: None,
    FaultDeed.DROP: {"frame:fact"},
}
ROOTS = {
    FaultDeed.DROP: {
        "lost_outcome", "lost_fact", "rendezvous_timeout", "protocol_violation", "complete_not_delivered", "failed",
    },
    FaultDeed.DELAY: set(),
    FaultDeed.DUPLICATE: {"conflicting_outcome", "protocol_violation"},
    FaultDeed.FAIL: {"failed", "peer_lost", "healthy_decode_canceled"},
    FaultDeed.CRASH_SOURCE: {"peer_lost", "orphan_rendezvous", "failed", "canceled"},
    FaultDeed.CRASH_DESTINATION: {"peer_lost", "orphan_rendezvous", "failed", "canceled"},
    FaultDeed.DISCONNECT: {"peer_lost", "orphan_rendezvous", "canceled"},
    FaultDeed.CANCEL: {"canceled", "complete_not_delivered", "split_verdict"},
    FaultDeed.TIMEOUT: {
        "lost_outcome", "lost_fact", "rendezvous_timeout", "split_verdict", "complete_not_delivered", "failed",
        "orphan_rendezvous", "canceled", "deadline_spent_in_queue",
    },
}  # fmt: skip


@pytest.mark.parametrize("deed", list(FaultDeed))
@pytest.mark.parametrize("engine_type", ["vllm", "sglang"])
def test_why_names_one_root_cause_for_what_was_struck_and_accuses_nobody_else(
    engine_type: str, deed: FaultDeed
) -> None:
    struck, others = examined(engine_type, deed)
    assert others == []
    for on, postmortem in struck.items():
        if postmortem is None:
            assert deed in ABSORBED, on
            absorbed = ABSORBED[deed]
            assert absorbed is None or on in absorbed, on
            continue
        assert len(postmortem.root_causes) == 1, on
        assert postmortem.root_causes[0].code in ROOTS[deed], on
        left = [holding for side in postmortem.sides for holding in side.holds if holding.owed and is_a_duty(holding)]
        assert left == [], on
