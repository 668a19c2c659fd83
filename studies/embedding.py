"""An embedding, trained: `python studies/embedding.py run` trains, `figures` draws and tabulates.

What a step costs beside its gradient where averages or servers carry all of an embedding, and where
they carry the rows that batches touch, over ranks, batch and rate: on the virtual clock, with the
words of real batches. One line for each case is kept in results/study-embedding/runs.jsonl.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, key, run_missing, study
from pages import fill_all, legend, panels, publish
from runs import made_with, significant

import mpisgd
from allreduce import simulate
from allreduce.algorithms import build
from allreduce.network import network
from allreduce.sparse import Sparse, traffic
from mpisgd.data import load
from mpisgd.data.shards import Sampler
from mpisgd.models import build as build_model

Cell = Mapping[str, Any]
Row = dict[str, Any]

WIDTH, STEPS, STEP_S, MOST_SERVERS = 64, 4, 1e-3, 16
RANKS = (4, 16, 64)
BATCHES = (4, 32, 128)  # documents of a rank
MOST_DOCUMENTS = 4096  # of all ranks: beyond, a case takes long
RATES = (1, 10, 100)  # Gbit/s of a rank's port
SERVERS = {"algorithm": "backup", "backups": 0, "colocated": True}
WAYS: dict[str, dict[str, Any]] = {
    "averages, whole": {"algorithm": "minibatch", "allreduce": "auto"},
    "averages, rows": {},
    "servers, whole": SERVERS,
    "servers, rows": SERVERS | {"push": "sparse", "pull": "sparse"},
}
COLOURS = dict(zip(WAYS, ("#222222", "#ee6677", "#228833", "#4477aa"), strict=True))


def cells() -> list[Cell]:
    """All cases: ranks, documents of a rank, a rate, a way."""
    return [
        {"ranks": r, "batch": b, "rate": rate, "way": way, "seed": 1}
        for r in RANKS for b in BATCHES if r * b <= MOST_DOCUMENTS
        for rate in RATES for way in WAYS
    ]  # fmt: skip


def links(rate: float) -> str:
    """The preset ethernet-10g with ports of so many Gbit/s."""
    return f"preset=ethernet-10g,bandwidth_Bps={rate * 1e9 / 8:g}"


def documents(cell: Cell) -> Any:
    """So many that STEPS steps are an epoch of whole batches."""
    return load("documents", samples=cell["ranks"] * cell["batch"] * STEPS, seed=cell["seed"])


def run_cell(cell: Cell) -> dict[str, Any]:
    """Milliseconds of a step beside its gradient; the share of the words in a rank's batch."""
    began, dataset = time.process_time(), documents(cell)
    model: Any = build_model("bag", dataset, hidden=(WIDTH,))
    rows = touched(cell, dataset, model)
    share = (
        np.mean([part.size for step in rows for part in step]) / model.shapes[model.embedding][0]
    )
    ways = dict(WAYS[cell["way"]])
    found: dict[str, Any] = {"share": significant(float(share))}
    if not ways:
        found["ms"] = significant(1e3 * merged_s(cell, rows, model))
    else:
        if "push" in ways or cell["way"].startswith("servers"):
            ways["servers"] = min(cell["ranks"], MOST_SERVERS)
        result = mpisgd.run(
            model="bag", hidden=(WIDTH,), data="documents", dataset=dataset, batch=cell["batch"],
            steps=STEPS, seed=cell["seed"], ranks=cell["ranks"], network=links(cell["rate"]),
            step_time_s=STEP_S, evaluate_every=0, **ways,
        )  # fmt: skip
        step_s = result.evaluation["time_s"][-1] / STEPS
        if "servers" in ways:
            step_s = between(result.updates)
            pushed, server = (result.updates[name] for name in ("pushed_B", "server"))
            found["MB"] = significant(float(pushed.sum()) / STEPS / cell["ranks"] / 1e6)
            found["first"] = significant(float(pushed[server == 0].sum() / pushed.sum()))
        found["ms"] = significant(1e3 * (step_s - STEP_S))
    return found | {"cpu_s": round(time.process_time() - began, 2)} | made_with()


def between(updates: Mapping[str, Any]) -> float:
    """Seconds from the first update of all shards to the last, a step: without the parameters that
    are sent whole before and behind them."""
    answered = np.asarray(updates["arrived_s"]) + np.asarray(updates["waited_s"])
    made = np.asarray(updates["update"])
    return float((answered[made == STEPS].max() - answered[made == 1].max()) / (STEPS - 1))


