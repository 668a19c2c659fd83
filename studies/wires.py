"""Who waits for the network, and when fewer bytes pay: `python studies/wires.py run`, `figures`.

`run` keeps one line for each of its cells in results/study-wires/runs.jsonl, and skips those; with
--lab it measures hosts in network namespaces instead, which needs root.

`use`: the share of compute of all algorithms over link rate and workers, on the virtual clock.
`coding`: seconds of a core for what an average is encoded and decoded. `steps`: of MNIST, until a
target, for each wire. Seconds of a step over rate follow from both and from the simulator.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from command import Ledger, add_mnist, run_missing, study
from pages import fill_all, flat, middle, publish, reached
from runs import Run, machine, made_with, parts, significant

from allreduce.algorithms import build
from allreduce.compress import compresses, compressor, memory, priced
from allreduce.network import Network, network
from allreduce.simulate import simulate
from allreduce.wire import Coder, Wire
from mpisgd import data
from mpisgd.data import Dataset
from mpisgd.mpi.lab import Lab
from mpisgd.mpi.mpiexec import find
from mpisgd.store.reader import read

Cell = Mapping[str, Any]
Row = dict[str, Any]

FULL = "float32"
WIRES = (FULL, "bfloat16", "float16", "int8", "topk:0.01", "powersgd:4")
SCHEDULE, BASE = "halving-doubling", "ethernet-10g"  # but for its rate

# use: ResNet-50's gradient, by a small network whose links are slower by as much as it is smaller.
NBYTES, STEP_S, TAU, DELAY = 102_000_000, 0.1, 4, 1
SMALL, SMALL_LAYERS = 5_578, (32, 32, 32, 32)  # parameters of the mlp 64-32-32-32-32-10
GBPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
WORKERS = {8: GBPS, 64: GBPS, 256: (1.0, 10.0, 100.0)}
ALGORITHMS: dict[str, Cell] = {
    "minibatch": {},
    "minibatch-overlap": {"bucket_bytes": SMALL},  # a quarter
    "minibatch, bfloat16": {"wire": "bfloat16"},
    "minibatch, topk:0.01": {"wire": "topk:0.01"},
    "local": {"tau": TAU},
    "slowmo": {"tau": TAU},
    "diloco": {"tau": TAU},
    "post-local": {"tau": TAU, "switch": 0},
    "dasgd": {"tau": TAU, "delay": DELAY},
    "streaming-diloco": {"tau": TAU, "delay": DELAY, "fragments": 2},
    "easgd": {"tau": TAU},
    "gossip": {"tau": TAU, "delay": DELAY},
}
USE_STEPS = 2 * TAU  # of which the second round counts

# coding, steps: the mlp 784-64-10 on MNIST, 8 workers.
RANKS, HIDDEN, BATCH, MLP_STEP_S = 8, 64, 16, 5e-3
SHAPES = ((784, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))
COUNT = sum(math.prod(shape) for shape in SHAPES)
SAMPLES, STEPS, EVERY, TARGET = 6_400, 200, 5, 0.90
RATES, TUNING_SEED, SEEDS = (0.02, 0.05, 0.1), 0, (1, 2, 3)
REPETITIONS, LAUNCHES = 15, (1, 2, 3)
MLP_GBPS = (0.01, 100.0)  # between which seconds of a step are drawn

# lab: two hosts, an mlp of 251,402 parameters: 1.006 MB.
LAB_RATES, LAB_WIRES = ("50mbit", "200mbit", "1000mbit"), (FULL, "bfloat16", "int8", "topk:0.01")
LAB_STEPS, LAB_FIRST, LAB_STEP = 24, 4, "20ms"


def use_cells() -> list[Cell]:
    """Of every algorithm, number of workers and rate."""
    return [
        {"kind": "use", "name": name, "ranks": ranks, "gbps": gbps}
        for ranks, rates in WORKERS.items()
        for gbps in rates
        for name in ALGORITHMS
    ]


def coding_cells() -> list[Cell]:
    return [{"kind": "coding", "wire": w, "seed": launch} for launch in LAUNCHES for w in WIRES]


def tuning_cells(wire: str) -> list[Cell]:
    return [{"kind": "steps", "wire": wire, "rate": rate, "seed": TUNING_SEED} for rate in RATES]


def step_cells(ledger: Ledger, wire: str) -> list[Cell]:
    """At the rate that took the fewest steps to the target with a seed of its own."""
    found = {cell["rate"]: reached(ledger[cell], TARGET, "step") for cell in tuning_cells(wire)
             if cell in ledger}  # fmt: skip
    best = min(found, key=lambda rate: (math.isnan(found[rate]), found[rate]), default=RATES[0])
    return [{"kind": "steps", "wire": wire, "rate": best, "seed": seed} for seed in SEEDS]


def lab_cells() -> list[Cell]:
    return [{"kind": "lab", "wire": wire, "link": link, "seed": launch}
            for launch in LAUNCHES for link in LAB_RATES for wire in LAB_WIRES]  # fmt: skip


def run_use(cell: Cell) -> dict[str, Any]:
    """The share of compute in the second round, on the slowest rank."""
    scale = 4 * SMALL / NBYTES
    base = network(BASE)
    link = (
        f"preset={BASE},bandwidth_Bps={cell['gbps'] * 1e9 / 8 * scale!r},"
        f"sum_s_per_B={base.sum_s_per_B / scale!r},eager_limit_B={base.eager_limit_B * scale!r}"
    )
    name = cell["name"].partition(",")[0]
    fields: dict[str, Any] = {
        **ALGORITHMS[cell["name"]], "algorithm": name, "allreduce": SCHEDULE, "network": link,
        "model": "mlp", "hidden": SMALL_LAYERS, "data": "digits", "batch": 1, "steps": USE_STEPS,
        "step_time_s": STEP_S, "progress": "perfect", "evaluate_every": 0, "rate": 1e-3,
    }  # fmt: skip
    run = Run(fields, cell["ranks"], data.load("digits"))
    if failure := run.finish():
        return {"failure": failure}
    seconds = run.result.steps["step_s"][TAU:].sum(axis=0).max()
    share = STEP_S * (USE_STEPS - TAU) / float(seconds)
    return {"use": significant(share), "cpu_s": round(run.cpu_s, 2)} | made_with()


def run_coding(cell: Cell) -> dict[str, Any]:
    """Median seconds of a core, over repetitions, that an average's coding takes one rank."""
    code = coding(cell["wire"], cell["seed"])
    seconds = []
    for _ in range(REPETITIONS):
        began = time.thread_time()
        code()
        seconds.append(time.thread_time() - began)
    spent = 0.0 if cell["wire"] == FULL else median(seconds)
    return {"coding_s": significant(spent), "cpu_s": round(sum(seconds), 3)} | made_with()


