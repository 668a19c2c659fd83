"""What one training run amounts to: speed, where its time went, and honest counts of its work.

A step time alone would mislead: see `training.effective`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpisgd.mpi.lab import LAB
from mpisgd.store.reader import Run
from mpisgd.training.effective import effective_steps

PARTS = ("compute", "update", "poll", "wait")


def row(run: Run, name: str) -> dict[str, Any]:
    """One row of the comparing table; None where the file does not say. Raises DamagedFile."""
    config = run.config
    values: dict[str, Any] = {
        "file": name,
        "algorithm": config.get("algorithm"),
        "allreduce": None if config.get("servers") else config.get("allreduce"),
        "ranks": run.ranks,
        **{key: config.get(key) for key in ("tau", "delay", "xi", "merge")},
        "clock": clock(run),
        "lab_rate": lab_rate(run),
        "state": "complete" if run.complete else "partial",
        "restarts": len(run.restarts),
        **{key: config.get(key) for key in ("model", "data", "batch", "rate", "seed")},
        "step_time_s": config.get("step_time_s"),
        "hosts": hosts(run),
    }
    values |= speed(run)
    done = values["steps"]
    values["effective_steps"] = effective_steps(config, done)
    share = _divided(values["effective_steps"], done)
    values["effective_step_s"] = _divided(values["step_s"], share)
    for key in ("loss", "accuracy", "ema_accuracy"):
        values[key] = last(run, key)
    return values


def hosts(run: Run) -> int | None:
    """How many machines the ranks were on."""
    names = run.environment.get("hosts")
    return len(set(map(str, names))) if isinstance(names, list) and names else None


def clock(run: Run) -> str:
    """Whose seconds they are: never compare the two."""
    return "virtual" if run.virtual else "wall"


def lab_rate(run: Run) -> str | None:
    """The rate of the lab's wires, as tc writes it; None for what ran outside of a lab."""
    variables = run.environment.get("variables")
    told = variables.get(LAB) if isinstance(variables, dict) else None
    return str(told).split()[0] if str(told or "").strip() else None


def speed(run: Run) -> dict[str, Any]:
    """Steps, seconds, rates and shares of step time, evaluations excluded.

    step_s: see `step_seconds`. steps_per_s and samples_per_s: over the whole training time, the
    final average included; samples are those that were used. With servers, whose workers each go
    their own way, steps are those of the last evaluation, and step_s is the time over them; shares
    are of all that any of them did, since the slow ones did fewer steps.
    """
    done = _reported(run)
    served = bool(run.config.get("servers"))
    looked_at = _reported(run, most=True) if served else done
    spent = {part: _rows(run, f"{part}_s", looked_at) for part in PARTS}
    steps = _rows(run, "step_s", looked_at)
    time_s = last(run, "time_s") if run.complete else None
    if time_s is None and steps.size:
        time_s = float(np.nansum(steps, axis=0).max()) or None
    computed = _rows(run, "samples", looked_at)
    samples = last(run, "samples_used") if run.complete else None
    if samples is None and computed.size:
        samples = float(computed[computed > 0].sum())
    total = float(np.nansum(steps))
    shares = {
        f"{part}_share": _divided(float(np.nansum(values)), total) if values.size else None
        for part, values in spent.items()
    }
    if served:
        done = int(last(run, "step") or done)
        step_s = _divided(time_s, done)
    else:
        step_s = step_seconds(steps, run.config.get("tau") or 1)
    known = [share for share in shares.values() if share is not None]
    return {
        "steps": done,
        "time_s": time_s,
        "steps_per_s": _divided(done, time_s),
        "samples_per_s": _divided(samples, time_s),
        "step_s": step_s,
        **shares,
        "other_share": max(0.0, 1 - sum(known)) if known else None,
    }


def workers(run: Run) -> slice:
    """The ranks that train: all but servers, which come first and have no steps."""
    servers = run.config.get("servers") or 0
    return slice(0 if run.config.get("colocated") else servers, None)


def own_step_seconds(run: Run) -> list[float]:
    """Median seconds of each worker's own steps, waiting included; workers without any left out."""
    steps = _rows(run, "step_s", _reported(run, most=True))
    own = [column[np.isfinite(column)] for column in steps.T]
    return [float(np.median(column)) for column in own if len(column)]


def step_seconds(steps: np.ndarray, tau: int) -> float | None:
    """Seconds per step, from seconds [step, rank]: the median over rounds of tau steps of the mean
    over a round's steps, on the rank that took longest.

    By rounds, since only one step of a round waits for an average: a median over steps would not
    see it. Fewer steps than a round: their mean.
    """
    tau = min(tau, len(steps))
    if not tau:
        return None
    rounds = steps[: len(steps) // tau * tau].reshape(-1, tau, steps.shape[1])
    longest = rounds.mean(axis=1).max(axis=1)
    longest = longest[np.isfinite(longest)]
    return float(np.median(longest)) if len(longest) else None


def effective_share(run: Run) -> float:
    """Effective steps over the steps that the run did."""
    done = speed(run)["steps"]
    return effective_steps(run.config, done) / done if done else 1.0


def last(run: Run, name: str) -> float | None:
    """The last row of one column of /evaluation."""
    values = run.evaluation.get(name)
    if values is None or not len(values) or not np.isfinite(values[-1]):
        return None
    return values[-1].item()


def targets(run: Run, name: str, wanted: Sequence[float]) -> list[dict[str, Any]]:
    """When test accuracy first reached each target, fixed beforehand; never the best epoch.

    A target not reached stays a row: leaving it out would flatter the run.
    """
    accuracy = np.asarray(run.evaluation.get("accuracy", ()), dtype=float)
    rows = []
    for target in wanted:
        found = np.flatnonzero(accuracy >= target)
        at = int(found[0]) if len(found) else None
        values: dict[str, Any] = {
            "file": name,
            "algorithm": run.config.get("algorithm"),
            "ranks": run.ranks,
            "target": target,
            "reached": "not reached" if at is None else "reached",
            "clock": clock(run),
        }
        for key, column in TARGET_COLUMNS.items():
            stored = run.evaluation.get(column)
            values[key] = None if at is None or stored is None else stored[at].item()
        step = values["steps"]
        values["effective_steps"] = None if step is None else effective_steps(run.config, step)
        rows.append(values)
    return rows


TARGET_COLUMNS: Mapping[str, str] = {
    "time_s": "time_s",
    "steps": "step",
    "samples_computed": "samples_computed",
    "samples_used": "samples_used",
}


def _reported(run: Run, most: bool = False) -> int:
    """Steps that every worker reported, or that any of them did."""
    reported = run.reported[workers(run)]
    if not len(reported):
        return 0
    return int(reported.max() if most else reported.min())


def _rows(run: Run, name: str, done: int) -> np.ndarray:
    """[step, worker] of one column, the first `done` steps; empty when there is none."""
    values = run.steps.get(name)
    return np.zeros((0, run.ranks)) if values is None else values[:done, workers(run)]


def _divided(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by
