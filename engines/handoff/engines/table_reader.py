"""Reads TOML tables into attrs values, and says precisely what is wrong with them.

Nobody should have to guess: a wrong key is answered with the nearest right one, a wrong value with what would be
right, and both with the file and the line.
"""

import difflib
import re
import types
import typing
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar, cast

import attrs
from attrs import AttrsInstance, define

from handoff.engines.engine_settings import InvalidSetting

Value = TypeVar("Value")

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")


@define
class ScenarioError(ValueError):
    """A scenario, or a file that it names, that cannot be used.

    Attributes:
        file: the file that is wrong.
        line: the line in it, from 1, where one can be named.
        key: the key, with its table (``cluster.router_mode``), or an empty text for the whole file.
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
        given = "is missing" if self.value is None else f"= {_toml(self.value)}"
        return f"{where}: {self.key} {given}: expected {self.expected}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def suggestion(word: str, choices: Collection[str]) -> str:
    """What to write instead of `word`: the nearest of the choices, or all of them."""
    nearest = difflib.get_close_matches(word, choices, n=1)
    if nearest:
        return f'"{nearest[0]}" (did you mean that?)'
    return "one of " + ", ".join(choices)


class TableReader:
    """Reads one file's tables.

    Args:
        file: its name, for errors.
        text: its text, for line numbers.
    """

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self._lines = text.splitlines()

    def error(self, key: str, value: object, expected: str, occurrence: int = 0) -> ScenarioError:
        """An error about a key; the line is found in the text."""
        return ScenarioError(self.file, self._line_of(key, occurrence), key, value, expected)

    def check_keys(self, table: Mapping[str, Any], allowed: Collection[str], where: str, occurrence: int = 0) -> None:
        """Refuse the first unknown key."""
        for key, value in table.items():
            if key not in allowed:
                raise self.error(_join(where, key), value, f"a known key, {suggestion(key, allowed)}", occurrence)

    def read(
        self,
        cls: type[Value],
        table: Mapping[str, Any],
        where: str,
        *,
        given: Mapping[str, Any] | None = None,
        occurrence: int = 0,
    ) -> Value:
        """A value of an attrs class from a table whose keys are its fields.

        Args:
            cls: the class; nested attrs classes are nested tables.
            table: what the file says.
            where: the table's name, for errors.
            given: fields that are not the file's to say; their keys are unknown in it.
            occurrence: which of several tables of that name it is, from 0.

        Raises:
            ScenarioError: for an unknown key, a wrong type, or a value that the class refuses.
        """
        hints = typing.get_type_hints(cls)
        fields = {
            field.name: field
            for field in attrs.fields(cast("type[AttrsInstance]", cls))
            if field.init and not (given and field.name in given)
        }
        if not isinstance(table, Mapping):
            raise self.error(where, table, "a table", occurrence)
        self.check_keys(table, list(fields), where, occurrence)
        values = dict(given or {})
        for key, value in table.items():
            values[key] = self._convert(hints[key], value, _join(where, key), occurrence)
        for name, field in fields.items():
            if name not in values and field.default is attrs.NOTHING:
                raise self.error(_join(where, name), None, f"a value of type {_type_name(hints[name])}", occurrence)
        try:
            return cls(**values)
        except InvalidSetting as error:
            raise self.error(_join(where, error.key), error.value, error.expected, occurrence) from error

    def _convert(self, hint: Any, value: Any, key: str, occurrence: int) -> Any:
        origin = typing.get_origin(hint)
        if origin in (typing.Union, types.UnionType):
            (hint,) = [choice for choice in typing.get_args(hint) if choice is not type(None)]
            return self._convert(hint, value, key, occurrence)
        if attrs.has(hint):
            return self.read(hint, value, key, occurrence=occurrence)
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            choices = [str(choice) for choice in hint]
            if value not in choices:
                raise self.error(key, value, suggestion(str(value), choices), occurrence)
            return hint(value)
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            raise self.error(key, value, _type_name(hint), occurrence)
        return value

    def _line_of(self, key: str, occurrence: int) -> int | None:
        """The line of a key, or of its table's header."""
        table, _, name = key.rpartition(".")
        current, seen, header_line = "", 0, None
        assignment = re.compile(rf'^\s*"?{re.escape(name)}"?\s*=')
        for number, line in enumerate(self._lines, start=1):
            header = _HEADER.match(line)
            if header:
                current = header.group(1).replace(" ", "")
                if current in (table, key):
                    seen += 1
                    if seen == occurrence + 1:
                        header_line = number
                continue
            if current == table and (seen == occurrence + 1 or not table) and assignment.match(line):
                return number
        return header_line


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    for choice in (hint, *typing.get_args(hint)):
        if choice in names:
            return names[choice]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return "one of " + ", ".join(str(choice) for choice in hint)
    return "a table"
