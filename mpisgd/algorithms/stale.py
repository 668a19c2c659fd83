"""Stale gradients without servers: what staleness alone does (Chen et al. 2016, Section 2)."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

from mpisgd.values.options import whole

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker


def stale(
    worker: "Worker",
    staleness: Annotated[int, whole(0), "age of the gradients, in updates"] = 0,
    *,
    ramp: Annotated[int, whole(0), "steps in which staleness rises to that [3 epochs]"],
) -> Generator[None, None, None]:
    """x_k = x_{k-1} - eta/M sum_j g(x_{k-1-s}; batch_j), s rising to `staleness` in `ramp` steps.

    Mini-batch SGD whose gradients are s updates old; on one rank, the paper's serial emulation.
    Costs the memory of `staleness` more copies of the parameters.
    """
    average = worker.mean(worker.gradient, in_place=True)
    past = worker.keep("past", worker.parameters.rows(staleness + 1))
    for k in worker.steps():
        past[k % len(past)] = worker.parameters.flat
        age = min(k - 1, staleness * min(k - 1, ramp) // ramp if ramp else staleness)
        yield from worker.compute_gradient(weighted=True, at=past[(k - age) % len(past)], age=age)
        average.start()
        worker.update((yield from average.wait()))
        yield from worker.end_step()
