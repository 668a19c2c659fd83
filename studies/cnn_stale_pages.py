"""Tables and the figure of the study in `cnn_stale`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnn_stale import (
    AGES,
    ENDS,
    EPOCHS,
    FEW,
    SAMPLES,
    SEEDS,
    STARTS,
    TUNING,
    WORKERS,
    age,
    cell,
    rate_of,
    split,
    updates,
    wanted,
)
from command import Ledger
from pages import banded, cost, difference, fill_all, last, legend, panels, publish, summary
from runs import spread
from settling import mean_loss, table

from mpisgd.values.statistics import half_width

Row = dict[str, Any]
Line = dict[str, Any]

NOTHING = {"difference": "", "95 % interval": "", "told apart": ""}
ENDS_KEPT = ("ema_accuracy", "accuracy", "ema_loss", "loss", "samples_computed")
PAPER = {0: 0.36, 20: 0.47, 50: 0.79}  # per cent, best test errors; Chen et al. 2016
NONE, MOST = ENDS
SHOWN = (0.5, 1, 2, 3, 5, 10, 20, 50)  # per cent, on the axis


def at_rate(ledger: Ledger, name: str, rate: float) -> list[Line]:
    """Those of result seeds that are there."""
    cells = [cell(name, rate, seed) for seed in SEEDS]
    return [ledger[of] for of in cells if of in ledger]


def settled(ledger: Ledger) -> dict[str, float]:
    """The rate of each whose results are there: of the ages, rising, then of the others."""
    found = {name: rate_of(ledger, name)[1] for name in (*map(age, AGES), *STARTS)}
    return {
        name: rate for name, rate in found.items()
        if rate is not None and all(of in ledger for of in wanted(ledger, name))
    }  # fmt: skip


def error(line: Line, column: str = "ema_accuracy") -> float:
    """Per cent of the test images; NaN for a run that was not finite."""
    return 100 * (1 - last(line, column))


def shown(lines: list[Line], column: str = "ema_accuracy") -> str:
    """Mean error with the half-width of its Student interval."""
    return banded([error(line, column) for line in lines], 2)


def less(lines: list[Line], base: list[Line]) -> Row:
    """Errors less those of the same seeds in `base`, in points; of the finite ones."""
    there = {line["cell"]["seed"]: line for line in base if "failure" not in line}
    here = [line for line in lines if "failure" not in line and line["cell"]["seed"] in there]
    if len(here) < 2:
        return {"difference": "-", "95 % interval": "-", "told apart": "-"}
    pairs = [there[line["cell"]["seed"]] for line in here]
    return difference(here, pairs, "ema_accuracy", -100, 2)


def own(ledger: Ledger) -> list[Row]:
    """Each age at its own rate, against none at its."""
    found, rows = settled(ledger), []
    for s in AGES:
        if (name := age(s)) in found and NONE in found:
            lines, base = at_rate(ledger, name, found[name]), at_rate(ledger, NONE, found[NONE])
            row: Row = {"s": s, "rate": f"{found[name]:g}", "seeds": seeds(lines)}
            row["test error (%)"] = shown(lines)
            row["of the last parameters"] = shown(lines, "accuracy")
            row |= less(lines, base) if s else NOTHING
            rows.append(row | {"the paper's (%)": PAPER.get(s, "")})
    return rows


def common(ledger: Ledger) -> list[Row]:
    """All ages at the rate of none, and none at that of the highest."""
    found, rows = settled(ledger), []
    if not set(ENDS) <= set(found):
        return []
    for rate, names in ((found[NONE], list(map(age, AGES))), (found[MOST], list(ENDS))):
        base = at_rate(ledger, NONE, rate)
        for name in names:
            if len(lines := at_rate(ledger, name, rate)) >= len(FEW):
                row: Row = {"rate": f"{rate:g}", "s": split(name)[1], "seeds": seeds(lines)}
                row["test error (%)"] = shown(lines)
                rows.append(row | (less(lines, base) if name != NONE else NOTHING))
    return rows


def seeds(lines: list[Line]) -> str:
    """`1 to 5`."""
    found = sorted(line["cell"]["seed"] for line in lines)
    return f"{found[0]} to {found[-1]}"


def real(ledger: Ledger) -> list[Row]:
    """Workers that do not wait less one whose gradients are as old in the mean, each at its own
    rate; alone where that age was not run."""
    found, rows = settled(ledger), []
    for workers in WORKERS:
        name, aged = f"async, {workers}", age(workers - 1)
        if name in found:
            lines = at_rate(ledger, name, found[name])
            row: Row = {"workers": workers, "staleness": ages(lines), "rate": f"{found[name]:g}"}
            row |= {"seeds": seeds(lines), "test error (%)": shown(lines)}
            if aged in found:
                base = at_rate(ledger, aged, found[aged])
                row |= {"beside": f"{aged} at {found[aged]:g}", "its error (%)": shown(base)}
                row |= less(lines, base)
            rows.append(row)
    return rows


def ages(lines: list[Line]) -> str:
    """Mean staleness of all runs' gradients, where nine tenths of them lie, and the most."""
    means = [line["staleness_mean"] for line in lines]
    low = min(line["staleness_p5"] for line in lines)
    high, most = (max(line[f"staleness_{name}"] for line in lines) for name in ("p95", "most"))
    return f"{spread(means)[0]:.2f} ({low:.0f} to {high:.0f}; most {most:.0f})"


