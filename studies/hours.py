"""The study of hours and epochs: `python studies/hours.py run` trains, `figures` makes the page.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-hours/runs.jsonl, and skips those.

Asynchronous updates against synchronous ones with backups, 53, 106 and 212 workers with 17, 27 and
37 servers, after Chen et al. 2016 (arXiv 1604.00981), Section 4.2: epochs and hours to a target. A
small network learns; steps take Inception's time, and a message that of Inception's share. Cells of
part `epochs` learn with one server and letters that take no time, cells of part `time` take the
seconds of a few steps with all servers, cells of part `whole` do both at once. The last two are of
ranks that share the ports of machines of eight; with `, own` after the part each rank has a port.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from command import Ledger, add_mnist, run_missing, study
from mnist_cnn import TEST_SHARE
from runs import Run, made_with, parts, significant
from settling import judged, run_wanted
from stragglers import STEP_S, TAIL

from allreduce.network import network
from mpisgd import data
from mpisgd.data import Dataset
from mpisgd.predict import nets
from mpisgd.predict.nets.language import parameters

Cell = Mapping[str, Any]

SAMPLES = 10_240
EPOCHS, BATCH, UNITS = 3, 2, 32
EVALUATIONS, JUDGED = 20, 5_000  # how often in a run, and on how many images
TIMED = 6  # steps whose seconds are taken
TUNING, SEEDS, FEW = (101,), (1, 2, 3, 4, 5), (1, 2, 3)
SERVERS = {53: 17, 106: 27, 212: 37}
BACKUPS = {53: 3, 106: 6, 212: 12}  # a gradient in eighteen: the recipe's choice, not the paper's
KINDS = ("backup", "async")
NAMES = [f"{kind}, {workers}" for workers in SERVERS for kind in KINDS]
MEMORY = 0.05  # of the run, which the moving average looks back
CLUSTER = "eth20-pcie3"
SHARED, OWN = "", ", own"  # ranks in order on machines of eight, or each on a machine of its own
OURS = 784 * UNITS + UNITS + UNITS * 10 + 10
INCEPTION = parameters(nets.layers("inception3"))
FIXED = {
    "model": "mlp", "hidden": (UNITS,), "data": "mnist", "batch": BATCH, "optimiser": "rmsprop",
    "rmsprop_decay": 0.9, "momentum": 0.9, "epsilon": 1.0, "rate_schedule": "exponential",
    "colocated": True, "step_time_s": STEP_S, "straggler": TAIL,
}  # fmt: skip


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with the validation samples as test set, the same with the true one)."""
    found = parts(data.load("mnist", path, held_back=TEST_SHARE), JUDGED, SAMPLES)
    return found[0], judged_by(found[1], JUDGED)


def judged_by(dataset: Dataset, images: int) -> Dataset:
    """The data set with its first test images alone."""
    inputs, targets = dataset.test_inputs[:images], dataset.test_targets[:images]
    return replace(dataset, test_inputs=inputs, test_targets=targets)


def scaled(ports: str) -> str:
    """CLUSTER, so much slower that our network's messages take as long there as Inception's do on
    CLUSTER itself. Ports SHARED: machines of eight ranks in order, so that the first machines have
    all servers; OWN: every rank has a machine, and so no server shares its port with another."""
    found = network(CLUSTER)
    if ports == OWN:
        found = found.with_(ranks_per_node=1, uplink_Bps=math.inf)
    named: dict[str, float] = {
        key: getattr(found, key) * OURS / INCEPTION
        for key in ("bandwidth_Bps", "uplink_Bps", "node_bandwidth_Bps")
    }
    named["ranks_per_node"] = found.ranks_per_node
    pairs = ",".join(f"{key}={value:.6g}" for key, value in named.items())
    return f"preset={CLUSTER},name=inception-scaled,{pairs}"


def split(name: str) -> tuple[str, int]:
    """(algorithm, workers)."""
    kind, workers = name.split(", ")
    return kind, int(workers)


