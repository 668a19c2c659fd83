"""How many of M machines should be backups: expected time of an update, times the updates needed.

An update takes the first N gradients of M = N + b machines (Chen et al. 2016, Algorithms 3 and 4).
T(N) is its expected time, I(N) the iterations to converge; the best split is where I(N) T(N) is
least. T is exact where there is a closed form; by quadrature where stale work is abandoned and
all machines share a known law; else the mean over *replicas*: independent runs of the machines'
clocks, the same draws for every N, so that differences are surer than times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, lgamma
from typing import Any

import numpy as np

from mpisgd.experiment import stragglers
from mpisgd.predict import order_statistics
from mpisgd.values.errors import UsageError

STALE = ("finish", "abandon")
REPLICAS = 32
RESAMPLES = 1000
BURN_IN = 20  # updates of a replica that do not count
MOST_MACHINES = 2000
MOST_SPLITS = 128  # of more machines, not every split is looked at
MOST_EXACT = 200  # machines for which the recursion is worth its time
LEAST_MEAN = 0.5  # of draws whose expected mean is 1
STREAM = 0x62_6B75  # apart from every other use of the seed


@dataclass(frozen=True)
class Times:
    """Expected seconds of an update for the splits `needed` (N each) of some machines.

    method: exact, quadrature, sampled or measured. replicas [replica, split]: independent
    estimates, whose mean is `mean` [split]; of a measured one each is from its own resample of the
    measurements. None where nothing is drawn.
    """

    needed: np.ndarray
    mean: np.ndarray
    method: str
    replicas: np.ndarray | None = None


def splits(machines: int) -> np.ndarray:
    """Every N of M; of many machines the largest and some others, rising."""
    if machines <= MOST_SPLITS:
        return np.arange(1, machines + 1)
    few = np.arange(machines - MOST_SPLITS // 2 + 1, machines + 1)
    return np.unique(np.append(np.linspace(1, few[0], MOST_SPLITS // 2).round().astype(int), few))


def of_distribution(
    straggler: str | None,
    step_s: float,
    machines: int,
    stale: str,
    seed: int = 0,
    draws: int = 4096,
) -> Times:
    """Of machines whose gradients take `step_s` seconds times the factors that `straggler` says.

    stale: finish or abandon, as of `mpisgd train`. draws: gradients of each machine, where they are
    drawn. No time for messages. Raises UsageError.
    """
    needed = splits(machines)
    found = exact(straggler, machines, stale, needed)
    if found is not None:
        return Times(needed, found * step_s, "exact")
    rule = stragglers.parse(straggler or "", seed)
    rule.check(machines)
    if rule.deaths or rule.absences:
        allowed = "who dies, pauses or joins has no part in advice on backups"
        raise UsageError("--straggler", straggler, allowed)
    known = order_statistics.mean_times(straggler or "", machines, needed)
    if known is not None and stale == "abandon":
        return Times(needed, known * step_s, "quadrature")
    steps = max(1, draws // REPLICAS)
    drawn = np.empty((REPLICAS * steps, machines))
    for machine in range(machines):
        drawn[:, machine] = [rule.factor(machine, step + 1) for step in range(len(drawn))]
    _check_draws(straggler, rule, drawn)
    replicas = play(drawn.reshape(REPLICAS, steps, machines) * step_s, needed, stale)
    if known is not None:  # of all M machines no work is ever out of date
        replicas[:, needed == machines] = known[-1] * step_s
    return Times(needed, replicas.mean(axis=0), "sampled", replicas)


def _check_draws(straggler: str | None, rule: stragglers.Straggler, drawn: np.ndarray) -> None:
    """UsageError if the draws miss the tail that makes up most of their mean: every drawn term has
    a mean of 1 or more, so where theirs is much less, it was not seen."""
    if not rule.draws or rule.traces:
        return
    usual = min([1.0, *(slow for *_, slow in rule.slow)])
    mean = float(drawn.mean())
    if mean < LEAST_MEAN * usual:
        allowed = (
            f"too heavy a tail to be sampled: {drawn.size} draws have a mean of {mean:.3g} instead "
            "of 1 or more; take a lighter one, or more --draws"
        )
        raise UsageError("--straggler", straggler, allowed)


def of_measured(
    pools: Sequence[np.ndarray], machines: int, stale: str, seed: int = 0, draws: int = 4096
) -> Times:
    """Of machines like those measured: pools[worker] are the seconds of its gradients.

    As many machines as pools: each is one of them, slow ones included; else each replica's are
    chosen from them. Gradients of a machine are taken as independent. Raises UsageError.
    """
    generator, needed = np.random.default_rng((seed, STREAM)), splits(machines)
    steps = max(1, draws // REPLICAS)
    drawn = np.empty((REPLICAS, steps, machines))
    for replica in drawn:
        chosen = np.arange(machines)
        if machines != len(pools):
            chosen = generator.integers(len(pools), size=machines)
        for machine, worker in enumerate(chosen.tolist()):
            pool = pools[worker]
            resample = pool[generator.integers(len(pool), size=len(pool))]
            replica[:, machine] = resample[generator.integers(len(pool), size=steps)]
    replicas = play(drawn, needed, stale)
    return Times(needed, replicas.mean(axis=0), "measured", replicas)


def exact(
    straggler: str | None, machines: int, stale: str, needed: np.ndarray
) -> np.ndarray | None:
    """Closed forms for step time 1 [split]; None where there is none.

    abandon: order statistics, of the exponential H_M - H_{M-N}, of the Pareto tail by the gamma
    function. finish: of the exponential, by recursion over the gradients that have come and the
    machines that are still at stale work.
    """
    name, _, rest = (straggler or "").partition(":")
    if not name:
        return np.ones(len(needed))
    if "," in rest or "," in name or (stale == "finish" and name != "exponential"):
        return None
    stragglers.parse(straggler or "")
    if name == "exponential" and stale == "finish":
        if machines > MOST_EXACT:
            return None
        return np.array([_finishing(machines, count) for count in needed.tolist()])
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, machines + 1)))
    exponential = harmonic[machines] - harmonic[machines - needed]
    if name == "exponential":
        return exponential
    if name == "shifted":
        return 1 - float(rest) + float(rest) * exponential
    if name == "pareto" and ":" not in rest:
        return np.array([_pareto(machines, count, float(rest)) for count in needed.tolist()])
    return None


def _finishing(machines: int, needed: int) -> float:
    """Mean seconds of an update of `needed` exponential machines of mean 1 that finish stale work:
    V(a, s), with a gradients come and s of the n = M - a others at stale work."""
    backups = machines - needed
    after = [0.0] * (backups + 1)  # V(needed, s)
    for come in range(needed - 1, -1, -1):
        n, values = machines - come, [0.0] * (backups + 1)
        for stale in range(min(backups, n) + 1):
            before = values[stale - 1] if stale else 0.0
            values[stale] = (1 + stale * before + (n - stale) * after[stale]) / n
        after = values
    return after[backups]


def _pareto(machines: int, needed: int, tail: float) -> float:
    """Mean of the N-th smallest of M Pareto variables >= 1."""
    spare = machines - needed + 1
    if spare <= 1 / tail:
        return inf
    return exp(
        lgamma(machines + 1) - lgamma(machines + 1 - 1 / tail)
        + lgamma(spare - 1 / tail) - lgamma(spare)
    )  # fmt: skip


def play(durations: np.ndarray, needed: np.ndarray, stale: str) -> np.ndarray:
    """Mean seconds of an update [replica, split] of gradients' seconds [replica, step, machine]."""
    if stale == "abandon":
        ordered = np.sort(durations, axis=2).mean(axis=1)
        return ordered[:, needed - 1]
    return np.stack([finishing(durations, count) for count in needed.tolist()], axis=1)


