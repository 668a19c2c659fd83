"""Which columns of a table are shown: the essential ones, all, or those asked for by name.

Text tables show the essential ones, about 120 characters of them; JSON, CSV and FOM, which
programs read, and the page, which scrolls, show all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.tables import Column

ALL = "all"
PLACE = "--columns"
ESSENTIAL = {
    "runs": (
        "file", "algorithm", "ranks", "tau", "delay", "xi", "steps", "wait_share", "loss",
        "accuracy", "step_s", "effective_step_s", "lab_rate", "clock", "state", "restarts",
    ),
    "servers": (
        "file", "algorithm", "servers", "workers", "backups", "group", "updates", "used_share",
        "used_samples_per_s", "staleness_mean", "clock",
    ),
    "shards": (
        "file", "server", "workers", "updates", "used_gradients", "dropped_gradients",
        "staleness_mean", "staleness_p90", "staleness_max", "clock",
    ),
    "targets": (
        "file", "algorithm", "ranks", "target", "reached", "time_s", "steps", "effective_steps",
        "samples_computed", "clock",
    ),
    "scaling": (
        "scaling", "algorithm", "settings", "ranks", "samples_per_s", "speedup", "efficiency",
        "base", "clock",
    ),
    "bench": (
        "file", "algorithm", "part", "ranks", "bytes", "in_place", "chunks", "progress", "polls",
        "median_s", "p10_s", "p90_s", "busbw_GBps", "hidden", "wrong", "clock",
    ),
}  # fmt: skip
# Of what a row is about, and the same in several tables.
DESCRIBING = ("file", "algorithm", "allreduce", "ranks", "workers", "clock", "lab_rate")
# Columns that say something only where a row differs from this.
USUAL = {"state": "complete", "restarts": 0}


def essential(
    table: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> list[Column]:
    """Those of `columns` that a first look needs; a loss only where there is no accuracy."""
    keys = {column.key for column in columns} & set(ESSENTIAL.get(table, ()))
    if table not in ESSENTIAL:
        return list(columns)
    if "accuracy" in keys:
        keys.discard("loss")
    for key, usual in USUAL.items():
        if all(row.get(key) == usual for row in rows):
            keys.discard(key)
    return [column for column in columns if column.key in keys]


def asked_for(text: str) -> tuple[str, ...]:
    """The names in `--columns A,B,...`; UsageError for none."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names:
        raise UsageError(PLACE, text, "all, or names of columns with commas between them")
    return names


def named(
    names: Sequence[str], columns: Sequence[Column], label: Sequence[str]
) -> tuple[Column, ...]:
    """The columns called `names`, in that order, behind those of `label` that are missing: without
    what a row is about, rows look alike. None where the table has only those of them that say what
    a row is about, while others were asked for too."""
    found = {column.key: column for column in columns}
    own = [name for name in names if name in found]
    about = {*label, *DESCRIBING}
    if not own or (about.issuperset(own) and not about.issuperset(names)):
        return ()
    return tuple(found[key] for key in [*(key for key in label if key not in own), *own])


def check(names: Sequence[str], known: Sequence[str]) -> None:
    """UsageError for a name that no table has."""
    for name in names:
        if name not in known:
            there_are = ", ".join(known)
            allowed = f"no such column here{nearest(name, known)}; there are {there_are}"
            raise UsageError(PLACE, name, allowed)
