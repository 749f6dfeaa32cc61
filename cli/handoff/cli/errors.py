"""What a user did wrong, as one line on standard error and an exit status."""

import sys

WRONG_USAGE = 2
UNREADABLE = 3
INTERRUPTED = 130


def status_of(error: Exception) -> int:
    """Say what is wrong in one line, and give the status; errors that are ours are raised again."""
    name = type(error).__name__
    match name:
        case "Exit":
            return int(getattr(error, "exit_code", 0))
        case "Abort":
            return INTERRUPTED
        case "NoArgsIsHelpError":
            print(getattr(error, "message", ""), file=sys.stderr)
            return WRONG_USAGE
        case "JournalUnreadable":
            return complain(error, UNREADABLE)
        case (
            "UnknownHandoff"
            | "AmbiguousHandoff"
            | "ScenarioError"
            | "TraceError"
            | "WriterPresent"
            | "JournalHeld"
            | "LinesUnreadable"
            | "NativeRefused"
        ):
            return complain(error, WRONG_USAGE)
        case _ if hasattr(error, "format_message"):
            usage = getattr(error, "ctx", None)
            hint = f"; try: {usage.command_path} --help" if usage is not None else ""
            print(f"error: {error.format_message().rstrip('.')}{hint}", file=sys.stderr)
            return WRONG_USAGE
        case _:
            raise error


def complain(error: object, status: int = WRONG_USAGE) -> int:
    """Print one ``error:`` line and give the status back."""
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    return status
