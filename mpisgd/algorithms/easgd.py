"""Elastic averaging (Zhang, Choromanska, LeCun 2015, arXiv 1412.6651)."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

from mpisgd.algorithms.options import Tau
from mpisgd.values.options import number

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker


def easgd(
    worker: "Worker",
    tau: Tau = 4,
    elasticity: Annotated[float, number(0, 1), "share of the way that the centre goes"] = 0.9,
) -> Generator[None, None, None]:
    """Every tau steps x^j <- x^j - beta/M (x^j - c) and c <- c + beta (mean x - c), both from the
    old values: a spring between each rank and a centre c, which all ranks keep alike.

    beta = `elasticity`; 0 leaves ranks alone. c is needed at the next round only, so that K steps
    take K t_p + floor(K/tau) max(0, t_c - tau t_p). Memory: two more copies of the parameters.
    """
    average = worker.mean(worker.parameters)
    centre = worker.keep("centre", worker.parameters.flat)
    for k in worker.steps():
        yield from worker.compute_gradient()
        worker.update(worker.gradient.flat)
        if k % tau == 0:
            if average.in_flight:
                mean = yield from average.wait()
                centre += elasticity * (mean - centre)
            average.start(worker.share(tau))
            worker.merge(spring, centre, None, elasticity / worker.size)
        yield from worker.end_step()


def spring(parameters, centre, started, share: float) -> None:
    """x <- x - share (x - c)."""
    parameters -= share * (parameters - centre)
