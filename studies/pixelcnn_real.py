"""PixelCNN on real ranks: a few steps of four workers and two servers under mpiexec, beside the
same on virtual ones. Synchronous runs without backups come to the same bits in both worlds."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, run_missing
from pages import flat
from pixelcnn import FIXED, Cell, Row
from runs import Run, last_evaluation, machine, significant, train

from mpisgd.data import Dataset
from mpisgd.experiment.building import load
from mpisgd.experiment.experiment import Experiment
from mpisgd.mpi.mpiexec import Launcher, find
from mpisgd.store.reader import read

RANKS, SERVERS, STEPS, RATE, SEED = 6, 2, 100, 6.4e-3, 1
KINDS: dict[str, dict[str, Any]] = {
    "sync, 4": {"algorithm": "backup", "backups": 0},
    "sync, 3 + 1": {"algorithm": "backup", "backups": 1},
    "async, 4": {"algorithm": "async", "rate": RATE / 16},
}
CELLS: list[Cell] = [{"real": name, "seed": SEED} for name in KINDS]


def values(name: str, path: str) -> dict[str, Any]:
    """The fields of the Experiment, for both worlds; `path`: the images."""
    virtual = ("network", "step_time_s", "straggler")
    shared = {key: value for key, value in FIXED.items() if key not in virtual}
    own = {"data": path, "steps": STEPS, "evaluate_every": 0, "rate": RATE, "seed": SEED}
    return shared | own | {"servers": SERVERS} | KINDS[name]


def run_cell(of: Cell, mpiexec: Launcher, dataset: Dataset) -> dict[str, Any]:
    """What the ledger keeps: loss and seconds of the real run, the loss of the virtual one, and
    whether their parameters have the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        images, result = f"{folder}/images.npz", Path(folder, "real.h5")
        names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
        np.savez(images, **{name: getattr(dataset, name) for name in names})
        given = values(of["real"], images)
        train(mpiexec, RANKS, given, result)
        last = last_evaluation(result)
        with read(result) as real:
            digest = real.summary["parameters_sha256"]
        virtual = Run(given, RANKS, load(Experiment.read(given)))
        failure = virtual.finish()
    assert not failure, failure
    return {
        "loss": [significant(last["loss"])], "time_s": [significant(last["time_s"])],
        "samples_used": [last["samples_used"]], "cpu_s": round(virtual.cpu_s, 2),
        "virtual_loss": significant(virtual.result.evaluation["loss"][-1]),
        "same_bits": digest == virtual.result.summary["parameters_sha256"],
    } | machine(mpiexec)  # fmt: skip


def rows(ledger: Ledger) -> list[Row]:
    """The table."""
    return [
        {
            "algorithm": line["real"], "MPI": line["mpi"], "bits per dimension": line["loss"][0],
            "virtual": line["virtual_loss"], "same bits": "yes" if line["same_bits"] else "no",
            "seconds": f"{line['time_s'][0]:.1f}",
        }
        for line in flat(ledger) if "real" in line
    ]  # fmt: skip


def run(ledger: Ledger, mpiexec: str | None, dataset: Dataset) -> None:
    found = find(mpiexec)
    run_missing(CELLS, ledger, lambda of: run_cell(of, found, dataset))
