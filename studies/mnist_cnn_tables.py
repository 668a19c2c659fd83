"""Tables and the figure of the MNIST CNN study, from its ledger."""

from pathlib import Path
from typing import Any

import numpy as np
from compared import chosen, difference, ends, last, rates, summary
from drawing import legend, panels, save
from ledger import Ledger
from mnist_cnn_runs import ALGORITHMS, COMMON_RATE, common, sweep_of, tuned
from pages import fill, markdown, write_csv

Row = dict[str, Any]

COLUMNS = ("test_error", "test_loss", "train_loss", "samples_computed", "time_s")
ENDS = {
    "test error (%)": ("test_error", 100, 2), "test loss": ("test_loss", 1, 4),
    "train loss": ("train_loss", 1, 4),
}  # fmt: skip
COLOURS = {
    "serial": "#888888", "mini-batch": "#222222", "Local": "#ee6677", "DaSGD": "#4477aa",
    "backup": "#228833", "async": "#ccbb44",
}  # fmt: skip


def outcomes(ledger: Ledger, kind: str) -> list[Row]:
    """Final results: mean and deviation over seeds."""
    return [
        {"algorithm": cell["name"], "rate": f"{cell['rate']:g}", "seeds": len(lines)}
        | ends(lines, ENDS)
        | {"samples computed": f"{last(lines[0], 'samples_computed'):.0f}"}
        | ends(lines, {"virtual s": ("time_s", 1, 1)})
        for cell, lines in chosen(ledger, kind, common, tuned)
    ]


def against_serial(ledger: Ledger, kind: str) -> list[Row]:
    """Test error less that of the serial run of the same seed, in images of 10,000."""
    found = {cell["name"]: lines for cell, lines in chosen(ledger, kind, common, tuned)}
    serial = found.pop("serial", [])
    return [
        {"algorithm": f"{name} less serial", **difference(lines, serial, "test_error", 1e4, 0)}
        for name, lines in found.items()
        if len(lines) == len(serial)
    ]


def figure(ledger: Ledger, kind: str) -> Any:
    """Training and validation loss over computed samples: mean over seeds, band least to most."""
    title = f"the common rate {COMMON_RATE:g}" if kind == "common" else "each at its best rate"
    drawn, axes = panels(2, f"MNIST CNN 16-16-32-32, 8 virtual workers, {title}", 4.6)
    for cell, lines in chosen(ledger, kind, common, tuned):
        finished = [line for line in lines if "failure" not in line]
        if not finished:
            continue
        samples = np.array(finished[0]["samples_computed"]) / 1e3
        for one, name in zip(axes, ("train_loss", "loss"), strict=True):
            values = np.array([line[name] for line in finished])
            colour = COLOURS[cell["name"]]
            one.plot(samples, values.mean(axis=0), color=colour, label=cell["name"])
            one.fill_between(
                samples, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2
            )
    for one, text in zip(axes, ("training loss since the last point", "validation loss"),
                         strict=True):  # fmt: skip
        one.set_yscale("log")
        one.set_xlabel("thousand samples computed, by all workers")
        one.set_title(text, fontsize="small")
    axes[0].set_ylabel("cross-entropy")
    legend(drawn, axes, 6)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "common": outcomes(ledger, "common"), "best": outcomes(ledger, "best"),
        "serial": against_serial(ledger, "best"), "rates": rates(ledger, ALGORITHMS, sweep_of, 4),
    }  # fmt: skip
    for name, rows in tables.items():
        text = fill(text, name, markdown(rows) if rows else "not run")
    return text


def write(folder: Path) -> None:
    """summary.csv, the figures, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    write_csv(folder / "summary.csv", summary(ledger, COLUMNS))
    save(figure(ledger, "common"), folder / "common.png")
    if tuned(ledger):
        save(figure(ledger, "best"), folder / "best.png")
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
