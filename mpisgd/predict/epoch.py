"""Seconds of a step, a round and an epoch: mini-batch, overlapped mini-batch, local, DaSGD.

t_p is the seconds of one local step (forward, backward, update), t_c those of one all-reduce, N
the iterations of an epoch. Without noise, slow-down or imperfect progress:

    minibatch  N (t_p + t_c)         local  N t_p + (N/tau) t_c
    dasgd      N t_p + (N/tau) max(0, t_c - min(d, tau) t_p)

(DaSGD paper, Fig. 7; N/tau unrounded.) `minibatch-overlap` all-reduces buckets of gradients,
one after another, while backward goes on: the baseline that delayed averaging must beat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from allreduce.pairs import partners
from mpisgd.predict import partial
from mpisgd.predict.paleo import FLOAT_BYTES, StepTime
from mpisgd.training.effective import MERGES
from mpisgd.values.errors import UsageError, among
from mpisgd.values.quantities import number, whole

PAPER = ("minibatch", "minibatch-overlap", "local", "dasgd")
RELATED = (
    "minibatch-partial", "slowmo", "diloco", "post-local", "streaming-diloco", "easgd", "gossip",
)  # fmt: skip
ALGORITHMS = (*PAPER, *RELATED)
FRAGMENTS = 2  # of streaming-diloco, as `train` has it
RULE_TOLERANCE = 1e-9
MOST_DELAY = 1e9  # steps: as many as a run may have
NOISE_ROUNDS = 200


@dataclass(frozen=True)
class Conditions:
    """What keeps communication from hiding as it should. Raises UsageError for nonsense.

    progress: the share of t_c that can overlap with computation (1: all). slowdown: how much
    longer computation takes while a communication is in flight (0: not at all; 0.1: 10 %).
    noise: standard deviation / mean of a rank's step time, log-normal, independent. quorum: ranks
    that a round waits for, a number or a word of `train --quorum`; None: as the algorithm has it.
    """

    progress: float = 1.0
    slowdown: float = 0.0
    noise: float = 0.0
    quorum: str | int | None = None

    def of(self, algorithm: str) -> "Conditions":
        """With what `algorithm` waits for."""
        default = partial.TAKERS.get(algorithm, partial.ALL)
        given = self.quorum if algorithm in partial.TAKERS else None
        return replace(self, quorum=default if given is None else given)

    def in_time(self, workers: int) -> float:
        """The share of the ranks whose work is in a round."""
        return partial.in_time(self.quorum, workers, self.noise)

    def __post_init__(self) -> None:
        number("--progress-share", self.progress, high=1.0)
        number("--slowdown", self.slowdown)
        number("--noise", self.noise)


class StepCost(NamedTuple):
    """Mean seconds of one step, by cause."""

    compute_s: float
    exposed_s: float  # communication that computation did not hide
    slowed_s: float  # computation slowed by communication in flight
    noise_s: float  # waiting for the slowest rank

    @property
    def step_s(self) -> float:
        """All causes together."""
        return sum(self)

    def effective_s(self, share: float) -> float:
        """Of an effective step, where this `share` of the steps is; infinite where none is."""
        return self.step_s / share if share else inf

    def hidden_share(self, tau: int, allreduce_s: float) -> float | None:
        """Of an all-reduce every `tau` steps, what computation hides; None where it takes none."""
        return max(0.0, 1 - self.exposed_s * tau / allreduce_s) if allreduce_s else None


class Rhythm(NamedTuple):
    """`parts` averages of 1/parts of x each, every `tau` steps, needed `delay` steps later;
    `pairs`: over two ranks, not all."""

    tau: int
    delay: int
    parts: int = 1
    pairs: bool = False


class Bucket(NamedTuple):
    """Gradients sent together: seconds after the step's start when ready, and their bytes."""

    ready_s: float
    nbytes: float


def delay_rule(step_s: float, allreduce_s: float, workers: int) -> int:
    """The smallest d with t_c <= d t_p, at least 1; 0 for one worker (DaSGD paper; tau = d+1).

    Raises UsageError for t_p = 0, negative times and values that are not finite.
    """
    check_times(step_s, allreduce_s)
    if whole("workers", workers) == 1:
        return 0
    return max(1, ceil(allreduce_s / step_s - RULE_TOLERANCE))


def check_times(step_s: float, allreduce_s: float) -> None:
    """UsageError unless t_p > 0 and t_c >= 0, both finite, with a finite quotient."""
    number("step time t_p", step_s, open_low=True)
    number("all-reduce time t_c", allreduce_s)
    if not allreduce_s / step_s < MOST_DELAY:
        allowed = f"too small beside the all-reduce time of {allreduce_s:g} s"
        raise UsageError("step time t_p", step_s, allowed)


