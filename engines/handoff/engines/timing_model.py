"""How long passes take: the model of a GPU that is not there.

A prefill's duration is a quadratic of its new tokens, a decode step's a quadratic of the share of the pool that its
sequences fill; the batch's size does not matter. The coefficients were fitted by the authors of the deployed mock
engine and are facts to us. Both are rounded to whole nanoseconds, once before and once after the speed-up divides
them, because durations there are integers of nanoseconds; both roundings can be seen in results.

A decode step depends on one integer, the summed sequence length, so durations live in a table that is filled where
it is read. A run of `count` steps of a batch of `stride` requests is then one slice of it.
"""

from collections.abc import Sequence
from typing import Protocol

NANOS_PER_SECOND = 1_000_000_000

_PREFILL_QUADRATIC = 4.209989e-07
_PREFILL_LINEAR = 1.518344e-02
_PREFILL_CONSTANT = 16.50142
_DECODE_QUADRATIC = -25.74
_DECODE_LINEAR = 54.01
_DECODE_CONSTANT = 5.74
_DECODE_FLOOR_MS = 1.0

_CHUNK_BITS = 8
_CHUNK = 1 << _CHUNK_BITS
_UNCLEAR = 1e-5


def nearest_nanos(seconds: float) -> int:
    """The whole number of nanoseconds nearest to `seconds` (at least 0), ties to even.

    The product with 1e9 is itself rounded, so it decides only where it is clear of a tie; there the exact binary
    value of `seconds` decides.
    """
    product = seconds * 1e9
    if product < 1e10 and abs(product % 1.0 - 0.5) >= _UNCLEAR:
        return int(product + 0.5)
    numerator, denominator = seconds.as_integer_ratio()
    whole, rest = divmod(numerator * NANOS_PER_SECOND, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and whole % 2):
        return whole + 1
    return whole


def seconds_from_nanos(nanos: int) -> float:
    """Whole seconds plus the fraction, added in this order."""
    if nanos < NANOS_PER_SECOND:
        return nanos / 1e9
    whole, rest = divmod(nanos, NANOS_PER_SECOND)
    return whole + rest / 1e9


def quantized_ms(model_ms: float, speedup: float) -> float:
    """A model's duration in ms as an engine charges it: rounded, divided by `speedup` (unless 0), rounded again."""
    seconds = seconds_from_nanos(nearest_nanos(model_ms / 1000.0))
    if speedup > 0.0 and seconds > 0.0:
        seconds = seconds_from_nanos(nearest_nanos(seconds / speedup))
    return seconds * 1000.0


class DecodeTimes(Protocol):
    """Durations of decode steps.

    Attributes:
        depends_on_load_only: whether the batch's size makes no difference.
    """

    depends_on_load_only: bool

    def duration_ms(self, load_tokens: int, batch: int) -> float:
        """One step over `batch` requests whose sequences sum up to `load_tokens`; 0 for an empty batch."""

    def run_ms(self, load_tokens: int, batch: int, steps: int) -> Sequence[float]:
        """The durations of `steps` consecutive steps, the load growing by `batch` after each."""


class TimingModel(Protocol):
    """Durations of prefills and decode steps of one engine set-up."""

    @property
    def decode(self) -> DecodeTimes:
        """The decode side."""

    def prefill_ms(self, requests: int, total_tokens: int, total_cached: int) -> float:
        """One prefill batch.

        Args:
            requests: number of requests that compute prompt tokens.
            total_tokens: sum over them of the tokens computed or cached up to the end of this chunk.
            total_cached: sum of the tokens cached or computed before this chunk.
        """


