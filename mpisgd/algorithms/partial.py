"""Rounds that wait for some of the ranks (Li et al. 2020, "Taming unbalanced training workloads in
deep learning with partial collective operations", arXiv 1908.04207): mini-batch SGD, and what
`local` and `dasgd` do with `--quorum`."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from mpisgd.algorithms import averaging
from mpisgd.algorithms.merges import MERGES
from mpisgd.algorithms.options import Delay, Late, Merge, Quorum, Tau, Xi

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Run = Generator[None, None, None]


def partial(worker: "Worker", quorum: Quorum = "majority", late: Late = "drop") -> Run:
    """x_k = x_{k-1} - eta sum_{j in S_k} n_j g_j / sum_{j in S_k} n_j: S_k are the gradients that
    were there when round k began, of n_j samples, at x_{k-1}.

    A rank that hears of a round while it computes takes part without its gradient, and gives that
    up; or, with `late` = add, finishes it and brings it to the round that is then, beside that
    round's own. `quorum` = all is `minibatch`, to the bit. All ranks hold the same x.
    """
    rounds, steps = worker.rounds(quorum, late), worker.steps()

    def take_part() -> Run:
        rounds.start()
        worker.update((yield from rounds.wait()))

    def interrupted() -> Generator[None, None, bool]:
        if late == "drop":
            return False
        yield from take_part()
        if worker.pauses():
            return False
        yield from worker.end_step(**rounds.end())
        next(steps)
        return True

    for _ in steps:
        yield from rounds.compute_gradient(interrupted)
        if rounds.over < worker.step:
            yield from rounds.gather()
            yield from take_part()
        yield from worker.end_step(**rounds.end())


def local(
    worker: "Worker", tau: Tau = 4, quorum: Quorum | None = None, late: Late | None = None
) -> Run:
    """tau local steps, then x <- sum_{j in S} n_j x^j / sum_{j in S} n_j: S are the models that
    were there when the round began, of n_j samples since the last one.

    A rank that hears of a round before it has done its steps skips what is left of them, and takes
    the mean over. With `late` = drop its model is not in S; with add it is, as far as it has got,
    and the gradient under way is finished, and taken from the mean. No `quorum`: `averaging.local`.
    """
    if quorum in (None, "all", worker.size):
        return (yield from averaging.local(worker, tau))
    rounds = worker.model_rounds(tau, quorum, late)

    def meet() -> Run:
        if worker.step % tau == 0:
            rounds.start()
            worker.set_parameters((yield from rounds.wait()))

    for _ in rounds.steps:
        if (yield from rounds.compute_gradient(meet)):
            worker.update(worker.gradient.flat)
        yield from rounds.finish_step()


def dasgd(
    worker: "Worker", tau: Tau = 4, delay: Delay = 1, xi: Xi = 0.25, merge: Merge = "convex",
    quorum: Quorum | None = None, late: Late | None = None,
) -> Run:  # fmt: skip
    """`local`'s rounds, each merged `delay` steps after it began: x_k = xi y_k + (1 - xi) mean.

    Nobody waits before the merge: who has done its steps starts its part and computes on.
    No `quorum`: `averaging.dasgd`.
    """
    if quorum in (None, "all", worker.size):
        return (yield from averaging.dasgd(worker, tau, delay, xi, merge))
    rounds = worker.model_rounds(tau, quorum, late, keep_started=merge == "delta")

    def meet() -> Run:
        k = worker.step
        if k % tau == 0 and delay < tau:
            rounds.start()
        if k > delay and (k - delay) % tau == 0:
            mean = yield from rounds.wait(delay)
            worker.merge(MERGES[merge], mean, rounds.started, xi)
        if k % tau == 0 and delay == tau:
            rounds.start()

    for _ in rounds.steps:
        if (yield from rounds.compute_gradient(meet)):
            worker.update(worker.gradient.flat)
        yield from rounds.finish_step()
