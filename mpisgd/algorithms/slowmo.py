"""Slow momentum on what the average has moved (Wang et al. 2020, arXiv 1910.00643)."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from mpisgd.algorithms.options import OuterMomentum, OuterRate, Tau

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker


def slowmo(
    worker: "Worker", tau: Tau = 4, outer_momentum: OuterMomentum = 0.5, outer_rate: OuterRate = 1.0
) -> Generator[None, None, None]:
    """tau local steps from x_t, then u <- beta u + (x_t - mean) / eta; x_{t+1} = x_t - alpha eta u.

    beta = `outer_momentum`, alpha = `outer_rate`, eta the rate of the first of the steps; where
    that is 0, u rests. beta = 0, alpha = 1 is `local`, to the bit: see `step_out`. K steps take
    K t_p + floor(K/tau) t_c, and the memory of two more copies of the parameters.
    """
    average = worker.mean(worker.parameters)
    begun = worker.keep("begun", worker.parameters.flat)
    slow = worker.keep("slow", worker.parameters.like().flat)
    for k in worker.steps():
        yield from worker.compute_gradient()
        worker.update(worker.gradient.flat)
        if k % tau == 0:
            average.start(worker.share(tau))
            mean = yield from average.wait()
            step_out(mean, begun, slow, worker.rate(k - tau + 1), outer_momentum, outer_rate)
            worker.set_parameters(mean)
        yield from worker.end_step()


def step_out(mean: Any, begun: Any, slow: Any, rate: float, beta: float, alpha: float) -> None:
    """x <- mean + (1 - alpha) (begun - mean) - alpha beta rate slow, the outer step, in place of
    `mean`, from where the next one begins. What is 0 is left out, so that the mean keeps its bits.
    """
    moved = begun - mean
    if alpha != 1:
        mean += (1 - alpha) * moved
    if beta:
        mean -= alpha * beta * rate * slow
        slow *= beta
        slow += moved / rate if rate else 0
    begun[...] = mean
