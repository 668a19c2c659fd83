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
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, add_mnist, groups, run_missing, study
from pages import (
    best_rate,
    difference,
    ends,
    fill_all,
    middle,
    plus_minus,
    rates,
    write_csv,
    write_page,
)
from pages import summary as rows_of
from runs import (
    Run,
    last_evaluation,
    machine,
    made_with,
    parts,
    significant,
    spread,
    train,
)

from mpisgd import data
from mpisgd.data import Dataset
from mpisgd.mpi.mpiexec import Launcher, find

Cell = Mapping[str, Any]
Row = dict[str, Any]

WORKERS, BATCH, HIDDEN = 32, 16, (128,)
SAMPLES, VALIDATION, TEST_SHARE = 16_384, 5_000, 1 / 6
STEPS = 100  # 3 passes of mini-batch SGD
SIGMA = "lognormal:0.3"
STEP_S = 20e-3  # of a worker's gradient, in the mean; an all-reduce of the model takes 2.9 ms
STEPS_S = (3e-3, 20e-3)  # for the times alone
TIMED_STEPS, SKIPPED = 40, 10
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
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
DEPTHS, WIDTH = (1, 5, 20), 256  # hidden layers, which decide how often a rank looks
TRAINED = (BASE, "partial, 24, drop", "partial, majority, drop", "partial, 24, add",
           "backup, 24 of 32, 1 server")  # fmt: skip
REAL_RANKS, LAUNCHES = 8, (1, 2, 3)
REAL: dict[str, Any] = {
    "model": "mlp", "hidden": (64,), "data": "digits", "batch": 16, "rate": 0.05, "steps": 30,
    "step_time_s": "300ms", "straggler": SIGMA, "evaluate_every": 0,
}  # fmt: skip
REAL_KINDS = {
    "minibatch-overlap": KINDS[BASE], "partial, 6, drop": PARTIAL | {"quorum": 6},
    "partial, 6, add": PARTIAL | {"quorum": 6, "late": "add"},
}  # fmt: skip
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


def deep() -> list[Cell]:
    """Seconds a step of nets of several layers, with looks between them and at will."""
    return [
        {"part": "looks", "name": name, "layers": layers, "progress": progress}
        for layers in DEPTHS
        for name, progress in ((BASE, "poll"), (TRAINED[1], "poll"), (TRAINED[1], "perfect"))
    ]


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    kind = KINDS[cell["name"]]
    fixed = {
        "model": "mlp", "hidden": HIDDEN, "data": "mnist", "batch": BATCH, "momentum": 0.9,
        "network": "titanx-20g", "straggler": SIGMA, "step_time_s": STEP_S, "steps": STEPS,
        "progress": "perfect", "evaluate_every": STEPS // 5,
    }  # fmt: skip
    if "layers" in cell:
        fixed["hidden"] = (WIDTH,) * cell["layers"]
    own = {name: cell[name] for name in cell if name not in ("part", "name", "layers")}
    return fixed | kind | own


def ranks(cell: Cell) -> int:
    """Workers, and servers that are none."""
    kind = KINDS[cell["name"]]
    return WORKERS + (0 if kind.get("colocated") else kind.get("servers", 0))


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    if cell["part"] != "train":
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
        "looks": significant(float(run.result.steps["polls"].max())) if "layers" in cell else None,
        "cpu_s": round(run.cpu_s, 2),
    }


def real() -> list[Cell]:
    """Launches of real ranks; the kinds take turns."""
    return [
        {"part": "real", "name": name, "launch": launch}
        for launch in LAUNCHES
        for name in REAL_KINDS
    ]


def real_cell(cell: Cell, mpiexec: Launcher, folder: Path) -> dict[str, Any]:
    """Seconds and samples of one launch."""
    path = folder / "run.h5"
    train(mpiexec, REAL_RANKS, REAL | REAL_KINDS[cell["name"]] | {"seed": cell["launch"]}, path)
    last = last_evaluation(path)
    steps = REAL["steps"]
    return {
        "step_s": significant(last["time_s"] / steps),
        "used": significant(last["samples_used"] / steps / REAL["batch"]),
    } | machine(mpiexec)


def launches(ledger: Ledger) -> list[Row]:
    """Medians and ranges over launches, speed against the launch of the same turn."""
    rows = []
    for name in REAL_KINDS:
        cells = [cell for cell in real() if cell["name"] == name and cell in ledger]
        if cells:
            pairs = [(ledger[cell | {"name": BASE}], ledger[cell]) for cell in cells]
            rows.append({
                "algorithm": name, "launches": len(cells),
                "ms a step": middle((1e3 * own["step_s"] for _, own in pairs), 1),
                "steps/s, over overlap": middle((b["step_s"] / x["step_s"] for b, x in pairs), 2),
                "full batches used": middle((own["used"] for _, own in pairs), 2),
            })  # fmt: skip
    return rows


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


def looks(ledger: Ledger) -> list[Row]:
    """Milliseconds a step over the number of looks in a gradient."""
    rows = []
    for layers in DEPTHS:
        cells = [cell for cell in deep() if cell["layers"] == layers]
        if all(cell in ledger for cell in cells):
            base, polled, perfect = (ledger[cell] for cell in cells)
            rows.append({
                "hidden layers": layers, "looks in a gradient": f"{polled['looks']:g}",
                "overlap, ms a step": f"{1e3 * base['step_s']:.2f}",
                "partial, 24, drop": f"{1e3 * polled['step_s']:.2f}",
                "steps/s, over overlap": f"{base['step_s'] / polled['step_s']:.2f}",
                "gradients used": f"{polled['used']:.1f}",
                "the same, heard at once": f"{base['step_s'] / perfect['step_s']:.2f}",
            })  # fmt: skip
    return rows


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    return fill_all(text, {
        "outcome": outcome(ledger), "differences": differences(ledger), "curves": curves(ledger),
        "rates": rates(ledger, TRAINED, cells_of, 3),
        "perfect": times(ledger, "perfect"), "poll": times(ledger, "poll"),
        "looks": looks(ledger), "real": launches(ledger),
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
    if arguments.only == "real":
        mpiexec = find(arguments.mpiexec)
        with tempfile.TemporaryDirectory() as folder:
            run_missing(real(), ledger, lambda cell: real_cell(cell, mpiexec, Path(folder)))
        return
    whole = data.load("mnist", arguments.data, held_back=TEST_SHARE)
    datasets = parts(whole, VALIDATION, SAMPLES)

    def one(cell: Cell) -> dict[str, Any]:
        return run_cell(cell, datasets)

    if arguments.only != "train":
        run_missing(timed() + deep(), ledger, one)
    if arguments.only != "time":
        run_missing([cell for name in TRAINED for cell in cells_of(name)], ledger, one)
        run_missing(tuned(ledger), ledger, one)


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument(
        "--only",
        choices=("time", "train", "real"),
        help="one part; real: real ranks, and nothing else [time and train]",
    )
    options.add_argument("--mpiexec", help="which mpiexec [the one beside this Python]")


def main() -> int:
    return study(__doc__, "study-partial", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
