"""Curves as tables: evaluations and steps of each run, thinned on request."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpisgd.report.accounting import RULE, clock
from mpisgd.report.collect import Named
from mpisgd.report.columns import ALGORITHM, CLOCK, FILE, RANKS, checked, folded
from mpisgd.report.sections import Section
from mpisgd.report.speed import workers
from mpisgd.report.targets import epochs
from mpisgd.store.schema import group
from mpisgd.values.tables import Column

ABOUT = (FILE, ALGORITHM, RANKS, *map(folded, RULE), CLOCK)
EVALUATION = (
    *ABOUT,
    *(Column(f.name, "", f.meaning, f.unit, f.name in ("step", "time_s", "loss", "accuracy"))
      for f in group("evaluation")),
    Column("epochs", ".4g", "samples used over those of the training set", "1", True),
)  # fmt: skip
# How the ranks of a step, and steps of a thinned row, are put together: unless said, their mean.
TOGETHER = {
    "start_s": "of the first step, on the rank that began first",
    "samples": "sum over steps and ranks",
    "loss": "mean over ranks, by their samples",
    "rate": "mean",
}
STEPS = (
    *ABOUT,
    Column("step", "", "the last step of the row", "1", True),
    Column("steps", "", "steps that the row is the mean of: more than one where it was thinned"),
    *(Column(f.name, "", f"{f.meaning}, {TOGETHER.get(f.name, 'mean over ranks')}",
             "1" if f.unit == "0 or 1" else f.unit,
             f.name in ("start_s", "step_s", "wait_s", "loss"))
      for f in group("steps")),
)  # fmt: skip
WHOLE = {f.name for f in group("steps") if f.dtype.startswith("int")}  # -1: not known
NAMES = ("evaluation", "steps")


def section(name: str, runs: Sequence[Named], thin: int | None) -> Section:
    """The table "evaluation" or "steps" of all training runs, of each at most `thin` rows."""
    chosen = [named for named in runs if named.run.kind == "train"]
    make, table = (evaluations, EVALUATION) if name == "evaluation" else (steps, STEPS)
    found = [row for named in chosen for row in make(named, thin)]
    title = "Evaluations" if name == "evaluation" else "Steps"
    return Section(name, title, ("file", "step"), table, checked(name, table, found), True)


def evaluations(named: Named, thin: int | None = None) -> list[dict[str, Any]]:
    """A row each; thinned, of evenly chosen ones, the first and the last among them."""
    run = named.run
    columns = {name: run.evaluation[name].tolist() for name in run.evaluation}
    if (passes := epochs(run)) is not None:
        columns["epochs"] = passes.tolist()
    count = len(columns.get("step", ()))
    places = _edges(count - 1, thin - 1 if thin else None) if count > 1 else range(count)
    about = _about(named)
    return [about | {n: column[place] for n, column in columns.items()} for place in places]


def steps(named: Named, thin: int | None = None) -> Iterator[dict[str, Any]]:
    """A row a step, all ranks together; thinned, the mean of some that follow each other: one
    step of a round waits for all, so that single steps would say nothing."""
    run = named.run
    done = int(run.reported[workers(run)].max(initial=0))
    if not done:
        return
    edges = _edges(done, thin)
    starts, sizes = edges[:-1], np.diff(edges)

    def column(name: str) -> np.ndarray | None:
        values = run.steps.get(name)
        if values is None:
            return None
        values = values[:done, workers(run)] if values.ndim == 2 else values[:done, np.newaxis]
        return values.astype(float)

    samples = column("samples")
    weight = None if samples is None else np.where(samples > 0, samples, 0.0)
    found: dict[str, list] = {"step": edges[1:].tolist(), "steps": sizes.tolist()}
    for name in (f.name for f in group("steps") if f.name not in ("start_s", "samples")):
        values = column(name)
        if values is not None:
            known = values >= 0 if name in WHOLE else np.isfinite(values)
            by = weight if name == "loss" and weight is not None else np.ones_like(values)
            by = np.where(known, by, 0.0)
            total = np.add.reduceat((np.where(known, values, 0.0) * by).sum(axis=1), starts)
            counted = np.add.reduceat(by.sum(axis=1), starts)
            mean = np.divide(total, counted, out=np.full(len(starts), np.nan), where=counted > 0)
            found[name] = mean.tolist()
    if weight is not None:
        found["samples"] = np.add.reduceat(weight.sum(axis=1), starts).astype(int).tolist()
    began = column("start_s")
    if began is not None:
        found["start_s"] = np.fmin.reduce(began[starts], axis=1).tolist()
    about = _about(named)
    for row in zip(*found.values(), strict=True):
        yield about | dict(zip(found, row, strict=True))


def _edges(last: int, parts: int | None) -> np.ndarray:
    """0 .. last in at most `parts` pieces as even as can be: where they end."""
    count = last if parts is None else min(last, max(1, parts))
    return np.arange(count + 1) * last // count


def _about(named: Named) -> dict[str, Any]:
    config = named.run.config
    told = {"file": named.name, "algorithm": config.get("algorithm"), "ranks": named.run.ranks}
    return told | {c.key: config.get(c.key) for c in RULE} | {"clock": clock(named.run)}