class PolynomialDecodeTimes:
    """Decode durations from the fitted quadratic, tabulated by load."""

    depends_on_load_only = True

    def __init__(self, capacity_tokens: int, speedup: float) -> None:
        self.capacity_tokens = capacity_tokens
        self.speedup = speedup
        self._table: list[float] = []
        self._filled = bytearray()

    def duration_ms(self, load_tokens: int, batch: int) -> float:
        """One step; 0 for an empty batch."""
        if batch == 0:
            return 0.0
        if load_tokens < min(len(self._table), self.capacity_tokens) and self._filled[load_tokens >> _CHUNK_BITS]:
            return self._table[load_tokens]
        return self.run_ms(load_tokens, 1, 1)[0]

    def run_ms(self, load_tokens: int, batch: int, steps: int) -> list[float]:
        """The durations of consecutive steps, the load growing by `batch` each."""
        last = load_tokens + batch * (steps - 1)
        if last >= self.capacity_tokens:
            return self._run_beyond_capacity(load_tokens, batch, steps)
        low, high = load_tokens >> _CHUNK_BITS, (last >> _CHUNK_BITS) + 1
        if high > len(self._filled) or self._filled.find(0, low, high) >= 0:
            self._fill(low, high)
        return self._table[load_tokens : last + 1 : batch]

    def _run_beyond_capacity(self, load_tokens: int, batch: int, steps: int) -> list[float]:
        """The share of the pool never exceeds 1, so from the capacity on every step takes the same time."""
        below = min(steps, max(0, -(-(self.capacity_tokens - load_tokens) // batch)))
        durations = self.run_ms(load_tokens, batch, below) if below else []
        full_ms = quantized_ms(self._model_ms(self.capacity_tokens), self.speedup)
        durations.extend([full_ms] * (steps - below))
        return durations

    def _model_ms(self, load_tokens: int) -> float:
        share = load_tokens / self.capacity_tokens
        model_ms = _DECODE_QUADRATIC * (share * share) + _DECODE_LINEAR * share + _DECODE_CONSTANT
        return max(model_ms, _DECODE_FLOOR_MS)

    def _fill(self, low: int, high: int) -> None:
        table, filled = self._table, self._filled
        if high > len(filled):
            table.extend([0.0] * ((high - len(filled)) * _CHUNK))
            filled.extend(bytes(high - len(filled)))
        for chunk in range(low, high):
            if not filled[chunk]:
                filled[chunk] = 1
                start = chunk * _CHUNK
                table[start : start + _CHUNK] = self._chunk(start)

    def _chunk(self, start: int) -> list[float]:
        """One chunk of the table, with the arithmetic of `quantized_ms` written out: it is the hottest loop.

        If anything comes near a tie or is a second long, the chunk is computed again with care.
        """
        capacity, speedup = self.capacity_tokens, self.speedup
        divisor = speedup if speedup > 0.0 else 1.0
        # From share 0 to 1 the quadratic lies above its constant, and so above the floor.
        model_s = [
            (_DECODE_QUADRATIC * (share * share) + _DECODE_LINEAR * share + _DECODE_CONSTANT) / 1000.0
            for share in [load / capacity for load in range(start, start + _CHUNK)]
        ]
        products = [seconds * 1e9 for seconds in model_s]
        if divisor == 1.0:
            durations = [int(product + 0.5) / 1e9 * 1000.0 for product in products]
            divided = products
        else:
            divided = [int(product + 0.5) / 1e9 / divisor * 1e9 for product in products]
            durations = [int(product + 0.5) / 1e9 * 1000.0 for product in divided]
        if _has_unclear(products) or (divided is not products and _has_unclear(divided)):
            return [quantized_ms(self._model_ms(load), speedup) for load in range(start, start + _CHUNK)]
        return durations


def _has_unclear(products: Sequence[float]) -> bool:
    """Whether rounding any of these numbers of nanoseconds needs its exact value."""
    return max(products) >= 1e9 or min(map(abs, [product % 1.0 - 0.5 for product in products])) < _UNCLEAR


class PolynomialTiming:
    """The default timing model, for one pool's set-up; share one among the engines of a pool."""

    def __init__(self, capacity_tokens: int, prefill_speedup: float, decode_speedup: float) -> None:
        self.decode = PolynomialDecodeTimes(capacity_tokens, decode_speedup)
        self._prefill_speedup = prefill_speedup
        self._prefill_ms: dict[int, float] = {}

    def prefill_ms(self, requests: int, total_tokens: int, total_cached: int) -> float:
        """One prefill batch, from whole means: the remainders of both divisions are lost, as in the model's source."""
        if requests == 0:
            return 0.0
        new_each = total_tokens // requests - total_cached // requests
        if new_each <= 0:
            return 0.0
        tokens = requests * new_each
        known = self._prefill_ms.get(tokens)
        if known is not None:
            return known
        squared = float(tokens * tokens)
        model_ms = _PREFILL_QUADRATIC * squared + _PREFILL_LINEAR * tokens + _PREFILL_CONSTANT
        result = self._prefill_ms[tokens] = quantized_ms(model_ms, self._prefill_speedup)
        return result
