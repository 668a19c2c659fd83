"""Mini-batch SGD whose communication hides behind the backward pass: the baseline to beat."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

from mpisgd.values.options import size

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker


# A message of n bytes wastes 1 / (1 + n / (alpha / beta)) of its time on latency; alpha / beta is
# 62 kB at 25 us and 20 Gbps, so here about a fifth. Larger ones would leave the small nets that
# CPUs train with nothing to overlap.
BUCKET = 1 << 18

Bucket = Annotated[int, size(), "gradients all-reduced together while backward goes on [256K]"]


def overlap(worker: "Worker", bucket_bytes: Bucket = BUCKET) -> Generator[None, None, None]:
    """x_k = x_{k-1} - eta/M sum_j g(x_{k-1}; batch_j), the gradient averaged bucket by bucket,
    each from the moment when backward has it (Li et al. 2020, PyTorch Distributed, arXiv
    2006.15704).

    The steps of `minibatch`. K of them take K times the later of t_p and of the end of the last
    bucket's all-reduce, which cannot begin before t_p: at least t_p + t_c(last bucket).
    """
    average = worker.buckets(bucket_bytes)
    for _ in worker.steps():
        yield from worker.compute_gradient(weighted=True, ready=average.ready)
        average.start()
        worker.update((yield from average.wait()))
        yield from worker.end_step()
