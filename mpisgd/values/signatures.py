"""Options that stand in a function's signature: how a value is read, its default, what it means.

An annotation is a type, or `Annotated[type, Kind, help]` where the type alone does not say enough:
`tau: Annotated[int, whole(1), "local steps between averages"] = 4`.
"""

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mpisgd.values.options import Kind, number, one_of, switch, whole

NEEDED = inspect.Parameter.empty  # the default of an option that has none
TYPES = "int, float, bool, str, Literal and Optional of these"


class Option(NamedTuple):
    """A keyword of a signature: how its value is read, its default or NEEDED, what it means."""

    kind: Kind
    default: Any
    help: str = ""


def options(function: Callable[..., Any], leading: int = 1) -> dict[str, Option]:
    """The options of one of ours, behind so many arguments that it is given."""
    parameters = list(inspect.signature(function).parameters.values())[leading:]
    found = {parameter.name: read(parameter, {}) for parameter in parameters}
    return {name: option for name, option in found.items() if option is not None}


def read(parameter: inspect.Parameter, names: Mapping[str, Any]) -> Option | None:
    """The option that it is; None for one of no TYPES. `names`: where annotations that are texts
    find theirs."""
    note, default = parameter.annotation, parameter.default
    if note is NEEDED:
        note = str if default is NEEDED or default is None else type(default)
    elif isinstance(note, str):
        hints = typing.get_type_hints(_Noted(note), dict(names), include_extras=True)
        (note,) = hints.values()
    kind = kind_of(note)
    if kind is None:
        return None
    texts = [each for each in getattr(note, "__metadata__", ()) if isinstance(each, str)]
    return Option(or_none(kind) if default is None else kind, default, "".join(texts))


class _Noted:
    """Something with one annotation, for typing to read."""

    def __init__(self, note: str):
        self.__annotations__ = {"it": note}


_KINDS = {
    int: whole(-(1 << 62))._replace(allowed="a whole number"),
    float: number(-sys.float_info.max)._replace(allowed="a finite number"),
    bool: switch(),
    str: Kind("a text", str),
}


def kind_of(note: Any) -> Kind | None:
    """How a value of that annotation is read, from a text or typed; None for one of no TYPES."""
    origin, arguments = typing.get_origin(note), typing.get_args(note)
    if origin is typing.Annotated:
        said = [each for each in note.__metadata__ if isinstance(each, Kind)]
        return said[0] if said else kind_of(arguments[0])
    if origin is typing.Literal:
        known = {as_text(value): value for value in arguments}
        return one_of(known)._replace(parse=lambda v: known[one_of(known).parse(as_text(v))])
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        others = [each for each in arguments if each is not type(None)]
        inner = kind_of(others[0]) if len(others) == 1 else None
        return None if inner is None else or_none(inner)
    return _KINDS.get(note) if isinstance(note, type) else None


def or_none(kind: Kind) -> Kind:
    """`kind`, or `none`."""
    allowed = kind.allowed.removesuffix(", or none") + ", or none"
    return Kind(allowed, lambda v: None if v in (None, "none") else kind.parse(v))


def as_text(value: Any) -> str:
    """An option's value as `--set NAME=` has it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
