"""Data sets where the parameters lie: copied to the device once if they fit there, else by batches,
of which the next is on its way while one is worked on."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from allreduce.arrays import Device, Host
from mpisgd.data import Dataset

SHARE = 4  # a data set may take this part of what is free on the device: others share it


@dataclass(frozen=True)
class There(Dataset):
    """A data set whose batches are arrays of `memory`; its own arrays are the host's."""

    memory: Any = None
    sent: list[Any] = field(default_factory=list)  # (indices, batch) of what is on its way

    def ahead(self, indices: np.ndarray) -> None:
        """The training samples of the next batch, which may be sent already."""


class Resident(There):
    """All of it lies there, from the first batch on."""

    def batch(self, indices: np.ndarray) -> tuple[Any, Any]:
        inputs, targets = self._kept[:2]
        places = self.memory.asarray(indices)
        return self._converted(inputs[places], targets[places])

    def test(self, low: int, high: int) -> tuple[Any, Any]:
        inputs, targets = self._kept[2:]
        return self._converted(inputs[low:high], targets[low:high])

    @cached_property
    def _kept(self) -> list[Any]:
        arrays = (self.train_inputs, self.train_targets, self.test_inputs, self.test_targets)
        return [self.memory.asarray(np.asarray(array)) for array in arrays]

    def _converted(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        targets = targets.astype(np.int64, copy=False)
        if self.scale == 1.0 and inputs.dtype == np.float32:
            return inputs, targets
        scale = np.float32(self.scale)
        return self.memory.module.multiply(inputs, scale, dtype=np.float32), targets


class Sent(There):
    """Each batch is sent, the next one beside the work on this one."""

    def batch(self, indices: np.ndarray) -> tuple[Any, Any]:
        known, batch = self.sent.pop() if self.sent else ([], None)
        if batch is None or not np.array_equal(known, indices):
            return self._send(self.memory, super().batch(indices))
        self.memory.follow(self._side)
        return batch

    def test(self, low: int, high: int) -> tuple[Any, Any]:
        return self._send(self.memory, super().test(low, high))

    def ahead(self, indices: np.ndarray) -> None:
        self.sent[:] = [(indices, self._send(self._side, super().batch(indices)))]

    @cached_property
    def _side(self) -> Any:
        return self.memory.beside()

    @staticmethod
    def _send(memory: Any, batch: tuple[np.ndarray, np.ndarray]) -> tuple[Any, Any]:
        return memory.asarray(batch[0]), memory.asarray(batch[1])


def there(dataset: Dataset, memory: Host) -> Dataset:
    """`dataset` for work in `memory`: itself on the host."""
    if not isinstance(memory, Device):
        return dataset
    values = {field.name: getattr(dataset, field.name) for field in fields(Dataset)}
    arrays = [value for value in values.values() if isinstance(value, np.ndarray)]
    fits = sum(array.nbytes for array in arrays) <= memory.free // SHARE
    return (Resident if fits else Sent)(**values, memory=memory)
