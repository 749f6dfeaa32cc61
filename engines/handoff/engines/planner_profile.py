"""Pass durations measured on real hardware, interpolated instead of fitted.

A profile is a NumPy ``.npz`` archive with binary64 arrays: ``prefill_isl[i]`` and ``prefill_ttft_ms[i]``;
``decode_active_kv_tokens[j]``, ``decode_context_length[k]`` and ``decode_itl[j, k]``. Prefill is interpolated over
the batch's new tokens, decode over the batch's summed and mean length; beyond the grid the outermost cells go on.
The archive is a zip of arrays with a one-line header, so it is read here without NumPy.
"""

import ast
import io
import struct
import zipfile
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from handoff.engines.engine_settings import InvalidSetting
from handoff.engines.timing_model import quantized_ms

_DECODE_FLOOR_MS = 1.0


@frozen
class PlannerProfile:
    """The measured grid. Lengths in tokens, durations in ms; both axes ascend."""

    prefill_isl: tuple[float, ...]
    prefill_ttft_ms: tuple[float, ...]
    decode_active_kv_tokens: tuple[float, ...]
    decode_context_length: tuple[float, ...]
    decode_itl: tuple[tuple[float, ...], ...]

    def __attrs_post_init__(self) -> None:
        if len(self.prefill_isl) != len(self.prefill_ttft_ms) or len(self.prefill_isl) < 2:
            raise ValueError("prefill_isl and prefill_ttft_ms must have the same length, at least 2")
        rows, columns = len(self.decode_active_kv_tokens), len(self.decode_context_length)
        if min(rows, columns) < 2 or len(self.decode_itl) != rows or {len(row) for row in self.decode_itl} != {columns}:
            raise ValueError("decode_itl must have a row for each decode_active_kv_tokens, a column for each length")


class ProfileDecodeTimes:
    """Decode durations by bilinear interpolation."""

    depends_on_load_only = False

    def __init__(self, profile: PlannerProfile, speedup: float) -> None:
        self._profile = profile
        self._speedup = speedup

    def duration_ms(self, load_tokens: int, batch: int) -> float:
        """One step; at least 1 ms before the speed-up, 0 for an empty batch."""
        if batch == 0:
            return 0.0
        profile = self._profile
        row, along = _cell(profile.decode_active_kv_tokens, float(load_tokens))
        context = float(load_tokens // batch)
        low = _interpolate(profile.decode_context_length, profile.decode_itl[row], context)
        high = _interpolate(profile.decode_context_length, profile.decode_itl[row + 1], context)
        return quantized_ms(max(low + (high - low) * along, _DECODE_FLOOR_MS), self._speedup)

    def run_ms(self, load_tokens: int, batch: int, steps: int) -> list[float]:
        """The durations of consecutive steps, the load growing by `batch` each."""
        return [self.duration_ms(load_tokens + batch * step, batch) for step in range(steps)]


class ProfileTiming:
    """A timing model from a profile."""

    def __init__(self, profile: PlannerProfile, prefill_speedup: float, decode_speedup: float) -> None:
        self.decode = ProfileDecodeTimes(profile, decode_speedup)
        self._profile = profile
        self._prefill_speedup = prefill_speedup

    def prefill_ms(self, requests: int, total_tokens: int, total_cached: int) -> float:
        """One prefill batch, from whole means as in the fitted model."""
        if requests == 0:
            return 0.0
        new_each = total_tokens // requests - total_cached // requests
        if new_each <= 0:
            return 0.0
        profile = self._profile
        model_ms = _interpolate(profile.prefill_isl, profile.prefill_ttft_ms, float(requests * new_each))
        return quantized_ms(max(model_ms, 0.0), self._prefill_speedup)


def _cell(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The cell of an axis to use, and how far along it the value lies (outside 0..1 beyond the grid)."""
    index = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    return index, (value - axis[index]) / (axis[index + 1] - axis[index])


def _interpolate(axis: Sequence[float], values: Sequence[float], value: float) -> float:
    index, along = _cell(axis, value)
    return values[index] + (values[index + 1] - values[index]) * along


def load_profile(path: str | Path, prefill_speedup: float, decode_speedup: float) -> ProfileTiming:
    """Read a profile and make a timing model of it.

    Raises:
        InvalidSetting: when the file cannot be read or does not hold a profile.
    """
    key = "planner_profile_data"
    try:
        with zipfile.ZipFile(path) as archive:
            flat = {name: _array(archive.read(f"{name}.npy")) for name in _NAMES}
        columns = len(flat["decode_context_length"])
        grid = flat.pop("decode_itl")
        rows = tuple(grid[start : start + columns] for start in range(0, len(grid), columns))
        profile = PlannerProfile(**flat, decode_itl=rows)
    except OSError as error:
        raise InvalidSetting(key, str(path), f"a file that can be read: {error.strerror}") from error
    except (KeyError, ValueError, SyntaxError, struct.error, zipfile.BadZipFile, ZeroDivisionError) as error:
        raise InvalidSetting(key, str(path), f"a profile with {', '.join(_NAMES)} as binary64: {error}") from error
    return ProfileTiming(profile, prefill_speedup, decode_speedup)


_NAMES = ("prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length", "decode_itl")


def _array(data: bytes) -> tuple[float, ...]:
    """The values of a ``.npy`` array in C order."""
    stream = io.BytesIO(data)
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise ValueError("not a NumPy array")
    length_format = "<H" if magic[6] == 1 else "<I"
    (length,) = struct.unpack(length_format, stream.read(struct.calcsize(length_format)))
    header = ast.literal_eval(stream.read(length).decode("latin-1").strip())
    if header["descr"] != "<f8" or header["fortran_order"]:
        raise ValueError("array is not little-endian binary64 in C order")
    content = stream.read()
    return struct.unpack(f"<{len(content) // 8}d", content)
