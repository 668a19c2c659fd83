"""Figure and tables of the rate study, from its ledger."""

from pathlib import Path
from typing import Any

import numpy as np
from drawing import BLUES, COLOURS, MARKERS, family, legend, panels, save
from ledger import Ledger
from pages import fill, markdown, plus_minus, write_csv
from rate_runs import ALGORITHMS, SEEDS, STEPS, rate
from virtual_run import spread

from mpisgd.training.effective import effective_steps

QUANTITIES = {
    "error": "error of the averaged iterate, F(mean x) - F*",
    "slope": "mean over steps of |grad F|$^2$ at the ranks' mean",
}
SIZES = {"mini-batch": 9, "Local": 6, "DaSGD": 5, "delta": 3}  # equal values stay visible


def rows(ledger: Ledger) -> list[dict[str, Any]]:
    """One row for each algorithm, number of ranks and number of steps."""
    found = []
    for name, algorithm in ALGORITHMS.items():
        for ranks, counts in STEPS.items():
            for steps in counts:
                cell = algorithm | {"ranks": ranks, "steps": steps}
                cells = [cell | {"seed": seed} for seed in SEEDS]
                lines = [ledger[c] for c in cells if c in ledger]
                if lines:
                    row = {"algorithm": name, "ranks": ranks, "steps": steps, "rate": rate(cell)}
                    row |= {"share": effective_steps(cell, steps) / steps, "seeds": len(lines)}
                    for quantity in ("error", "last_error", "slope"):
                        mean, deviation = spread([line[quantity] for line in lines])
                        row |= {quantity: mean, f"{quantity}_sd": deviation}
                    found.append(row)
    return found


def exponents(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The exponent of K between the two longest K of each curve, and what is left there."""
    result = []
    for name in ALGORITHMS:
        for ranks in STEPS:
            chosen = [r for r in table if r["algorithm"] == name and r["ranks"] == ranks]
            if len(chosen) < 2:
                continue
            before, final = chosen[-2:]
            row: dict[str, Any] = {"algorithm": name, "ranks": ranks}
            row["K"] = f"{before['steps']} to {final['steps']}"
            for quantity in ("error", "last_error", "slope"):
                ratio = np.log(final[quantity] / before[quantity])
                exponent = ratio / np.log(final["steps"] / before["steps"])
                row[f"exponent of {quantity}"] = f"{exponent:.2f}"
            row["error at the longest K"] = plus_minus(final["error"], final["error_sd"], 4)
            base = next(
                r for r in table
                if r["algorithm"] == "mini-batch" and r["ranks"] == ranks
                and r["steps"] == final["steps"]
            )  # fmt: skip
            row["of mini-batch's"] = f"{final['error'] / base['error']:.2f}"
            result.append(row)
    return result


def draw(table: list[dict[str, Any]], quantity: str) -> Any:
    """`quantity` over K, a panel for each number of ranks, beside a line c / sqrt(M K) that goes
    through mini-batch at the most steps of 8 ranks."""
    from matplotlib.ticker import LogLocator, NullLocator

    title = "Noisy convex problem, rate sqrt(M/K), batch 1 a rank, 3 seeds"
    figure, axes = panels(len(STEPS), title, 3.4, 4.2)
    anchor = [r for r in table if r["algorithm"] == "mini-batch" and r["ranks"] == 8][-1]
    for one, ranks in zip(axes, STEPS, strict=True):
        steps = np.array([min(STEPS[2]), max(STEPS[2])], np.float64)
        line = anchor[quantity] * np.sqrt(8 * anchor["steps"] / (ranks * steps))
        one.plot(steps, line, color="#bbbbbb", linewidth=5, alpha=0.6, label="c / sqrt(M K)")
        for name in ALGORITHMS:
            chosen = [r for r in table if r["algorithm"] == name and r["ranks"] == ranks]
            kind = family(name)
            corrected = "rate /" in name
            one.errorbar(
                [r["steps"] for r in chosen], [r[quantity] for r in chosen],
                [r[f"{quantity}_sd"] for r in chosen], label=name, linewidth=1, capsize=2,
                color=BLUES[1] if corrected else COLOURS[kind], markersize=SIZES[kind],
                marker="v" if corrected else MARKERS[kind],
            )  # fmt: skip
        one.set_xscale("log", base=2)
        one.set_yscale("log")
        one.set_xticks(STEPS[2], [str(count) for count in STEPS[2]])
        one.set_xlabel("steps K")
        one.set_title(f"M = {ranks} ranks", fontsize="small")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_locator(NullLocator())
    axes[0].set_ylabel(QUANTITIES[quantity])
    legend(figure, axes, 3)
    return figure


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its table from the ledger."""
    return fill(text, "exponents", markdown(exponents(rows(ledger))))


def write(folder: Path) -> None:
    """summary.csv, a figure for each quantity, and the page's table."""
    ledger = Ledger(folder / "runs.jsonl")
    table = rows(ledger)
    write_csv(folder / "summary.csv", table)
    for quantity in QUANTITIES:
        save(draw(table, quantity), folder / f"{quantity}.png")
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
