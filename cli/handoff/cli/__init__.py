"""The command `handoff`: one module a command."""
