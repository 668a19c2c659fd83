"""Tables of `name: "package.module:object"`, resolved when asked for: a table imports nothing."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mpisgd.values.errors import among


def resolve(table: Mapping[str, str], name: str, option: str) -> Any:
    """The object that `table` names; UsageError naming `option` when it has no such row."""
    among(option, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
