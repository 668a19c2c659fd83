"""Mini-batch SGD first, Local SGD after it (Lin et al. 2020, arXiv 1808.07217)."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

from mpisgd.algorithms.options import Tau
from mpisgd.values.options import whole

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker


def post_local(
    worker: "Worker",
    tau: Tau = 4,
    *,
    switch: Annotated[int, whole(0), "steps of mini-batch SGD before local ones [half of all]"],
) -> Generator[None, None, None]:
    """`minibatch` up to step `switch`, then `local`: 0 is `local`, as many as all is `minibatch`,
    both to the bit. K steps take K t_p + (switch + floor((K - switch)/tau)) t_c.
    """
    gradients = worker.mean(worker.gradient, in_place=True)
    average = worker.mean(worker.parameters)
    for k in worker.steps():
        yield from worker.compute_gradient(weighted=k <= switch)
        if k <= switch:
            gradients.start()
            yield from gradients.wait()
        worker.update(worker.gradient.flat)
        if k > switch and (k - switch) % tau == 0:
            average.start(worker.share(tau))
            worker.set_parameters((yield from average.wait()))
        yield from worker.end_step()
