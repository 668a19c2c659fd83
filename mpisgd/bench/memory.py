"""Where what is reduced lies: on the host, or on a device, whose memory MPI takes or does not."""

import argparse
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from allreduce.collectives import CARRIERS, carrier
from allreduce.measure import Barrier, gather
from mpisgd.bench.operations import MOCK_UPS
from mpisgd.experiment.backends import BACKENDS
from mpisgd.mpi import aware, devices, session
from mpisgd.mpi.aware import Awareness
from mpisgd.values.errors import UsageError

TIMED = 20  # calls by the device's clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say so."""
    add = parser.add_argument
    add("--backend", choices=BACKENDS, default="numpy", help="whose arrays [numpy]")
    add("--device", metavar="N", help="with cupy: which of the devices that this "
        "rank sees; auto: its number on its node modulo how many these are [auto]")  # fmt: skip
    add("--cuda-aware", choices=aware.CHOICES, default="auto", help="whether device memory goes to "
        "MPI as it is, else through the host; auto: if the library says so and a process of its "
        "own proves it [auto]")  # fmt: skip


class Memory(NamedTuple):
    """The module of the arrays, whether MPI takes its memory, and on which device each rank is."""

    module: Any
    awareness: Awareness
    devices: tuple[str, ...] = ()

    @classmethod
    def of(cls, comm: Any, chosen: Any) -> "Memory":
        """As the settings say, the same on all ranks but for the device; ranks meet here."""
        module = devices.module_of(chosen.backend, chosen.device)
        if module is np:
            return cls(np, Awareness(False, "nothing lies on a device"))
        bus = module.cuda.Device().pci_bus_id
        names = session.texts(comm, f"{devices.host()} {bus}", chosen.deadline_s)
        awareness = aware.decide(chosen.cuda_aware, comm, module, chosen.deadline_s)
        return cls(module, awareness, tuple(names))

    @property
    def on_device(self) -> bool:
        return self.module is not np

    def words(self, name: str) -> str:
        """For a column, of the all-reduce `name`."""
        aware = self.awareness.aware or (name not in MOCK_UPS and not carrier(name).host)
        return f"device, {'as it is' if aware else 'staged'}"

    def facts(self) -> dict[str, Any]:
        """For the file."""
        if not self.on_device:
            return {}
        own = {"device_of_each_rank": list(self.devices)}
        return devices.facts(self.module) | self.awareness.facts() | own

    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        if not self.on_device:
            return []
        found = [f"device memory goes {self._way()}: {self.awareness.why}"]
        return found + devices.shared(self.devices)

    def by_device(
        self, comm: Any, name: str, run: Callable[[], object], most: int, deadline: float
    ) -> dict[str, Any]:
        """More columns of a row: what the device's own clock says of `run`, which is `name`, in
        TIMED calls, but no more than `most`."""
        if not self.on_device:
            return {}
        seconds = device_seconds(comm, self.module, run, min(TIMED, most), deadline)
        return {"memory": self.words(name), "device_s": seconds}

    def _way(self) -> str:
        return "to MPI as it is" if self.awareness.aware else "through pinned memory of the host"

    def possible(self, comm: Any, names: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
        """Those all-reduces that can work on it, and a line for each of the others.

        The same on all ranks, which meet here. UsageError if none is left.
        """
        names, left, notes = list(names), [], []
        for name in names:
            if why := self._refusal(comm, name):
                notes.append(f"{name}: {why}")
            else:
                left.append(name)
        if not left:
            raise UsageError("--algorithms", ",".join(names), "; ".join(notes))
        return tuple(left), [f"without {note}" for note in notes]

    def _refusal(self, comm: Any, name: str) -> str:
        if name not in MOCK_UPS:
            return carrier(name).refusal(comm, name, self.module, self.awareness.aware)
        if self.on_device and not self.awareness.aware:
            return "it is the library's, which gets no device memory here"
        return ""


def default(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What `all` means: on the host nothing that needs a device."""
    return tuple(n for n, row in CARRIERS.items() if row.host or arguments.backend != "numpy")


def device_seconds(
    comm: Any, module: Any, run: Callable[[], object], calls: int, deadline: float
) -> float:
    """Seconds of a call by the device's clock, from an event recorded before it to one after it:
    the median over `calls` of the slowest rank's."""
    first, last, own = module.cuda.Event(), module.cuda.Event(), []
    with Barrier(comm, deadline) as barrier:
        for _ in range(calls):
            barrier()
            first.record()
            run()
            last.record()
            last.synchronize()
            own.append(module.cuda.get_elapsed_time(first, last) / 1e3)
    return float(np.median(gather(comm, own, deadline).max(axis=0)))