def gradients(name: str) -> int:
    """Used in a step: of all workers but the backups."""
    kind, workers = split(name)
    return workers - (BACKUPS[workers] if kind == "backup" else 0)


def cell(part: str, name: str, rate: float, seed: int) -> Cell:
    return {"part": part, "name": name, "rate": rate, "seed": seed}


def rate_of(ledger: Ledger, name: str) -> tuple[list[float], float | None]:
    """(rates that are judged, the best once it is no edge), by the validation loss of the averaged
    parameters at the end. The search begins at 0.1 over the gradients that async does not average.
    """
    start = 0.1 if name.startswith("backup") else significant(0.1 / gradients(name))
    return judged(ledger, start, partial(cell, "epochs", name), TUNING, "ema_loss")


def wanted(ledger: Ledger, name: str) -> list[Cell]:
    """The runs of part `epochs` that can be made now: those that judge rates, then results."""
    rates, rate = rate_of(ledger, name)
    if rate is None:
        return [cell("epochs", name, one, seed) for one in rates for seed in TUNING]
    return [cell("epochs", name, rate, seed) for seed in SEEDS]


def timed(name: str, ports: str) -> list[Cell]:
    """The runs of part `time`: the rate changes nothing in them."""
    return [cell("time" + ports, name, 0.0, seed) for seed in FEW]


def whole(ledger: Ledger, ports: str) -> list[Cell]:
    """The runs of part `whole`: the least number of workers, the first seed."""
    found = [(name, rate_of(ledger, name)[1]) for name in NAMES[: len(KINDS)]]
    return [cell("whole" + ports, name, rate, SEEDS[0]) for name, rate in found if rate is not None]


def steps_of(name: str) -> int:
    """Steps of EPOCHS epochs."""
    return round(EPOCHS * SAMPLES / (BATCH * gradients(name)))


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    name, steps = of["name"], steps_of(of["name"])
    kind, workers = split(name)
    updates = steps * (workers if kind == "async" else 1)
    given = FIXED | {"algorithm": kind, "rate": of["rate"], "seed": of["seed"], "servers": 1}
    given |= {"steps": steps, "evaluate_every": steps // EVALUATIONS}
    given |= {"ema": significant(1 - 1 / (MEMORY * updates))}
    given |= {"backups": BACKUPS[workers]} if kind == "backup" else {}
    if of["part"] != "epochs":
        ports = OWN if of["part"].endswith(OWN) else SHARED
        given |= {"network": scaled(ports), "servers": SERVERS[workers]}
    return given | ({"steps": TIMED, "evaluate_every": 0} if is_timed(of) else {})


def is_timed(of: Cell) -> bool:
    """Of part `time`, whatever the ports."""
    return str(of["part"]).startswith("time")


COLUMNS = ("step", "time_s", "samples_used", "samples_computed", "loss", "ema_loss", "ema_accuracy")


def run_cell(of: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run: of tuning seeds evaluations on the validation samples, of
    the others on the test samples, which choose nothing."""
    dataset = datasets[0 if of["seed"] in TUNING else 1]
    if is_timed(of):
        dataset = judged_by(dataset, 1)
    run = Run(values(of), split(of["name"])[1], dataset)
    failure = run.finish()
    columns = run.columns(*(COLUMNS[:2] if is_timed(of) else COLUMNS))
    result: dict[str, Any] = dict(columns)
    if failure:
        result["failure"] = failure
    else:
        used = run.result.updates["used"] == 1
        ages = run.result.updates["staleness"][used]
        result |= {"staleness": significant(float(ages.mean())), "used": significant(used.mean())}
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)

    def one(of: Cell) -> dict[str, Any]:
        return run_cell(of, datasets)

    run_wanted(NAMES, lambda name: wanted(ledger, name), ledger, one)
    for ports in (OWN, SHARED):
        run_missing([of for name in NAMES for of in timed(name, ports)], ledger, one)
        run_missing(whole(ledger, ports), ledger, one)


def main() -> int:
    from hours_pages import write

    return study(__doc__, "study-hours", run, write, add_mnist)


if __name__ == "__main__":
    sys.exit(main())
