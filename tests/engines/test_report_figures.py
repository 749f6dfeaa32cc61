"""The summary's arithmetic: percentiles without interpolation, counted waits, goodput."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.engines.distribution import Distribution, counted_distribution, distribution, percentile_index
from handoff.engines.service_level import ServiceLevel
from handoff.engines.timing_model import PolynomialDecodeTimes
from handoff.engines.token_gaps import GapLog, counted_gaps


@pytest.mark.parametrize(
    ("count", "percent", "index"), [(1, 99, 0), (2, 50, 1), (4, 50, 2), (10, 50, 5), (11, 75, 8), (21, 95, 19)]
)
def test_a_percentile_is_the_value_at_the_nearest_index_halves_up(count: int, percent: float, index: int) -> None:
    assert percentile_index(count, percent) == index


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 9), min_size=1))
def test_counted_values_have_the_distribution_of_their_repetitions(counts: dict[int, int]) -> None:
    ordered = sorted(counts)
    plain = [float(value) for value in ordered for _ in range(counts[value])]
    one = counted_distribution([float(value) for value in ordered], [counts[value] for value in ordered])
    other = distribution(plain[::-1])
    assert (one.count, one.min, one.max, one.median, one.p75, one.p90, one.p95, one.p99) == (
        other.count, other.min, other.max, other.median, other.p75, other.p90, other.p95, other.p99,
    )  # fmt: skip
    assert one.mean == pytest.approx(statistics.mean(plain))
    assert one.std == pytest.approx(statistics.pstdev(plain), abs=1e-9)


def test_nothing_has_a_distribution_of_zeros() -> None:
    assert distribution([]) == counted_distribution([], []) == Distribution()


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6),
)
def test_waits_count_once_for_each_completed_request_that_was_in_the_run(
    runs: list[tuple[int, int, int]], stretches: list[tuple[int, int]]
) -> None:
    times = PolynomialDecodeTimes(10_000, 1.0)
    log = GapLog(times)
    for load, batch, passes in runs:
        log.add_run(load, batch, passes)
    log.add_pass(77.0)
    expected: dict[float, int] = {}
    for first, second in stretches:
        start, stop = sorted((min(first, log.position), min(second, log.position)))
        log.count_stretch(start, stop)
        for index in range(start, stop):
            gaps = [77.0] if index == len(runs) else times.run_ms(*runs[index])
            for gap in gaps:
                expected[gap] = expected.get(gap, 0) + 1
    log.count_single(5.0)
    expected[5.0] = expected.get(5.0, 0) + 1
    values, counts = counted_gaps([log])
    assert dict(zip(values, counts, strict=True)) == expected
    assert values == sorted(values)


def test_a_request_is_good_when_every_bound_holds() -> None:
    level = ServiceLevel(ttft_ms=10.0, itl_ms=2.0)
    assert level.is_met(10.0, 30.0, 11)
    assert not level.is_met(10.1, 30.0, 11)
    assert not level.is_met(10.0, 30.5, 11)
    assert level.is_met(10.0, 10.0, 1), "one token has no wait"
    assert not level.is_met(None, 5.0, 0)
    assert ServiceLevel(e2e_ms=5.0).is_met(None, 5.0, 0)
    with pytest.raises(ValueError, match="excludes"):
        ServiceLevel(ttft_ms=1.0, e2e_ms=1.0)
    with pytest.raises(ValueError, match="above 0"):
        ServiceLevel(itl_ms=0.0)
