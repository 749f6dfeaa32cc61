"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

JournalFile = Annotated[Path, typer.Argument(help="The journal file.", show_default=False)]
ScenarioFile = Annotated[Path, typer.Argument(help="The scenario, a TOML file.", show_default=False)]
HandoffName = Annotated[
    str, typer.Argument(help="A handoff's id, any unique prefix of it, or RUN:HANDOFF.", show_default=False)
]
AnyHandoff = Annotated[
    str | None, typer.Argument(help="A handoff's id, any unique prefix of it, or RUN:HANDOFF.", show_default=False)
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