def touched(cell: Cell, dataset: Any, model: Any) -> list[list[np.ndarray]]:
    """The rows of each rank's batch, by step."""
    sampler = Sampler(dataset.samples, cell["ranks"], cell["batch"], cell["seed"])
    ranks = range(cell["ranks"])
    return [
        [model.rows(dataset.batch(sampler.indices(step, rank))[0]) for rank in ranks]
        for step in range(1, STEPS + 1)
    ]


def merged_s(cell: Cell, rows: list[list[np.ndarray]], model: Any) -> float:
    """Seconds of a sum by rows, merged along recursive doubling: the mean over steps. Nothing in
    training does this: it is the simulator's price for the same rows."""
    ways, schedule = network(links(cell["rate"])), build("butterfly", cell["ranks"])
    height = model.shapes[model.embedding][0]
    seconds = []
    for parts in rows:
        values = [Sparse(each, np.zeros((each.size, WIDTH), np.float32)) for each in parts]
        seconds.append(simulate(schedule, traffic(schedule, values, height), ways).max())
    return float(np.mean(seconds))


def table(ledger: Ledger, rate: float) -> list[Row]:
    """A row for each number of ranks and batch: each way's milliseconds, the least in bold."""
    rows = []
    for ranks in RANKS:
        for batch in BATCHES:
            lines = {way: line(ledger, ranks, batch, rate, way) for way in WAYS}
            if any(each is None for each in lines.values()):
                continue
            times = {way: each["ms"] for way, each in lines.items() if each}
            best = min(times.values())
            shown = {w: f"**{t:.3g}**" if t == best else f"{t:.3g}" for w, t in times.items()}
            share = f"{lines['averages, rows']['share']:.1%}"  # type: ignore[index]
            rows.append({"ranks": ranks, "documents": batch, "of all words": share, **shown})
    return rows


def octets(ledger: Ledger) -> list[Row]:
    """A row for each number of ranks and batch: what a worker pushes in a step, and the first
    shard's part of that."""
    rows = []
    for ranks in RANKS:
        for batch in BATCHES:
            found = [
                line(ledger, ranks, batch, 10, f"servers, {what}") for what in ("whole", "rows")
            ]
            if all(found):
                whole, few = found
                rows.append({
                    "ranks": ranks, "documents": batch, "whole, MB": f"{whole['MB']:.3g}",
                    "rows, MB": f"{few['MB']:.3g}", "to the first server": f"{few['first']:.0%}",
                    "servers": min(ranks, MOST_SERVERS),
                })  # fmt: skip
    return rows


def line(ledger: Ledger, ranks: int, batch: int, rate: float, way: str) -> Any:
    """A finished case; None if it is not there."""
    cell = {"ranks": ranks, "batch": batch, "rate": rate, "way": way, "seed": 1}
    return ledger.lines.get(key(cell))


def summary(ledger: Ledger) -> list[Row]:
    """One row for each finished case."""
    names = ("share", "ms", "MB", "first", "cpu_s")
    done = [(cell, ledger[cell]) for cell in cells() if cell in ledger]
    return [{**cell, **{name: each.get(name, "") for name in names}} for cell, each in done]


def figure(ledger: Ledger) -> Any:
    """Milliseconds over the rate, with 32 documents."""
    figure, axes = panels(len(RANKS), "a step beside its gradient, 32 documents a rank, simulated")
    for one, ranks in zip(axes, RANKS, strict=True):
        for way, colour in COLOURS.items():
            found = [(rate, line(ledger, ranks, 32, rate, way)) for rate in RATES]
            points = [(rate, each["ms"]) for rate, each in found if each]
            if points:
                one.loglog(*zip(*points, strict=True), "o-", color=colour, label=way)
        one.set_title(f"{ranks} ranks", fontsize="small")
        one.set_xlabel("Gbit/s of a port")
    axes[0].set_ylabel("ms")
    legend(figure, axes, 4)
    return figure


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {f"rate-{rate}": table(ledger, rate) for rate in RATES}
    return fill_all(text, {**tables, "octets": octets(ledger)})


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, summary, {"embedding": figure})


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    run_missing(cells(), ledger, run_cell)


def main() -> int:
    return study(__doc__, "study-embedding", run, write)


if __name__ == "__main__":
    sys.exit(main())
