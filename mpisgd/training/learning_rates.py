"""Learning rates as functions of the step: k = 1 .. steps -> rate; who takes them, by name."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from mpisgd.values.errors import UsageError
from mpisgd.values.registry import resolve

OPTIMISERS = {
    "sgd": "mpisgd.training.optimisers:SGD",
    "rmsprop": "mpisgd.training.optimisers:RMSProp",
    "lars": "mpisgd.training.lars:LARS",
}
SCHEDULES = {
    "constant": "mpisgd.training.learning_rates:constant",
    "one-cycle": "mpisgd.training.learning_rates:one_cycle",
    "linear-tail": "mpisgd.training.learning_rates:linear_tail",
    "exponential": "mpisgd.training.learning_rates:exponential",
    "geometric": "mpisgd.training.learning_rates:geometric",
    "step-decay": "mpisgd.training.learning_rates:step_decay",
}


def schedule(name: str, rate: float, steps: int, **options: Any) -> Callable[[int], float]:
    """The schedule `name` as a function of the step k, for k = 1 .. steps.

    Options left None take their defaults. Raises UsageError for an unknown name or option, a rate
    that is not finite or is negative, and options outside their range.
    """
    function = resolve(SCHEDULES, name, "--schedule")
    require(math.isfinite(rate) and rate >= 0, "--lr", rate, "a finite number >= 0")
    require(steps >= 0, "--steps", steps, "a whole number >= 0")
    chosen = keywords(function, options, f"--schedule {name}")
    function(1, rate, steps, **chosen)  # a wrong option is a mistake now, not at the first step
    return lambda k: function(k, rate, steps, **chosen)


def constant(k: int, rate: float, steps: int) -> float:
    """`rate` at every step."""
    return rate


def one_cycle(k: int, rate: float, steps: int, start: float = 1e-4, share: float = 0.3) -> float:
    """Linear from `start` up to `rate` over the first `share` of the steps, linear back to `start`.

    The recipe of the DaSGD paper (1e-4 -> 1e-2 -> 1e-4). `start` at k = 1 and k = steps.
    """
    lowest = f"at least {start:g}, the start of the one-cycle schedule"
    require(start <= rate, "--lr", rate, lowest)
    require(start >= 0, "the schedule's start", start, f"between 0 and the rate {rate}")
    require(0 < share <= 1, "the schedule's share", share, "in (0, 1]")
    peak = max(1, round(share * steps))
    if k <= peak:
        weight = (k - 1) / (peak - 1) if peak > 1 else 1.0
    else:
        weight = (steps - k) / (steps - peak)
    return min(rate, weight * rate + (1 - weight) * start)  # rounding can lift it above


def linear_tail(k: int, rate: float, steps: int, share: float = 0.4) -> float:
    """`rate`, then linear to 0 (reached at the last step) over the last `share` of the steps.

    Chen et al. on MNIST: the last 10 of 25 epochs.
    """
    require(0 <= share <= 1, "the schedule's share", share, "in [0, 1]")
    tail = round(share * steps)
    return rate * min(1.0, (steps - k) / tail) if tail else rate


def exponential(
    k: int, rate: float, steps: int, factor: float = 0.94, period: float | None = None
) -> float:
    """`rate` times `factor` ** ((k - 1) / period).

    `period` in steps; by default steps / 40, so that 0.084 of the rate is left at the end with the
    default factor. Chen et al. use two epochs: 0.94 ** (t N B / (2 |X|)).
    """
    require(0 < factor <= 1, "the schedule's factor", factor, "in (0, 1]")
    length = max(1, steps) / 40 if period is None else period
    require(length > 0, "the schedule's period", length, "a number of steps > 0")
    return rate * factor ** ((k - 1) / length)


def geometric(k: int, rate: float, steps: int, share: float = 0.03) -> float:
    """From `rate` at k = 1 by equal factors to `share` of it at k = steps.

    Chen et al. on CIFAR-10: PixelCNN's 1e-4 comes down to 3e-6 in 200,000 steps.
    """
    require(0 < share <= 1, "the schedule's share", share, "in (0, 1]")
    return rate * share ** ((k - 1) / max(1, steps - 1))


def step_decay(k: int, rate: float, steps: int, factor: float = 0.1) -> float:
    """`rate` times `factor` after 1/3, again after 2/3, and after 8/9 of the steps.

    Goyal et al. 2017 (arXiv 1706.02677) on ImageNet: after 30, 60 and 80 of 90 epochs.
    """
    require(0 < factor <= 1, "the schedule's factor", factor, "in (0, 1]")
    return rate * factor ** sum(9 * (k - 1) >= ninths * steps for ninths in (3, 6, 8))


def warmed_up(rate: Callable[[int], float], warm_up: int, start: float) -> Callable[[int], float]:
    """`rate`, come to in equal steps from `start` at step `warm_up` (Goyal et al. 2017, section
    2.2: from the rate of one worker to that of all)."""

    def warmed(k: int) -> float:
        full = rate(k)
        return full if k >= warm_up else start + (full - start) * k / warm_up

    return warmed


def require(holds: bool, place: str, value: object, allowed: str) -> None:
    """UsageError unless `holds`. Comparisons with NaN are false, so NaN never passes."""
    if not holds:
        raise UsageError(place, value, allowed)


def keywords(target: Callable, options: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The options that are not None; UsageError for one that `target` does not take.

    An option that is accepted and changes nothing would be a silent mistake.
    """
    known = {
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.default is not parameter.empty
    }
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in known:
            have = f"its options are {', '.join(sorted(known))}" if known else "it has no options"
            raise UsageError(f"{place} does not take the option", name, have)
    return given
