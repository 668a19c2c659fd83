"""The three algorithms of the DaSGD paper (Zhou et al. 2020, arXiv 2006.00441).

x_k^j are the parameters of rank j after step k, g the mean gradient of its batch, M the number of
ranks, eta the learning rate, t_p the seconds of a step, t_c those of an all-reduce. The paper's
batches are all of one size. Where those of an epoch's last step are not, gradients count by their
samples, and averaged models by the samples of the tau steps before.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

from mpisgd.algorithms.merges import MERGES
from mpisgd.algorithms.options import Delay, Merge, Tau, Xi

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Run = Generator[None, None, None]


def minibatch(worker: "Worker") -> Run:
    """x_k = x_{k-1} - eta/M sum_j g(x_{k-1}; batch_j). K steps take K (t_p + t_c).

    All ranks hold the same x. Batches of different sizes count by their samples.
    """
    average = worker.mean(worker.gradient, in_place=True)
    for _ in worker.steps():
        yield from worker.compute_gradient(weighted=True)
        average.start()
        worker.update((yield from average.wait()))
        yield from worker.end_step()


def local(worker: "Worker", tau: Tau = 4) -> Run:
    """tau local steps, then x <- mean over ranks. K steps take K t_p + floor(K/tau) t_c."""
    average = worker.mean(worker.parameters)
    for k in worker.steps():
        yield from worker.compute_gradient()
        worker.update(worker.gradient.flat)
        if k % tau == 0:
            average.start(worker.share(tau))
            worker.set_parameters((yield from average.wait()))
        yield from worker.end_step()


def dasgd(
    worker: "Worker",
    tau: Tau = 4,
    delay: Delay = 1,
    xi: Xi = 0.25,
    merge: Merge = "convex",
) -> Run:
    """The average of x_k, k = 0 mod tau, is merged `delay` local steps later, after the update:
    x_k = xi y_k + (1 - xi) mean_m x_{k-delay}^m, y_k the parameters after the step's own update.

    K steps take K t_p + floor((K-delay)/tau) max(0, t_c - delay t_p). With delay = 0 an average is
    merged where it starts; with delay = tau it is merged before the next one starts.
    """
    average = worker.mean(worker.parameters, keep_started=True)
    for k in worker.steps():
        yield from worker.compute_gradient()
        worker.update(worker.gradient.flat)
        if k % tau == 0 and delay < tau:
            average.start(worker.share(tau))
        if k > delay and (k - delay) % tau == 0:
            mean = yield from average.wait()
            worker.merge(MERGES[merge], mean, average.started, xi)
        if k % tau == 0 and delay == tau:
            average.start(worker.share(tau))
        yield from worker.end_step()
