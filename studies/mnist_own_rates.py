"""The MNIST study's ablations with each setting at its own rate: d, xi, tau, workers, batch.

A setting is a cell of `mnist` without rate and seed. Its rate is settled by factors of 2, by the
validation loss at the last step of runs whose seeds no result uses. `python studies/mnist.py run
--parts own` makes the runs.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from command import Ledger, tell
from mnist import (
    ABLATED,
    BATCH,
    BATCHES,
    COMMON_RATE,
    DELAYS,
    LOCAL,
    MINIBATCH,
    PROPORTIONS,
    RANKS,
    SEEDS,
    TAU_CELLS,
    WORKERS,
    Cell,
    Row,
    convex,
    label,
)
from pages import COLOURS, MARKERS, family, last, legend, panels, plus_minus
from runs import spread
from settling import judged, mean_loss, run_wanted, table

TUNING, OWN_SEEDS = (101, 102), (1, 2, 3, 4, 5)
XI = 0.25
Point = tuple[float, float, float]

# Each axis: the field that varies, its name on the page, and the cells.
AXES: dict[str, tuple[str, list[Cell]]] = {
    "delay": ("d", [MINIBATCH, LOCAL, *(convex(d, XI) for d in DELAYS)]),
    "xi": ("xi", [MINIBATCH, LOCAL, *(convex(2, xi) for xi in PROPORTIONS)]),
    "tau": ("tau", TAU_CELLS),
    "ranks": ("ranks", [cell | {"ranks": ranks} for ranks in WORKERS for cell in ABLATED]),
    "batch": ("batch", [cell | {"batch": batch} for batch in BATCHES for cell in ABLATED]),
}


def setting(cell: Cell) -> Cell:
    return {"ranks": RANKS, "batch": BATCH, **cell}


def settings() -> list[Cell]:
    """All of them, each once, in the order in which they are run."""
    found = {
        str(sorted(one.items())): one for axis in AXES.values() for one in map(setting, axis[1])
    }
    return list(found.values())


def at(one: Cell, rate: float, seed: int) -> Cell:
    return {**one, "rate": rate, "seed": seed}


def tuning(one: Cell, rate: float) -> list[Cell]:
    """The runs that judge a rate."""
    return [at(one, rate, seed) for seed in TUNING]


def rate_of(ledger: Ledger, one: Cell) -> tuple[list[float], float | None]:
    """(rates that are judged, the best once it is no edge)."""
    start = 0.2 if one.get("merge") == "delta" else 0.4
    return judged(ledger, start, partial(at, one), TUNING, "loss")


def wanted(ledger: Ledger, one: Cell) -> list[Cell]:
    """The runs of a setting that can be made now: those that judge rates, then results."""
    rates, rate = rate_of(ledger, one)
    if rate is None:
        return [cell for asked in rates for cell in tuning(one, asked)]
    return [at(one, rate, seed) for seed in OWN_SEEDS]


def run(ledger: Ledger, run_cell: Callable[[Cell], Row]) -> None:
    """Every setting, until its rate is settled and all its seeds have run."""
    for one in settings():
        tell(f"own rate of {named(one)}")
        run_wanted([one], lambda found: wanted(ledger, found), ledger, run_cell)


def finished(ledger: Ledger, one: Cell) -> tuple[float, list[Row]] | None:
    """(own rate, the lines of all seeds); None while one is missing."""
    cells = wanted(ledger, one)
    if any(cell not in ledger or cell["seed"] in TUNING for cell in cells):
        return None
    return cells[0]["rate"], [ledger[cell] for cell in cells]


def named(one: Cell) -> str:
    """A setting's name, with what differs from the base point."""
    told = f"{label(one)}, tau={one['tau']}" if one.get("tau", 4) != 4 else label(one)
    told += f", {one['ranks']} ranks" if one["ranks"] != RANKS else ""
    return told + (f", batch {one['batch']}" if one["batch"] != BATCH else "")


def kind(one: Cell, varied: str) -> str:
    """The row of a setting in the tables, without the field that varies."""
    if "merge" not in one:
        return label(one)
    if one["merge"] == "delta":
        return "delta d=2"
    return {"delay": f"DaSGD xi={XI}", "xi": "DaSGD d=2"}.get(varied, f"DaSGD d=2 xi={XI}")


def common(ledger: Ledger, one: Cell) -> list[Row]:
    """The lines of a setting at COMMON_RATE."""
    return [ledger[cell] for cell in (at(one, COMMON_RATE, s) for s in SEEDS) if cell in ledger]


