"""What tells the runs at hand apart: labels made of the settings that vary between them, and groups
of runs that are one experiment, repeated with other seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpisgd.report.accounting import clock
from mpisgd.report.collect import Named
from mpisgd.report.notes import machine
from mpisgd.values.errors import UsageError, nearest

# In this order they name a run; all others follow as the file has them, the seed comes last.
FIRST = (
    "algorithm", "scaling", "allreduce", "ranks", "tau", "delay", "xi", "merge", "servers",
    "backups", "group", "batch", "rate",
)  # fmt: skip
# What makes no other experiment, or follows from one.
NO_SETTINGS = ("plugin_sha256", "deadline_s", "data_path", "step_time_from", "tuning",
               "allreduce_from")  # fmt: skip
REPEATED = ("seed",)


class Group(NamedTuple):
    """One experiment: its label among those at hand, its settings, its runs."""

    label: str
    settings: dict[str, Any]
    runs: list[Named]


def settings(named: Named) -> dict[str, Any]:
    """All that was asked for, and where the seconds are from."""
    config = {key: value for key, value in named.run.config.items() if key not in NO_SETTINGS}
    return config | {"ranks": named.run.ranks, "clock": clock(named.run)}


def varying(listed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names that tell these settings apart: each says something that those before it do not."""
    known = dict.fromkeys(key for each in listed for key in each)
    names = [*FIRST, *(key for key in known if key not in (*FIRST, *REPEATED)), *REPEATED]
    found, alike = [], [list(listed)]  # those that nothing so far tells apart
    for name in names:
        parted = [part for group in alike for part in _parted(group, name)]
        if len(parted) > len(alike):
            found.append(name)
        alike = [group for group in parted if len(group) > 1] if found else parted
    return found


def label(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """In words: `dasgd, 4 ranks, tau 4, delay 2`."""
    told = [_word(name, values.get(name)) for name in names if values.get(name) is not None]
    return ", ".join(told) or str(values.get("algorithm"))


def labels(runs: Sequence[Named]) -> list[str]:
    """One for each run: its settings that vary, and a number where none tells runs apart."""
    listed = [settings(named) for named in runs]
    names = varying(listed)
    found: list[str] = []
    count: dict[str, int] = {}
    for values in listed:
        text = label(values, names)
        count[text] = count.get(text, 0) + 1
        found.append(f"{text} ({count[text]})" if count[text] > 1 else text)
    return found


def groups(runs: Sequence[Named], by: Sequence[str] | None = None) -> list[Group]:
    """Runs that differ by their seed only, or, with `by`, that agree in these settings. Clocks,
    machines and runs that were cut off are never mixed. UsageError for a setting that none has."""
    listed = [settings(named) for named in runs]
    if by is not None:
        _check(by, list(dict.fromkeys(key for each in listed for key in each)))
    found: dict[Any, list[int]] = {}
    for place, (named, values) in enumerate(zip(runs, listed, strict=True)):
        names = [name for name in values if name not in REPEATED] if by is None else by
        told = tuple((name, str(values.get(name))) for name in sorted(names))
        cut = None if named.run.complete else place
        found.setdefault((told, values["clock"], machine(named), cut), []).append(place)
    firsts = [listed[places[0]] for places in found.values()]
    names = varying([{k: v for k, v in first.items() if k not in REPEATED} for first in firsts])
    if by is not None:
        names = [name for name in names if name in by] or list(by)
    return [
        Group(label(first, names), first, [runs[place] for place in places])
        for first, places in zip(firsts, found.values(), strict=True)
    ]


def alone(runs: Sequence[Named]) -> list[Group]:
    """Each run a group of its own."""
    named = zip(labels(runs), runs, strict=True)
    return [Group(text, settings(run), [run]) for text, run in named]


def _parted(group: Sequence[Mapping[str, Any]], name: str) -> list[list[Mapping[str, Any]]]:
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for values in group:
        parts.setdefault(str(values.get(name)), []).append(values)
    return list(parts.values())


def _check(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            allowed = f"no such setting here{nearest(name, known)}; there are {', '.join(known)}"
            raise UsageError("--group-by", name, allowed)


def _word(name: str, value: Any) -> str:
    if name == "algorithm":
        return str(value)
    if name == "ranks":
        return f"{value} rank{'s'[: value != 1]}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def place(values: Sequence[Any]) -> list[tuple[bool, float, str]]:
    """A key that sorts what is missing first, numbers as numbers, and texts behind them."""
    return [
        (value is not None, float(value), "")
        if isinstance(value, int | float)
        else (value is not None, math.inf, str(value))
        for value in values
    ]
