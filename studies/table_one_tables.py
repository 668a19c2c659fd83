"""Tables and the figure of the reduced Table I, from its ledger."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from compared import chosen, difference, ends, rates, summary
from drawing import COLOURS, MARKERS, legend, panels, save
from ledger import Ledger
from pages import fill, markdown, plus_minus, write_csv
from table_one_runs import (
    ALGORITHMS,
    COMMON_RATE,
    common,
    samples,
    sweep_of,
    tuned,
)
from virtual_run import spread

from mpisgd.training.effective import effective_steps

Row = dict[str, Any]

COLUMNS = ("test_accuracy", "test_loss", "accuracy", "loss", "train_loss", "time_s")
ENDS = {
    "test accuracy (%)": ("test_accuracy", 100, 1), "validation accuracy (%)": ("accuracy", 100, 1),
    "training loss": ("train_loss", 1, 3), "virtual ms": ("time_s", 1e3, 0),
}  # fmt: skip
TARGETS = (0.3, 0.4, 0.5)  # validation accuracy, fixed before the runs of full length


def outcomes(ledger: Ledger, kind: str) -> list[Row]:
    """Final results: mean and deviation over seeds."""
    rows = []
    for cell, lines in chosen(ledger, kind, common, tuned):
        row: Row = {"algorithm": cell["name"], "peak rate": f"{cell['rate']:g}"}
        row |= {"seeds": len(lines), "steps": lines[0]["steps"]}
        row["effective steps"] = f"{effective_steps(ALGORITHMS[cell['name']], lines[0]['steps']):g}"
        rows.append(row | ends(lines, ENDS))
    return rows


def differences(ledger: Ledger, kind: str) -> list[Row]:
    """Test accuracy of each pair of algorithms, seed by seed, in points."""
    found = {cell["name"]: lines for cell, lines in chosen(ledger, kind, common, tuned)}
    names = [name for name in ALGORITHMS if name in found]
    return [
        {"test accuracy, points": f"{one} less {other}"}
        | difference(found[one], found[other], "test_accuracy", 100, 1)
        for place, one in enumerate(names)
        for other in names[:place]
        if len(found[one]) == len(found[other])
    ]


def targets(ledger: Ledger, kind: str) -> list[Row]:
    """Virtual milliseconds to each validation accuracy, if all seeds reached it."""
    rows = []
    for cell, lines in chosen(ledger, kind, common, tuned):
        row: Row = {"algorithm": cell["name"], "peak rate": f"{cell['rate']:g}"}
        for target in TARGETS:
            times = [1e3 * reached(line, target) for line in lines]
            there = sum(not math.isnan(value) for value in times)
            never = f"not reached ({there} of {len(times)} seeds did)"
            text = plus_minus(*spread(times), 0) if there == len(times) else never
            row[f"ms to {100 * target:.0f} %"] = text
        rows.append(row)
    return rows


def reached(line: Row, target: float) -> float:
    """Virtual seconds at the first evaluation with at least `target` accuracy; NaN if none."""
    pairs = zip(line["time_s"], line["accuracy"], strict=True)
    return next((time for time, accuracy in pairs if accuracy >= target), math.nan)


def figure(ledger: Ledger, kind: str) -> Any:
    """Validation accuracy over samples and over virtual time: mean over seeds and one deviation."""
    title = f"the common peak rate {COMMON_RATE:g}" if kind == "common" else "each at its best rate"
    drawn, axes = panels(2, f"resnet8 of width 8, 32 virtual workers, {title}", 4.6)
    for cell, lines in chosen(ledger, kind, common, tuned):
        finished = [line for line in lines if "failure" not in line]
        if not finished:
            continue
        values = 100 * np.array([line["accuracy"] for line in finished])
        middle, width = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
        places = (np.array(samples(finished[0])) / 1e3, 1e3 * np.array(finished[0]["time_s"]))
        for one, place in zip(axes, places, strict=True):
            name = cell["name"]
            one.plot(place, middle, color=COLOURS[name], marker=MARKERS[name], markersize=3,
                     label=f"{name}, rate {cell['rate']:g}")  # fmt: skip
            one.fill_between(place, middle - width, middle + width, color=COLOURS[name], alpha=0.2)
    axes[0].set_xlabel("thousand samples computed")
    axes[1].set_xlabel("virtual milliseconds, t_c = 0.65 t_p")
    axes[0].set_ylabel("validation accuracy (%), averaged model")
    legend(drawn, axes, 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "rates": rates(ledger, ALGORITHMS, sweep_of, 3), "best": outcomes(ledger, "best"),
        "differences": differences(ledger, "best"), "targets": targets(ledger, "best"),
        "common": outcomes(ledger, "common"), "differences-common": differences(ledger, "common"),
    }  # fmt: skip
    for name, rows in tables.items():
        text = fill(text, name, markdown(rows) if rows else "not run")
    return text


def write(folder: Path) -> None:
    """summary.csv, the figures, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    write_csv(folder / "summary.csv", summary(ledger, COLUMNS))
    for kind in ("best", "common"):
        if chosen(ledger, kind, common, tuned):
            save(figure(ledger, kind), folder / f"{kind}.png")
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
