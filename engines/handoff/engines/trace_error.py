"""What is wrong with a trace file: where, what was given, and what would be right."""

from attrs import define


@define
class TraceError(ValueError):
    """A trace that cannot be run.

    Attributes:
        file: the trace.
        line: the line, from 1, or None for the whole file.
        key: the key or column, or an empty text.
        value: what was given; None when something is missing.
        expected: what would be right.
    """

    file: str
    line: int | None
    key: str
    value: object
    expected: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        if not self.key:
            return f"{where}: {self.expected}"
        given = "is missing" if self.value is None else f"= {self.value!r}"
        return f"{where}: {self.key} {given}: expected {self.expected}"
