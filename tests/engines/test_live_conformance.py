"""A handoff over real sockets and one in virtual time give the same report, whoever arrives first."""

import pytest
import trio
from attrs import evolve, frozen
from live_engines import probe_drained, read_all, stored_names
from live_handoffs import LivePair, live_pair, run_real

from handoff.engines.conformance import NormalizedHandoffConformance, NormalizedStoredTiming, NotConformant
from handoff.engines.engine_core import KvEvent
from handoff.engines.offline_conformance import run_offline_handoff_conformance
from handoff.engines.request_stream import OutputSignal
from handoff.journal.terms import ObserverName
from handoff.journal.vocabulary import EngineType, TimingMode, order_for_engine


class Observation:
    """Takes the destination's cache events off at each step of the lifecycle."""

    def __init__(self, events: list[KvEvent]) -> None:
        self.lifecycle: list[ObserverName] = []
        self.before_activation = 0
        self.activation: list[int] = []
        self._events = events

    def __call__(self, name: ObserverName) -> None:
        self.lifecycle.append(name)
        if name is ObserverName.DESTINATION_ACTIVATED:
            self.activation = stored_names(self._events)
        elif ObserverName.DESTINATION_ACTIVATED not in self.lifecycle:
            self.before_activation += len(stored_names(self._events))


@frozen
class Outputs:
    """What the two streams gave."""

    source: list[OutputSignal]
    destination: list[OutputSignal]


async def hand_over(pair: LivePair, *, source_first: bool) -> Outputs:
    """One healthy handoff; the sides arrive in the order asked for."""
    identity = pair.identity(19)
    source = pair.prepare(pair.source, identity, 1)
    destination = pair.prepare(pair.destination, identity, 2)
    completion = pair.register(identity, source) if source_first else None
    connection = await pair.connect(identity)
    if completion is None:
        await pair.manager.wait_for_pending_destination(identity.handoff_id)
        completion = pair.register(identity, source)
    session = pair.run_destination(connection, destination)
    outputs = Outputs(await read_all(source.stream), await read_all(destination.stream))
    assert (await completion.wait()).ok
    assert (await session.wait()).ok
    assert outputs.source[-1].completed
    assert outputs.destination[-1].completed
    assert pair.permits.available == 1
    source.boundary.close()
    destination.boundary.close()
    return outputs


async def report_of(pair: LivePair, outputs: Outputs, observation: Observation) -> NormalizedHandoffConformance:
    """The report of a handoff that is over; takes both engines' names and blocks to see that they are free."""
    activation = set(observation.activation)
    repeated = sum(name in activation for name in stored_names(pair.destination_events))
    assert stored_names(pair.source_events)
    drained = []
    for engine in (pair.source, pair.destination):
        with trio.fail_after(2):
            await engine.wait_idle()
        drained.append(await probe_drained(engine))
        _control, events = engine.register_handoff(pair.identity(19).handoff_id)
        events.close()
    return NormalizedHandoffConformance(
        engine_type=pair.engine_type,
        order=order_for_engine(pair.engine_type),
        lifecycle=tuple(observation.lifecycle),
        source_output_tokens=sum(signal.token_id is not None for signal in outputs.source),
        destination_output_tokens=sum(signal.token_id is not None for signal in outputs.destination),
        completed_requests=sum(signal.completed for signal in outputs.destination),
        destination_stored=NormalizedStoredTiming(observation.before_activation, len(observation.activation), repeated),
        source_drained=drained[0],
        destination_drained=drained[1],
        driver_drained=pair.permits.available == 1,
    )


def live_report(engine_type: EngineType, mode: TimingMode, *, source_first: bool) -> NormalizedHandoffConformance:
    reports = []

    async def main() -> None:
        async with live_pair(engine_type, mode) as pair:
            observation = Observation(pair.destination_events)
            pair.observed.append(observation)
            with trio.fail_after(5):
                outputs = await hand_over(pair, source_first=source_first)
            reports.append(await report_of(pair, outputs, observation))

    run_real(main)
    return reports[0]


@pytest.mark.parametrize("source_first", [True, False], ids=["source first", "destination first"])
@pytest.mark.parametrize("mode", list(TimingMode))
@pytest.mark.parametrize("engine_type", [EngineType.VLLM, EngineType.SGLANG])
def test_live_and_offline_handoff_surfaces_share_one_conformance_report(
    engine_type: EngineType, mode: TimingMode, source_first: bool
) -> None:
    report = live_report(engine_type, mode, source_first=source_first)
    report.validate()
    assert report == run_offline_handoff_conformance(engine_type, mode)
    assert report.destination_stored.on_activation == 2


def test_tensorrt_llm_supports_no_handoff() -> None:
    with pytest.raises(ValueError, match="TRT-LLM"):
        run_offline_handoff_conformance(EngineType.TRTLLM, TimingMode.FULL_PROMPT)


def test_a_report_names_the_first_demand_that_it_breaks() -> None:
    report = live_report(EngineType.VLLM, TimingMode.FULL_PROMPT, source_first=True)
    broken = evolve(report, destination_output_tokens=1, completed_requests=0)
    with pytest.raises(NotConformant, match="destination_output_tokens is 1: expected 2"):
        broken.validate()
    with pytest.raises(NotConformant, match="order"):
        evolve(report, engine_type=EngineType.SGLANG).validate()
    with pytest.raises(ValueError, match="TRT-LLM"):
        evolve(report, engine_type=EngineType.TRTLLM).validate()
