"""Averages of pairs instead of all: gossip (Lian et al. 2018, AD-PSGD, arXiv 1710.06952)."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from mpisgd.algorithms.merges import MERGES
from mpisgd.algorithms.options import Delay, Tau

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker


def gossip(worker: "Worker", tau: Tau = 4, delay: Delay = 1) -> Generator[None, None, None]:
    """Every tau steps the seed draws pairs anew; i and j meet, and `delay` steps later, after the
    update, x^i <- x^i + (s^i + s^j)/2 - s^i, s what they held when they met; one rank meets nobody
    where ranks are odd. The mean of all ranks is kept, and no work lost.

    Two ranks with `delay` 0 are `local`. A rank waits for whom it meets, and for nobody else. With
    t_1 the seconds of a message of all parameters, one each way, K steps take
    K t_p + floor((K-delay)/tau) max(0, t_1 - delay t_p).
    """
    pair = worker.pairs(worker.parameters)
    merge = MERGES["delta" if delay else "overwrite"]
    for k in worker.steps():
        yield from worker.compute_gradient()
        worker.update(worker.gradient.flat)
        if k % tau == 0 and delay < tau:
            pair.meet(k // tau)
        if k > delay and (k - delay) % tau == 0:
            mean = yield from pair.wait()
            worker.merge(merge, mean, pair.started, 0.0)
        if k % tau == 0 and delay == tau:
            pair.meet(k // tau)
        yield from worker.end_step()