def served(ledger: Ledger) -> list[Row]:
    """Workers with a server against one alone, each at its own rate."""
    found, rows = settled(ledger), []
    if NONE not in found:
        return []
    base = at_rate(ledger, NONE, found[NONE])
    for kind in ("sync", "async"):
        for workers in WORKERS:
            if (name := f"{kind}, {workers}") in found:
                lines = at_rate(ledger, name, found[name])
                row: Row = {"kind": kind, "workers": workers, "updates": updates(name)}
                row |= {"rate": f"{found[name]:g}", "seeds": seeds(lines)}
                row |= {"test error (%)": shown(lines)} | less(lines, base)
                row["virtual s"] = banded([last(line, "time_s") for line in lines], 1)
                rows.append(row)
    return rows


def versus(ledger: Ledger) -> list[Row]:
    """Workers that do not wait less as many that do, each at its own rate."""
    found, rows = settled(ledger), []
    for workers in WORKERS:
        pair = [f"{kind}, {workers}" for kind in ("async", "sync")]
        if set(pair) <= set(found):
            free, waiting = (at_rate(ledger, name, found[name]) for name in pair)
            rows.append({"": f"{pair[0]} less {pair[1]}", **less(free, waiting)})
    return rows


def rates(ledger: Ledger) -> list[Row]:
    """Validation loss at every rate that was judged, of those whose search has begun."""

    def loss(name: str, rate: float) -> float | None:
        return mean_loss(ledger, [cell(name, rate, seed) for seed in TUNING], "ema_loss")

    others = sorted((name for name in STARTS if split(name)[0] != "s"), key=split)
    names = [*map(age, AGES), *others]
    return table({name: rate_of(ledger, name) for name in names}, loss, "of", 4)


def errors(ledger: Ledger, rates: dict[str, float]) -> dict[str, list[float]]:
    """Test errors of those that have several, all finite."""
    found = {name: list(map(error, at_rate(ledger, name, rate))) for name, rate in rates.items()}
    return {
        name: few for name, few in found.items() if len(few) > 1 and not any(map(math.isnan, few))
    }


def figure(ledger: Ledger) -> Any:
    """Test error over staleness, emulated and real, and over workers."""
    title = f"MNIST CNN 8-8-16-16, {SAMPLES} images, {EPOCHS} epochs; bars: 95 % intervals"
    drawn, (axes, beside) = panels(2, title, 6.0, 4.6)
    found = settled(ledger)
    own_rates = errors(ledger, found)
    at_none = errors(ledger, {age(s): found[NONE] for s in AGES} if NONE in found else {})
    emulated = {split(name)[1]: few for name, few in own_rates.items() if split(name)[0] == "s"}
    bars(axes, emulated, "o-", "#4477aa", "one worker, emulated staleness, each at its own rate")
    same = {split(name)[1]: few for name, few in at_none.items()}
    bars(axes, same, "o--", "#88aacc", "the same, at the rate of s = 0")
    waiting, free = (
        {n: few for name, few in own_rates.items() for one, n in [split(name)] if one == kind}
        for kind in ("sync", "async")
    )
    label = "async, at its own rate (left: a little aside)"
    bars(axes, {1.06 * (n - 1): few for n, few in free.items()}, "D", "#ee6677", label)
    axes.plot(list(PAPER), list(PAPER.values()), "k*", label="the paper's, of a larger set-up")
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)
    axes.set_xticks(AGES, map(str, AGES), fontsize="small", minor=False)
    axes.minorticks_off()
    axes.set_xlabel("staleness (updates); of async its mean, workers - 1")
    axes.set_yscale("log")
    axes.set_yticks(SHOWN, map(str, SHOWN))
    axes.set_ylabel("test error (%), averaged parameters")
    start = {1: emulated[0]} if 0 in emulated else {}
    bars(beside, start | waiting, "s-", "#222222", "sync, at its own rate")
    bars(beside, start | free, "D-", "#ee6677", label)
    beside.set_xscale("log", base=2)
    beside.set_xticks((1, *WORKERS), map(str, (1, *WORKERS)))
    beside.set_xlabel("workers")
    legend(drawn, [axes, beside], 3)
    return drawn


def bars(axes: Any, found: Mapping[float, list[float]], form: str, colour: str, label: str) -> None:
    """Means and Student's 95 % intervals over `found`'s places."""
    places = sorted(found)
    means = [spread(found[place])[0] for place in places]
    halves = [half_width(found[place]) for place in places]
    axes.errorbar(places, means, halves, fmt=form, color=colour, capsize=3, label=label)


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "own": own(ledger), "common": common(ledger), "rates": rates(ledger),
        "real": real(ledger), "served": served(ledger), "versus": versus(ledger),
        "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, lambda ledger: summary(ledger, ENDS_KEPT), {"errors": figure})
