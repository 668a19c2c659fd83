"""Devices and networks as a user describes them: a preset, a TOML file or `key=value` pairs."""

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from allreduce import files
from mpisgd.values.errors import UsageError

Record = TypeVar("Record")


def find(kind: type[Record], presets: Mapping[str, Record], text: str, place: str) -> Record:
    """The `kind` (a frozen dataclass) that `text` names.

    `text` is a name in `presets`, the path of a TOML file (ends in .toml) or `key=value,...`.
    Raises UsageError naming `place` for an unknown name or key, and for an unreadable file.
    """
    if text in presets:
        return presets[text]
    if text.endswith(".toml"):
        return build(kind, {"name": Path(text).stem, **_read(text, place)}, f"{place} {text}")
    if "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        return build(kind, {key.strip(): value.strip() for key, _, value in pairs}, place)
    if os.path.exists(text):
        raise UsageError(place, text, "must be a file that ends in .toml")
    raise UsageError(place, text, f"a .toml file, key=value,..., or one of {', '.join(presets)}")


def build(kind: type[Record], values: Mapping[str, Any], place: str) -> Record:
    """A `kind` from its fields; the dataclass checks the values itself. Raises UsageError."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise UsageError(place, key, f"keys are {', '.join(known)}")
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            raise UsageError(place, None, f"lacks {key}")
    try:
        return kind(**values)
    except UsageError as mistake:
        raise UsageError(f"{place}: {mistake}") from None


def _read(path: str, place: str) -> dict[str, Any]:
    try:
        return files.toml(path)
    except files.Unreadable as error:
        raise UsageError(place, path, str(error)) from None
