"""What can be wrong with a journal file, as errors with fields: which file, which place, and what to do."""

from pathlib import Path


class JournalUnreadable(Exception):
    """A file that cannot be read as a journal.

    Attributes:
        path: the file.
        reason: what is wrong, with the place.
        remedy: what the user can do.
    """

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        self.path = path
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{path}: {reason}; {remedy}")


class UnknownHandoff(LookupError):
    """No handoff of the journal has this name.

    Attributes:
        path: the journal.
        text: what was asked for.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        super().__init__(f"{path}: no handoff is called {text!r}; `handoff list {path}` names them all")


class AmbiguousHandoff(LookupError):
    """Several handoffs of the journal have this name, or names that begin so.

    Attributes:
        path: the journal.
        text: what was asked for.
        candidates: names that would have been unique, as ``RUN:HANDOFF`` where the run decides.
    """

    def __init__(self, path: Path, text: str, candidates: tuple[str, ...]) -> None:
        self.path = path
        self.text = text
        self.candidates = candidates
        super().__init__(f"{path}: {text!r} fits several handoffs: {', '.join(candidates)}")
