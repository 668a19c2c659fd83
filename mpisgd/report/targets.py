"""When runs first reached values that were fixed beforehand; never their best epoch."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpisgd.report.accounting import RULE, clock
from mpisgd.report.collect import Named
from mpisgd.report.columns import ALGORITHM, CLOCK, EFFECTIVE_STEPS, FILE, RANKS, folded, shown
from mpisgd.store.reader import Run
from mpisgd.values.errors import UsageError
from mpisgd.values.tables import Column

NOT = "not reached"
RISING, FALLING = ("accuracy", "ema_accuracy"), ("loss", "ema_loss", "train_loss")
ALLOWED = (
    "an accuracy above 0 and up to 1, such as 0.95, or METRIC:VALUE, such as loss:2.183; metrics: "
    + ", ".join((*RISING, *FALLING))
)
COLUMNS = (
    FILE, ALGORITHM, RANKS, *map(folded, RULE),
    Column("metric", "", "what has to come to the target, a column of /evaluation", "", True),
    Column("target", "", "value to reach, fixed beforehand", "", True),
    Column("reached", "", "whether it was; a target not reached stays a row; by the first or only "
           "evaluation: perhaps long before it", "", True),
    Column("time_s", "", "training seconds, evaluations excluded", "s", True),
    Column("hours", "", "the same in hours", "h"),
    Column("steps", "", "steps that every rank has done", "", True),
    shown(EFFECTIVE_STEPS),
    Column("epochs", ".4g", "samples used over those of the training set, where files tell these",
           "1", True),
    Column("samples_computed", "", "samples whose gradients were computed, all ranks", "", True),
    Column("samples_used", "", "of them, those whose gradients reached an update"),
    CLOCK,
)  # fmt: skip


class Target(NamedTuple):
    """A value, and the column of /evaluation that is to come to it."""

    value: float
    metric: str = RISING[0]

    def __str__(self) -> str:
        return f"{self.value:g}" if self.metric == RISING[0] else f"{self.metric} {self.value:g}"


def parse(text: str) -> list[Target]:
    """`0.9,loss:2.183`. UsageError."""
    found = []
    for word in text.split(",") if text else []:
        metric, _, number = word.rpartition(":")
        metric = metric or RISING[0]
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        most = 1 if metric in RISING else math.inf
        if metric not in RISING + FALLING or not 0 < value <= most or math.isinf(value):
            raise UsageError("--targets", word, ALLOWED)
        found.append(Target(value, metric))
    return found


def rows(runs: Sequence[Named], wanted: Sequence[Target]) -> list[dict[str, Any]]:
    """Target by target, those of one target in the order of `runs`."""
    return [row for target in wanted for named in runs for row in of(named, [target])]


def of(named: Named, wanted: Sequence[Target]) -> list[dict[str, Any]]:
    """A row for each target; one not reached stays: leaving it out would flatter the run."""
    run = named.run
    return [
        {
            "file": named.name,
            "algorithm": run.config.get("algorithm"),
            "ranks": run.ranks,
            **{column.key: run.config.get(column.key) for column in RULE},
            "metric": target.metric,
            "target": target.value,
            **_reached(run, target),
            "clock": clock(run),
        }
        for target in wanted
    ]


def epochs(run: Run) -> np.ndarray | None:
    """Samples used at each evaluation over those of the training set; None where it is not told."""
    samples, used = run.environment.get("training_samples"), run.evaluation.get("samples_used")
    if used is None or not isinstance(samples, int) or samples < 1:
        return None
    return used / samples


def _reached(run: Run, target: Target) -> dict[str, Any]:
    values = np.asarray(run.evaluation.get(target.metric, ()), dtype=float)
    sign = 1 if target.metric in RISING else -1
    found = np.flatnonzero(sign * values >= sign * target.value)
    at = int(found[0]) if len(found) else None
    first = " by its only evaluation" if len(values) == 1 else " by its first evaluation"
    told = NOT if at is None else "reached" if at else f"reached{first}"
    columns = {name: run.evaluation.get(name)
               for name in ("time_s", "step", "steps_effective", "samples_computed",
                            "samples_used")}  # fmt: skip
    columns["epochs"] = epochs(run)
    stored = {name: None if at is None or column is None else column[at].item()
              for name, column in columns.items()}  # fmt: skip
    step, time_s = stored.pop("step"), stored["time_s"]
    effective = stored.pop("steps_effective")
    return stored | {
        "reached": told,
        "hours": None if time_s is None else time_s / 3600,
        "steps": step,
        "effective_steps": effective,
    }