def coding(wire: str, seed: int) -> Callable[[], object]:
    """All that one of RANKS encodes and decodes for an average of the mlp's gradient."""
    vector = np.random.default_rng(seed).standard_normal(COUNT).astype("f")
    if compresses(wire):
        how = Wire(wire, shapes=SHAPES)
        coder = compressor(how, build(SCHEDULE, RANKS), 0, vector, memory(how, COUNT, "f"), True)
        coder.stages[0].prepare()
        for block in getattr(coder, "blocks", ())[1:]:  # as if all ranks had sent the same places
            block[0][...] = coder.blocks[0][0]
        return lambda: [stage.prepare() for stage in coder.stages] + [coder.finish()]
    one = Coder(Wire(wire), [0, COUNT], np.dtype("f"))
    octets = np.empty(one.octets(0, COUNT), np.uint8)

    def code() -> None:
        """A rank sends and receives 2 (p-1)/p of the vector, and rounds it at the end."""
        for _ in range(2):
            one.send(vector, 0, COUNT, octets)
            one.receive(octets, 0, COUNT)
        one.round(vector)

    return code


def run_steps(cell: Cell, dataset: Dataset) -> dict[str, Any]:
    """Steps and accuracy, on a network that takes no time: it changes no number."""
    fields = {
        "algorithm": "minibatch", "allreduce": SCHEDULE, "wire": cell["wire"], "model": "mlp",
        "hidden": (HIDDEN,), "data": "mnist", "batch": BATCH, "steps": STEPS, "rate": cell["rate"],
        "seed": cell["seed"], "evaluate_every": EVERY,
    }  # fmt: skip
    if cell["wire"] in ("bfloat16", "float16", "int8"):
        fields["error_feedback"] = True
    run = Run(fields, RANKS, dataset)
    if failure := run.finish():
        return {"failure": failure, "step": [], "accuracy": [], "cpu_s": round(run.cpu_s, 2)}
    return run.columns("step", "accuracy") | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def run_lab(cell: Cell, folder: Path) -> dict[str, Any]:
    """Seconds of a step beside its computation, on the slower of two hosts."""
    path = folder / "run.h5"
    line = [
        sys.executable, "-m", "mpisgd", "train", "--model", "mlp", "--hidden", "512,448", "--data",
        "synthetic", "--data-samples", "64", "--batch", "8", "--steps", str(LAB_STEPS), "--lr",
        "0.001", "--evaluate-every", "0", "--step-time", LAB_STEP, "--allreduce", SCHEDULE,
        "--output", str(path), "--overwrite",
    ]  # fmt: skip
    line += [] if cell["wire"] == FULL else ["--wire", cell["wire"]]
    with Lab(2, cell["link"]) as lab:
        done = lab.run(line, ranks=2, timeout=120)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}\n{done.stderr}")
        made = machine(find(None))
    with read(path) as run:
        columns = {n: np.asarray(run.steps[n])[LAB_FIRST:] for n in ("step_s", "compute_s")}
    exposed = (columns["step_s"] - columns["compute_s"]).max(axis=1)
    return {"exposed_s": significant(float(np.median(exposed)))} | made


