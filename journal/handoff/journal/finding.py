"""What a finding is: one thing that is wrong, how surely, and which rows prove it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import frozen


class Certainty(StrEnum):
    """How far the rows carry a finding."""

    PROVED = "proved"
    """It holds in every order that the rows' times and sources allow."""
    POSSIBLE = "possible"
    """It holds in some order."""
    UNKNOWN = "unknown"
    """The row that would decide it was not observable."""


@frozen
class Finding:
    """One thing that is wrong.

    Attributes:
        code: its stable name, a key of `finding_codes.CODES`.
        certainty: how far the rows carry it.
        handoffs: names of the handoffs it is about.
        rows: numbers of the rows that prove it, the one at which it began first.
        sentence: it in words, with its rows.
        fields: figures of it.
        consequence_of: index of the finding that it follows from, or None for a root cause.
        would_settle: what to record so that it could be decided.
    """

    code: str
    certainty: Certainty
    handoffs: tuple[str, ...]
    rows: tuple[int, ...]
    sentence: str
    fields: Mapping[str, Any]
    consequence_of: int | None = None
    would_settle: str | None = None


def cited(sentence: str, rows: tuple[int, ...]) -> str:
    """A sentence with its rows behind it."""
    return f"{sentence} {' '.join(f'[#{row}]' for row in rows)}"
