"""Mini-batch SGD whose rounds wait for some of the ranks (Li et al. 2020, "Taming unbalanced
training workloads in deep learning with partial collective operations", arXiv 1908.04207)."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

from mpisgd.values.options import one_of, or_word, whole

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Run = Generator[None, None, None]
_RANKS = or_word(or_word(or_word(whole(1), "solo"), "majority"), "all")
Quorum = Annotated[str | int, _RANKS, "ranks that a round waits for: the first, one drawn, all"]
Late = Annotated[str, one_of(("drop", "add")), "what becomes of a gradient that misses its round"]


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
