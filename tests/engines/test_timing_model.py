"""Durations are whole nanoseconds, rounded before and after the speed-up divides them."""

import io
import struct
import zipfile
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.engines.decode_batch import sum_in_order
from handoff.engines.engine_settings import InvalidSetting
from handoff.engines.planner_profile import load_profile
from handoff.engines.timing_model import PolynomialDecodeTimes, PolynomialTiming, nearest_nanos, quantized_ms


@given(st.floats(0.0, 1e6, allow_subnormal=False))
def test_rounding_goes_to_the_nearest_nanosecond_of_the_exact_value_ties_to_even(seconds: float) -> None:
    assert nearest_nanos(seconds) == round(Fraction(seconds) * 10**9)


@pytest.mark.parametrize("nanos", [0, 1, 7, 123_456_789])
def test_rounding_is_exact_close_to_a_tie(nanos: int) -> None:
    for seconds in ((nanos + 0.5) / 1e9, (nanos + 0.5 - 1e-7) / 1e9, (nanos + 0.5 + 1e-7) / 1e9):
        assert nearest_nanos(seconds) == round(Fraction(seconds) * 10**9)


def test_a_duration_is_rounded_before_and_after_the_speedup() -> None:
    assert quantized_ms(1.0000004, 3.0) == 0.333333
    assert quantized_ms(16.0, 0.0) == 16.0


def test_prefill_takes_the_means_of_the_batch() -> None:
    timing = PolynomialTiming(1000, 1.0, 1.0)
    assert timing.prefill_ms(1, 128, 0) == 18.451798
    assert timing.prefill_ms(1, 64, 0) == 17.474885
    assert timing.prefill_ms(2, 129, 0) == timing.prefill_ms(2, 128, 0)
    assert timing.prefill_ms(0, 0, 0) == 0.0
    assert timing.prefill_ms(1, 64, 64) == 0.0


@pytest.mark.parametrize("speedup", [0.0, 0.7, 1.0, 1000.0])
def test_a_run_has_the_durations_of_its_steps(speedup: float) -> None:
    times, alone = PolynomialDecodeTimes(2000, speedup), PolynomialDecodeTimes(2000, speedup)
    run = times.run_ms(500, 7, 400)
    assert len(run) == 400
    assert list(run) == [alone.duration_ms(500 + 7 * step, 7) for step in range(400)]
    assert run[-1] == alone.duration_ms(2000, 1), "beyond the capacity every step takes the same time"
    assert alone.duration_ms(1, 0) == 0.0


@given(st.lists(st.floats(0.0, 1e3), max_size=50), st.floats(0.0, 1e7))
def test_sums_add_in_the_order_of_stepping(values: list[float], start: float) -> None:
    assert sum_in_order(values, start) == [*accumulate(values, initial=start)][-1]


def _npy(values: list[float], shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    padded = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + struct.pack(f"<{len(values)}d", *values)


def _profile(path: Path, **changes: list[float]) -> Path:
    arrays = {
        "prefill_isl": [100.0, 200.0],
        "prefill_ttft_ms": [10.0, 30.0],
        "decode_active_kv_tokens": [0.0, 1000.0],
        "decode_context_length": [0.0, 100.0],
        "decode_itl": [2.0, 4.0, 6.0, 8.0],
    } | changes
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            archive.writestr(f"{name}.npy", io.BytesIO(_npy(values, f"({len(values)},)")).getvalue())
    return path


def test_a_profile_is_interpolated_and_goes_on_beyond_its_grid(tmp_path: Path) -> None:
    timing = load_profile(_profile(tmp_path / "profile.npz"), 1.0, 2.0)
    assert timing.prefill_ms(1, 150, 0) == 20.0
    assert timing.prefill_ms(1, 300, 0) == 50.0
    assert timing.prefill_ms(1, 10, 0) == 0.0, "not below 0"
    assert timing.decode.duration_ms(500, 10) == 2.5, "bilinear: 5 ms at half the tokens and half the length, halved"
    assert timing.decode.run_ms(500, 10, 2) == [2.5, timing.decode.duration_ms(510, 10)]


def test_a_profile_whose_arrays_do_not_fit_is_refused(tmp_path: Path) -> None:
    path = _profile(tmp_path / "profile.npz", prefill_isl=[100.0])
    with pytest.raises(InvalidSetting, match="planner_profile_data"):
        load_profile(path, 1.0, 1.0)
    with pytest.raises(InvalidSetting, match="can be read"):
        load_profile(tmp_path / "missing.npz", 1.0, 1.0)
