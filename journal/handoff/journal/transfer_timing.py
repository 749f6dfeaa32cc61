"""What a KV transfer costs in time, as the source announces it with its hold.

The delay is ``tokens * bytes_per_token / (bandwidth_gb_s * 1e9) * 1000`` milliseconds, evaluated in that order
in binary64 with the integers converted first; a gigabyte is decimal. The order of operations is part of the
rule: replay compares delays exactly.
"""

import math

from attrs import frozen

from handoff.journal.vocabulary import TimingMode


class InvalidTransferTiming(ValueError):
    """A timing whose bandwidth or delay cannot be scheduled.

    Attributes:
        field: ``"bandwidth"`` or ``"delay"``.
        value: the offending number (GB/s or ms).
    """

    def __init__(self, field: str, value: float) -> None:
        self.field = field
        self.value = value
        super().__init__(f"invalid handoff transfer {field} {value}")


@frozen
class TransferTiming:
    """The figures from which a transfer's delay follows.

    Attributes:
        mode: charge the full prompt, or only what the destination lacks.
        full_prompt_tokens: tokens of the whole prompt, at least 0.
        kv_bytes_per_token: bytes of KV cache a token, or None when not modelled.
        bandwidth_gb_s: link bandwidth in decimal gigabytes a second, or None when not modelled.
    """

    mode: TimingMode
    full_prompt_tokens: int
    kv_bytes_per_token: int | None = None
    bandwidth_gb_s: float | None = None

    def delay_ms(self, destination_missing_tokens: int) -> float | None:
        """The transfer's delay in ms, or None when it is not modelled.

        Args:
            destination_missing_tokens: tokens that the destination lacks; used in ``destination_missing`` mode.
        """
        if self.mode is TimingMode.FULL_PROMPT:
            return self._delay_for(self.full_prompt_tokens)
        return self._delay_for(destination_missing_tokens)

    def full_prompt_delay_ms(self) -> float | None:
        """The delay in ms for the whole prompt, whatever the mode."""
        return self._delay_for(self.full_prompt_tokens)

    def _delay_for(self, tokens: int) -> float | None:
        if self.kv_bytes_per_token is None or self.bandwidth_gb_s is None or self.bandwidth_gb_s <= 0.0:
            return None
        return float(tokens) * float(self.kv_bytes_per_token) / (self.bandwidth_gb_s * 1e9) * 1000.0


def validate_transfer_delay(delay_ms: float | None) -> None:
    """Accept None and every finite delay of at least 0 ms.

    Raises:
        InvalidTransferTiming: for any other delay.
    """
    if delay_ms is not None and not (math.isfinite(delay_ms) and delay_ms >= 0.0):
        raise InvalidTransferTiming("delay", delay_ms)


def validate_transfer_timing(timing: TransferTiming) -> None:
    """Check the bandwidth first (also when the bytes are unknown), then the full-prompt delay.

    Raises:
        InvalidTransferTiming: when the bandwidth is not finite and positive, or the delay not finite.
    """
    bandwidth_gb_s = timing.bandwidth_gb_s
    if bandwidth_gb_s is not None and not (math.isfinite(bandwidth_gb_s) and bandwidth_gb_s > 0.0):
        raise InvalidTransferTiming("bandwidth", bandwidth_gb_s)
    validate_transfer_delay(timing.full_prompt_delay_ms())


def transfer_timeout_delay(timing: TransferTiming, destination_missing_tokens: int | None) -> tuple[bool, float | None]:
    """By how much a transfer moves a session's deadline, as far as that is known yet.

    Returns:
        ``(known, delay_ms)``: known is False in ``destination_missing`` mode until the destination has said
        how many tokens it lacks; only a known delay that is not None moves a deadline.
    """
    if timing.mode is TimingMode.FULL_PROMPT:
        return True, timing.full_prompt_delay_ms()
    if destination_missing_tokens is None:
        return False, None
    return True, timing.delay_ms(destination_missing_tokens)
