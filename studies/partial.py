"""The study of partial rounds: `python studies/partial.py run` trains, `figures` tabulates.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-partial/runs.jsonl, and skips those.

32 virtual workers with log-normal stragglers. Cells of part `train` learn MNIST: each algorithm at
every rate of one grid with one seed, then with all seeds at the rate of the least validation loss.
Cells of part `time` are of the same messages on hardly any samples: only their seconds count.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, add_mnist, groups, run_missing, study
from pages import best_rate, difference, ends, fill_all, plus_minus, rates, write_csv, write_page
from pages import summary as rows_of
from runs import Run, made_with, parts, significant, spread

from mpisgd import data
from mpisgd.data import Dataset

Cell = Mapping[str, Any]
Row = dict[str, Any]

WORKERS, BATCH, HIDDEN = 32, 16, (128,)
SAMPLES, VALIDATION, TEST_SHARE = 16_384, 5_000, 1 / 6
STEPS = 100  # 3 passes of mini-batch SGD
SIGMA = "lognormal:0.3"
STEP_S = 20e-3  # of a worker's gradient, in the mean; an all-reduce of the model takes 2.9 ms
STEPS_S = (3e-3, 20e-3)  # for the times alone
TIMED_STEPS, SKIPPED = 40, 10
RATES = (0.05, 0.1, 0.2)
TUNING_SEED, SEEDS = 1, (1, 2, 3)
PARTIAL = {"algorithm": "minibatch-partial", "late": "drop"}
BACKUP = {"algorithm": "backup", "stale": "abandon"}
KINDS: dict[str, dict[str, Any]] = {
    "minibatch-overlap": {"algorithm": "minibatch-overlap"},
    "partial, 28, drop": PARTIAL | {"quorum": 28},
    "partial, 24, drop": PARTIAL | {"quorum": 24},
    "partial, majority, drop": PARTIAL | {"quorum": "majority"},
    "partial, 24, add": PARTIAL | {"quorum": 24, "late": "add"},
    "partial, majority, add": PARTIAL | {"quorum": "majority", "late": "add"},
    "backup, 24 of 32, 1 server": BACKUP | {"backups": 8, "servers": 1},
    "backup, 24 of 32, 8 servers": BACKUP | {"backups": 8, "servers": 8, "colocated": True,
                                             "reads": "consistent"},
}  # fmt: skip
BASE = "minibatch-overlap"
TRAINED = (BASE, "partial, 24, drop", "partial, majority, drop", "partial, 24, add",
           "backup, 24 of 32, 1 server")  # fmt: skip
ENDS = {
    "validation loss": ("loss", 1.0, 4),
    "validation accuracy, %": ("accuracy", 100.0, 2),
    "test accuracy, %": ("test_accuracy", 100.0, 2),
}


def cells_of(name: str) -> list[Cell]:
    """One algorithm at every rate."""
    return [{"part": "train", "name": name, "rate": rate, "seed": TUNING_SEED} for rate in RATES]


def tuned(ledger: Ledger) -> list[Cell]:
    """Each algorithm at its best rate, all seeds, seed by seed."""
    best = {name: best_rate(ledger, cells_of(name)) for name in TRAINED}
    return [
        {"part": "train", "name": name, "rate": rate, "seed": seed}
        for seed in SEEDS
        for name, rate in best.items()
        if rate is not None
    ]


def timed() -> list[Cell]:
    """Seconds a step, of looks at will and of looks between layers."""
    return [
        {"part": "time", "name": name, "step_time_s": step_s, "progress": progress}
        for step_s in STEPS_S
        for progress in ("perfect", "poll")
        for name in KINDS
    ]


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    kind = KINDS[cell["name"]]
    fixed = {
        "model": "mlp", "hidden": HIDDEN, "data": "mnist", "batch": BATCH, "momentum": 0.9,
        "network": "titanx-20g", "straggler": SIGMA, "step_time_s": STEP_S, "steps": STEPS,
        "progress": "perfect", "evaluate_every": STEPS // 5,
    }  # fmt: skip
    own = {name: value for name, value in cell.items() if name not in ("part", "name")}
    return fixed | kind | own


def ranks(cell: Cell) -> int:
    """Workers, and servers that are none."""
    kind = KINDS[cell["name"]]
    return WORKERS + (0 if kind.get("colocated") else kind.get("servers", 0))


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    if cell["part"] == "time":
        return time_cell(cell, validation)
    run = Run(values(cell), ranks(cell), validation)
    failure = run.finish()
    result: dict[str, Any] = {"steps": run.experiment.steps} | run.evaluations
    result |= run.columns("samples_used")
    if failure:
        result["failure"] = failure
    else:
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def time_cell(cell: Cell, dataset: Dataset) -> dict[str, Any]:
    """Virtual seconds a step, and samples used in one, over the last of TIMED_STEPS steps."""
    given = values({**cell, "rate": 1e-3}) | {"batch": 1, "steps": TIMED_STEPS}
    run = Run(given | {"evaluate_every": SKIPPED}, ranks(cell), dataset)
    failure = run.finish()
    assert not failure, failure
    seconds, used = (run.result.evaluation[name] for name in ("time_s", "samples_used"))
    steps = run.result.evaluation["step"]
    done = steps[-1] - steps[0]
    return {
        "step_s": significant((seconds[-1] - seconds[0]) / done),
        "used": significant((used[-1] - used[0]) / done),
        "cpu_s": round(run.cpu_s, 2),
    }


def outcome(ledger: Ledger) -> list[Row]:
    """The end of every algorithm at its best rate, over seeds."""
    rows = []
    base = None
    for cell, lines in groups(ledger, tuned(ledger)):
        seconds = [line["time_s"][-1] for line in lines]
        row: Row = {"algorithm": cell["name"], "rate": f"{cell['rate']:g}", "seeds": len(lines)}
        row["ms a step"] = plus_minus(*spread([1e3 * s / STEPS for s in seconds]), 2)
        base = base or lines
        speed = [b["time_s"][-1] / s for b, s in zip(base, seconds, strict=False)]
        row["steps/s, over overlap"] = plus_minus(*spread(speed), 2)
        used = [line["samples_used"][-1] / (STEPS * WORKERS * BATCH) for line in lines]
        row["samples used, of 32 batches a step"] = plus_minus(*spread(used), 3)
        rows.append(row | ends(lines, ENDS))
    return rows


def differences(ledger: Ledger) -> list[Row]:
    """Test accuracy less that of BASE, seed by seed, in percent."""
    found = {cell["name"]: lines for cell, lines in groups(ledger, tuned(ledger))}
    base = found.get(BASE, [])
    return [
        {"algorithm": name, **difference(lines, base, "test_accuracy", 100.0, 2)}
        for name, lines in found.items()
        if name != BASE and len(lines) == len(base)
    ]


def curves(ledger: Ledger) -> list[Row]:
    """Validation accuracy at each evaluation, and when that was."""
    rows = []
    for cell, lines in groups(ledger, tuned(ledger)):
        row: Row = {"algorithm": cell["name"]}
        for at in range(len(lines[0]["step"])):
            shown = plus_minus(*spread([100 * line["accuracy"][at] for line in lines]), 1)
            seconds = np.mean([line["time_s"][at] for line in lines])
            row[f"step {lines[0]['step'][at]:.0f}"] = f"{shown} at {seconds:.2f} s"
        rows.append(row)
    return rows


def times(ledger: Ledger, progress: str) -> list[Row]:
    """Milliseconds a step, and steps a second over those of BASE."""
    rows = []
    for name in KINDS:
        row: Row = {"algorithm": name}
        for step_s in STEPS_S:
            cell = {"part": "time", "name": name, "step_time_s": step_s, "progress": progress}
            if cell not in ledger or cell | {"name": BASE} not in ledger:
                continue
            own, base = ledger[cell], ledger[cell | {"name": BASE}]
            ratio = base["step_s"] / own["step_s"]
            row[f"gradient of {1e3 * step_s:g} ms"] = f"{1e3 * own['step_s']:.2f} ({ratio:.2f})"
        row["gradients used"] = f"{ledger[cell]['used']:.1f}" if cell in ledger else ""
        rows.append(row)
    return rows


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    return fill_all(text, {
        "outcome": outcome(ledger), "differences": differences(ledger), "curves": curves(ledger),
        "rates": rates(ledger, TRAINED, cells_of, 3),
        "perfect": times(ledger, "perfect"), "poll": times(ledger, "poll"),
    })  # fmt: skip


def write(folder: Path) -> None:
    """summary.csv, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    trained = Ledger(folder / "runs.jsonl")
    trained.lines = {k: x for k, x in ledger.lines.items() if x["cell"]["part"] == "train"}
    names = ("time_s", "samples_used", "loss", "accuracy", "test_accuracy")
    write_csv(folder / "summary.csv", rows_of(trained, names))
    write_page(folder, page, ledger)


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    whole = data.load("mnist", arguments.data, held_back=TEST_SHARE)
    datasets = parts(whole, VALIDATION, SAMPLES)

    def one(cell: Cell) -> dict[str, Any]:
        return run_cell(cell, datasets)

    if arguments.only != "train":
        run_missing(timed(), ledger, one)
    if arguments.only != "time":
        run_missing([cell for name in TRAINED for cell in cells_of(name)], ledger, one)
        run_missing(tuned(ledger), ledger, one)


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument("--only", choices=("time", "train"), help="one part [both]")


def main() -> int:
    return study(__doc__, "study-partial", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
