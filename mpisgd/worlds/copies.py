"""What evaluations need of a rank, kept while the run goes on: nothing waits for them."""

import os
from collections import deque
from typing import IO, NamedTuple

import numpy as np

from allreduce import arrays
from mpisgd.models.statistics import moments
from mpisgd.training.worker import Worker

LIMIT = 1 << 28  # bytes that a rank keeps in memory; what is more goes to a file in TMPDIR


class Snapshot(NamedTuple):
    """A rank as it was at the end of a step.

    `equal`: all ranks hold the same parameters; `signals`: for those of a mean, see mean.CONTROL;
    `training`: sum of the losses of its batches since the last evaluation, and of their samples;
    `arrays`: parameters, the moving average of them (empty if there is none), moments of
    normalising layers. All are flat.
    """

    step: int
    time_s: float
    equal: bool
    signals: tuple[bool, bool, bool]
    training: tuple[float, int]
    arrays: tuple[np.ndarray, ...]


def snapshot(worker: Worker, time_s: float, signals: tuple[bool, bool, bool]) -> Snapshot:
    """Of the worker as it is: its arrays are live, or what they are now on a device."""
    ema = np.zeros(0) if worker.ema is None else worker.ema.average
    parts = (worker.parameters.flat, ema, moments(worker.model))
    return Snapshot(
        worker.step, time_s, worker.equal, signals, (worker.loss_sum, worker.loss_samples),
        tuple(arrays.of(part).get(part) for part in parts),
    )  # fmt: skip


class Copies:
    """Snapshots, first in, first out: in memory up to `limit` bytes, then in a file.

    The file has no name, so that nothing is left of it however the process ends.
    """

    def __init__(self, limit: int = LIMIT):
        self.limit = limit
        self._kept: deque[tuple[Snapshot, list[tuple[int, np.dtype]]]] = deque()
        self._in_memory = self._read_to = 0  # bytes; up to where the file was read
        self._file: IO[bytes] | None = None  # the arrays of the last of them, in order

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, live: Snapshot) -> None:
        """Copy it. OSError if there is no room."""
        size = sum(array.nbytes for array in live.arrays)
        if self._file is None and self._in_memory + size <= self.limit:
            self._in_memory += size
            arrays = tuple(array.copy() for array in live.arrays)
            self._kept.append((live._replace(arrays=arrays), []))
        else:
            self._write(live.arrays)
            layout = [(array.size, array.dtype) for array in live.arrays]
            self._kept.append((live._replace(arrays=()), layout))

    def take(self) -> Snapshot:
        """The oldest one, which is kept no longer."""
        oldest, layout = self._kept.popleft()
        if layout:
            oldest = oldest._replace(arrays=tuple(self._read(*each) for each in layout))
        if not self._kept:
            self.clear()
        return oldest

    def clear(self) -> None:
        """Keep none."""
        self._kept.clear()
        self._in_memory = self._read_to = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, arrays: tuple[np.ndarray, ...]) -> None:
        import tempfile

        folder = tempfile.gettempdir()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._file.seek(0, os.SEEK_END)
            for array in arrays:
                array.tofile(self._file)
        except OSError as error:
            what = f"{error.strerror or error}: parameters to evaluate later; --evaluate during"
            raise OSError(error.errno, f"{what} keeps none", folder) from None

    def _read(self, size: int, dtype: np.dtype) -> np.ndarray:
        assert self._file is not None
        self._file.seek(self._read_to)
        array = np.fromfile(self._file, dtype, size)
        self._read_to += array.nbytes
        return array
