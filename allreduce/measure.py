"""How all-reduces are timed: what a sample is, when there are enough, what is said of them.

A *sample* is the seconds one rank spent in one call. All ranks leave a barrier (dissemination, by
polling, without a sleep), read their clocks, call, and read them again; the time of a repetition
is the largest over ranks. What the ranks have measured is exchanged between batches only, and what
comes next is a function of what all of them then know: nobody stops alone, nobody starts late.
"""

import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from allreduce.algorithms import build
from allreduce.errors import AllreduceError, Stalled
from allreduce.lowering import TAGS_PER_PLAN
from allreduce.phases import Exchange, Peer
from allreduce.plan import LOOKS_PER_CLOCK, SPINS, Plan

BARRIER_TAG, GATHER_TAG = 125, 126  # of plans that nobody else may have in flight meanwhile
EXACT = {"float16": 2**11, "float32": 2**24, "float64": 2**53}  # integers up to here are exact
OUTSIDE = 100  # deadlines of ranks that take no part in what others do meanwhile
PERIOD = 1021  # of the values along a vector: a prime, so that no segment looks like another


@dataclass(frozen=True)
class Rule:
    """When there are enough repetitions.

    At least `minimum`; then until the interval of every median is within `tolerance` (a share of
    the median) to either side, or `maximum` is reached, or `budget_s` seconds are over.
    """

    minimum: int = 20
    maximum: int = 2000
    budget_s: float = 1.0
    tolerance: float = 0.02
    warm_up: int = 5

    def more(self, seconds: np.ndarray, elapsed_s: float) -> int:
        """How many repetitions to add to `seconds` [operation, repetition, rank]; 0: enough.

        Never more than there are, so that the end is looked for often enough.
        """
        done = seconds.shape[1]
        if done < self.minimum:
            return self.minimum - done
        affordable = int((self.budget_s - elapsed_s) * done / max(elapsed_s, 1e-9))
        if all(self.tight(samples) for samples in seconds):
            return 0
        return max(0, min(done, self.maximum - done, affordable))

    def tight(self, seconds: np.ndarray) -> bool:
        """Whether the interval of the median of one operation is as small as asked."""
        found = summarise(seconds)
        return found.ci_high_s - found.ci_low_s <= 2 * self.tolerance * found.median_s


class Summary(NamedTuple):
    """What is said of samples; times are those of a repetition, the largest over ranks."""

    repetitions: int
    median_s: float
    p10_s: float
    p90_s: float
    ci_low_s: float
    ci_high_s: float
    p99_s: float
    skew_s: float  # median over repetitions of the slowest rank's time less the fastest's


def summarise(seconds: np.ndarray) -> Summary:
    """The summary of samples [repetition, rank]."""
    times = seconds.max(axis=1)
    p10, median, p90, p99 = np.quantile(times, (0.1, 0.5, 0.9, 0.99)).tolist()
    skew = float(np.median(times - seconds.min(axis=1)))
    return Summary(len(times), median, p10, p90, *median_interval(times), p99, skew)


def median_interval(values: Any, confidence: float = 0.95) -> tuple[float, float]:
    """An interval that holds the median with at least `confidence`, whatever the distribution.

    From the j-th smallest to the j-th largest value: the chance to miss is twice that of fewer
    than j heads in n tosses (Le Boudec, Performance Evaluation, 2010, section 2.2.2). (nan, nan)
    where even all values are too few: below 6 at 95 %.
    """
    ordered = np.sort(np.asarray(values))
    j = _tail(len(ordered), confidence)
    if j == 0:
        return math.nan, math.nan
    return float(ordered[j - 1]), float(ordered[-j])


@cache
def _tail(count: int, confidence: float) -> int:
    """The largest j with P(fewer than j heads in `count` tosses) <= (1 - confidence) / 2."""
    j, term, total = 0, 1, 1  # term = count choose j, total = their sum so far
    limit = (1 - confidence) / 2
    while total / 2**count <= limit:
        term = term * (count - j) // (j + 1)
        j += 1
        total += term
    return j


