"""How fast one run was and where its time went: from its columns, computed once a run.

A step time alone would mislead: see `training.effective`.
"""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from mpisgd.store.reader import Run
from mpisgd.store.schema import group
from mpisgd.training.effective import effective_steps

PARTS = tuple(f.name.removesuffix("_s") for f in group("steps") if f.report == "share")
MEANS = tuple(field for field in group("steps") if field.report == "mean")
FEW_ROUNDS = 8  # fewer than these have no median

_KNOWN: WeakKeyDictionary[Run, dict[str, Any]] = WeakKeyDictionary()


def speed(run: Run) -> dict[str, Any]:
    """Steps, seconds, rates and shares of step time; see `_speed`. Columns are read once a run."""
    if run not in _KNOWN:
        _KNOWN[run] = _speed(run)
    return _KNOWN[run]


def worth(run: Run) -> float:
    """Effective steps of those that the run did: what outlives its merges; of partial rounds, in
    the share of the ranks' steps that have entered them."""
    done = speed(run)["steps"]
    effective = effective_steps(run.config, done)
    if "gradients" not in run.steps or not done:
        return effective
    whole = done * run.ranks
    return effective * (whole - _lost(run, done)) / whole


def _lost(run: Run, done: int) -> int:
    """Of the first `done` steps of all ranks: those that they skipped, or did in vain, before a
    partial round whose mean has come. A round of models tells at its merge, `delay` steps later."""
    gradients, used = (run.steps[name][:done].astype(int) for name in ("gradients", "used"))
    tau, delay = run.config.get("tau") or 1, run.config.get("delay") or 0
    told = np.arange(tau + delay, done + 1, tau)  # the steps in whose rows it is
    entered = np.add.reduceat(gradients, np.arange(0, done, tau))[: len(told)]
    return int((tau - entered * (used[told - 1] == 1)).sum())


def effective_share(run: Run) -> float:
    """Effective steps over the steps that the run did."""
    done = speed(run)["steps"]
    return worth(run) / done if done else 1.0


def effective_step_s(run: Run, step_s: float | None = None) -> float | None:
    """Seconds of a step of the run, or `step_s` of it and its equals, over its effective share."""
    return divided(speed(run)["step_s"] if step_s is None else step_s, effective_share(run))


def own_step_seconds(run: Run) -> list[float]:
    """Median seconds of each worker's own steps, waiting included; workers without any left out."""
    steps = _rows(run, "step_s", _reported(run, most=True))
    own = [column[np.isfinite(column)] for column in steps.T]
    return [float(np.median(column)) for column in own if len(column)]


def round_seconds(steps: np.ndarray, tau: int, rested: np.ndarray | None = None) -> np.ndarray:
    """Seconds per step of each whole round of tau steps, from seconds [step, rank]: the mean over
    its steps, on the rank that took longest.

    By rounds, since only one step of a round waits for an average: a median over steps would not
    see it. Left out are rounds in which a rank had `rested` [step, rank], and got the average of
    the round for nothing; unless that is so in all.
    """
    whole = len(steps) // tau * tau
    longest = steps[:whole].reshape(-1, tau, steps.shape[1]).mean(axis=1).max(axis=1)
    if rested is not None and len(rested) >= whole:
        calm = ~(rested[:whole] > 0).reshape(-1, tau * steps.shape[1]).any(axis=1)
        longest = longest[calm] if calm.any() else longest
    return longest[np.isfinite(longest)]


def workers(run: Run) -> slice:
    """The ranks that train: all but servers, which come first and have no steps."""
    servers = run.config.get("servers") or 0
    return slice(0 if run.config.get("colocated") else servers, None)


def worker_count(run: Run) -> int:
    """Ranks that compute gradients."""
    return len(range(run.ranks)[workers(run)])


def last(run: Run, name: str) -> float | None:
    """The last row of one column of /evaluation."""
    values = run.evaluation.get(name)
    if values is None or not len(values) or not np.isfinite(values[-1]):
        return None
    return values[-1].item()


def _speed(run: Run) -> dict[str, Any]:
    """Steps, seconds, rates and shares of step time, evaluations excluded.

    step_s: the median of `round_seconds`; of few rounds, whose median may miss or exaggerate the
    one step of a round that waits, the training time over the steps. steps_per_s and samples_per_s:
    over the training time, the final average included; samples are those used. With servers,
    whose workers each go their own way, steps are those of the last evaluation, and step_s is the
    time over them; shares are of all that any of them did, since the slow ones did fewer steps.
    In pairs too each goes its own way: who took longest in a round is waited for by one other; in
    partial rounds by nobody, and rounds are of unlike lengths.
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
        f"{part}_share": divided(float(np.nansum(values)), total) if values.size else None
        for part, values in spent.items()
    }
    longest = round_seconds(steps, run.config.get("tau") or 1, _rows(run, "rested", looked_at))
    alone = "partner" in run.steps or "gradients" in run.steps
    rounds = None if served or alone else len(longest)
    if served:
        done = int(last(run, "step") or done)
    few = rounds is None or rounds < FEW_ROUNDS
    step_s = divided(time_s, done) if few else float(np.median(longest))
    means = {field.name: _mean(_rows(run, field.name, looked_at)) for field in MEANS}
    known = [share for share in shares.values() if share is not None]
    return {
        "steps": done,
        "time_s": time_s,
        "steps_per_s": divided(done, time_s),
        "samples_per_s": divided(samples, time_s),
        "step_s": step_s,
        "rounds": rounds,
        **shares,
        **means,
        "other_share": max(0.0, 1 - sum(known)) if known else None,
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


def _mean(values: np.ndarray) -> float | None:
    """Over what was reported: floats that are numbers, whole numbers that are not negative."""
    known = values[np.isfinite(values) if values.dtype.kind == "f" else values >= 0]
    return float(known.mean()) if known.size else None


def divided(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by
