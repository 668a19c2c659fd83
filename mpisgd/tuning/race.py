"""Which of several all-reduces is the fastest: a race from which who is beaten drops out.

All that are left are called in turn, so that what else goes on strikes all alike. After a glance
those fall out whose best try took twice as long as the worst of the fastest; then those whose 99 %
interval lies above the leader's. That happens within each class of contenders (our schedules, the
library's calls that can be polled, its blocking one and its algorithms): not everybody may use the
fastest of all. It is over when the order of the leaders is beyond doubt, or when taking one for the
other costs less than the tolerance; or when time is up.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from allreduce.measure import Rule, gather, median_interval, repeat

GLANCE = 3  # repetitions
HOPELESS = 2.0
CONFIDENCE = 0.99  # of a single comparison: there are many
LEAST = 8  # repetitions that such an interval takes


class Contender(NamedTuple):
    """`run` is one call; `before`: what is called before each, and not timed; `close` gives back
    what it holds. `kind`: its class."""

    algorithm: str
    chunks: int
    kind: str
    run: Callable[[], object]
    close: Callable[[], object]
    before: Callable[[], object] | None = None


class Result(NamedTuple):
    """`seconds` [repetition, rank] of each contender; `settled`: whether the order of the leaders
    is known, or does not matter."""

    seconds: list[np.ndarray]
    settled: bool


def race(comm: Any, contenders: Sequence[Contender], rule: Rule, deadline: float) -> Result:
    """Race them; all ranks of `comm` call it with equal arguments, and learn the same. All are
    closed in the end. `rule.minimum` is at least LEAST."""
    seconds = [np.empty((0, comm.Get_size())) for _ in contenders]
    left = list(range(len(contenders)))
    began, elapsed, batch, settled = time.perf_counter(), 0.0, GLANCE, False
    while not settled and left:
        for number, fresh in zip(
            left, _in_turn(comm, [contenders[i] for i in left], batch, deadline), strict=True
        ):
            seconds[number] = np.concatenate([seconds[number], fresh])
        elapsed = float(gather(comm, [time.perf_counter() - began], deadline).max())
        kinds = _classes(contenders, left)
        stay = sorted(i for group in kinds for i in surviving(seconds, group))
        for number in set(left) - set(stay):
            contenders[number].close()
        left, done = stay, len(seconds[left[0]])
        leaders = [min(group, key=lambda i: _times(seconds[i])[0]) for group in kinds]
        within = [[i for i in group if i in left] for group in kinds]
        settled = done >= LEAST and all(
            known(seconds, group, rule.tolerance) for group in (*within, leaders)
        )
        if done >= rule.maximum or (done >= rule.minimum and elapsed > rule.budget_s):
            break
        batch = max(1, min(rule.minimum, rule.maximum - done))
    for number in left:
        contenders[number].close()
    return Result(seconds, settled)


def surviving(seconds: Sequence[np.ndarray], group: Sequence[int]) -> list[int]:
    """Those of the `group` that may yet be its fastest."""
    if min(len(seconds[i]) for i in group) < LEAST:
        each = {i: seconds[i].max(axis=1) for i in group}
        limit = HOPELESS * min(times.max() for times in each.values())
        return [i for i in group if each[i].min() <= limit]
    found = {i: _times(seconds[i]) for i in group}
    _, _, high = min(found.values())
    return [i for i in group if found[i][1] <= high]


def known(seconds: Sequence[np.ndarray], group: Iterable[int], tolerance: float) -> bool:
    """Whether the fastest of the `group` is known, or taking it costs `tolerance` at most."""
    (_, low, high), *others = sorted(_times(seconds[i]) for i in group)
    return all(each[1] > high or each[2] <= low * (1 + tolerance) for each in others)


def _times(seconds: np.ndarray) -> tuple[float, float, float]:
    """The median of the slowest rank's times, and its interval."""
    times = seconds.max(axis=1)
    return float(np.median(times)), *median_interval(times, CONFIDENCE)


def _classes(contenders: Sequence[Contender], left: Sequence[int]) -> list[list[int]]:
    kinds = dict.fromkeys(contenders[i].kind for i in left)
    return [[i for i in left if contenders[i].kind == kind] for kind in kinds]


def _in_turn(
    comm: Any, contenders: Sequence[Contender], batch: int, deadline: float
) -> list[np.ndarray]:
    """Seconds [repetition, rank] of each; what comes before calls is called as one of them."""
    operations, timed = [], []
    for contender in contenders:
        if contender.before is not None:
            operations.append(contender.before)
        timed.append(len(operations))
        operations.append(contender.run)
    rule = Rule(minimum=batch, maximum=batch, budget_s=0.0, warm_up=1)
    seconds = repeat(comm, operations, rule, deadline=deadline)
    return [seconds[number] for number in timed]
