"""Tables and the figure of the study in `full_length`."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from command import Group, Ledger, groups
from full_length import (
    ALGORITHMS,
    BATCH,
    CORRECTED,
    RANKS,
    SCREEN,
    SEEDS,
    SETTLE,
    STEPS,
    Row,
    settled,
    tuning_loss,
    wanted,
)
from pages import band, cost, difference, ends, fill_all, legend, panels, save, summary, write_csv
from pages import write_page as write_readme

NAMES = [*ALGORITHMS, CORRECTED]
COLUMNS = ("test_accuracy", "test_loss", "accuracy", "loss", "train_loss", "time_s")
ENDS = {
    "test accuracy (%)": ("test_accuracy", 100, 1), "test loss": ("test_loss", 1, 3),
    "training loss": ("train_loss", 1, 3), "virtual ms": ("time_s", 1e3, 0),
}  # fmt: skip
LOOKS = ["#222222", "#ee6677", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#aa3377"]


def results(ledger: Ledger) -> list[Group]:
    """(cell without its seed, finished lines) of each algorithm whose rate has settled."""
    found = []
    for name in NAMES:
        cells = [one for one in wanted(ledger, name) if one["steps"] == STEPS]
        found += [(one, lines) for one, lines in groups(ledger, cells) if len(lines) == len(SEEDS)]
    return found


def rates(ledger: Ledger) -> list[Row]:
    """What each rate came to, at the lengths at which it was judged."""
    rows = []
    for name in ALGORITHMS:
        tried = sorted(
            {line["cell"]["rate"] for line in ledger.lines.values() if line["cell"]["name"] == name}
        )
        if not tried:
            continue
        _, chosen = settled(ledger, name)
        for steps in (SCREEN, SETTLE):
            row: Row = {"algorithm": name, "steps": steps}
            for rate in tried:
                loss = tuning_loss(ledger, name, rate, steps)
                row[f"{rate:g}"] = "" if loss is None else _shown(loss)
            rows.append(
                row | {"chosen": "" if chosen is None or steps == SCREEN else f"{chosen:g}"}
            )
    columns = sorted({float(key) for row in rows for key in row if key[0].isdigit()})
    order = ["algorithm", "steps", *(f"{rate:g}" for rate in columns), "chosen"]
    return [{key: row.get(key, "") for key in order} for row in rows]


def _shown(loss: float) -> str:
    return f"{loss:.3f}" if math.isfinite(loss) else "not finite"


def outcomes(ledger: Ledger) -> list[Row]:
    """Each algorithm at the end of its steps."""
    rows: list[Row] = []
    for one, lines in results(ledger):
        row: Row = {"algorithm": one["name"], "peak rate": f"{one['rate']:g}", "seeds": len(lines)}
        row["effective steps"] = f"{lines[0]['share'] * STEPS:.0f}"
        rows.append(row | ends(lines, ENDS))
    return rows


def differences(ledger: Ledger) -> list[Row]:
    """Test accuracy in points, seed by seed: each less mini-batch, DaSGD less Local."""
    found = {one["name"]: lines for one, lines in results(ledger)}
    pairs = [(name, "mini-batch") for name in NAMES[1:]]
    pairs += [(name, "Local") for name in NAMES[2:]]
    return [
        {"test accuracy, points": f"{one} less {other}"}
        | difference(found[one], found[other], "test_accuracy", 100, 1)
        for one, other in pairs
        if one in found and other in found
    ]


def at_time(line: Row, time_s: float) -> float:
    """Validation accuracy at a virtual time, on the line between the evaluations around it."""
    return float(np.interp(time_s, [0.0, *line["time_s"]], [0.1, *line["accuracy"]]))


def equal_time(ledger: Ledger) -> list[Row]:
    """Validation accuracy when the quickest has ended, of all."""
    found = results(ledger)
    if not found:
        return []
    until = min(line["time_s"][-1] for _, lines in found for line in lines)
    rows: list[Row] = []
    for one, lines in found:
        values = [100 * at_time(line, until) for line in lines]
        rows.append(
            {
                "algorithm": one["name"],
                f"validation accuracy (%) after {1e3 * until:.0f} virtual ms":
                    f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}",
                "share of its steps (%)": f"{100 * until / lines[0]['time_s'][-1]:.0f}",
            }
        )  # fmt: skip
    return rows


def figure(found: Iterable[Group]) -> Any:
    """Validation accuracy over samples and over virtual time: means and Student's 95 % bands."""
    title = f"resnet8 of width 8, {RANKS} virtual workers, each at its tuned rate, {STEPS} steps"
    drawn, axes = panels(2, title, 4.8, 4.4)
    for one, lines in found:
        values = 100 * np.array([line["accuracy"] for line in lines])
        colour, label = LOOKS[NAMES.index(one["name"])], f"{one['name']}, rate {one['rate']:g}"
        samples = np.array(lines[0]["step"]) * RANKS * BATCH / 1e3
        for axis, place in zip(axes, (samples, 1e3 * np.array(lines[0]["time_s"])), strict=True):
            band(axis, place, values, colour, label)
    axes[0].set_xlabel("thousand samples computed")
    axes[1].set_xlabel("virtual milliseconds, t_c = 0.65 t_p")
    axes[0].set_ylabel("validation accuracy (%), averaged model")
    legend(drawn, axes, 2)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "rates": rates(ledger), "outcomes": outcomes(ledger), "differences": differences(ledger),
        "time": equal_time(ledger), "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    write_csv(folder / "summary.csv", summary(ledger, COLUMNS))
    if found := results(ledger):
        save(figure(found), folder / "accuracy.png")
    write_readme(folder, page, ledger)