def check_delay(tau: int, delay: int) -> None:
    """UsageError unless tau >= 1 and 0 <= d <= tau."""
    whole("--tau", tau)
    whole("--delay", delay, low=0)
    if delay > tau:
        raise UsageError("--delay", delay, f"at most tau = {tau}; raise --tau or take auto")


def check_quorum(quorum: str | int | None, workers: int) -> None:
    """UsageError for more than there are."""
    if isinstance(quorum, int) and quorum > workers:
        raise UsageError("--quorum", quorum, f"at most the ranks, {workers}")


def check_merge(xi: float, merge: str) -> None:
    """UsageError for a share of the own parameters, or a merge, that there is not."""
    number("--xi", xi, high=1.0)
    among("--merge", merge, MERGES)


def iterations(samples: int, workers: int, local_batch: int) -> int:
    """Steps of one epoch: ceil(samples / (workers * local batch))."""
    return -(-samples // (workers * local_batch))


def averaging_cost(
    step_s: float,
    allreduce_s: float,
    workers: int,
    tau: int = 1,
    delay: int = 0,
    conditions: Conditions | None = None,
    pairs: bool = False,
) -> StepCost:
    """One step of an algorithm that averages every tau steps and merges d steps later; `pairs`:
    over two ranks, so that noise is waited for of one other.

    (tau, d) = (1, 0) is mini-batch SGD, (tau, 0) local SGD. For d > tau (a model only: the
    network port is serial) the stall is that of d = tau. Raises UsageError for bad times.
    """
    check_times(step_s, allreduce_s)
    conditions = conditions or Conditions()
    waits = partial.needed(conditions.quorum, workers)
    window = min(delay, tau) * step_s
    background = conditions.progress * allreduce_s
    slow = conditions.slowdown
    stall = max(0.0, background - window * (1 + slow))
    slowed = slow * min(window, background / (1 + slow))
    noise = 0.0
    if conditions.noise > 0 and workers > 1:
        if delay == 0 and waits != workers:
            steps = partial.begins(conditions.quorum, workers, conditions.noise, tau)
            noise = step_s * (steps - tau) / tau
        else:
            noise = _noise_wait(step_s, allreduce_s, workers, tau, delay, conditions, pairs)
    exposed = (allreduce_s - background + stall) / tau
    return StepCost(step_s, exposed, slowed / tau, noise)


def rhythm(algorithm: str, tau: int, delay: int) -> Rhythm:
    """What averages `algorithm` has, of those that may have these. `post-local`: once it is local;
    before, it is `minibatch`. `easgd` needs an average when the next one begins; those of `gossip`
    are of pairs."""
    if algorithm == "easgd":
        return Rhythm(tau, tau)
    if algorithm == "gossip":
        return Rhythm(tau, delay, pairs=True)
    if algorithm in ("dasgd", "streaming-diloco"):
        return Rhythm(tau, delay, FRAGMENTS if algorithm == "streaming-diloco" else 1)
    return Rhythm(1, 0) if algorithm.startswith("minibatch") else Rhythm(tau, 0)


def rhythm_cost(
    step_s: float,
    part_s: float,
    workers: int,
    rhythm: Rhythm,
    conditions: Conditions | None = None,
) -> StepCost:
    """One step of an algorithm with such averages, each of which takes `part_s` on a port that is
    free when it begins. Raises UsageError for bad times."""
    tau, delay, parts, pairs = rhythm
    cost = averaging_cost(step_s, part_s, workers, tau, delay, conditions, pairs)
    return cost._replace(exposed_s=cost.exposed_s * parts, slowed_s=cost.slowed_s * parts)


def buckets(step: StepTime, message_bytes: float, bucket_bytes: float) -> list[Bucket]:
    """The gradients of `step` in backward order, cut as soon as a bucket is full.

    `message_bytes` is the whole gradient; the layers share it by their parameters.
    """
    number("--bucket", bucket_bytes, open_low=True)
    per_parameter = message_bytes / step.parameters
    result: list[Bucket] = []
    clock, filled = step.forward_s, 0.0
    for layer in reversed(step.layers):
        clock += layer.backward_s
        filled += layer.parameters * per_parameter
        if filled >= bucket_bytes:
            result.append(Bucket(clock, filled))
            filled = 0.0
    if filled > 0:
        result.append(Bucket(clock, filled))
    return result


def even_buckets(step_s: float, nbytes: float, count: int, backward: float) -> list[Bucket]:
    """`count` equal buckets that become ready evenly over the last `backward` share of a step:
    for a step whose layers are unknown."""
    first = step_s * (1 - backward)
    return [
        Bucket(first + step_s * backward * (i + 1) / count, nbytes / count) for i in range(count)
    ]


def overlap_cost(
    step_s: float,
    ready_s: float,
    parts: Sequence[Bucket],
    allreduce_s: Callable[[float], float],
    workers: int,
    conditions: Conditions | None = None,
) -> StepCost:
    """One step of mini-batch SGD with its buckets all-reduced in turn during backward.

    ready_s: seconds when backward ends (the update follows the last bucket). allreduce_s:
    seconds of an all-reduce of so many bytes. Raises UsageError for bad times.
    """
    conditions = conditions or Conditions()
    costs = [allreduce_s(part.nbytes) for part in parts]
    check_times(step_s, sum(costs))
    port = 0.0
    for part, cost in zip(parts, costs, strict=True):
        port = max(port, part.ready_s) + conditions.progress * cost
    stall = max(0.0, port - ready_s)
    hidden = max(0.0, conditions.progress * sum(costs) - stall)
    exposed = (1 - conditions.progress) * sum(costs) + stall
    slowed = conditions.slowdown / (1 + conditions.slowdown) * hidden
    noise = 0.0
    if conditions.noise > 0 and workers > 1:
        noise = _noise_wait(step_s, 0.0, workers, 1, 0, conditions)
    return StepCost(step_s, exposed, slowed, noise)


def _noise_wait(
    step_s: float, allreduce_s: float, workers: int, tau: int, delay: int, conditions: Conditions,
    pairs: bool = False,
) -> float:  # fmt: skip
    """Mean seconds a step waits for slower ranks, beyond the stall of equal ranks: a seeded
    simulation of every rank's clock, as an average is ready t_c after its last rank started; or,
    of a quorum, after so many have, where the others skip what they have not done."""
    generator = np.random.default_rng(0)
    variance = np.log1p(conditions.noise**2)
    shape = (NOISE_ROUNDS, tau, workers)
    factors = generator.lognormal(-variance / 2, np.sqrt(variance), shape)
    pending = conditions.progress * allreduce_s
    waits = partial.needed(conditions.quorum, workers)
    drawn = generator.integers(workers, size=NOISE_ROUNDS)
    if waits != workers:
        steps = step_s * factors
        took = _mean_round(steps, pending, min(delay, tau), waits, drawn)
        return took / tau - step_s - max(0.0, pending - min(delay, tau) * step_s) / tau
    noisy = _mean_wait(step_s * factors, pending, min(delay, tau), pairs)
    equal = max(0.0, pending - min(delay, tau) * step_s)
    return max(0.0, noisy - equal) / tau


def _mean_round(
    steps: np.ndarray, flight_s: float, delay: int, waits: int, drawn: np.ndarray
) -> float:
    """Mean seconds of a round of `steps` [round, step of the round, rank] that begins when so many
    ranks have come, or with 0 the one that is drawn for it; who has not come skips the rest."""
    before, after = steps[:, :delay].sum(axis=1), steps[:, delay:].sum(axis=1)
    clock = np.zeros(steps.shape[2])
    began = []
    for r in range(len(steps)):
        began.append(np.sort(clock)[waits - 1] if waits else clock[drawn[r]])
        clock = np.maximum(np.minimum(clock, began[r]) + before[r], began[r] + flight_s) + after[r]
    half = len(began) // 2
    return float(began[-1] - began[half]) / (len(began) - 1 - half)


def _mean_wait(steps: np.ndarray, flight_s: float, delay: int, pairs: bool = False) -> float:
    """Mean seconds a rank waits in a round. `steps`: seconds [round, step of the round, rank];
    `pairs`: for whom it meets in that round, not for all.

    A round starts with an average; the rank merges it `delay` steps later. The first half is
    left out: ranks that rarely wait drift apart until they do.
    """
    rounds = len(steps)
    before, after = steps[:, :delay].sum(axis=1), steps[:, delay:].sum(axis=1)
    clock = np.zeros(steps.shape[2])
    waits = []
    for r in range(rounds):
        last = np.maximum(clock, clock[partners(0, r, clock.size)]) if pairs else clock.max()
        ready = last + flight_s
        clock = clock + before[r]
        merged = np.maximum(clock, ready)
        waits.append(float((merged - clock).mean()))
        clock = merged + after[r]
    return float(np.mean(waits[rounds // 2 :]))


def gradient_bytes(parameters: int) -> float:
    """Bytes of an fp32 gradient."""
    return float(parameters * FLOAT_BYTES)
