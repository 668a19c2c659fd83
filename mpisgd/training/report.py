"""What a step tells the host of a device: its loss, and whether all is finite."""

from typing import Any

import numpy as np

from allreduce.arrays import Device, Poll

LOSS, GRADIENT, PARAMETERS = range(3)


class Report:
    """A few numbers of the device that come to the host by one small copy behind a step's gradient.

    Nobody waits for them: they are there when the gradient is. What the end of the step before had
    to say, whether its parameters were finite, comes along.
    """

    def __init__(self, memory: Device):
        self.memory = memory
        self._there = memory.zeros(3, np.dtype(float))
        self._here = memory.pinned(3, np.dtype(float))
        self.waits = False  # for what `finite(PARAMETERS, ..)` has noted

    def begin(self) -> None:
        """What a step has to tell: of its gradient, nothing bad yet."""
        self._there[GRADIENT] = 1.0

    def put(self, number: int, value: Any) -> None:
        """A number, or an array () of the device."""
        self._there[number] = value

    def finite(self, number: int, flat: Any) -> None:
        """Whether all of `flat` is; of a gradient, if all its parts so far were."""
        fine = self.memory.module.isfinite(flat).all()
        self._there[number] = fine * self._there[number] if number == GRADIENT else fine
        self.waits = self.waits or number == PARAMETERS

    def send(self) -> Poll:
        """On its way; whether it, and all that was queued before it, is done."""
        self.memory.to_host(self._here, self._there)
        return self.memory.fence()

    def read(self) -> tuple[float, bool, bool]:
        """(loss, gradient finite, parameters of the step before finite), once it is there."""
        before, self.waits = self.waits, False
        loss, gradient, parameters = self._here.tolist()
        return loss, gradient == 1.0, not before or parameters == 1.0

    def parameters(self) -> bool:
        """What `finite(PARAMETERS, ..)` has noted last, waited for."""
        self.waits = False
        return bool(self._there[PARAMETERS] == 1.0)
