"""How the values that machines take and give become rows, and rows become values again.

Every input and effect is a frozen attrs class registered with `row`. Fields named like a typed column (``name``,
``action_id``, ``outcome``, ``rank``, ``generation``, ``attempt``) are stored there; all others go to the payload. One
description thus serves the journal, replay and every reader, and nothing is written twice.

A caused input was another actor's effect already. Its class lists the fields it *inherits* from that effect: they are
not stored again, and reading the row takes them from the cause, so that replay recomputes what the input must have
been instead of believing a copy. Inherited fields that are columns are stored all the same, for SQL; replay compares
them with the cause like everything else.
"""

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from functools import cache, lru_cache
from typing import Any, TypeVar, get_type_hints

import attrs
from attrs import frozen
from cattrs import Converter, transform_error

from handoff.journal.event import Event, RowFields, payload_from_json, payload_to_json
from handoff.journal.terms import TERM_CODE, ActorKind, Kind
from handoff.journal.vocabulary import Verdict

T = TypeVar("T", bound=type)
Kinds = Kind | Mapping[Verdict, Kind]

_COLUMN_FIELDS = ("name", "action_id", "outcome", "rank", "generation", "attempt")
_HANDOFF = "handoff"

converter = Converter(forbid_extra_keys=True, omit_if_default=True, prefer_attrib_converters=True)
"""Payloads and configurations; unknown keys are errors."""


class UnreadableRow(Exception):
    """A row that cannot be the value its kind promises.

    Attributes:
        seq: the row's number.
        reason: what is wrong with it.
    """

    def __init__(self, seq: int, reason: str) -> None:
        self.seq = seq
        self.reason = reason
        super().__init__(f"row {seq} cannot be read: {reason}")


@frozen
class RowClass:
    """How one class of values maps to rows.

    Attributes:
        cls: the attrs class.
        kinds: the row kind, by verdict where it depends on it.
        columns: for each of the typed columns whether the class has such a field.
        column_names: those that it has.
        payload: names of the fields kept in the payload, with the default that is left out.
        inherited: names of the fields taken from the cause when there is one.
    """

    cls: type
    kinds: Kinds
    columns: tuple[bool, ...]
    column_names: tuple[str, ...]
    payload: tuple[tuple[str, Any], ...]
    inherited: frozenset[str]
    types: Mapping[str, Any]

    def kind_for(self, verdict: Verdict | None) -> Kind:
        """The kind of a row with this verdict (None: an effect)."""
        if isinstance(self.kinds, Kind):
            return self.kinds
        if verdict is Verdict.CRASHED or verdict is None:
            return next(iter(self.kinds.values()))
        return self.kinds[verdict]


_BY_CLASS: dict[type, RowClass] = {}
_BY_KIND: dict[tuple[ActorKind | None, str], RowClass] = {}


def row(kinds: Kinds, *, actors: tuple[ActorKind, ...] = (), inherited: tuple[str, ...] = ()) -> Callable[[T], T]:
    """Register an attrs class as the value of rows of a kind.

    Args:
        kinds: the kind, or a kind for each verdict (the first one also stands for a crash).
        actors: the actors whose rows these are; needed only where actors of several kinds share a row kind.
        inherited: fields that a caused input takes from its cause's value (same field names).
    """

    def register(cls: T) -> T:
        names = [field.name for field in attrs.fields(cls)]
        spec = RowClass(
            cls=cls,
            kinds=kinds,
            columns=tuple(column in names for column in _COLUMN_FIELDS),
            column_names=tuple(column for column in _COLUMN_FIELDS if column in names),
            payload=tuple((f.name, f.default) for f in attrs.fields(cls) if f.name not in (*_COLUMN_FIELDS, _HANDOFF)),
            inherited=frozenset(inherited),
            types=get_type_hints(cls),
        )
        unknown = spec.inherited - set(names)
        assert not unknown, f"{cls.__name__} inherits fields that it lacks: {unknown}"
        _BY_CLASS[cls] = spec
        for kind in {kinds} if isinstance(kinds, Kind) else set(kinds.values()):
            for actor in actors or (None,):
                key = (actor, kind.value)
                assert key not in _BY_KIND, f"{key} is the kind of two classes"
                _BY_KIND[key] = spec
        return cls

    return register


def kind_of(value: object, verdict: Verdict | None = None) -> Kind:
    """The kind of the row that `value` becomes."""
    return _BY_CLASS[type(value)].kind_for(verdict)


