"""Tables and the figure of the study in `cnn_stale`."""

import math
from pathlib import Path
from typing import Any

from cnn_stale import (
    EPOCHS,
    OWN,
    REAL,
    SAMPLES,
    SEEDS,
    STALENESS,
    TUNING,
    Cell,
    cell,
    rate_of,
    wanted,
)
from command import Ledger
from pages import (
    banded,
    cost,
    difference,
    fill_all,
    last,
    legend,
    panels,
    save,
    summary,
    write_csv,
)
from pages import write_page as write_readme
from runs import spread
from settling import mean_loss, table

from mpisgd.values.statistics import half_width

Row = dict[str, Any]
Line = dict[str, Any]

COLOURS = ("#4477aa", "#ee6677")
PAPER = {0: 0.36, 20: 0.47, 50: 0.79}  # per cent, best test errors; Chen et al. 2016


def lines_of(ledger: Ledger, cells: list[Cell]) -> list[Line]:
    """Those of result seeds that are there."""
    return [ledger[one] for one in cells if one in ledger and one["seed"] in SEEDS]


def at_rate(ledger: Ledger, name: str, rate: float) -> list[Line]:
    return lines_of(ledger, [cell(name, rate, seed) for seed in SEEDS])


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


def own_rates(ledger: Ledger) -> dict[str, float]:
    """The settled rates of the ages that have one of their own."""
    found = {name: rate_of(ledger, name)[1] for name in OWN}
    return {name: rate for name, rate in found.items() if rate is not None}


def ages(ledger: Ledger) -> list[Row]:
    """Error over staleness, at the two rates."""
    rows = []
    for own, rate in own_rates(ledger).items():
        base = at_rate(ledger, OWN[0], rate)
        for s in STALENESS:
            if lines := at_rate(ledger, f"s = {s}", rate):
                row = {"rate": f"{rate:g}, best of {own}", "s": s, "seeds": len(lines)}
                row["test error (%)"] = shown(lines)
                row["of the last parameters"] = shown(lines, "accuracy")
                row |= less(lines, base) if s else {"difference": "", "95 % interval": ""}
                rows.append(row | {"the paper's (%)": PAPER.get(s, "")})
    return rows


def each_own(ledger: Ledger) -> list[Row]:
    """s = 50 against s = 0, each at its own rate and at the other's."""
    rates, rows = own_rates(ledger), []
    if len(rates) < len(OWN):
        return []
    none, most = OWN
    for name, rate, other, of in (
        (most, rates[most], none, rates[none]),
        (most, rates[none], none, rates[none]),
        (none, rates[most], none, rates[none]),
    ):
        found = less(at_rate(ledger, name, rate), at_rate(ledger, other, of))
        rows.append({"points": f"{name} at {rate:g} less {other} at {of:g}"} | found)
    return rows


def real(ledger: Ledger) -> list[Row]:
    """Servers with workers whose gradients are about 50 updates old, at the rate of s = 50."""
    base = lines_of(ledger, wanted(ledger, OWN[1]))
    rows = []
    for lines in (base, lines_of(ledger, wanted(ledger, REAL))):
        if not lines:
            return []
        row: Row = {"gradients": lines[0]["cell"]["name"], "seeds": len(lines)}
        row["rate"] = f"{lines[0]['cell']['rate']:g}"
        row["mean staleness"] = f"{spread([line.get('staleness', 50) for line in lines])[0]:.1f}"
        row["test error (%)"] = shown(lines)
        rows.append(row | (less(lines, base) if lines is not base else {}))
    return rows


def rates(ledger: Ledger) -> list[Row]:
    """Validation loss at every rate that was judged, of those whose search has begun."""
    found = {name: rate_of(ledger, name) for name in OWN}

    def loss(name: str, rate: float) -> float | None:
        return mean_loss(ledger, [cell(name, rate, seed) for seed in TUNING], "ema_loss")

    return table(found, loss, "algorithm", 4)


def figure(ledger: Ledger) -> Any:
    """Test error over staleness."""
    title = f"MNIST CNN 8-8-16-16, {SAMPLES} images, {EPOCHS} epochs; bars: 95 % intervals"
    drawn, (axes,) = panels(1, title, 6.8, 4.4)
    places = range(len(STALENESS))
    for (own, rate), colour in zip(own_rates(ledger).items(), COLOURS, strict=False):
        found = {}
        for place, s in zip(places, STALENESS, strict=True):
            errors = [error(line) for line in at_rate(ledger, f"s = {s}", rate)]
            if len(errors) > 1 and not any(map(math.isnan, errors)):
                found[place] = errors
        means = [spread(errors)[0] for errors in found.values()]
        halves = [half_width(errors) for errors in found.values()]
        label = f"rate {rate:g}, best of {own}"
        axes.errorbar(list(found), means, halves, fmt="o-", color=colour, capsize=3, label=label)
    stars = [STALENESS.index(s) for s in PAPER]
    axes.plot(stars, list(PAPER.values()), "k*", label="the paper's, of a larger set-up")
    axes.set_xticks(list(places), [str(s) for s in STALENESS])
    axes.set_xlabel("staleness s (updates)")
    axes.set_yscale("log")
    axes.set_ylabel("test error (%), averaged parameters")
    legend(drawn, [axes], 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "ages": ages(ledger), "own": each_own(ledger), "real": real(ledger),
        "rates": rates(ledger), "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    columns = ("ema_accuracy", "accuracy", "ema_loss", "loss", "time_s", "samples_computed")
    write_csv(folder / "summary.csv", summary(ledger, columns))
    save(figure(ledger), folder / "errors.png")
    write_readme(folder, page, ledger)
