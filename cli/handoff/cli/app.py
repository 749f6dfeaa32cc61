"""The command `handoff`: one module a subcommand, and the rules that hold for all of them.

A subcommand's module is imported when the subcommand is called, so `handoff --help` answers at once; the one-line helps
that it lists stand here. A subcommand returns nothing when all is well and raises `typer.Exit` with a status otherwise;
`run` turns errors that users can mend into one line.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from attrs import frozen
from typer.core import TyperCommand, TyperGroup

from handoff.cli.errors import INTERRUPTED, status_of


@frozen
class Subcommand:
    """Where a subcommand lives: the module and function of this name, and its help in a line."""

    module: str
    help: str


COMMANDS: Mapping[str, Subcommand] = {
    "record": Subcommand("record", "Run live handoffs (real TCP, real time) and journal them."),
    "simulate": Subcommand("simulate", "Run a scenario in virtual time."),
    "replay": Subcommand("replay", "Re-execute a journal offline, compare, report the first divergence."),
    "list": Subcommand("list_handoffs", "List handoffs, a line each."),
    "show": Subcommand("show", "Show a handoff as a two-lane ladder."),
    "why": Subcommand("why", "Explain what went wrong, and who owes which cleanup."),
    "ledger": Subcommand("ledger", "Show who owns what at a row, and whose duty each cleanup is."),
    "fixture": Subcommand("fixture", "Turn incidents into regression fixtures."),
    "diff": Subcommand("diff", "Compare two journals or handoffs by meaning."),
    "bisect": Subcommand("bisect", "Find the one change that turns a good handoff into a bad one."),
    "import": Subcommand("import_lines", "Write event lines of other systems into a journal."),
    "export": Subcommand("export", "Write a journal in another form."),
    "verify": Subcommand("verify", "Check a journal's integrity."),
    "salvage": Subcommand("salvage", "Save what is left of a damaged journal."),
}
"""Every subcommand, in the order of the help."""


class LazyGroup(TyperGroup):
    """A group whose subcommands are imported when they are called, not when they are listed."""

    listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the subcommands, in order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A subcommand by its name, or None; while the help is written, only its line."""
        del ctx
        subcommand = COMMANDS.get(cmd_name)
        if subcommand is None:
            return None
        if self.listing:
            return TyperCommand(cmd_name, help=subcommand.help)
        module: Any = import_module(f"handoff.cli.{subcommand.module}")
        if hasattr(module, "app"):  # a subcommand with subcommands of its own
            group = typer.main.get_command(module.app)
            group.name, group.epilog = cmd_name, f"Example: {module.EXAMPLE}"
            return group
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        single.command(cmd_name, epilog=f"Example: {module.EXAMPLE}", context_settings=_HELP)(
            getattr(module, subcommand.module)
        )
        return typer.main.get_command(single)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing a single subcommand."""
        self.listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.listing = False


_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="handoff",
    cls=LazyGroup,
    epilog="Example: handoff record examples/chat-vllm.toml --journal run.db",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"handoff {installed_version('kv-handoff')}")
        raise typer.Exit


@app.callback()
def handoff(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The transaction log of disaggregated LLM serving: record, replay and explain KV-cache handoffs."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit status."""
    try:
        outcome = app(list(arguments), prog_name="handoff", standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit:  # only a reader that has had enough, as in `| head`, is answered so: all is well
        return 0
    except Exception as error:  # noqa: BLE001 - what is ours is raised again
        return status_of(error)
    return outcome if isinstance(outcome, int) else 0
