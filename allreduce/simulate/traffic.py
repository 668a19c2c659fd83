"""What a cluster carries: collectives and single messages, each with the noise it will meet."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from allreduce.errors import AllreduceError
from allreduce.network import Network
from allreduce.schedule import Schedule
from allreduce.simulate.columns import lognormal
from allreduce.simulate.program import Program, Sizes, prepare, single
from allreduce.simulate.records import Collective, Message

_SINGLE = 2**32 - 1  # the noise of messages that belong to no collective


class Traffic:
    """Makes what goes over `network`, with `ranks` ranks on it, from one of `processes` to another.

    A collective's noise depends on `seed` and on how many were made, `made` before included; that
    of single messages on both, and on how many of them there were.
    """

    def __init__(
        self, network: Network, ranks: int, processes: Sequence[int], seed: int, made: int
    ):
        self.network, self.ranks, self.processes = network, ranks, processes
        self._seed, self._made = seed, count(made)
        self._single = np.random.default_rng([seed, _SINGLE, made])
        self._programs: dict[tuple, Program] = {}  # of single messages
        self._played: WeakKeyDictionary[Schedule, dict[tuple, Program]] = WeakKeyDictionary()

    def collective(
        self,
        schedule: Schedule,
        nbytes: Sizes,
        **how: Any,
    ) -> Collective:
        """An all-reduce of `nbytes` bytes, to be started by each rank; `how`: as of `prepare`."""
        size = len(self.processes)
        if schedule.size != size:
            raise AllreduceError(f"{schedule.name} is for {schedule.size} ranks, not {size}")
        key, programs = (nbytes, *how.items()), self._played.setdefault(schedule, {})
        if key not in programs:
            programs[key] = prepare(schedule, nbytes, self.network, **how)
        program = programs[key]
        generator = np.random.default_rng([self._seed, next(self._made)])
        factors = lognormal(generator, self.network.noise, len(program.source)).tolist()
        return Collective(program, factors, schedule.name)

    def message(
        self, source: int, destination: int, nbytes: int, put: Callable[[float], object]
    ) -> Message:
        """One between two processes; `put` is called when it comes."""
        key = (source, destination, nbytes)
        if key not in self._programs:
            self._programs[key] = single(*key, self.network, self.processes, self.ranks)
        noise = self.network.noise
        factor = float(lognormal(self._single, noise, 1)[0]) if noise else 1.0
        return Message(self._programs[key], 0, factor, None, put)