def link(gbps: float) -> Network:
    """BASE at another rate."""
    return network(BASE).with_(bandwidth_Bps=gbps * 1e9 / 8)


def average_s(wire: str, gbps: float) -> float:
    """Seconds of the mlp's average on the network, without coding."""
    how = None if wire == FULL else Wire(wire, shapes=SHAPES)
    schedule, carried = priced(how, build(SCHEDULE, RANKS), COUNT, 4)
    return float(simulate(schedule, network=link(gbps), **carried._asdict()).max())


def lines(ledger: Ledger, **where: Any) -> list[Row]:
    """Finished lines whose cells have these values."""
    return [
        line for line in ledger.lines.values()
        if all(line["cell"].get(name) == value for name, value in where.items())
    ]  # fmt: skip


def coding_s(ledger: Ledger, wire: str) -> float:
    """Median over launches; NaN where none is."""
    found = [line["coding_s"] for line in lines(ledger, kind="coding", wire=wire)]
    return median(found) if found else math.nan


def step_s(ledger: Ledger, wire: str, gbps: float, coded: bool = True) -> float:
    """Seconds of a step of mini-batch SGD; `coded`: on the rank's core, else by other hardware."""
    return MLP_STEP_S + average_s(wire, gbps) + (coding_s(ledger, wire) if coded else 0.0)


def steps(ledger: Ledger, wire: str) -> float:
    """Median steps to the target over seeds; NaN if one has not come to it, or none was run."""
    found = [reached(ledger[cell], TARGET, "step") for cell in step_cells(ledger, wire)
             if cell in ledger]  # fmt: skip
    return median(found) if found and not any(map(math.isnan, found)) else math.nan


HEADINGS = (
    "a step pays up to Gbit/s", "the same, coding free", "the target comes sooner up to Gbit/s",
)  # fmt: skip
WAYS = ((True, False), (False, False), (True, True))  # coded on the core; counted by steps


def crossover(gain: Callable[[float], float]) -> str:
    """The rate (Gbit/s) up to which `gain` is above 0, found by halving; or what there is."""
    low, high = MLP_GBPS
    if math.isnan(gain(low)):
        return "-"
    if gain(low) <= 0:
        return f"none, from {low:g} on"
    if gain(high) > 0:
        return f"above {high:g}"
    for _ in range(40):
        middle_ = math.sqrt(low * high)
        low, high = (middle_, high) if gain(middle_) > 0 else (low, middle_)
    return f"{low:.2g}"


