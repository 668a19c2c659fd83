"""Outer Nesterov steps on what the average has moved (Douillard et al. 2023, arXiv 2311.08105), and
the same by fragments while training goes on (Douillard et al. 2025, arXiv 2501.18512)."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Any

from mpisgd.algorithms.merges import MERGES
from mpisgd.algorithms.options import Delay, OuterMomentum, OuterRate, Tau, Xi
from mpisgd.values.options import whole

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Run = Generator[None, None, None]


def diloco(
    worker: "Worker", tau: Tau = 4, outer_momentum: OuterMomentum = 0.9, outer_rate: OuterRate = 0.7
) -> Run:
    """tau local steps from x_t, then v <- mu v + (x_t - mean); x_{t+1} = x_t - alpha (x_t - mean +
    mu v). mu = `outer_momentum`, alpha = `outer_rate`; mu = 0, alpha = 1 is `local`, to the bit.

    K steps take K t_p + floor(K/tau) t_c, and the memory of two more copies of the parameters.
    """
    average = worker.mean(worker.parameters)
    begun = worker.keep("begun", worker.parameters.flat)
    velocity = worker.keep("velocity", worker.parameters.like().flat)
    for k in worker.steps():
        yield from worker.compute_gradient()
        worker.update(worker.gradient.flat)
        if k % tau == 0:
            average.start(worker.share(tau))
            mean = yield from average.wait()
            step_out(mean, begun, velocity, outer_momentum, outer_rate)
            worker.set_parameters(mean)
        yield from worker.end_step()


def streaming(
    worker: "Worker", tau: Tau = 4, delay: Delay = 1, xi: Xi = 0.5,
    fragments: Annotated[int, whole(1, 64), "parts that are averaged in turn"] = 2,
    outer_momentum: OuterMomentum = 0.9, outer_rate: OuterRate = 0.7,
) -> Run:  # fmt: skip
    """`diloco` on each of `fragments` equal parts of x, in phases tau/fragments apart, each outer
    step merged `delay` steps after its average began: x <- xi x + (1 - xi) x_outer.

    One fragment, mu = 0, alpha = 1 is `dasgd`, to the bit. A message is 1/fragments as large; K
    steps take K t_p + floor(K/tau) fragments max(0, t_c(1/fragments) - delay t_p), or more where
    averages of several fragments are in flight. Memory as of `diloco`, and the averages.
    """
    parts = worker.parameters.parts(fragments)
    averages = [worker.mean(part) for part in parts]
    begun = [worker.keep(f"begun {p}", part.flat) for p, part in enumerate(parts)]
    velocity = [worker.keep(f"velocity {p}", part.like().flat) for p, part in enumerate(parts)]
    for k in worker.steps():
        yield from worker.compute_gradient()
        worker.update(worker.gradient.flat)
        for p, average in enumerate(averages):
            phase = k - p * tau // fragments
            begins = phase > 0 and phase % tau == 0
            if begins and delay < tau:
                average.start(worker.share(tau))
            if phase > delay and (phase - delay) % tau == 0:
                mean = yield from average.wait()
                step_out(mean, begun[p], velocity[p], outer_momentum, outer_rate)
                worker.merge(MERGES["convex"], mean, None, xi, parts[p].flat)
            if begins and delay == tau:
                average.start(worker.share(tau))
        yield from worker.end_step()


def step_out(mean: Any, begun: Any, velocity: Any, momentum: float, rate: float) -> None:
    """x <- begun - rate (moved + momentum velocity), in place of `mean`, from where the next one
    begins. What is 0 is left out, so that the mean keeps its bits."""
    moved = begun - mean
    if rate != 1:
        mean += (1 - rate) * moved
    if momentum:
        velocity *= momentum
        velocity += moved
        mean -= rate * momentum * velocity
    begun[...] = mean
