"""Where the best setting of a sweep lies: inside of what was tried, or on its edge."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from statistics import fmean
from typing import Any, NamedTuple

from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.report.accounting import clock
from mpisgd.report.collect import Named
from mpisgd.report.settings import NO_SETTINGS, REPEATED
from mpisgd.report.speed import last
from mpisgd.report.targets import RISING
from mpisgd.values.errors import UsageError
from mpisgd.values.statistics import half_width
from mpisgd.values.tables import Column

COLUMNS = (
    Column("algorithm"), Column("ranks"), Column("others"), Column("option"), Column("best"),
    Column("metric"), Column("mean", ".4g"), Column("half_width", ".2g"), Column("runs"),
    Column("below"), Column("above"), Column("verdict"),
)  # fmt: skip
APART = ("algorithm", "ranks", "scaling")  # never tuned
FOLLOWS = ("steps", "evaluate_every", "ramp")  # of batch and ranks, unless they were given
# Where nothing lies beyond.
BOUNDS = {
    "tau": (1, None), "delay": (0, None), "xi": (0, 1), "momentum": (0, 1), "batch": (1, None),
    "outer_momentum": (0, 1), "ema": (0, 1), "backups": (0, None),
}  # fmt: skip
INSIDE, EDGE, BOUND, OPEN = "inside", "edge", "bound", "open"
ONE_RUN = "one run a setting: differences may be noise"
BEYOND = 2  # values that a further grid tries
GEOMETRIC = 1.9  # ratio of two values from which on the next one is a multiple too

Setting = tuple[tuple[str, Any], ...]


class Sweep(NamedTuple):
    """Runs that differ in `axes` (option -> values, sorted) and seeds alone. `scores`: values of
    the axes -> the metric of each seed; `configs`: one of each."""

    about: dict[str, Any]
    axes: dict[str, list[float]]
    scores: dict[Setting, list[float]]
    configs: dict[Setting, dict[str, Any]]
    virtual: bool
    seeds: list[int]


def sweeps(runs: Sequence[Named], metric: str) -> list[Sweep]:
    """Complete runs by what was not tuned: algorithm, ranks, clock, and all that is no number."""
    chosen = [n for n in runs if n.run.kind == "train" and n.run.complete]
    varied = _varied(chosen)
    groups: dict[str, list[Named]] = defaultdict(list)
    for named in chosen:
        key = {name: named.run.config.get(name) for name in (*APART, *varied["others"])}
        groups[json.dumps([key, clock(named.run)], default=str)].append(named)
    found = [_sweep(group, varied, metric) for group in groups.values()]
    return [sweep for sweep in found if sweep.axes and sweep.scores]


def rows(sweep: Sweep, metric: str) -> list[dict[str, Any]]:
    """A row for each option that was varied, at the best setting."""
    best = _best(sweep, metric)
    scores = sweep.scores[best]
    about = sweep.about | {
        "metric": metric, "mean": fmean(scores), "runs": len(scores),
        "half_width": half_width(scores) if len(scores) > 1 else None,
    }  # fmt: skip
    found = []
    for name, values in sweep.axes.items():
        at = dict(best)[name]
        place = values.index(at)
        near = {"below": place - 1, "above": place + 1}
        beside = {side: _beside(sweep, best, name, values[i] if 0 <= i < len(values) else None)
                  for side, i in near.items()}  # fmt: skip
        kind, which = verdict(sweep.configs[best], name, values, place)
        if kind == INSIDE and (missing := _missing(sweep, best, name)):
            kind, which = OPEN, f"{', '.join(f'{value:g}' for value in missing)} not run"
        said = ": ".join(filter(None, (kind, which)))
        told = {"option": _flag(name), "best": at, "verdict": said}
        found.append(about | beside | told)
    return found


def further(found: Sequence[Sweep], metric: str) -> str:
    """A grid file with what lies beyond each edge, and beside the best but was not run, everything
    else as at the best; "" if none."""
    blocks = [block for sweep in found for block in _blocks(sweep, _best(sweep, metric))]
    head = f"# Beyond the edges of a sweep, by {metric}; `batch` is that of a rank.\n"
    return head + 'scaling = "weak"\n' + "".join(blocks) if blocks else ""


def _varied(runs: Sequence[Named]) -> dict[str, list[str]]:
    """Options that differ: "axes" are numbers, "others" not."""
    names = [option.name for option in fields(Experiment) if option.metadata]
    found: dict[str, list[str]] = {"axes": [], "others": []}
    for name in names:
        values = {json.dumps(n.run.config.get(name)) for n in runs}
        if name in (*NO_SETTINGS, *REPEATED, *APART) or len(values) < 2:
            continue
        if name in FOLLOWS:
            by = {json.dumps([n.run.config.get(k) for k in ("batch", "ranks", "algorithm", name)])
                  for n in runs}  # fmt: skip
            without = {json.dumps([n.run.config.get(k) for k in ("batch", "ranks", "algorithm")])
                       for n in runs}  # fmt: skip
            if len(by) > len(without):
                found["others"].append(name)
            continue
        known = [n.run.config.get(name) for n in runs]
        number = all(v is None or (isinstance(v, int | float) and not isinstance(v, bool))
                     for v in known)  # fmt: skip
        found["axes" if number else "others"].append(name)
    return found


def _sweep(group: Sequence[Named], varied: Mapping[str, list[str]], metric: str) -> Sweep:
    config = group[0].run.config
    known: dict[str, set[Any]] = {
        name: {n.run.config.get(name) for n in group} - {None} for name in varied["axes"]
    }
    values = {name: sorted(each) for name, each in known.items()}
    axes = {name: each for name, each in values.items() if len(each) > 1}
    scores: dict[Setting, list[float]] = defaultdict(list)
    configs: dict[Setting, dict[str, Any]] = {}
    for named in group:
        value = last(named.run, metric)
        if value is not None:
            key = tuple((name, named.run.config.get(name)) for name in axes)
            scores[key].append(value)
            configs.setdefault(key, named.run.config)
    told = {name: config.get(name) for name in varied["others"]}
    about = {name: config.get(name) for name in APART} | {
        "others": ", ".join(f"{_flag(k)} {v}" for k, v in told.items() if v is not None) or None
    }  # fmt: skip
    seeds = sorted({n.run.config.get("seed", 0) for n in group})
    return Sweep(about, axes, dict(scores), configs, group[0].run.virtual, seeds)


def _best(sweep: Sweep, metric: str) -> Setting:
    sign = 1 if metric in RISING else -1
    return max(sweep.scores, key=lambda setting: sign * fmean(sweep.scores[setting]))


def _beside(sweep: Sweep, best: Setting, name: str, value: float | None) -> str | None:
    """The metric with the next value of one option, all others as at the best."""
    if value is None:
        return None
    there = sweep.scores.get(tuple((n, value if n == name else v) for n, v in best))
    return f"{value:g}: " + ("not run" if there is None else f"{fmean(there):.4g}")


def verdict(
    config: Mapping[str, Any], name: str, values: Sequence[float], place: int
) -> tuple[str, str]:
    """INSIDE, EDGE, or BOUND where nothing can lie beyond; and of an edge which end, in words.
    `config`: of a run with this value."""
    if 0 < place < len(values) - 1:
        return INSIDE, ""
    tried = _beyond(name, values, place)
    known = _allowed(config, name, values[place])  # a plug-in's options need not be known here
    if not tried or (known and not any(_allowed(config, name, value) for value in tried)):
        return BOUND, ""
    return EDGE, f"the {'lowest' if place == 0 else 'highest'} of {len(values)}"


def _missing(sweep: Sweep, best: Setting, name: str) -> list[float]:
    """The next values on both sides that other settings had and the best did not, if allowed."""
    values = sweep.axes[name]
    place = values.index(dict(best)[name])
    beside = (*values[max(0, place - 1) : place], *values[place + 1 : place + 2])
    settings = {v: tuple((n, v if n == name else w) for n, w in best) for v in beside}
    config = sweep.configs[best]
    return [v for v, s in settings.items() if s not in sweep.scores and _allowed(config, name, v)]


def _blocks(sweep: Sweep, best: Setting) -> Iterator[str]:
    for name, values in sweep.axes.items():
        place = values.index(dict(best)[name])
        config = sweep.configs[best]
        tried = _missing(sweep, best, name)
        if verdict(config, name, values, place)[0] == EDGE:
            tried += [v for v in _beyond(name, values, place) if _allowed(config, name, v)]
        if tried:
            options = _options(config) | {"ranks": config["ranks"], "seed": sweep.seeds}
            options |= {_flag(name): tried} | ({"virtual": True} if sweep.virtual else {})
            lines = [f"{key} = {json.dumps(value)}\n" for key, value in options.items()]
            yield "\n[[runs]]\n" + "".join(lines)


def _beyond(name: str, values: Sequence[float], place: int) -> list[float]:
    """The next values outside, at the distance, or in the ratio, of the last two."""
    edge, inner = values[place], values[min(1, len(values) - 1) if place == 0 else place - 1]
    low, high = BOUNDS.get(name, (0, None))
    found: list[float] = []
    for number in range(1, BEYOND + 1):
        ratio = edge / inner if inner > 0 and edge > 0 and high is None else 1.0
        scaled = max(ratio, 1 / ratio) >= GEOMETRIC
        value = edge * ratio**number if scaled else edge + number * (edge - inner)
        value = max(value, low if low is not None else -math.inf)
        value = min(value, high if high is not None else math.inf)
        whole = isinstance(edge, int)
        found.append(round(value) if whole else float(f"{value:.6g}"))
    return [value for value in dict.fromkeys(found) if value not in values]


def _allowed(config: Mapping[str, Any], name: str, value: float) -> bool:
    try:
        Experiment.read(_options(config) | {_flag(name): value})
    except UsageError:
        return False
    return True


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run of that config, as a grid has it: flag -> value."""
    found = {}
    for option in fields(Experiment):
        value = config.get(option.name, option.default)
        if not option.metadata or value in (None, option.default) or option.name == "scaling":
            continue
        listed = isinstance(value, list | tuple)
        found[flag(option)] = ",".join(map(str, value)) if listed else value
    if "epochs" in found:  # from which they follow
        found.pop("steps", None)
    return {"algorithm": config.get("algorithm")} | found


def _flag(name: str) -> str:
    return next((flag(o) for o in fields(Experiment) if o.name == name and o.metadata), name)
