"""Who trains on what: a permutation per epoch, cut into steps and the steps into ranks."""

from functools import lru_cache
from itertools import pairwise

import numpy as np

from mpisgd.values.errors import UsageError


class Sampler:
    """Deals `samples` training samples to `size` ranks, `batch` to each and step.

    Epoch e has the permutation that (seed, e) draws, the same on all ranks. Step s of an epoch
    (s = 0, 1, ..) takes its elements from s * size * batch to (s + 1) * size * batch, fewer in the
    epoch's last step, and cuts them into `size` contiguous pieces as even as can be: rank j gets
    those from j * n // size to (j + 1) * n // size of the n. So every sample is used once an epoch;
    a rank's batch can be smaller than `batch`, or empty, in the last step. Steps are counted from
    1, through all epochs. One rank with size * batch sees the same samples in the same steps.
    """

    def __init__(self, samples: int, size: int, batch: int, seed: int = 0):
        """Raises UsageError for a number below 1, and for a negative seed."""
        for place, value in (("samples", samples), ("ranks", size), ("--batch", batch)):
            if value < 1:
                raise UsageError(place, value, "a whole number >= 1")
        if seed < 0:
            raise UsageError("--seed", seed, "a whole number >= 0")
        self.samples, self.size, self.batch, self.seed = samples, size, batch, seed
        self.steps_per_epoch = -(-samples // (size * batch))

    def epoch(self, step: int) -> int:
        """The epoch, from 0, that `step`, from 1, belongs to."""
        return (step - 1) // self.steps_per_epoch

    def indices(self, step: int, rank: int) -> np.ndarray:
        """The samples of `rank` at `step`: (rows,) int64, 0 <= rows <= batch, read-only."""
        start, stop = self._bounds(step)
        count = stop - start
        low, high = count * rank // self.size, count * (rank + 1) // self.size
        return permutation(self.samples, self.seed, self.epoch(step))[start + low : start + high]

    def batch_sizes(self, step: int) -> tuple[int, ...]:
        """How many samples each rank has at `step`."""
        start, stop = self._bounds(step)
        count = stop - start
        cuts = [count * rank // self.size for rank in range(self.size + 1)]
        return tuple(high - low for low, high in pairwise(cuts))

    def share(self, rank: int, step: int, steps: int = 1) -> float:
        """What the samples of `rank` count in a mean over ranks: its part of those of the `steps`
        steps up to `step`, times the number of ranks; 1 where all ranks have as many."""
        first, epoch = max(1, step - steps + 1), self.steps_per_epoch
        if step // epoch == (first - 1) // epoch:
            return 1.0  # no epoch ends here, and elsewhere batches are full
        ends = range(-(-first // epoch) * epoch, step + 1, epoch)
        full = (step - first + 1 - len(ends)) * self.batch
        sizes = [full + sum(last) for last in zip(*map(self.batch_sizes, ends), strict=True)]
        return sizes[rank] * self.size / sum(sizes) if len(set(sizes)) > 1 else 1.0

    def samples_until(self, step: int) -> int:
        """Samples that all ranks together have used when `step` is done."""
        return self.epoch(step) * self.samples + self._bounds(step)[1] if step > 0 else 0

    def _bounds(self, step: int) -> tuple[int, int]:
        """Where the global batch of `step` lies in its epoch's permutation."""
        start = (step - 1) % self.steps_per_epoch * self.size * self.batch
        return start, min(start + self.size * self.batch, self.samples)


# Shared by the ranks of one process, of which some may be in the next epoch already.
@lru_cache(maxsize=2)
def permutation(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the samples in `epoch`: (samples,) int64, read-only."""
    order = np.random.default_rng((seed, epoch)).permutation(samples)
    order.flags.writeable = False
    return order
