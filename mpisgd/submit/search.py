"""The [search] table of a grid: for each of its runs the best value of one option, found by
successive halving (Jamieson and Talwalkar 2016): all values get the first budget, the better
ones the next, and so on. Every budget is a run of its own, from its beginning.

[search]
lr = [0.025, 0.05, 0.1, 0.2]   # any option with values to choose from
steps = [100, 300, 1000]       # or epochs: the budgets
keep = 0.5                     # share of the values that get the next budget [0.5]
by = "loss"                    # or accuracy, train_loss: of the last evaluation [loss]
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.store.target import partial_path
from mpisgd.submit.folder import finished_in
from mpisgd.submit.runs import GridRun
from mpisgd.values import options as kinds
from mpisgd.values.errors import UsageError

BUDGETS, SIGNS = ("steps", "epochs"), {"loss": 1, "train_loss": 1, "accuracy": -1}
NOT_FINITE = "not finite"  # in the reason of a run that has diverged


@dataclass(frozen=True)
class Search:
    """`option`, `budget`: fields of an Experiment; `values`, `budgets`: of these."""

    option: str
    values: tuple[Any, ...]
    budget: str
    budgets: tuple[Any, ...]
    keep: float
    by: str


def read(place: str, table: Mapping[str, Any], runs: Sequence[GridRun]) -> Search:
    """From a TOML table, for these runs. UsageError for what none of them can have."""
    known = {flag(option): option for option in fields(Experiment) if option.metadata}
    listed: dict[str, tuple[Any, ...]] = {}
    for key, given in table.items():
        if key in ("keep", "by"):
            continue
        if key not in known:
            raise UsageError(f"{place}.{key}", None, "no such option of train; nor keep, nor by")
        if not isinstance(given, list) or len(given) < 2:
            raise UsageError(f"{place}.{key}", given, "a list of two values at least")
        option = known[key]
        listed[option.name] = tuple(
            option.metadata["kind"].read(f"{place}.{key}", v) for v in given
        )
    budgets = [name for name in listed if name in BUDGETS]
    options = [name for name in listed if name not in BUDGETS]
    if len(budgets) != 1 or len(options) != 1:
        raise UsageError(place, None, "one option to choose, such as lr, and steps or epochs")
    budget, chosen = budgets[0], options[0]
    if list(listed[budget]) != sorted(set(listed[budget])):
        raise UsageError(f"{place}.{budget}", list(listed[budget]), "each more than the one before")
    keep = kinds.number(0, 1, above=True).read(f"{place}.keep", table.get("keep", 0.5))
    by = kinds.one_of(SIGNS).read(f"{place}.by", table.get("by", "loss"))
    search = Search(chosen, listed[chosen], budget, listed[budget], keep, by)
    for run in runs:
        for value in search.values:
            _tried(run, search, value, search.budgets[0]).experiment.check()
    return search


def known(runs: Sequence[GridRun], search: Search, folder: Path) -> list[GridRun]:
    """The runs of all rounds that can be told by now."""
    return list(dict.fromkeys(run for base in runs for run in _rounds(base, search, folder)))


def told(runs: Sequence[GridRun], search: Search, folder: Path) -> list[str]:
    """For each run of the grid what the last full round says, or that it has not come to one."""
    lines = []
    for base in runs:
        last = [run for run in _rounds(base, search, folder)
                if getattr(run.experiment, search.budget) == search.budgets[-1]]  # fmt: skip
        scores = {run: s for run in last if (s := score(run, search, folder)) is not None}
        if not last or len(scores) < len(last):
            lines.append(f"{base.name}: has not come to its last round")
            continue
        best = min(scores, key=scores.__getitem__)
        value = getattr(best.experiment, search.option)
        number = isinstance(value, int | float)
        edge = number and value in (min(search.values), max(search.values))
        lines.append(f"{base.name}: {search.option} {value}, {search.by} "
                     f"{SIGNS[search.by] * scores[best]:.4g}, {best.name}.h5"
                     + ("; on an edge of what was tried" if edge else ""))  # fmt: skip
    return lines


def score(run: GridRun, search: Search, folder: Path) -> float | None:
    """The less the better; infinite for a run that has diverged, None for one without an end."""
    from mpisgd.store.reader import read as result_of

    path = folder / f"{run.name}.h5"
    if finished_in(run, folder):
        with result_of(path) as result:
            value = float(result.evaluation[search.by][-1])
        return SIGNS[search.by] * value if math.isfinite(value) else math.inf
    if partial_path(path).exists():
        with result_of(partial_path(path)) as result:
            return math.inf if NOT_FINITE in (result.reason or "") else None
    return None


def _rounds(base: GridRun, search: Search, folder: Path) -> Iterator[GridRun]:
    values = list(search.values)
    for budget in search.budgets:
        tried = {value: _tried(base, search, value, budget) for value in values}
        yield from tried.values()
        scores = {v: s for v, run in tried.items() if (s := score(run, search, folder)) is not None}
        if len(scores) < len(tried):
            return
        finite = sorted((v for v in values if scores[v] != math.inf), key=scores.__getitem__)
        values = finite[: math.ceil(len(values) * search.keep)]


def _tried(base: GridRun, search: Search, value: Any, budget: Any) -> GridRun:
    changes = {search.option: value, search.budget: budget}
    return replace(base, experiment=replace(base.experiment, **changes))
