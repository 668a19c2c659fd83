"""Staleness over depth: `python studies/layers.py run` trains, `figures` draws and tabulates.

Async SGD with servers on the virtual clock, a net of 18 layers of which each has a server: how
stale the gradients of each layer are, by when its parameters are read and its gradients leave
(Chen et al. 2016, arXiv 1604.00981, Section 2.1). `run` keeps one line for each finished run in
results/study-layers/runs.jsonl, and skips those.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, run_missing, study
from pages import fill_all, legend, panels, publish
from runs import Run, made_with, significant

from mpisgd.data import load

Cell = Mapping[str, Any]
Row = dict[str, Any]

LAYERS, WIDTH = 18, 64
WAYS = {  # name -> (--push, --pull)
    "whole": ("whole", "answer"),
    "pushes": ("layerwise", "answer"),
    "read at start": ("layerwise", "start"),
    "read layerwise": ("layerwise", "layerwise"),
}
NETWORKS = {"": "no latency", "ethernet-10g": "10 Gbit/s"}
SIZES = {40: 30, 100: 25, 200: 25}  # workers -> steps of each
SETTLED = 12  # steps that are left out, in which workers that begin together drift apart
COLOURS = {"whole": "#222222", "pushes": "#999999", "read at start": "#4477aa",
           "read layerwise": "#ee6677"}  # fmt: skip


def cells() -> list[Cell]:
    """All runs; whole reads and pushes, alike in all layers, for the least number of workers."""
    few = [(40, way, network) for way in WAYS for network in NETWORKS]
    more = [(workers, way, "ethernet-10g") for workers in (100, 200) for way in list(WAYS)[2:]]
    return [{"workers": w, "way": way, "network": net, "seed": 1} for w, way, net in [*few, *more]]


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    push, pull = WAYS[cell["way"]]
    given = {
        "algorithm": "async", "servers": LAYERS, "cut": "layers", "push": push, "pull": pull,
        "model": "mlp", "hidden": (WIDTH,) * (LAYERS - 1), "data": "synthetic", "batch": 1,
        "steps": SIZES[cell["workers"]], "rate": 1e-3, "momentum": 0.0, "evaluate_every": 0,
        "step_time_s": 5e-3, "straggler": "lognormal:0.2", "seed": cell["seed"],
    }  # fmt: skip
    return given | ({"network": cell["network"]} if cell["network"] else {})


def run_cell(cell: Cell) -> dict[str, Any]:
    """What the ledger keeps of one run: of each layer the mean, a tenth and nine tenths."""
    run = Run(values(cell), LAYERS + cell["workers"], load("synthetic", seed=cell["seed"]))
    failure = run.finish()
    if failure:
        return {"failure": failure, "cpu_s": round(run.cpu_s, 2)} | made_with()
    columns = run.result.updates
    settled = (columns["used"] == 1) & (columns["step"] > SETTLED)
    ages = [columns["staleness"][settled & (columns["server"] == n)] for n in range(LAYERS)]
    low, high = (
        [float(np.quantile(age, share, method="inverted_cdf")) for age in ages]
        for share in (0.1, 0.9)
    )
    seconds = run.evaluations["time_s"][-1] / SIZES[cell["workers"]]
    told = {"mean": [significant(float(age.mean())) for age in ages], "p10": low, "p90": high}
    told |= {"gradients": len(ages[0]), "step_s": significant(seconds)}
    return told | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def law(way: str, workers: int) -> list[float]:
    """Updates of each layer between its read and its push where letters take no time: of the
    others', the share of a step that lies between."""
    products = [32 * WIDTH, *[WIDTH * WIDTH] * (LAYERS - 2), WIDTH * 10]
    total = 3 * sum(products) - products[0]
    pushed = [
        1 - (product + 2 * sum(products[:i]) - products[0]) / total
        for i, product in enumerate(products)
    ]
    read = [sum(products[:i]) / total for i in range(LAYERS)]
    shares = {
        "read at start": pushed,
        "read layerwise": [late - early for late, early in zip(pushed, read, strict=True)],
    }
    return [(workers - 1) * share for share in shares.get(way, [1.0] * LAYERS)]


def table(ledger: Ledger) -> list[Row]:
    """A row for each run: layers 1, 9 and 18, and the largest distance from the law."""
    rows = []
    for cell in cells():
        if cell not in ledger:
            continue
        line, wanted = ledger[cell], law(cell["way"], cell["workers"])
        row: Row = {"workers": cell["workers"], "parameters and gradients": cell["way"]}
        row["network"] = NETWORKS[cell["network"]]
        for layer in (1, 9, 18):
            mean, low, high = (line[name][layer - 1] for name in ("mean", "p10", "p90"))
            row[f"layer {layer}"] = f"{mean:.1f} ({low:g} to {high:g})"
            row[f"law {layer}"] = f"{wanted[layer - 1]:.1f}"
        rows.append(row | {"ms a step": f"{1e3 * line['step_s']:.2f}"})
    return rows


def summary(ledger: Ledger) -> list[Row]:
    """One row for each run and layer."""
    return [
        {**cell, "layer": layer + 1, "mean": ledger[cell]["mean"][layer],
         "p10": ledger[cell]["p10"][layer], "p90": ledger[cell]["p90"][layer],
         "law": significant(law(cell["way"], cell["workers"])[layer])}
        for cell in cells() if cell in ledger for layer in range(LAYERS)
    ]  # fmt: skip


def figure(ledger: Ledger) -> Any:
    """Staleness over the number of workers less one, over depth; the law dotted."""
    drawn, axes = panels(len(SIZES), "staleness of a layer's gradients, over workers - 1")
    layers = np.arange(1, LAYERS + 1)
    for one, workers in zip(axes, SIZES, strict=True):
        for way in WAYS:
            cell = {"workers": workers, "way": way, "network": "ethernet-10g", "seed": 1}
            if cell not in ledger:
                continue
            line, others = ledger[cell], workers - 1
            one.fill_between(
                layers, *(np.array(line[name]) / others for name in ("p10", "p90")),
                color=COLOURS[way], alpha=0.12, linewidth=0,
            )  # fmt: skip
            mean, wanted = np.array(line["mean"]) / others, np.array(law(way, workers)) / others
            one.plot(layers, mean, color=COLOURS[way], label=way)
            one.plot(
                layers, wanted, ":", color=COLOURS[way], linewidth=0.9, label="law, no latency"
            )
        one.set_title(f"{workers} workers", fontsize="small")
        one.set_xlabel("layer, from the input")
        one.set_xticks([1, 6, 12, 18])
    axes[0].set_ylabel("mean, and 10 to 90 % of gradients")
    legend(drawn, axes, 5)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its table from the ledger."""
    return fill_all(text, {"layers": table(ledger)})


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's table."""
    publish(folder, page, summary, {"staleness": figure})


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    run_missing(cells(), ledger, run_cell)


def main() -> int:
    return study(__doc__, "study-layers", run, write)


if __name__ == "__main__":
    sys.exit(main())