def encode(value: object, verdict: Verdict | None, cause: int | None, *, caused: bool = False) -> RowFields:
    """What `value` contributes to its row.

    Args:
        value: an instance of a registered class.
        verdict: for an input what its machine made of it; None for an effect.
        cause: number of the causing row, or None.
        caused: whether `value` was recomputed from that cause, so that inherited payload is not stored.
    """
    spec = _BY_CLASS[type(value)]
    has_name, has_action, has_outcome, has_rank, has_generation, has_attempt = spec.columns
    name = value.name if has_name else None  # type: ignore[attr-defined]
    outcome = value.outcome if has_outcome else None  # type: ignore[attr-defined]
    return RowFields(
        TERM_CODE[spec.kind_for(verdict)],
        None if name is None else TERM_CODE[name],
        value.action_id if has_action else None,  # type: ignore[attr-defined]
        None if outcome is None else TERM_CODE[outcome],
        None if verdict is None else TERM_CODE[verdict],
        cause,
        value.rank if has_rank else None,  # type: ignore[attr-defined]
        value.generation if has_generation else None,  # type: ignore[attr-defined]
        value.attempt if has_attempt else None,  # type: ignore[attr-defined]
        _payload_json(spec, value, caused) if spec.payload else None,
    )


def handoff_of(value: object, default: int | None) -> int | None:
    """The handoff's number that the row of `value` belongs to; `default` is that of its actor."""
    own: int | None = getattr(value, _HANDOFF, None)
    return default if own is None else own


_PLAIN = (int, float, str, bool)


def _payload_json(spec: RowClass, value: object, caused: bool) -> str | None:
    payload = {}
    for name, default in spec.payload:
        item = getattr(value, name)
        if item is None or item is default or (caused and name in spec.inherited):
            continue
        payload[name] = item if type(item) in _PLAIN else converter.unstructure(item, spec.types[name])
    return payload_to_json(payload) if payload else None


def decode(event: Event, actor: ActorKind | None = None, cause: object | None = None) -> Any:
    """The value that a row holds.

    Args:
        event: the row.
        actor: the kind of its actor.
        cause: the decoded value of the causing row, when the row is an input with a cause.

    Raises:
        UnreadableRow: the kind is not one of the actor's, or the contents do not fit it.
    """
    spec = _BY_KIND.get((actor, event.kind)) or _BY_KIND.get((None, event.kind))
    if spec is None:
        raise UnreadableRow(event.seq, f"an actor of kind {actor} has no rows of kind {event.kind}")
    try:
        stored = {} if event.payload_json is None else payload_from_json(event.payload_json)
        for column in spec.column_names:
            item = getattr(event, column)
            if item is not None:
                stored[column] = item
        if event.handoff is not None and _HANDOFF in spec.types:
            stored[_HANDOFF] = event.handoff
        given = {} if cause is None else _inherited(spec, cause)
        for name in given:
            stored.pop(name, None)
        readers = _readers(spec.cls)
        own = {name: readers[name](item) if name in readers else item for name, item in stored.items()}
        return spec.cls(**own, **given)
    except Exception as error:
        raise UnreadableRow(event.seq, _readable(error)) from error


def _inherited(spec: RowClass, cause: object) -> dict[str, Any]:
    return {
        name: _as_declared(getattr(cause, name), spec.types[name]) for name in spec.inherited if hasattr(cause, name)
    }


@cache
def _readers(cls: type) -> dict[str, Callable[[Any], Any]]:
    """How each field of a class is read; looked up once, since a journal has millions of rows."""
    return {name: _reader(hint) for name, hint in _BY_CLASS[cls].types.items()}


def _reader(hint: Any) -> Callable[[Any], Any]:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint
    structure = converter.get_structure_hook(hint)
    return lambda item: structure(item, hint)


def _as_declared(item: Any, declared: Any) -> Any:
    """A word taken from the cause as a member of the input's own vocabulary; two vocabularies may share it."""
    return converter.structure(item.value, declared) if isinstance(item, Enum) else item


def inherits(kind: str, actor: ActorKind | None) -> frozenset[str]:
    """The fields that a caused input of this kind takes from its cause; none for kinds that are unknown."""
    spec = _BY_KIND.get((actor, kind)) or _BY_KIND.get((None, kind))
    return frozenset() if spec is None else spec.inherited


def verdict_kinds(cls: type) -> frozenset[tuple[str, str]]:
    """Every pair of kind and verdict that a row of this class of inputs may have."""
    spec = _BY_CLASS[cls]
    verdicts = Verdict if isinstance(spec.kinds, Kind) else (*spec.kinds, Verdict.CRASHED)
    return frozenset((spec.kind_for(verdict).value, verdict.value) for verdict in verdicts)


def _readable(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return "; ".join(transform_error(error))
    return f"{type(error).__name__}: {error}"


@lru_cache(maxsize=1)
def row_classes() -> tuple[RowClass, ...]:
    """Every registered class, in order of registration (for tests and documentation)."""
    return tuple(_BY_CLASS.values())
