"""What a user did wrong, as one line on standard error and an exit status."""

import errno
import sys

FOUND = 1
WRONG_USAGE = 2
UNREADABLE = 3
INTERRUPTED = 130

_EXHAUSTED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
"""What the system had no more of: room or descriptors."""

_STATUS = {
    "JournalUnreadable": UNREADABLE,
    "JournalBusy": WRONG_USAGE,
    "UnknownHandoff": WRONG_USAGE,
    "AmbiguousHandoff": WRONG_USAGE,
    "ScenarioError": WRONG_USAGE,
    "TraceError": WRONG_USAGE,
    "InvalidSetting": WRONG_USAGE,
    "LinesUnreadable": WRONG_USAGE,
    "NativeRefused": WRONG_USAGE,
    "FixtureUnreadable": WRONG_USAGE,
    "FixtureRefused": WRONG_USAGE,
    "NothingToKeep": WRONG_USAGE,
    "NothingToBisect": WRONG_USAGE,
    "RedactionRefused": FOUND,
    "JournalFailed": FOUND,
}
"""Errors that a user can mend, by name: naming the classes would load what the command does not need."""


def status_of(error: Exception) -> int:
    """Say what is wrong in one line, and give the status; errors that are ours are raised again."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    name = type(error).__name__
    if name in _STATUS:
        return complain(error, _STATUS[name])
    if name == "Exit":
        return int(getattr(error, "exit_code", 0))
    if name == "Abort":
        return INTERRUPTED
    if name == "NoArgsIsHelpError":
        print(getattr(error, "message", ""), file=sys.stderr)
        return WRONG_USAGE
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        hint = f"; try: {context.command_path} --help" if context is not None else ""
        return complain(f"{error.format_message().rstrip('.')}{hint}")
    if isinstance(error, OSError) and error.filename is not None:
        return complain(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:  # it comes from a write, which knows no name
        return complain(f"{error.strerror}; free some and try again", FOUND)
    raise error


def complain(error: object, status: int = WRONG_USAGE) -> int:
    """Print one ``error:`` line and give the status back."""
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    return status
