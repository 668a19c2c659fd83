"""Scaling to 256 workers, in time to an accuracy: `python studies/scaling.py run`, `figures`.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-scaling/runs.jsonl, and skips those.

Models after each step do not depend on what a step or an average takes. So `train` counts steps to
an accuracy once for all networks, `time` counts seconds of a step without learning anything, and
`check` is the whole at once for some, which has to agree with their product. Of parameter servers
the gradients' order may depend on the network: there `check` says how far that goes.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import settling
from command import Ledger, add_mnist, run_missing, study
from crossover import steps_to
from runs import Run, made_with, parts, significant
from wires import SMALL, SMALL_LAYERS

from allreduce.algorithms import build
from allreduce.network import Network, network
from allreduce.simulate import simulate
from mpisgd import data
from mpisgd.data import Dataset
from mpisgd.predict import epoch, nets, paleo
from mpisgd.predict.devices import DEVICES

Cell = Mapping[str, Any]

RANKS = (1, 4, 16, 64, 256)
WEAK_BATCH, STRONG_BATCH = 8, 1024  # samples of a worker's step; of all workers' together
SCALINGS = ("weak", "strong")
TAU = 4
DASGD = {"algorithm": "dasgd", "tau": TAU}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "mini-batch": {"algorithm": "minibatch"},
    "overlapped": {"algorithm": "minibatch-overlap", "bucket_bytes": SMALL},  # a quarter
    "Local": {"algorithm": "local", "tau": TAU},
    "DaSGD d=1": DASGD | {"delay": 1, "xi": 0.25},
    "DaSGD d=3": DASGD | {"delay": 3, "xi": 0.25},
    "delta d=3": DASGD | {"delay": 3, "merge": "delta"},
    "DiLoCo": {"algorithm": "diloco", "tau": TAU},
    "async": {"algorithm": "async", "colocated": True},
    "backup": {"algorithm": "backup", "colocated": True},
}
SERVED = ("async", "backup")  # by a server beside each worker, not by all-reduces
MOST_SERVED = 64  # workers; 256 would be 131,072 messages a step
BACKUPS = 16  # one worker in so many, and one at least
STRONG = ("mini-batch", "Local", "DaSGD d=3", "delta d=3", "DiLoCo")
LIKE = {"overlapped": "mini-batch"}  # to the same models
TIMED_LIKE = {"delta d=3": "DaSGD d=3", "DiLoCo": "Local"}  # in the same seconds a step
CLOCKED = ("overlapped", *SERVED)  # whose seconds of a step have no closed form here

# What is priced: ResNet-50 on TITAN X; one sample of the task stands for so many of its images.
NET, DEVICE, IMAGES, NBYTES = "resnet50", "titanx", 4, 102_000_000
NETWORKS = {
    "1 Gbit/s": "eth1-pcie3", "10 Gbit/s": "eth10-pcie3",
    "20 Gbit/s": "eth20-pcie3", "100 Gbit/s": "ib-edr-pcie3",
}  # fmt: skip
ALLREDUCES = ("tree", "butterfly", "halving-doubling")
ROUNDS = 3  # of tau steps, of which the last counts
# Of servers, an mlp 64-512-512-10, whose shards are long beside the headers of messages.
SHARDED, SHARDED_LAYERS = 301_066, (512, 512)

# What is trained: an mlp 784-32-10 of 25,450 parameters.
HIDDEN, PARAMETERS = 32, 25_450
VALIDATION, SAMPLES = 4_000, 50_000
TARGETS = (0.90, 0.93)  # validation accuracy; rates are tuned for the last
MOST = {1: 3000, 4: 1200, 16: 500, 64: 250, 256: 120}  # steps, weak; strong: of 256
EVERY = {1: 40, 4: 16, 16: 8, 64: 8, 256: 8}
TUNING, SEEDS = 101, (1, 2, 3)
CHECKED = 16  # workers
TIMED, TIMED_RANKS = ("10 Gbit/s", "100 Gbit/s"), 64
BUCKETS, BACKWARD = 4, 2 / 3  # of `overlapped`: so many, ready over the last share of a step


def batch(scaling: str, ranks: int) -> int:
    """Samples of a worker's step."""
    return WEAK_BATCH if scaling == "weak" else STRONG_BATCH // ranks


def compute_s(scaling: str, ranks: int) -> float:
    """t_p: seconds of a step of the priced network, by the model layer by layer."""
    images = IMAGES * batch(scaling, ranks)
    return float(paleo.step_time(nets.layers(NET), DEVICES[DEVICE], images).step_s)


