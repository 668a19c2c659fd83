"""What one training run amounts to: speed, where its time went, and honest counts of its work.

A step time alone would mislead: see `training.effective`.
"""

from typing import Any

from mpisgd.mpi.announced import LAB
from mpisgd.report import columns
from mpisgd.report.columns import (
    ALGORITHM,
    ALLREDUCE,
    CLOCK,
    EFFECTIVE_STEPS,
    FILE,
    LAB_RATE,
    RANKS,
    shown,
)
from mpisgd.report.speed import FEW_ROUNDS, MEANS, effective_step_s, last, speed, worth
from mpisgd.store.reader import Run
from mpisgd.store.schema import group
from mpisgd.values.tables import Column


class Facts:
    """One run, and what its columns have in common, computed once. Raises DamagedFile."""

    def __init__(self, run: Run, name: str):
        self.run, self.name, self.config = run, name, run.config
        self.speed = speed(run)

    @property
    def effective_steps(self) -> float:
        return worth(self.run)

    @property
    def effective_step_s(self) -> float | None:
        return effective_step_s(self.run)


def _setting(key: str, meaning: str, essential: bool = False) -> Column:
    return Column(key, "", meaning, "", essential, lambda facts: facts.config.get(key))


def _speed(
    key: str, meaning: str, unit: str = "1", form: str = "", essential: bool = False
) -> Column:
    return Column(key, form, meaning, unit, essential, lambda facts: facts.speed[key])


def _last(key: str, meaning: str, form: str = "", essential: bool = False) -> Column:
    return Column(key, form, meaning, "1", essential, lambda facts: last(facts.run, key))


TAU = _setting("tau", "local steps between averages", True)
DELAY = _setting("delay", "steps an average has time for", True)
XI = _setting("xi", "share of a rank's own parameters in a convex merge", True)
BATCH = _setting("batch", "samples of a rank's step")
SEED = _setting("seed", "of everything random")
RUNS = (
    FILE._replace(of=lambda facts: facts.name),
    ALGORITHM._replace(of=lambda facts: facts.config.get("algorithm")),
    ALLREDUCE._replace(
        of=lambda f: None if f.config.get("servers") else f.config.get("allreduce")
    ),
    RANKS._replace(of=lambda facts: facts.run.ranks),
    TAU, DELAY, XI,
    _setting("merge", "how an average enters the parameters"),
    _speed("steps", "steps that every rank has done; with servers, those of the last evaluation",
           "", essential=True),
    _speed("steps_per_s", "steps over training time, the final average included", "1/s"),
    _speed("samples_per_s", "used samples over training time", "1/s"),
    *(_speed(f"{field.name.removesuffix('_s')}_share",
             f"share of a step's time: {field.meaning}; with servers, of all workers' steps",
             form=".1%", essential=field.name == "wait_s")
      for field in group("steps") if field.report == "share"),
    _speed("other_share", "share of a step's time: the rest", form=".1%"),
    *(_speed(field.name, f"{field.meaning}: mean over steps and ranks", field.unit)
      for field in MEANS),
    _last("loss", "test loss at the end, of the averaged model", essential=True),
    _last("accuracy", "test accuracy at the end, of the averaged model", ".4f", True),
    _last("ema_accuracy", "test accuracy of the moving average of the parameters", ".4f"),
    EFFECTIVE_STEPS._replace(of=lambda facts: facts.effective_steps),
    _speed("step_s", "seconds of a step: median over rounds of tau steps, on the rank that took "
           f"longest; of fewer than {FEW_ROUNDS} rounds time_s over steps; with servers, in "
           "pairs and in partial rounds too, the pace of all together: see own_step_s, "
           "slowest_step_s", "s",
           essential=True),
    _speed("rounds", "whole rounds of tau steps, which step_s is the median of", ""),
    Column("effective_step_s", "",
           "step_s over the share of effective steps: compare this, not step_s", "s", True,
           lambda facts: facts.effective_step_s),
    _speed("time_s", "training seconds, evaluations excluded", "s"),
    CLOCK._replace(of=lambda facts: clock(facts.run)),
    shown(LAB_RATE)._replace(of=lambda facts: lab_rate(facts.run)),
    Column("state", "", "complete, or partial: as far as a killed run got", "", True,
           lambda facts: "complete" if facts.run.complete else "partial"),
    Column("restarts", "", "how often the run was resumed from a checkpoint", "1", True,
           lambda facts: len(facts.run.restarts)),
    _setting("model", "what was trained"), _setting("data", "the data set"), BATCH,
    _setting("rate", "the learning rate, before its schedule"),
    _setting("scaling", "weak: each rank its batch; strong: one batch shared; as the runs say"),
    _setting("evaluate", "when it evaluated: after training, or during it, which flatters times"),
    _setting("step_time_s", "seconds that --step-time gave the gradient of a step"), SEED,
    Column("hosts", "", "machines that the ranks were on", of=lambda facts: hosts(facts.run)),
)  # fmt: skip
RULE = (TAU, DELAY, XI, BATCH, SEED)  # what tells runs of one algorithm apart, in other tables


def row(run: Run, name: str) -> dict[str, Any]:
    """One row of RUNS; None where the file does not say. Raises DamagedFile."""
    return columns.row(RUNS, Facts(run, name))


def hosts(run: Run) -> int | None:
    """How many machines the ranks were on."""
    names = run.environment.get("hosts")
    return len(set(map(str, names))) if isinstance(names, list) and names else None


def clock(run: Run) -> str:
    """Whose seconds they are: never compare the two."""
    return "virtual" if run.virtual else "wall"


def disturbed(run: Run) -> bool:
    """Whether averages went on while the clock stood still for evaluations. Files that do not say
    when they evaluated are of a time when it was during training."""
    during = run.config.get("evaluate", "during") == "during"
    return during and not run.virtual and len(run.evaluation.get("step", ())) > 1


def lab_rate(run: Run) -> str | None:
    """The rate of the lab's wires, as tc writes it; None for what ran outside of a lab."""
    variables = run.environment.get("variables")
    told = variables.get(LAB) if isinstance(variables, dict) else None
    return str(told).split()[0] if str(told or "").strip() else None