def finishing(durations: np.ndarray, needed: int, updates: int | None = None) -> np.ndarray:
    """Mean seconds of an update [replica] when machines finish stale work before they read again.

    durations [replica, step, machine]: each machine takes its own in turn, over and over.
    updates: how many count (as many as steps), behind the first BURN_IN.
    """
    replicas, steps, machines = durations.shape
    updates = steps if updates is None else updates
    turn = np.zeros((replicas, machines), int)
    ends, current = durations[:, 0, :].copy(), np.ones((replicas, machines), bool)
    begin, total = np.zeros(replicas), np.zeros(replicas)
    flat = durations.ravel()
    own = np.arange(replicas)[:, None] * steps * machines + np.arange(machines)
    with np.errstate(invalid="ignore"):
        for update in range(BURN_IN + updates):
            following = flat[own + (turn + 1) % steps * machines]
            comes = np.where(current, ends, ends + following)
            end = np.partition(comes, needed - 1, axis=1)[:, needed - 1]
            if update >= BURN_IN:
                total += end - begin
            taken = comes <= end[:, None]  # who comes later, at the same time, reads anew too
            turn += ~current & (ends <= end[:, None])
            ends = np.where(~current & (ends > end[:, None]), ends, comes)
            turn += taken
            fresh = end[:, None] + flat[own + turn % steps * machines]
            ends, current, begin = np.where(taken, fresh, ends), taken, end
    return np.where(np.isfinite(total), total / updates, inf)


def rows(times: Times, iterations: Callable[[float], float]) -> list[dict[str, Any]]:
    """One row a split: needed, backups, update_s, iterations, converge_s, over_best (relative to
    the least converge_s, minus 1), each with the ends of its 95 % interval; best: whether it is
    the least. The iterations are taken as known."""
    count = np.array([iterations(float(n)) for n in times.needed.tolist()])
    converge = times.mean * count
    best, machines = int(np.argmin(converge)), int(times.needed[-1])
    likely = _likely(times)
    columns = {
        "needed": times.needed,
        "backups": machines - times.needed,
        **_with_interval("update{}_s", times.mean, likely),
        "iterations": count,
        **_with_interval("converge{}_s", converge, likely * count),
        **_with_interval("over_best{}", _over(converge, best), _over(likely * count, best)),
        "best": np.arange(len(count)) == best,
    }
    return [
        {"method": times.method, **{name: column[i].item() for name, column in columns.items()}}
        for i in range(len(count))
    ]


def _likely(times: Times) -> np.ndarray:
    """Means as they might have come out as well [resample, split]. Tails are heavy and means of
    them skew, so replicas are resampled; those of measurements are resamples already."""
    if times.replicas is None:
        return times.mean[None, :]
    if times.method == "measured":
        return times.replicas
    generator, count = np.random.default_rng(STREAM), len(times.replicas)
    weights = generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
    whole = np.isfinite(times.replicas).all(axis=0)
    return np.where(whole, weights @ np.where(whole, times.replicas, 0.0), inf)


def _over(converge: np.ndarray, best: int) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # where even the best is infinite
        return converge / converge[..., best : best + 1] - 1


def _with_interval(name: str, values: np.ndarray, likely: np.ndarray) -> dict[str, np.ndarray]:
    """`values` [split] and where 95 % of the likely ones [resample, split] lie."""
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(likely, (0.025, 0.975), axis=0)
    names = (name.format(end) for end in ("", "_low", "_high"))
    return dict(zip(names, (values, low, high), strict=True))
