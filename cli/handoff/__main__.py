"""The command's front door, for `handoff` and for `python -m handoff`.

Everything that a user can get wrong ends here as one line on standard error and a status: 2 for a wrong call or
scenario, 3 for a journal that cannot be read, 130 for Ctrl-C. Anything else is a fault of ours and shows its traceback.
"""

import os
import sys


def main() -> None:
    """Run the command with the process's arguments and leave with its status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever called us: nobody reads it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until we end
    try:
        from handoff.cli.app import run  # noqa: PLC0415 - what the help needs not is not imported for it
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