@cache
def priced(name: str, allreduce: str, ranks: int, parts: int = 1) -> float:
    """t_c: simulated seconds of an average of the priced network, or of one of `parts` equal ones,
    with nothing beside it."""
    link = network(NETWORKS[name])
    schedule = build(allreduce, ranks, link.nodes(ranks))
    return float(simulate(schedule, NBYTES // parts, link, itemsize=4).max())


def step_s(name: str, scaling: str, ranks: int, link: str, allreduce: str) -> float:
    """Seconds of a step: the closed form, with simulated averages."""
    t_p, options = compute_s(scaling, ranks), ALGORITHMS[name]
    if name == "overlapped":
        quarter_s = priced(link, allreduce, ranks, BUCKETS)
        parts = epoch.even_buckets(t_p, NBYTES, BUCKETS, BACKWARD)
        return epoch.overlap_cost(t_p, t_p, parts, lambda _: quarter_s, ranks).step_s
    t_c, tau, delay = priced(link, allreduce, ranks), options.get("tau", 1), options.get("delay", 0)
    return epoch.averaging_cost(t_p, t_c, ranks, tau, delay).step_s


def slowed(name: str, parameters: int) -> str:
    """The network whose links are slower by as much as `parameters` are fewer bytes than NBYTES."""
    link: Network = network(NETWORKS[name])
    scale = 4 * parameters / NBYTES
    rates = ("bandwidth_Bps", "uplink_Bps", "node_bandwidth_Bps")
    pairs = [f"{rate}={getattr(link, rate) * scale!r}" for rate in rates]
    return ",".join([f"preset={link.name}", *pairs])


def cell(scaling: str, name: str, ranks: int, rate: float, seed: int) -> Cell:
    """A training run."""
    kind = {"kind": "train", "scaling": scaling, "name": name, "ranks": ranks}
    return kind | {"rate": rate, "seed": seed}


def score(line: Mapping[str, Any], most: int) -> float:
    """Steps to the last target; beyond all steps, by how far it is off, for a run that does not
    come to it."""
    if "failure" in line:
        return np.inf
    steps = steps_to(line, TARGETS[-1])
    best = max(line["evaluations"]["accuracy"])
    return steps if steps == steps else most * (2 - best)


def settled(
    ledger: Ledger, scaling: str, name: str, ranks: int
) -> tuple[list[float], float | None]:
    """The rates that are tried, and the one that has settled, if one has: see `settling`."""
    # Local steps are of a worker's few samples, whatever the number of workers.
    most = RANKS[-1] if name in ("mini-batch", "backup") else 16
    start = 0.0125 * (min(ranks, most) ** 0.5 if scaling == "weak" else 8.0)
    start = 0.0125 / ranks**0.5 if name == "async" else start  # an update is of one gradient

    def judged(rate: float) -> float | None:
        one = cell(scaling, name, ranks, rate, TUNING)
        return score(ledger[one], steps(scaling, ranks)) if one in ledger else None

    return settling.settled(start, judged)


def steps(scaling: str, ranks: int) -> int:
    """The most steps of a run; fewer where it comes to the last target."""
    return MOST[ranks if scaling == "weak" else RANKS[-1]]


def shown(scaling: str, ranks: int = 1) -> list[str]:
    """The algorithms of the tables, at that many workers."""
    names = list(ALGORITHMS if scaling == "weak" else STRONG)
    return [name for name in names if name not in SERVED or ranks <= MOST_SERVED]


def trained(scaling: str, ranks: int) -> list[str]:
    """The algorithms that are trained; one worker averages nothing, and mini-batch SGD with the
    same samples a step makes the same models on any number of them."""
    if ranks == 1:
        return ["mini-batch"]
    left_out = LIKE if scaling == "weak" else {**LIKE, "mini-batch": "of one worker"}
    return [name for name in shown(scaling, ranks) if name not in left_out]


def result_cells(
    ledger: Ledger, scaling: str, name: str, ranks: int, seeds: tuple[int, ...] = SEEDS
) -> list[Cell]:
    """The runs that count, once a rate has settled."""
    name = LIKE.get(name, name)
    ranks = 1 if (scaling, name) == ("strong", "mini-batch") else ranks
    _, rate = settled(ledger, scaling, name, ranks)
    return [] if rate is None else [cell(scaling, name, ranks, rate, seed) for seed in seeds]


def time_cell(name: str, ranks: int, link: str, allreduce: str) -> Cell:
    """A run that counts seconds of a step, weak scaling."""
    told = {"kind": "time", "scaling": "weak", "name": TIMED_LIKE.get(name, name), "ranks": ranks}
    return told | {"network": link, "allreduce": allreduce}


def time_cells() -> Iterator[Cell]:
    """To check the closed form, and all of what it does not tell well: several averages at once."""
    for ranks in RANKS[1:]:
        for link in NETWORKS:
            for allreduce in ("butterfly" if ranks == RANKS[1] else "tree", "halving-doubling"):
                yield time_cell("overlapped", ranks, link, allreduce)
            for name in SERVED if ranks <= MOST_SERVED else ():
                yield time_cell(name, ranks, link, "servers")
    for link in TIMED:
        for allreduce in ALLREDUCES:
            for name in ALGORITHMS:
                if name not in (*TIMED_LIKE, *SERVED):
                    yield time_cell(name, TIMED_RANKS, link, allreduce)


def check_cells() -> list[Cell]:
    names = [name for name in ALGORITHMS if name not in (*TIMED_LIKE, *LIKE, *SERVED)]
    pairs = [(name, allreduce) for allreduce in ALLREDUCES for name in names]
    return [
        {"kind": "check", "scaling": "weak", "name": name, "ranks": CHECKED, "seed": SEEDS[0],
         "network": "10 Gbit/s", "allreduce": allreduce}
        for name, allreduce in (*pairs, *((name, "servers") for name in SERVED))
    ]  # fmt: skip


def common(of: Cell) -> dict[str, Any]:
    """The fields of an Experiment that all runs of the cell's algorithm and size have."""
    ranks, scaling = of["ranks"], of["scaling"]
    return ALGORITHMS[of["name"]] | {
        "model": "mlp", "momentum": 0.9, "progress": "perfect",
        "step_time_s": compute_s(scaling, ranks), "batch": batch(scaling, ranks),
    } | ({"backups": max(1, ranks // BACKUPS)} if of["name"] == "backup" else {})  # fmt: skip


def carried(of: Cell, allreduce: str, servers: int) -> dict[str, Any]:
    """By which all-reduce gradients travel, or to how many servers."""
    return {"servers": servers} if of["name"] in SERVED else {"allreduce": allreduce}


def learn(of: Cell, dataset: Dataset, link: Mapping[str, Any], rate: float) -> Run:
    """A finished run of the task. `link`: network and all-reduce."""
    scaling, ranks = of["scaling"], of["ranks"]
    values = common(of) | link | {
        "hidden": (HIDDEN,), "data": "mnist", "rate": rate, "seed": of["seed"],
        "steps": steps(scaling, ranks),
        "evaluate_every": EVERY[ranks if scaling == "weak" else RANKS[-1]],
    }  # fmt: skip
    run = Run(values, ranks, dataset, TARGETS[-1])
    run.reason = run.finish()  # type: ignore[attr-defined]
    return run


def run_train(of: Cell, dataset: Dataset) -> dict[str, Any]:
    """Steps and accuracy, on a network that takes no time."""
    run = learn(of, dataset, carried(of, "tree", 1), of["rate"])
    return kept(run, "step", "accuracy")


def run_check(of: Cell, dataset: Dataset, rate: float) -> dict[str, Any]:
    """The same with the virtual seconds of the network and all-reduce."""
    link = carried(of, of["allreduce"], of["ranks"])
    link |= {"network": slowed(of["network"], PARAMETERS)}
    return kept(learn(of, dataset, link, rate), "step", "time_s", "accuracy") | {"rate": rate}


def kept(run: Run, *names: str) -> dict[str, Any]:
    failed = "not finite" in (reason := run.reason)  # type: ignore[attr-defined]
    told = {"failure": reason} if failed else {}
    return told | {"evaluations": run.columns(*names), "cpu_s": round(run.cpu_s, 2)} | made_with()


def run_time(of: Cell) -> dict[str, Any]:
    """Seconds of a step in the last round, when the slowest rank has done them; with servers, when
    their updates make a step."""
    served = of["name"] in SERVED
    values = common(of) | carried(of, of["allreduce"], of["ranks"]) | {
        "hidden": SHARDED_LAYERS if served else SMALL_LAYERS, "data": "digits", "batch": 1,
        "rate": 1e-3, "steps": ROUNDS * TAU, "evaluate_every": TAU if served else 0,
        "network": slowed(of["network"], SHARDED if served else SMALL),
    }  # fmt: skip
    run = Run(values, of["ranks"], data.load("digits"))
    if failure := run.finish():
        raise RuntimeError(failure)
    if served:
        before, end = run.result.evaluation["time_s"][-2:]
    else:
        table = run.result.steps
        ends = (np.asarray(table["start_s"]) + np.asarray(table["step_s"])).max(axis=1)
        before, end = ends[-1 - TAU], ends[-1]
    seconds = float(end - before) / TAU
    return {"step_s": significant(seconds), "cpu_s": round(run.cpu_s, 2)} | made_with()


def train(ledger: Ledger, scaling: str, dataset: Dataset, names: Sequence[str]) -> None:
    """Settle each rate, then the runs that count."""

    def one(of: Cell) -> dict[str, Any]:
        return run_train(of, dataset)

    for ranks in RANKS:
        for name in trained(scaling, ranks):
            while name in names and (found := settled(ledger, scaling, name, ranks))[1] is None:
                run_missing([cell(scaling, name, ranks, r, TUNING) for r in found[0]], ledger, one)
            if name in names:
                run_missing(result_cells(ledger, scaling, name, ranks), ledger, one)


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    dataset, _ = parts(data.load("mnist", arguments.data), VALIDATION, SAMPLES)
    names = arguments.only or list(ALGORITHMS)
    for scaling in SCALINGS:
        train(ledger, scaling, dataset, names)
    run_missing((of for of in time_cells() if of["name"] in names), ledger, run_time)

    def check(of: Cell) -> dict[str, Any]:
        _, rate = settled(ledger, of["scaling"], LIKE.get(of["name"], of["name"]), of["ranks"])
        assert rate is not None
        return run_check(of, dataset, rate)

    run_missing((of for of in check_cells() if of["name"] in names), ledger, check)


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument("--only", nargs="*", choices=list(ALGORITHMS), help="of the algorithms")


def main() -> int:
    from scaling_figures import write

    return study(__doc__, "study-scaling", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
