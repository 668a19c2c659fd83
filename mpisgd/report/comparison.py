"""Before and after: results of equal settings in pairs, and what got worse beyond its noise.

Of each setting, launches are paired seed by seed, and of one seed in the order in which they were
made. A metric's difference is the mean over its pairs of after / before - 1, in percent, with
Student's 95 % interval.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from mpisgd.experiment.experiment import Experiment
from mpisgd.report import accounting, benchmarks
from mpisgd.report.collect import Named
from mpisgd.report.notes import machine
from mpisgd.report.settings import NO_SETTINGS, REPEATED, place
from mpisgd.report.targets import Target, of
from mpisgd.values.statistics import half_width
from mpisgd.values.tables import Column

COLUMNS = (
    Column("settings"), Column("metric"), Column("pairs"), Column("before"), Column("after"),
    Column("difference_percent", "+.2f"), Column("half_width_percent", ".2f"), Column("verdict"),
)  # fmt: skip
WORSE, BETTER, NEITHER, UNKNOWN = "worse", "better", "no change found", "cannot tell"
NAMED = ("algorithm", "ranks")  # settings that every label has
HIGHER_IS_BETTER = ("accuracy",)
RUN_METRICS = ("step_s", "effective_step_s", "loss", "accuracy")

Values = Mapping[str, float | None]


class Launch(NamedTuple):
    """What was measured once of one setting. `values`: metric -> number, None if it has none."""

    settings: dict[str, Any]
    seed: Any
    machine: str
    name: str
    values: Values


class Group(NamedTuple):
    """One setting: its launches in pairs, and those without a partner."""

    settings: dict[str, Any]
    pairs: list[tuple[Launch, Launch]]
    alone: list[Launch]


def launches(named: Sequence[Named], targets: Sequence[Target]) -> list[Launch]:
    """Of complete runs and of each case of benchmarks, in the order in which they were made."""
    found = []
    for each in sorted(named, key=lambda n: str(n.run.environment.get("started_utc"))):
        if each.run.kind == "bench":
            found += [
                Launch({key: row.get(key) for key in benchmarks.LABEL if key != "file"}, None,
                       machine(each), each.name, {"median_s": row.get("median_s")})
                for row in benchmarks.rows(each)
            ]  # fmt: skip
        else:
            config = each.run.config
            every = _defaults() | config | {"ranks": each.run.ranks}
            settings = {k: v for k, v in every.items() if k not in (*NO_SETTINGS, *REPEATED)}
            values = _measured(each, targets)
            found.append(Launch(settings, config.get("seed"), machine(each), each.name, values))
    return found


def paired(before: Sequence[Launch], after: Sequence[Launch]) -> list[Group]:
    """A group for each setting, in the order of `before`, then those of `after` alone."""
    sides: dict[str, tuple[dict, dict]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for side, listed in enumerate((before, after)):
        count: Counter[tuple[str, str]] = Counter()
        for launch in listed:
            key, seed = json.dumps(launch.settings, sort_keys=True), str(launch.seed)
            settings.setdefault(key, launch.settings)
            sides.setdefault(key, ({}, {}))[side][seed, count[key, seed]] = launch
            count[key, seed] += 1
    groups = []
    for key, (old, new) in sides.items():
        pairs = [(old[which], new[which]) for which in old if which in new]
        alone = [launch for which, launch in (old | new).items()
                 if not (which in old and which in new)]  # fmt: skip
        groups.append(Group(settings[key], pairs, alone))
    return groups


def machines(groups: Sequence[Group]) -> list[str]:
    """The machines of launches that are to be compared and were not on one: [] if all were."""
    for group in groups:
        kinds = dict.fromkeys(launch.machine for pair in group.pairs for launch in pair)
        if len(kinds) > 1:
            return list(kinds)
    return []


def compare(groups: Sequence[Group], threshold: float, single: bool) -> list[dict[str, Any]]:
    """A row for each metric of each setting with a partner, by size, then by setting. `threshold`
    in percent; `single`: whether one pair, which has no interval, is judged by that alone."""
    there = sorted(
        (group for group in groups if group.pairs),
        key=lambda group: place([group.settings.get("bytes"), *group.settings.values()]),
    )
    labels = _labels([group.settings for group in there])
    return [
        {"settings": label} | row
        for label, group in zip(labels, there, strict=True)
        for row in _rows(group.pairs, threshold, single)
    ]


def verdict(differences: Sequence[float], threshold: float, single: bool) -> str:
    """Of percents by which pairs got worse: WORSE and BETTER are beyond the threshold and the
    interval both."""
    count = len(differences)
    if count < 2 and not single:
        return UNKNOWN
    mean = sum(differences) / count
    if math.isnan(mean):
        return UNKNOWN
    if math.isinf(mean):  # no number on one side: the same one in all pairs
        alike = len(set(differences)) == 1
        return UNKNOWN if not alike else WORSE if mean > 0 else BETTER
    noise = half_width(differences) if count > 1 else 0.0
    if abs(mean) > max(threshold, noise):
        return WORSE if mean > 0 else BETTER
    return NEITHER


def _rows(
    pairs: Sequence[tuple[Launch, Launch]], threshold: float, single: bool
) -> Iterator[dict[str, Any]]:
    values: dict[str, list[tuple[float | None, float | None]]] = defaultdict(list)
    for old, new in pairs:
        for metric in old.values:
            both = old.values[metric], new.values.get(metric)
            if both != (None, None):
                values[metric].append(both)
    for metric, listed in values.items():
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        changes = [_percent(one, other, sign) for one, other in listed]
        finite = all(map(math.isfinite, changes))
        yield {
            "metric": metric, "pairs": len(changes),
            "before": _mean([one for one, _ in listed]),
            "after": _mean([other for _, other in listed]),
            "difference_percent": _mean(changes) if finite else None,
            "half_width_percent": half_width(changes) if finite and len(changes) > 1 else None,
            "verdict": verdict([sign * change for change in changes], threshold, single),
        }  # fmt: skip


def _percent(before: float | None, after: float | None, sign: int) -> float:
    """After over before less one; infinite where one of them has no number, a target that was not
    reached or a loss that is none: after, it is worse."""
    if before is None or after is None:
        return sign * (math.inf if after is None else -math.inf)
    if before == after:
        return 0.0
    return 100 * (after - before) / abs(before) if before else math.nan


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _measured(named: Named, targets: Sequence[Target]) -> Values:
    facts = accounting.Facts(named.run, named.name)
    values = {column.key: column.of(facts) for column in accounting.RUNS
              if column.key in RUN_METRICS and column.of is not None}  # fmt: skip
    for target, row in zip(targets, of(named, targets), strict=True):
        values[f"time_s to {target}"] = row["time_s"]
    return values


def _defaults() -> dict[str, Any]:
    """So that files pair which were made before an option was."""
    return {option.name: option.default for option in fields(Experiment)}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells settings apart, behind what names them."""
    names = list(dict.fromkeys(name for each in settings for name in each))
    shown = [name for name in names if name in NAMED or
             len({str(each.get(name)) for each in settings if name in each}) > 1]  # fmt: skip
    return [
        ", ".join(
            str(each[name]) if name == "algorithm" else f"{name} {_short(each[name])}"
            for name in shown if each.get(name) is not None
        )
        for each in settings
    ]  # fmt: skip