def osu(seconds: np.ndarray) -> dict[str, float]:
    """Seconds as the OSU benchmarks count: each rank's mean over repetitions, then over ranks."""
    means = seconds.mean(axis=0)
    return {
        "osu_avg_s": float(means.mean()),
        "osu_min_s": float(means.min()),
        "osu_max_s": float(means.max()),
    }


def algorithm_bandwidth(octets: int, seconds: float) -> float:
    """Bytes of the vector per second; nan for no time at all."""
    return octets / seconds if seconds > 0 else math.nan


def bus_bandwidth(octets: int, seconds: float, ranks: int) -> float:
    """Bytes per second that every link carries at least, for any algorithm: nan for one rank."""
    share = 2 * (ranks - 1) / ranks
    return algorithm_bandwidth(octets, seconds) * share if ranks > 1 else math.nan


def repeat(
    comm: Any, operations: Sequence[Callable[[], object]], rule: Rule, *, deadline: float = 60.0
) -> np.ndarray:
    """Seconds [operation, repetition, rank], equal on all ranks, of calls in turn.

    Every repetition calls each of the `operations` once, so that what drifts meanwhile strikes
    all alike. `rule.warm_up` calls of each come before and are not counted. All ranks call with
    equal arguments. Stalled, naming the peer, if a rank does not come within `deadline` seconds.
    """
    with Barrier(comm, deadline) as barrier:
        for _ in range(rule.warm_up):
            for operation in operations:
                barrier()
                operation()
        seconds = np.empty((len(operations), 0, comm.Get_size()))
        began, elapsed = time.perf_counter(), 0.0
        while batch := rule.more(seconds, elapsed):
            own = _batch(barrier, operations, batch)
            told = gather(comm, [*own.ravel(), time.perf_counter() - began], deadline)
            fresh = told[:, :-1].reshape(-1, *own.shape).transpose(1, 2, 0)
            seconds = np.concatenate([seconds, fresh], axis=1)
            elapsed = float(told[:, -1].max())
    return seconds


def _batch(
    barrier: "Barrier", operations: Sequence[Callable[[], object]], repetitions: int
) -> np.ndarray:
    """Own seconds [operation, repetition]. No garbage is collected meanwhile."""
    own = np.empty((len(operations), repetitions))
    clock, collecting = time.perf_counter, gc.isenabled()
    gc.disable()
    try:
        for repetition in range(repetitions):
            for number, operation in enumerate(operations):
                barrier()
                began = clock()
                operation()
                own[number, repetition] = clock() - began
    finally:
        if collecting:
            gc.enable()
    return own


def gather(comm: Any, values: Any, deadline: float = 60.0) -> np.ndarray:
    """Every rank's `values` (as many on each) as float64 [rank, value], on every rank."""
    own = np.asarray(values, np.float64)
    table = np.zeros((comm.Get_size(), own.size))
    table[comm.Get_rank()] = own
    schedule = build("tree", comm.Get_size())
    with Plan(comm, schedule, table, tag=GATHER_TAG, deadline=deadline) as plan:
        plan.start()
        plan.wait()
    return table


def held_up(comm: Any, deadline: float) -> None:
    """Until all have come, for OUTSIDE deadlines: some may have work that the others have not."""
    gather(comm, [0.0], OUTSIDE * deadline)


class Barrier:
    """Nobody leaves before all have come: in round k, a byte to rank + 2^k from rank - 2^k.

    Hensgen, Finkel, Manber 1988. A rank that waits polls, and yields its core after a while; it
    never sleeps, or it would leave late.
    """

    def __init__(self, comm: Any, deadline: float = 60.0):
        rank, size = comm.Get_rank(), comm.Get_size()
        self.rank, self.deadline = rank, deadline
        self._octets = np.zeros(2, np.uint8)
        self._rounds: list[Exchange] = []
        while (distance := 1 << len(self._rounds)) < size:
            number = len(self._rounds)
            to, by = (rank + distance) % size, (rank - distance) % size
            tag = BARRIER_TAG * TAGS_PER_PLAN + number
            requests = [
                comm.Recv_init(self._octets[:1], by, tag),
                comm.Send_init(self._octets[1:], to, tag),
            ]
            peers = [Peer("receive from", by, number, 1), Peer("send to", to, number, 1)]
            self._rounds.append(Exchange(requests, peers))

    def __call__(self) -> None:
        """Wait for all ranks. Stalled if some does not come in time."""
        for exchange in self._rounds:
            exchange.begin()
            looks = 0
            while not exchange.done():
                looks += 1
                if looks > SPINS:
                    os.sched_yield()
                    if not looks % LOOKS_PER_CLOCK:
                        self._check_deadline(looks, exchange)

    def _check_deadline(self, looks: int, exchange: Exchange) -> None:
        now = time.monotonic()
        if looks < SPINS + LOOKS_PER_CLOCK:
            self._since = now
        elif now - self._since > self.deadline:
            peers = ", ".join(str(peer.rank) for peer in exchange.pending())
            raise Stalled(
                f"rank {self.rank} has waited {now - self._since:.3g} s for rank {peers} in the "
                "barrier of a benchmark"
            )

    def __enter__(self) -> "Barrier":
        return self

    def __exit__(self, *_: object) -> None:
        for exchange in self._rounds:
            exchange.free()


