"""The exact bits of an all-reduce, in one process: all ranks' vectors, round by round."""

from collections.abc import Sequence

import numpy as np

from allreduce.arrays import WIDE, too_narrow
from allreduce.errors import ScheduleError
from allreduce.schedule import Schedule, bounds


def evaluate(schedule: Schedule, vectors: Sequence[np.ndarray], *, mean: bool = False) -> None:
    """All-reduce `vectors` (one 1-D array a rank, equal length and dtype) in place.

    The same additions in the same order as a Plan on as many ranks, hence the same bits.
    ScheduleError if the vectors do not fit the schedule. As there, a mean of float16 is of sums in
    float32.
    """
    shapes = {(vector.shape, vector.dtype) for vector in vectors}
    if len(vectors) != schedule.size or len(shapes) > 1 or vectors[0].ndim != 1:
        raise ScheduleError(
            f"{schedule.name} needs {schedule.size} equal vectors, got {len(vectors)}: {shapes}"
        )
    if mean and too_narrow(vectors[0].dtype):
        wide = [vector.astype(WIDE) for vector in vectors]
        evaluate(schedule, wide, mean=True)
        for vector, result in zip(vectors, wide, strict=True):
            vector[...] = result
        return
    edges = bounds(vectors[0].size, schedule.segments).tolist()
    for transfers in schedule.rounds:
        written = set(transfers["destination"].tolist())
        moves = []
        for source, destination, low, high, reduce in transfers.tolist():
            begin, end = edges[low], edges[high]
            payload = vectors[source][begin:end]
            # A round reads the values from before it: keep what this round may overwrite.
            moves.append(
                (
                    vectors[destination][begin:end],
                    payload.copy() if source in written else payload,
                    reduce,
                )
            )
        for target, payload, reduce in moves:
            if reduce:
                np.add(target, payload, out=target)
            else:
                target[...] = payload
    if mean:
        for vector in vectors:
            np.divide(vector, vector.dtype.type(schedule.size), out=vector)
