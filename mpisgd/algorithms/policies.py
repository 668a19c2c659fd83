"""When a parameter server updates: the policies of Chen et al. 2016 (arXiv 1604.00981) as rows.

`POLICIES`: name -> function of the number of workers and of its options. Adding one = one function
and one row. Options are taken to be checked.
"""

from dataclasses import dataclass
from typing import Annotated

from mpisgd.algorithms.options import Stale, StalenessRate
from mpisgd.values.options import duration, number, or_word, whole

PATIENCE = 4.0  # median absolute deviations; of normal times, 2.7 standard ones


@dataclass(frozen=True)
class Policy:
    """What one server loop needs to know; see servers.serve.

    group: gradients an update waits for; step: used gradients that count as one step, so that
    equally many samples make equally many steps; stale: whether gradients of older versions are
    used, or dropped; timeout_s: seconds after its first gradient when an update waits no longer;
    patience: the same from what was observed, see servers.patience;
    by_staleness: whether a gradient counts 1 / max(1, staleness); abandon: whether workers are
    told at once that what they compute is out of date.
    """

    group: int
    step: int
    stale: bool = False
    timeout_s: float | None = None
    patience: float | None = None
    by_staleness: bool = False
    abandon: bool = False


POLICIES = {
    "async": "mpisgd.algorithms.policies:asynchronous",
    "backup": "mpisgd.algorithms.policies:backup",
    "softsync": "mpisgd.algorithms.policies:softsync",
    "timeout": "mpisgd.algorithms.policies:timeout",
}


def asynchronous(workers: int, staleness_rate: StalenessRate = False) -> Policy:
    """Async-Opt (Algorithms 1, 2): every gradient is an update, however stale."""
    return Policy(1, workers, stale=True, by_staleness=staleness_rate)


def backup(
    workers: int,
    backups: Annotated[int, whole(0), "workers an update does without"] = 1,
    stale: Stale = "finish",
) -> Policy:
    """Sync-Opt (Algorithms 3, 4): the first N of N + b gradients of this version, b dropped."""
    needed = workers - backups
    return Policy(needed, needed, abandon=stale == "abandon")


def softsync(
    workers: int,
    group: Annotated[int, whole(1), "gradients in an update [workers]"],
    staleness_rate: StalenessRate = False,
) -> Policy:
    """Any `group` gradients, stale ones too (Zhang et al. 2016): c = 1 is async, c = N sync."""
    return Policy(group, workers, stale=True, by_staleness=staleness_rate)


def timeout(
    workers: int,
    timeout_s: Annotated[
        float | str,
        or_word(duration(), "auto"),
        "from its first gradient to the update; auto: by what was observed [1 s]",
    ] = 1.0,
    patience: Annotated[
        float | None,
        number(0),
        "median absolute deviations that one may be late with --timeout auto [4]",
    ] = None,
    stale: Stale = "finish",
) -> Policy:
    """All N gradients of this version, or those that came within a time of the first (Section 5 of
    the paper leaves it to the future). The mean is over those that came."""
    if timeout_s != "auto":
        return Policy(workers, workers, timeout_s=float(timeout_s), abandon=stale == "abandon")
    observed = PATIENCE if patience is None else patience
    return Policy(workers, workers, patience=observed, abandon=stale == "abandon")
