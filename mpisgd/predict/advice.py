"""Advice on the delay: from t_p and t_c to d, tau, the time of every algorithm, and how sure.

The rule (DaSGD paper): the smallest d with t_c <= d t_p, and tau = d+1. What the rule does not
say, and the advice does: convex merging throws (1-xi) of the d steps in flight away, so the
algorithm to choose is the one of least seconds per *effective* step.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from allreduce.collectives import NAMES
from mpisgd.predict.costs import COSTS, counts
from mpisgd.predict.epoch import (
    ALGORITHMS,
    PAPER,
    Bucket,
    Conditions,
    StepCost,
    check_delay,
    check_merge,
    check_quorum,
    delay_rule,
    even_buckets,
    overlap_cost,
    rhythm,
    rhythm_cost,
)
from mpisgd.predict.partial import TAKERS
from mpisgd.training.effective import effective_share
from mpisgd.values.quantities import number

EVEN_BUCKETS = 8
BACKWARD_SHARE = 2 / 3
LONG_TAU, TRIED_TAU = 16, 8  # whence on a word of caution is due; the longest of the studies here


def caution(tau: int) -> list[str]:
    """A line where `tau`, which only follows from times, is far beyond what was trained with."""
    if tau <= LONG_TAU:
        return []
    return [
        f"caution: tau {tau} is far beyond what the studies here have trained with, {TRIED_TAU}: "
        "it follows from times alone, and says nothing about the accuracy"
    ]


def assumption(advice: "Advice") -> list[str]:
    """What was taken for granted of the overlapped mini-batch, if anything."""
    if not advice.even:
        return []
    return [
        f"assumed of minibatch-overlap, not measured: {EVEN_BUCKETS} equal buckets, ready evenly "
        "over the last two thirds of a step; where the last one is larger, it hides less",
        "assumed of gossip, not measured: two ranks take t_c over the number of times that the "
        "all-reduce sends all parameters in a row; where that is not known, t_c",
    ]


@dataclass(frozen=True)
class Advice:
    """The advice and what it rests on.

    ratio: t_c/t_p. lower_ratio, upper_ratio: the same d holds for ratios in (lower, upper].
    delay_low, delay_high: d at ratio * (1 - spread) and ratio * (1 + spread). rows: one per
    algorithm: step_s, effective_share, effective_step_s, hidden_share, exchange_s, and the line to
    run.
    fastest: of mini-batch, local and DaSGD, the algorithm of least seconds per effective step (of
    the others times are told; nothing is known of what a step of theirs is worth). even: whether
    the buckets of `minibatch-overlap` were assumed to be equal, nothing being known of the layers.
    """

    workers: int
    step_s: float
    allreduce_s: float
    ratio: float
    delay: int
    tau: int
    xi: float
    merge: str
    spread: float
    lower_ratio: float
    upper_ratio: float
    delay_low: int
    delay_high: int
    rows: tuple[dict[str, Any], ...]
    fastest: str
    even: bool

    @property
    def command(self) -> str:
        """The line that runs the fastest algorithm."""
        return self.command_of(self.fastest)

    def command_of(self, algorithm: str) -> str:
        """The line that runs `algorithm`."""
        return next(row["command"] for row in self.rows if row["algorithm"] == algorithm)

    @property
    def sure(self) -> bool:
        """Whether d is the same over the whole spread."""
        return self.delay_low == self.delay_high


def advise(
    step_s: float,
    allreduce_s: float,
    workers: int,
    *,
    tau: int | None = None,
    xi: float = 0.25,
    merge: str = "convex",
    spread: float = 0.1,
    conditions: Conditions | None = None,
    allreduce: str | None = None,
    batch: int | None = None,
    bucket: float | None = None,
    parts: list[Bucket] | None = None,
    ready_s: float | None = None,
    part_s: Callable[[float], float] | None = None,
    pair_s: float | None = None,
    settings: Sequence[str] = (),
) -> Advice:
    """Advice for `workers` ranks whose local step takes `step_s` and all-reduce `allreduce_s`.

    tau: None for d+1. spread: relative uncertainty of t_c/t_p, in [0, 1). allreduce, batch, bucket
    (bytes), settings (options of `train`): go into the command lines. parts, ready_s, part_s:
    gradient buckets for `minibatch-overlap`, the end of backward, and the seconds of an all-reduce
    of so many bytes; without them eight equal buckets over the last two thirds of the step are
    assumed, at t_c in proportion to bytes. pair_s: seconds of an average of two ranks; without it,
    as many of t_c as the all-reduce sends whole vectors in a row, or all where that is not known.
    Raises UsageError for nonsense: t_p = 0, nan, 0 workers, tau < d.
    """
    delay = delay_rule(step_s, allreduce_s, workers)
    number("--spread", spread, high=0.999)
    tau = delay + 1 if tau is None else tau
    check_delay(tau, delay)
    if workers == 1:
        allreduce_s = 0.0  # no one to average with
    check_merge(xi, merge)
    conditions = conditions or Conditions()
    check_quorum(conditions.quorum, workers)
    share = effective_share(tau, delay, xi, merge)
    even = parts is None
    if parts is None or ready_s is None or part_s is None:
        parts = even_buckets(step_s, allreduce_s, EVEN_BUCKETS, BACKWARD_SHARE)
        ready_s, part_s = step_s, float
    overlap = overlap_cost(step_s, ready_s, parts, part_s, workers, conditions)
    shares = {"dasgd": share, "streaming-diloco": effective_share(tau, delay, xi)}
    nbytes = sum(part.nbytes for part in parts)
    pair_s = _pair_s(allreduce_s, workers, allreduce) if pair_s is None else pair_s
    rows = []
    for name in ALGORITHMS:
        found = rhythm(name, tau, delay)
        t_c = pair_s if found.pairs else allreduce_s
        whole = t_c if found.parts == 1 else part_s(nbytes / found.parts)
        own_conditions = conditions.of(name)
        cost = rhythm_cost(step_s, whole, workers, found, own_conditions)
        cost = overlap if name == "minibatch-overlap" else cost
        worth = shares.get(name, 1.0) * own_conditions.in_time(workers)
        exchange = {"exchange_s": pair_s if found.pairs else None}
        rows.append(_row(name, cost, found.tau, worth, t_c) | exchange)
    own = _own_options(tau, delay, xi, merge, bucket)
    if conditions.quorum is not None:
        for name in TAKERS:
            own[name] = [*own.get(name, []), "--quorum", str(conditions.quorum)]
    for row in rows:
        row["command"] = _command(workers, row["algorithm"], own, allreduce, batch, settings)
    within = [delay_rule(step_s, allreduce_s * (1 + sign * spread), workers) for sign in (-1, 1)]
    return Advice(
        workers=workers,
        step_s=step_s,
        allreduce_s=allreduce_s,
        ratio=allreduce_s / step_s,
        delay=delay,
        tau=tau,
        xi=xi,
        merge=merge,
        spread=spread,
        lower_ratio=float(delay - 1) if delay > 1 else 0.0,
        upper_ratio=float(delay) if workers > 1 else float("inf"),
        delay_low=within[0],
        delay_high=within[1],
        rows=tuple(rows),
        fastest=min(rows[: len(PAPER)], key=lambda row: row["effective_step_s"])["algorithm"],
        even=even and workers > 1,
    )


def _pair_s(allreduce_s: float, workers: int, allreduce: str | None) -> float:
    """What two ranks take, as far as an all-reduce of all tells."""
    if allreduce not in COSTS:
        return allreduce_s
    return allreduce_s / max(1.0, counts(allreduce, workers).volume)


def _row(name: str, cost: StepCost, tau: int, share: float, allreduce_s: float) -> dict[str, Any]:
    return {
        "algorithm": name,
        "compute_s": cost.compute_s,
        "exposed_s": cost.exposed_s,
        "slowed_s": cost.slowed_s,
        "noise_s": cost.noise_s,
        "step_s": cost.step_s,
        "round_s": tau * cost.step_s,
        "effective_share": share,
        "effective_step_s": cost.effective_s(share),
        "hidden_share": cost.hidden_share(tau, allreduce_s),
    }


def _own_options(
    tau: int, delay: int, xi: float, merge: str, bucket: float | None
) -> dict[str, list[str]]:
    """What each algorithm takes for itself."""
    convex = ["--xi", f"{xi:g}"] if merge == "convex" else []
    return {
        "minibatch-overlap": [] if bucket is None else ["--bucket", str(max(1, round(bucket)))],
        **{name: ["--tau", str(tau)] for name in ("local", "slowmo", "diloco", "easgd")},
        "post-local": ["--tau", str(tau)],
        "gossip": ["--tau", str(tau), "--delay", str(delay)],
        "streaming-diloco": ["--tau", str(tau), "--delay", str(delay), "--xi", f"{xi:g}"],
        "dasgd": ["--tau", str(tau), "--delay", str(delay), "--merge", merge, *convex],
    }


def _command(
    workers: int,
    algorithm: str,
    own: dict[str, list[str]],
    allreduce: str | None,
    batch: int | None,
    settings: Sequence[str],
) -> str:
    """The `mpisgd train` line; your own --model and --data go behind it."""
    words = ["mpisgd", "train"]
    if workers == 1:
        words += ["--algorithm", "minibatch"]
    else:
        started = [] if "--virtual" in settings else ["mpiexec", "-n", str(workers)]
        words = [*started, *words, *settings, "--algorithm", algorithm]
        words += own.get(algorithm, [])
        words += ["--allreduce", allreduce] if allreduce in NAMES else []
    words += ["--batch", str(batch)] if batch is not None else []
    return shlex.join(words)
