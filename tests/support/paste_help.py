"""Write the help of every command into docs/commands.md, where it is pasted: ``python tests/support/paste_help.py``."""

import contextlib
import io
import os
import re
from pathlib import Path

from handoff.cli.app import run

COMMANDS_MD = Path(__file__).parents[2] / "docs" / "commands.md"
WIDTH = "100"


def help_of(command: str) -> str:
    """The help as `handoff COMMAND --help` prints it to a terminal of a fixed width."""
    os.environ["COLUMNS"] = WIDTH
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        assert run([*([command] if command else []), "--help"]) == 0
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


def paste(text: str) -> str:
    """The page with every pasted help written anew."""
    return re.sub(
        r"```console\n\$ handoff ?(\w*) --help\n.*?```",
        lambda match: f"```console\n$ {f'handoff {match[1]}'.strip()} --help\n{help_of(match[1])}\n```",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    COMMANDS_MD.write_text(paste(COMMANDS_MD.read_text()))
