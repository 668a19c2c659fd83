"""Tables and the figure of the study in `cnn_stale`."""

import math
from pathlib import Path
from typing import Any

from cnn_stale import (
    ENDS,
    EPOCHS,
    FEW,
    SAMPLES,
    SEEDS,
    STARTS,
    TUNING,
    cell,
    rate_of,
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


def at_rate(ledger: Ledger, s: int, rate: float) -> list[Line]:
    """Those of result seeds that are there."""
    cells = [cell(s, rate, seed) for seed in SEEDS]
    return [ledger[of] for of in cells if of in ledger]


def settled(ledger: Ledger) -> dict[int, float]:
    """The rate of each age whose results are there."""
    found = {s: rate_of(ledger, s)[1] for s in STARTS}
    return {
        s: rate for s, rate in found.items()
        if rate is not None and all(of in ledger for of in wanted(ledger, s))
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
    for s, rate in found.items():
        lines, base = at_rate(ledger, s, rate), at_rate(ledger, 0, found[0])
        row: Row = {"s": s, "rate": f"{rate:g}", "seeds": len(lines)}
        row |= {"test error (%)": shown(lines), "of the last parameters": shown(lines, "accuracy")}
        row |= less(lines, base) if s else NOTHING
        rows.append(row | {"the paper's (%)": PAPER.get(s, "")})
    return rows


def common(ledger: Ledger) -> list[Row]:
    """All ages at the rate of none, and none at that of the highest."""
    found, rows = settled(ledger), []
    none, most = ENDS
    if not set(ENDS) <= set(found):
        return []
    for rate, ages in ((found[none], list(STARTS)), (found[most], list(ENDS))):
        base = at_rate(ledger, none, rate)
        for s in ages:
            if len(lines := at_rate(ledger, s, rate)) >= len(FEW):
                row: Row = {"rate": f"{rate:g}", "s": s, "seeds": len(lines)}
                row["test error (%)"] = shown(lines)
                rows.append(row | (less(lines, base) if s else NOTHING))
    return rows


def rates(ledger: Ledger) -> list[Row]:
    """Validation loss at every rate that was judged, of those whose search has begun."""

    def loss(name: str, rate: float) -> float | None:
        s = int(name.removeprefix("s = "))
        return mean_loss(ledger, [cell(s, rate, seed) for seed in TUNING], "ema_loss")

    return table({f"s = {s}": rate_of(ledger, s) for s in STARTS}, loss, "staleness", 4)


def figure(ledger: Ledger) -> Any:
    """Test error over staleness."""
    title = f"MNIST CNN 8-8-16-16, {SAMPLES} images, {EPOCHS} epochs; bars: 95 % intervals"
    drawn, (axes,) = panels(1, title, 6.8, 4.4)
    found, ages = settled(ledger), list(STARTS)
    for label, colour, rates in (
        ("each at its own rate", "#4477aa", found),
        ("at the rate of s = 0", "#ee6677", dict.fromkeys(STARTS, found.get(0))),
    ):
        errors = {
            ages.index(s): [error(line) for line in at_rate(ledger, s, rate)]
            for s, rate in rates.items() if rate is not None
        }  # fmt: skip
        errors = {
            place: few for place, few in errors.items()
            if len(few) > 1 and not any(map(math.isnan, few))
        }  # fmt: skip
        means = [spread(few)[0] for few in errors.values()]
        halves = [half_width(few) for few in errors.values()]
        axes.errorbar(list(errors), means, halves, fmt="o-", color=colour, capsize=3, label=label)
    stars = [ages.index(s) for s in PAPER]
    axes.plot(stars, list(PAPER.values()), "k*", label="the paper's, of a larger set-up")
    axes.set_xticks(range(len(ages)), [str(s) for s in ages])
    axes.set_xlabel("staleness s (updates)")
    axes.set_yscale("log")
    axes.set_ylabel("test error (%), averaged parameters")
    legend(drawn, [axes], 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "own": own(ledger), "common": common(ledger), "rates": rates(ledger),
        "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, lambda ledger: summary(ledger, ENDS_KEPT), {"errors": figure})
