"""The exact bits of an all-reduce, in one process: all ranks' vectors, round by round."""

from collections.abc import Sequence

import numpy as np

from allreduce.arrays import HOST, summed_in
from allreduce.compress import compresses, compressor, memory
from allreduce.errors import ScheduleError
from allreduce.schedule import Schedule, bounds
from allreduce.wire import Coder, Wire


def evaluate(
    schedule: Schedule,
    vectors: Sequence[np.ndarray],
    *,
    mean: bool = False,
    wire: Wire | None = None,
    errors: Sequence[np.ndarray] | None = None,
) -> None:
    """All-reduce `vectors` (one 1-D array a rank, equal length and dtype) in place.

    The same additions in the same order as a Plan on as many ranks, hence the same bits.
    ScheduleError if the vectors do not fit the schedule. As there, a mean of float16 is of sums in
    float32; `wire`, `errors`: as of Plan, of each rank.
    """
    shapes = {(vector.shape, vector.dtype) for vector in vectors}
    if len(vectors) != schedule.size or len(shapes) > 1 or vectors[0].ndim != 1:
        raise ScheduleError(
            f"{schedule.name} needs {schedule.size} equal vectors, got {len(vectors)}: {shapes}"
        )
    wide = [summed_in(vector, mean, HOST) for vector in vectors]
    if wide[0] is not vectors[0]:
        for room, vector in zip(wide, vectors, strict=True):
            room[...] = vector
        evaluate(schedule, wide, mean=True, wire=wire, errors=errors)
        for vector, result in zip(vectors, wide, strict=True):
            vector[...] = result
        return
    if wire is not None and compresses(wire.format) and schedule.rounds:
        _evaluate_stages(schedule, vectors, mean, wire, errors)
        return
    edges = bounds(vectors[0].size, schedule.segments).tolist()
    coder = Coder(wire, edges, vectors[0].dtype) if wire and schedule.rounds else None
    if coder is not None and errors is not None:
        for vector, error in zip(vectors, errors, strict=True):
            coder.feed(vector, error)
    for transfers in schedule.rounds:
        if coder is not None:
            _round_what_is_sent(coder, transfers, vectors, edges)
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
    if coder is not None:
        for vector in vectors:
            coder.round(vector)
    if mean:
        for vector in vectors:
            np.divide(vector, vector.dtype.type(schedule.size), out=vector)


def _evaluate_stages(
    schedule: Schedule,
    vectors: Sequence[np.ndarray],
    mean: bool,
    wire: Wire,
    errors: Sequence[np.ndarray] | None,
) -> None:
    if errors is None:
        errors = [memory(wire, vector.size, vector.dtype) for vector in vectors]
    coders = [
        compressor(wire, schedule, rank, vector, error, mean)
        for rank, (vector, error) in enumerate(zip(vectors, errors, strict=True))
    ]
    for stages in zip(*(coder.stages for coder in coders), strict=True):
        for stage in stages:
            stage.prepare()
        evaluate(stages[0].schedule, [stage.vector for stage in stages], mean=stages[0].mean)
    for coder in coders:
        coder.finish()


def _round_what_is_sent(
    coder: Coder, transfers: np.ndarray, vectors: Sequence[np.ndarray], edges: list[int]
) -> None:
    spans = {(source, edges[low], edges[high]) for source, _, low, high, _ in transfers.tolist()}
    for source, begin, end in spans:
        octets = np.empty(coder.octets(begin, end), np.uint8)
        coder.send(vectors[source], begin, end, octets)