class Overlap(NamedTuple):
    """How much of a communication was hidden behind fixed work; seconds, shares and percents.

    Exposed is what a rank spends besides its work: starting, and waiting when the work is over.
    """

    hidden: float  # 1 - exposed / communication
    osu_overlap_percent: (
        float  # 100 - 100 (together - compute) / communication, as the OSU benchmarks
    )
    imb_overlap_percent: (
        float  # 100 clip((communication + compute - together) / the smaller), as IMB
    )
    dilation: float  # the work beside the communication, looks included, over the work alone


def overlap(
    compute_s: float, communication_s: float, together_s: float, exposed_s: float
) -> Overlap:
    """From the seconds of work alone, communication alone, both at once, and of them exposed.

    IMB divides by the smaller of the two, since no more than that can be hidden; unlike the
    others it is kept within 0 and 100.
    """
    excess = (communication_s + compute_s - together_s) / min(communication_s, compute_s)
    return Overlap(
        1 - exposed_s / communication_s,
        100 - 100 * (together_s - compute_s) / communication_s,
        100 * min(1.0, max(0.0, excess)),
        (together_s - exposed_s) / compute_s,
    )


def trials(size: int, dtype: Any) -> int:
    """How many vectors it takes until any two of `size` ranks have differed in every element.

    AllreduceError if not even ones and twos of so many ranks add up exactly in `dtype`.
    """
    base = _base(size, np.dtype(dtype))
    return next(digits for digits in range(1, 65) if base**digits >= size)


def pattern(rank: int, size: int, count: int, dtype: Any, trial: int = 0) -> np.ndarray:
    """What `rank` contributes to validation number `trial`: small integers, exact in any order.

    Element i holds one digit of the rank's number, turned by an amount that depends on i, and one
    more, so that a rank left out is missed. In `trials(size, dtype)` vectors every element has
    shown every digit: so a rank left out is not made up for by one that is counted twice.
    """
    table = _digits(np.array([rank]), size, np.dtype(dtype), trial)[0]
    return np.resize(table.astype(dtype), count)


def wrong(result: np.ndarray, size: int, trial: int = 0) -> int:
    """How many elements of `result` are not the sum of all patterns of `trial`."""
    table = _digits(np.arange(size), size, result.dtype, trial).sum(axis=0)
    return int(np.count_nonzero(result != np.resize(table.astype(result.dtype), result.size)))


def _base(size: int, dtype: np.dtype) -> int:
    """The largest value: the sum of `size` of them is exact."""
    limit = EXACT.get(dtype.name) or int(np.iinfo(dtype).max)
    base = min(limit // size, 1000)
    if base < 2:
        raise AllreduceError(
            f"{size} ranks cannot be validated in {dtype}: sums are exact up to {limit} only"
        )
    return base


def _digits(ranks: np.ndarray, size: int, dtype: np.dtype, trial: int) -> np.ndarray:
    """One period of the patterns [rank, element]."""
    base, digits = _base(size, dtype), trials(size, dtype)
    index = np.arange(PERIOD * digits)
    digit = (index + trial) % digits
    turn = index % PERIOD * 617  # neighbours differ
    return (ranks[:, None] // base**digit + turn) % base + 1
