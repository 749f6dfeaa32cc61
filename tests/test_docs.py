"""The documentation says what the program does: every command, every option, the help as it is printed."""

import re
from pathlib import Path

import pytest
from paste_help import COMMANDS_MD, WIDTH, help_of

from handoff.cli.app import COMMANDS, LazyGroup

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_pasted_help_is_what_the_command_prints(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", WIDTH)
    heading = f"handoff {command}".strip()
    pasted = re.search(rf"\$ {heading} --help\n(.*?)\n```", COMMANDS_MD.read_text(), re.DOTALL)
    assert pasted is not None, f"docs/commands.md shows no `$ {heading} --help`"
    assert pasted[1] == help_of(command), "run: python tests/support/paste_help.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_and_every_option_a_line_of_its_own(command: str) -> None:
    text = COMMANDS_MD.read_text()
    section = re.search(rf"^## {command}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section is not None, f"docs/commands.md has no section {command}"
    assert f"handoff {command} " in section[1]
    group = LazyGroup(name="handoff")
    parameters = group.get_command(None, command).params
    names = [option for parameter in parameters for option in parameter.opts if option.startswith("--")]
    assert [name for name in names if name != "--help" and f"`{name}`" not in section[1]] == []


def test_the_help_in_the_list_of_commands_says_what_the_command_itself_says() -> None:
    group = LazyGroup(name="handoff")
    for name, subcommand in COMMANDS.items():
        assert group.get_command(None, name).epilog.startswith(f"Example: handoff {name} ")
        assert subcommand.help.endswith(".")
