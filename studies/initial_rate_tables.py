"""Tables and figures of the study of initial rates, and iterations.json, from its ledger."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from drawing import legend, panels, save
from initial_rate_runs import (
    INITIAL_TARGETS,
    ITERATION_RATES,
    ITERATION_TARGETS,
    SEEDS,
    initial,
    iterations,
)
from ledger import Ledger, groups
from pages import fill, markdown, plus_minus, write_csv
from virtual_run import spread

Row = dict[str, Any]

CURVE_TARGET = 0.94  # of iterations.json: the highest that every N reaches
COLOURS = ("#9ecae1", "#6baed6", "#3182bd", "#08519c", "#fdae6b", "#e6550d", "#a63303")


def reached(line: Row, name: str, target: float) -> float:
    """The column `name` at the first evaluation with at least that accuracy; NaN if none."""
    pairs = zip(line[name], line["accuracy"], strict=True)
    return next((value for value, accuracy in pairs if accuracy >= target), math.nan)


def part(ledger: Ledger, cells: Any) -> list[tuple[Row, list[Row]]]:
    """(cell without its seed, finished lines) of one part."""
    return groups(ledger, [dict(cell) for seed in SEEDS for cell in cells(seed)])


def initial_table(ledger: Ledger) -> list[Row]:
    """Virtual seconds to each target, and where the run ends."""
    rows = []
    for cell, lines in part(ledger, initial):
        row: Row = {"gamma0": f"{cell['rate']:g}"}
        for target in INITIAL_TARGETS:
            times = [reached(line, "time_s", target) for line in lines]
            there = sum(not math.isnan(time) for time in times)
            never = f"not reached ({there} of {len(times)})"
            row[f"s to {target:g}"] = (
                plus_minus(*spread(times), 2) if there == len(times) else never
            )
        stopped = sum("failure" in line for line in lines)
        ends = [line["accuracy"][-1] for line in lines if "failure" not in line]
        row["at the end"] = (
            f"{stopped} of {len(lines)} not finite" if stopped else plus_minus(*spread(ends), 3)
        )
        rows.append(row)
    return rows


def fastest(ledger: Ledger) -> list[Row]:
    """Of each target, the gamma0 that all seeds reach it with earliest."""
    rows = []
    for target in INITIAL_TARGETS:
        times = [
            (spread([reached(line, "time_s", target) for line in lines]), cell["rate"])
            for cell, lines in part(ledger, initial)
        ]
        there = sorted(entry for entry in times if not math.isnan(entry[0][0]))
        if there:
            (mean, deviation), rate = there[0]
            rows.append({"target": f"{target:g}", "fastest gamma0": f"{rate:g}",
                         "virtual s": plus_minus(mean, deviation, 2)})  # fmt: skip
    return rows


def counts(ledger: Ledger, target: float) -> dict[int, tuple[float, list[float]]]:
    """N -> (rate with the least mean, iterations to the target of each seed), if all got there."""
    best: dict[int, tuple[float, list[float]]] = {}
    for cell, lines in part(ledger, iterations):
        values = [reached(line, "step", target) for line in lines]
        mean = float(np.mean(values))
        n = cell["gradients"]
        if not math.isnan(mean) and (n not in best or mean < np.mean(best[n][1])):
            best[n] = cell["rate"], values
    return best


def exponent(points: dict[int, tuple[float, list[float]]]) -> tuple[float, float]:
    """(p, factor) of the least-squares line iterations = factor * N^p in logarithms."""
    x = np.log(list(points))
    y = np.log([np.mean(values) for _, values in points.values()])
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(np.exp(offset))


def iterations_table(ledger: Ledger) -> list[Row]:
    """Iterations to each target at each N's best rate, the last target's samples too."""
    found = {target: counts(ledger, target) for target in ITERATION_TARGETS}
    rows = []
    for n, rates in ITERATION_RATES.items():
        row: Row = {"N": n}
        for target, best in found.items():
            if n not in best:
                row[f"to {target:g}"] = "not reached"
                continue
            rate, values = best[n]
            edge = "*" if rate in (rates[0], rates[-1]) else ""
            row[f"to {target:g}"] = f"{plus_minus(*spread(values), 0)} at {rate:g}{edge}"
        last = found[ITERATION_TARGETS[-1]]
        if n in last:
            row["gradients to the last"] = f"{n * np.mean(last[n][1]):.0f}"
        rows.append(row)
    return rows


def curve(ledger: Ledger, target: float) -> list[Row]:
    """What `mpisgd advise --backups --iterations` reads: a row for each N and seed."""
    return [
        {"needed": n, "iterations": value, "rate": rate, "target": target}
        for n, (rate, values) in counts(ledger, target).items()
        for value in values
    ]


def initial_figure(ledger: Ledger) -> Any:
    """Accuracy over virtual time, a line for each gamma0: the mean over seeds."""
    figure, (left, right) = panels(2, "16 of 17 gradients an update; the rate decays to 0.084 "
                                   "gamma0", 4.6)  # fmt: skip
    for colour, (cell, lines) in zip(COLOURS, part(ledger, initial), strict=False):
        if any("failure" in line for line in lines):
            continue
        times = np.mean([line["time_s"] for line in lines], axis=0)
        values = np.array([line["accuracy"] for line in lines])
        for one in (left, right):
            one.plot(times, values.mean(axis=0), color=colour, label=f"gamma0 {cell['rate']:g}")
            one.fill_between(times, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2)
    for one in (left, right):
        one.set_xlabel("virtual seconds")
        one.set_ylim(0.6, 0.97)
    left.set_xlim(0, 5)
    left.set_ylabel("validation accuracy")
    legend(figure, (left, right), 4)
    return figure


def iterations_figure(ledger: Ledger) -> Any:
    """Iterations over N for each target, with the paper's slope."""
    figure, (one,) = panels(1, "iterations to a validation accuracy, best rate of each N")
    for colour, target in zip(COLOURS[1:], ITERATION_TARGETS, strict=False):
        points = counts(ledger, target)
        if len(points) < 2:
            continue
        spreads = [spread(values) for _, values in points.values()]
        means, deviations = zip(*spreads, strict=True)
        one.errorbar(list(points), means, deviations, marker="o", capsize=2, color=colour,
                     label=f"to {target:g}: N^{exponent(points)[0]:.2f}")  # fmt: skip
    places = np.array(list(ITERATION_RATES))
    points = counts(ledger, ITERATION_TARGETS[-1])
    if points:
        first = float(np.mean(points[min(points)][1]))
        for power, style, text in ((-0.852, "--", "N^-0.852, the paper's two points"),
                                   (-1, ":", "1/N: no sample is wasted")):  # fmt: skip
            one.plot(places, first * (places / min(points)) ** power, style, color="#999999",
                     label=text)  # fmt: skip
    one.set_xscale("log", base=2)
    one.set_yscale("log")
    one.set_xticks(places, [str(n) for n in places])
    one.set_xlabel("N, gradients of 32 samples in an update")
    one.set_ylabel("iterations")
    legend(figure, [one], 2)
    return figure


