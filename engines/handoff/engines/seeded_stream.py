"""Random numbers that belong to a run: streams derived from its seed by name.

The generator is SplitMix64, small enough to be read and the same on every platform and Python version. Two streams
of one seed with different names are independent for our purposes, so drawing more from one never changes another.
"""

import hashlib
import math

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class SeededStream:
    """One stream of random numbers.

    Args:
        seed: the run's seed, any integer.
        name: what the stream is for.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self._state = int.from_bytes(digest, "little")

    def word(self) -> int:
        """A uniform integer of 64 bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def unit(self) -> float:
        """A uniform number in [0, 1)."""
        return (self.word() >> 11) / (1 << 53)

    def below(self, bound: int) -> int:
        """A uniform integer in 0 .. bound - 1; the bias is under bound / 2**64."""
        return (self.word() * bound) >> 64

    def exponential(self, mean: float) -> float:
        """An exponentially distributed number with this mean."""
        return -mean * math.log(1.0 - self.unit())


def derived_uuid(seed: int, name: str, number: int) -> str:
    """A UUID in canonical text that follows from the run's seed, a name and a number (version 8: own scheme)."""
    digits = hashlib.blake2b(f"{seed}/{name}/{number}".encode(), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
