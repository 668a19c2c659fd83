"""Which columns of a table are shown: the essential ones, all, or those asked for by name.

Text tables show the essential ones, about 120 characters of them; JSON, CSV and FOM, which
programs read, and the page, which scrolls, show all.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mpisgd.report.columns import SETTINGS
from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.tables import Column, cell

ALL = "all"
PLACE = "--columns"
# Of what a row is about, and the same in several tables.
DESCRIBING = ("file", "algorithm", "allreduce", "ranks", "workers", "clock", "lab_rate")
# What was run, told above a table where it is equal in all rows.
ABOUT = ("allreduce", "merge", "scaling", "model", "data", "batch", "rate")
# Columns that say something only where a row differs from this.
USUAL = {"state": "complete", "restarts": 0, "metric": "accuracy"}


def essential(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], telling: Sequence[str] = ()
) -> list[Column]:
    """Those of `columns` that a first look needs; a loss only where there is no accuracy, a file
    where the columns `telling` rows apart do not name it."""
    chosen = [column for column in columns if column.essential]
    usual = {key for key, value in USUAL.items() if all(row.get(key) == value for row in rows)}
    if any(column.key == "accuracy" for column in chosen):
        usual.add("loss")
    told = {tuple(str(row.get(key)) for key in telling) for row in rows}
    if len(told) == len(rows) > 1:
        usual.add("file")  # its settings name it
    return [column for column in chosen if column.key not in usual]


def common(
    columns: Sequence[Column], all_: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> tuple[str, list[Column]]:
    """What is equal in all rows, in words, and the columns without it. Of `all_` columns the words
    tell what was run, even if no column of it is shown. A single row keeps all that it says."""
    if len(rows) < 2:
        return "", list(columns)
    equal = {c.key for c in all_ if all(row.get(c.key) == rows[0].get(c.key) for row in rows)}
    left = [column for column in columns if column.key not in equal] or list(columns[:1])
    shown = {column.key for column in columns} | set(ABOUT)
    told = [f"{column.key} {cell(rows[0].get(column.key), column.form)}" for column in all_
            if column.key in equal & shown and column not in left]  # fmt: skip
    return ", ".join(told), left


def asked_for(text: str, place: str = PLACE) -> tuple[str, ...]:
    """The names in `--columns A,B,...`; UsageError for none."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names:
        what = "all, or names of columns" if place == PLACE else "names of settings"
        raise UsageError(place, text, f"{what} with commas between them")
    return names


def named(
    names: Sequence[str], columns: Sequence[Column], label: Sequence[str]
) -> tuple[Column, ...]:
    """The columns called `names`, in that order, and no others. None where the table has only those
    of them that say what a row is about, `label` among them, while others were asked for too."""
    found = {column.key: column for column in columns}
    own = [name for name in names if name in found]
    about = {*label, *DESCRIBING}
    if about.issuperset(own) and not about.issuperset(names):
        return ()
    return tuple(found[key] for key in own)


def check(names: Sequence[str], known: Collection[str]) -> None:
    """UsageError for a name that no table has."""
    for name in names:
        if name not in known:
            there_are = f"{', '.join(known)}; and, of training runs, all options of train"
            close = nearest(name, [*known, *SETTINGS])
            raise UsageError(PLACE, name, f"no such column here{close}; there are {there_are}")