def pays(ledger: Ledger) -> list[Row]:
    """A row for each wire: what it costs, and up to which rate it pays."""
    rows = []
    for wire in WIRES:
        row: Row = {"wire": wire}
        how = None if wire == FULL else Wire(wire, shapes=SHAPES)
        nbytes = priced(how, build(SCHEDULE, RANKS), COUNT, 4)[1].nbytes
        row["kB averaged"] = f"{nbytes / 1e3:.1f}"
        coded = [1e3 * line["coding_s"] for line in lines(ledger, kind="coding", wire=wire)]
        row["coding ms"] = middle(coded, 2) if coded else "-"
        row["ms a step at 0.2 Gbit/s"] = f"{1e3 * step_s(ledger, wire, 0.2):.1f}"
        row[f"steps to {TARGET:.0%}"] = f"{steps(ledger, wire):.0f}".replace("nan", "not reached")
        for heading, (coded_here, counted) in zip(HEADINGS, WAYS, strict=True):
            row[heading] = (
                "" if wire == FULL else crossover(_gain(ledger, wire, coded_here, counted))
            )
        rows.append(row)
    return rows


def _gain(ledger: Ledger, wire: str, coded: bool, counted: bool) -> Callable[[float], float]:
    """Seconds that it saves at a rate: of a step, or, `counted`, of all steps to the target."""

    def gain(gbps: float) -> float:
        full, other = step_s(ledger, FULL, gbps), step_s(ledger, wire, gbps, coded)
        if counted:
            return full * steps(ledger, FULL) - other * steps(ledger, wire)
        return full - other

    return gain


def use(ledger: Ledger, ranks: int) -> list[Row]:
    """A row for each algorithm, its share of compute at each rate."""
    rows = []
    for name in ALGORITHMS:
        found = {f["cell"]["gbps"]: f for f in lines(ledger, kind="use", name=name, ranks=ranks)}
        shares = {f"{g:g} Gbit/s": f"{100 * found[g]['use']:.0f} %" for g in found}
        if shares:
            rows.append({"algorithm": name, **shares})
    return rows


def lab(ledger: Ledger) -> list[Row]:
    """A row for each rate and wire: exposed ms, and over those of float32."""
    rows = []
    for rate in LAB_RATES:
        full = [line["exposed_s"] for line in lines(ledger, kind="lab", wire=FULL, link=rate)]
        for wire in LAB_WIRES:
            found = [line["exposed_s"] for line in lines(ledger, kind="lab", wire=wire, link=rate)]
            if found and full:
                rows.append({
                    "link": rate, "wire": wire, "launches": len(found),
                    "exposed ms a step": middle((1e3 * each for each in found), 1),
                    "over float32": f"{median(found) / median(full):.2f}",
                })  # fmt: skip
    return rows


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {"pays": pays(ledger), "lab": lab(ledger)}
    return fill_all(text, tables | {f"use-{ranks}": use(ledger, ranks) for ranks in WORKERS})


def write(folder: Path) -> None:
    """summary.csv, the figures, and the page's tables."""
    from wires_figures import FIGURES

    publish(folder, page, lambda ledger: [r for r in flat(ledger) if r["kind"] != "steps"], FIGURES)


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument("--lab", action="store_true", help="two hosts in the lab instead")


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    if arguments.lab:
        with tempfile.TemporaryDirectory() as folder:
            run_missing(lab_cells(), ledger, lambda cell: run_lab(cell, Path(folder)))
        return
    run_missing(coding_cells(), ledger, run_coding)
    whole = data.load("mnist", arguments.data)
    dataset, _ = parts(whole, 2_000, SAMPLES)
    tuned = [cell for wire in WIRES for cell in tuning_cells(wire)]
    run_missing(tuned, ledger, lambda cell: run_steps(cell, dataset))
    best = [cell for wire in WIRES for cell in step_cells(ledger, wire)]
    run_missing(best, ledger, lambda cell: run_steps(cell, dataset))
    run_missing(use_cells(), ledger, run_use)


def main() -> int:
    return study(__doc__, "study-wires", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