def exponents(ledger: Ledger) -> list[Row]:
    """The slope of each target's curve, over all N and over the upper half."""
    rows = []
    for target in ITERATION_TARGETS:
        points = counts(ledger, target)
        upper = {n: value for n, value in points.items() if n >= 8}
        if len(upper) > 1:
            rows.append({"target": f"{target:g}", "N": f"{min(points)} to {max(points)}",
                         "exponent": f"{exponent(points)[0]:.2f}",
                         "exponent, N >= 8": f"{exponent(upper)[0]:.2f}"})  # fmt: skip
    return rows


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "initial": initial_table(ledger), "fastest": fastest(ledger),
        "iterations": iterations_table(ledger), "exponents": exponents(ledger),
    }  # fmt: skip
    for name, rows in tables.items():
        text = fill(text, name, markdown(rows))
    return text


def summary(ledger: Ledger) -> list[Row]:
    """One row for each rate of each part: steps and virtual seconds to each target."""
    rows = []
    for cells, targets in ((initial, INITIAL_TARGETS), (iterations, ITERATION_TARGETS)):
        for cell, lines in part(ledger, cells):
            row: Row = {**cell, "seeds": len(lines)}
            row["stopped_early"] = sum("failure" in line for line in lines)
            for target in targets:
                for name in ("step", "time_s"):
                    mean, deviation = spread([reached(line, name, target) for line in lines])
                    row |= {f"{name}_to_{target:g}": mean, f"{name}_to_{target:g}_sd": deviation}
            rows.append(row)
    return rows


def write(folder: Path) -> None:
    """summary.csv, iterations.json, the figures, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    write_csv(folder / "summary.csv", summary(ledger))
    text = ",\n".join(json.dumps(row) for row in curve(ledger, CURVE_TARGET))
    (folder / "iterations.json").write_text(f"[{text}]\n", encoding="utf-8")
    save(initial_figure(ledger), folder / "initial-rate.png")
    save(iterations_figure(ledger), folder / "iterations.png")
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