def _told(lines: list[Row]) -> str:
    return plus_minus(*spread([last(line, "loss") for line in lines]), 3) if lines else "not run"


def ablation(ledger: Ledger, varied: str) -> list[Row]:
    """Validation loss over one field, at each one's own rate (in brackets) and at COMMON_RATE."""
    heading, cells = AXES[varied]
    rows: dict[str, Row] = {}
    for one in map(setting, cells):
        found = finished(ledger, one)
        name, column = kind(one, varied), f"{heading} {one.get(varied, 'none')}"
        if varied in ("delay", "xi") and varied not in one:
            continue
        own = f"{_told(found[1])} ({found[0]:g})" if found else "not run"
        told = {"own rate": own, f"rate {COMMON_RATE}": _told(common(ledger, one))}
        for which, text in told.items():
            rows.setdefault(name + which, {"algorithm": name, "at": which})[column] = text
    return list(rows.values())


def rates(ledger: Ledger) -> list[Row]:
    """Validation loss of the tuning runs at every rate that was judged."""
    by_name = {named(one): one for one in settings()}
    found = {name: rate_of(ledger, one) for name, one in by_name.items()}

    def loss(name: str, rate: float) -> float | None:
        return mean_loss(ledger, tuning(by_name[name], rate))

    return table(found, loss, "setting", 3)


def base(ledger: Ledger) -> list[Row]:
    """The base point's algorithms at their own rates."""
    rows = []
    for one in map(setting, ABLATED):
        found = finished(ledger, one)
        if found:
            row: Row = {"algorithm": label(one), "own rate": f"{found[0]:g}"}
            row["validation loss"] = _told(found[1])
            row["test accuracy"] = plus_minus(*spread([x["test_accuracy"] for x in found[1]]), 3)
            rows.append(row)
    return rows


def cells(ledger: Ledger) -> list[Cell]:
    """All finished results, for the summary."""
    return [cell for one in settings() if finished(ledger, one) for cell in wanted(ledger, one)]


def tables(ledger: Ledger) -> dict[str, list[Row]]:
    found = {f"own-{varied}": ablation(ledger, varied) for varied in AXES}
    return found | {"own-rates": rates(ledger), "own-base": base(ledger)}


def figure(ledger: Ledger) -> Any:
    """Loss over each field: lines at own rates, dashes at the common one."""
    if not cells(ledger):
        return None
    drawn, axes = panels(
        len(AXES), f"98,304 samples: each at its own rate (lines), at {COMMON_RATE} (dashes)", 2.8
    )
    for one, (varied, (heading, chosen)) in zip(axes, AXES.items(), strict=True):
        own = [
            (cell, found[1]) for cell in map(setting, chosen) if (found := finished(ledger, cell))
        ]
        at_common = [
            (cell, common(ledger, cell)) for cell in map(setting, chosen) if varied in cell
        ]
        for style, drawn_so in (("-", own), ("--", at_common)):
            for name, points in _curves(drawn_so, varied).items():
                _draw(one, name, points, style)
        one.set_xlabel(heading)
        one.set_ylim(0.1, 0.45)
        values = sorted({cell[varied] for cell in map(setting, chosen) if varied in cell})
        if varied not in ("delay", "xi"):
            one.set_xscale("log", base=2)
        one.set_xticks(values, [f"{value:g}" for value in values])
    axes[0].set_ylabel("validation loss, averaged model")
    legend(drawn, axes, 4)
    return drawn


def _curves(found: Iterable[tuple[Cell, list[Row]]], varied: str) -> dict[str, list[Point]]:
    """(the field that varies, mean, deviation) of the settings that have runs, by algorithm."""
    curves: dict[str, list[Point]] = {}
    for cell, lines in found:
        if lines:
            mean, deviation = spread([last(line, "loss") for line in lines])
            point = cell.get(varied, math.nan), mean, deviation
            curves.setdefault(family(label(cell)), []).append(point)
    return curves


def _draw(axes: Any, name: str, points: list[Point], style: str) -> None:
    """A curve, or where nothing varies a level."""
    x, mean, deviation = zip(*points, strict=True)
    if math.isnan(x[0]):
        axes.axhline(mean[0], color=COLOURS[name], label=name)
        return
    axes.errorbar(
        x, mean, deviation, color=COLOURS[name], marker=MARKERS[name], capsize=2, markersize=4,
        linestyle=style, label=name if style == "-" else None,
    )  # fmt: skip
