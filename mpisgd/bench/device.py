"""Fixed work on a device with looks meanwhile: the host queues products and has nothing to do."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from allreduce import arrays
from allreduce.waiting import wait_for

LEAST_S = 2e-5  # of a product, so that the device works and does not wait for launches
LARGEST = 4096
TRIES = 5
DEADLINE_S = 60.0


class DeviceGemm:
    """Products of two square matrices on a device, on the stream that is current there, for about
    `seconds`. The looks are spread over that time; then their end is waited for.

    `seconds` (a list): of each call so far, by the device's own clock.
    """

    def __init__(self, module: Any, dimension: int, seconds: float, piece_s: float):
        self.pieces = max(1, round(seconds / piece_s))
        self.expected_s = self.pieces * piece_s
        values = np.random.default_rng(0).standard_normal((2, dimension, dimension), np.float32)
        self._module = module
        self._left, self._right = (module.asarray(value) for value in values)
        self._product = module.empty((dimension, dimension), np.float32)
        self._memory = arrays.of(self._product)
        self._first, self._last = module.cuda.Event(), module.cuda.Event()
        self.seconds: list[float] = []

    def __call__(self, look: Callable[[], None], looks: int) -> None:
        began = time.perf_counter()
        self._first.record()
        for _ in range(self.pieces):
            self._module.matmul(self._left, self._right, out=self._product)
        self._last.record()
        done = self._memory.fence()
        for number in range(1, looks + 1):
            moment = began + self.expected_s * number / (looks + 1)
            time.sleep(max(0.0, moment - time.perf_counter()))
            look()
        assert done is not None
        wait_for(done, lambda: "the device does not end its work", DEADLINE_S)
        elapsed = self._module.cuda.get_elapsed_time(self._first, self._last)
        self.seconds.append(elapsed / 1e3)

    @classmethod
    def calibrate(cls, module: Any) -> tuple[int, float]:
        """The dimension at which a product takes LEAST_S at least, and its seconds."""
        dimension = 64
        while True:
            work = cls(module, dimension, 10.0, 1.0)
            for _ in range(TRIES):
                work(lambda: None, 0)
            piece_s = min(work.seconds) / work.pieces
            if piece_s >= LEAST_S or dimension >= LARGEST:
                return dimension, max(piece_s, 1e-7)
            dimension *= 2
