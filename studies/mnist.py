"""The MNIST study: `python studies/mnist.py run` trains, `figures` draws and tabulates.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-mnist/runs.jsonl, and skips those.

Parts are lists of cells; a cell is one run: the fields of an Experiment that vary, `ranks`, `seed`.
Cells of several parts that are equal are one run. A run that stopped early, and a target that was
not reached, stay in the tables and are shown so. Bars and bands are one standard deviation.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from command import Ledger, add_mnist, groups, run_missing, study
from pages import fill_all, if_all, last, plus_minus, publish, reached
from runs import Run, made_with, parts, significant, spread

from mpisgd import data
from mpisgd.data import Dataset
from mpisgd.training.effective import effective_share, effective_steps

Cell = dict[str, Any]
Row = dict[str, Any]

SEEDS = (1, 2, 3)
RANKS, BATCH, TAU = 32, 32, 4
DELAYS = (1, 2, 3, 4)
PROPORTIONS = (0.0, 0.25, 0.5, 0.75)  # xi
COMMON_RATE = 0.1
RATES = (0.1, 0.2, 0.4, 0.8)  # the one grid, for every algorithm
WORKERS, BATCHES, TAUS = (8, 16, 32, 64), (8, 16, 32, 64), (1, 2, 4, 8)
LARGE_BATCH, LARGE_RATES, LARGE_EPOCHS = 256, (0.1, 0.4), 12  # times 32 ranks: 8,192 a step

# Fixed from a pilot of three runs with another seed, before the study began.
TARGETS = (0.85, 0.90, 0.92, 0.94)  # validation accuracy

MINIBATCH: Cell = {"algorithm": "minibatch"}
LOCAL: Cell = {"algorithm": "local", "tau": TAU}


def convex(delay: int, xi: float, tau: int = TAU) -> Cell:
    """DaSGD with the paper's merge."""
    return {"algorithm": "dasgd", "tau": tau, "delay": delay, "xi": xi, "merge": "convex"}


def delta(delay: int, tau: int = TAU) -> Cell:
    """DaSGD with the merge that loses no work."""
    return {"algorithm": "dasgd", "tau": tau, "delay": delay, "merge": "delta"}


GRID = [MINIBATCH, LOCAL, *(delta(d) for d in DELAYS)]
GRID += [convex(d, xi) for d in DELAYS for xi in PROPORTIONS]
TUNED = [MINIBATCH, LOCAL, delta(2), *(convex(d, 0.25) for d in (1, 2))]
CORRECTED = [convex(d, 0.25) for d in DELAYS] + [convex(2, 0.0)]
ABLATED = [MINIBATCH, LOCAL, convex(2, 0.25), delta(2)]


def share(cell: Cell) -> float:
    """Effective steps per step of a long run."""
    if "merge" not in cell:
        return 1.0
    return effective_share(cell["tau"], cell["delay"], cell.get("xi"), cell["merge"])


def corrected_rate(cell: Cell) -> float:
    """The rate whose effective steps are worth what those of Local at COMMON_RATE are."""
    return COMMON_RATE / share(cell)


def part(name: str) -> list[Cell]:
    """The cells of one part, seed by seed."""
    return [
        {"ranks": RANKS, "batch": BATCH, "rate": COMMON_RATE, **cell, "seed": seed}
        for seed in (SEEDS if name != "large" else SEEDS[:1])
        for cell in PARTS[name]
    ]


TAU_CELLS = [
    cell | {"tau": tau} | ({"delay": min(2, tau)} if "delay" in cell else {})
    for tau in TAUS
    for cell in (LOCAL, convex(2, 0.25), delta(2))
]
LARGE = {"batch": LARGE_BATCH, "epochs": LARGE_EPOCHS}
PARTS: dict[str, list[Cell]] = {
    "grid": GRID,
    "rates": [cell | {"rate": rate} for rate in RATES for cell in TUNED],
    "corrected": [cell | {"rate": corrected_rate(cell)} for cell in CORRECTED],
    "tau": TAU_CELLS,
    "large": [cell | {"rate": rate} | LARGE for rate in LARGE_RATES for cell in ABLATED],
    "workers": [cell | {"ranks": ranks} for ranks in WORKERS for cell in ABLATED],
    "batch": [cell | {"batch": batch} for batch in BATCHES for cell in ABLATED],
}


SAMPLES, VALIDATION, TEST_SHARE = 32_768, 5_000, 1 / 6
EPOCHS, HIDDEN = 3, (128,)
SAMPLES_PER_EVALUATION = 8_192
NETWORK = "titanx-20g"
# Seconds of a step of BATCH samples: the butterfly of 32 ranks takes 2.861 ms for this model, so
# t_c is 1.99 t_p. Other batches take proportionally long.
STEP_S = 1.44e-3
TIMED_STEPS, SKIPPED_STEPS = 40, 8  # seconds per step are those of the 32 last steps
TIMED = (
    [("minibatch", {}), ("local", {"tau": TAU})]
    + [("dasgd", {"tau": TAU, "delay": d}) for d in (1, 2, 3, 4)]
)  # fmt: skip


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with validation samples as their test set, the same with the true one)."""
    return parts(data.load("mnist", path, held_back=TEST_SHARE), VALIDATION, SAMPLES)


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    varied = {name: value for name, value in cell.items() if name != "ranks"}
    every = max(4, SAMPLES_PER_EVALUATION // (cell["ranks"] * cell["batch"]))
    fixed = {
        "model": "mlp", "hidden": HIDDEN, "data": "mnist", "epochs": EPOCHS,
        "evaluate_every": every, "network": NETWORK, "progress": "perfect",
        "step_time_s": STEP_S * cell["batch"] / BATCH,
    }  # fmt: skip
    return fixed | varied


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    run = Run(values(cell), cell["ranks"], validation)
    failure = run.finish()
    result: dict[str, Any] = {"steps": run.experiment.steps, "share": run.share}
    result["evaluations"] = run.evaluations
    if failure:
        result["failure"] = failure
    else:
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def timed_cells() -> list[Cell]:
    """t_c of 1 and 2 t_p, progress perfect and at looks only."""
    return [
        {"timed": True, "algorithm": name, "step_time_s": STEP_S * factor, "progress": progress}
        | extra
        for factor in (1, 2)
        for progress in ("perfect", "poll")
        for name, extra in TIMED
    ]


def time_cell(cell: Cell, dataset: Dataset) -> dict[str, Any]:
    """Virtual seconds per step."""
    given = values({"ranks": RANKS, "batch": BATCH, **cell})
    del given["timed"], given["epochs"]
    run = Run(given | {"steps": TIMED_STEPS, "evaluate_every": 0}, RANKS, dataset)
    run.finish()
    ends = (run.result.steps["start_s"] + run.result.steps["step_s"])[:, 0]
    step_s = (ends[-1] - ends[SKIPPED_STEPS - 1]) / (TIMED_STEPS - SKIPPED_STEPS)
    return {"step_s": significant(step_s), "cpu_s": round(run.cpu_s, 2)}


def label(cell: Cell) -> str:
    """An algorithm's short name, without what the page holds fixed."""
    if cell["algorithm"] == "minibatch":
        return "mini-batch"
    if cell["algorithm"] == "local":
        return "Local"
    if cell["merge"] == "delta":
        return f"delta d={cell['delay']}"
    return f"DaSGD d={cell['delay']} xi={cell['xi']:g}"


def summary(ledger: Ledger, name: str, cells: list[Cell]) -> list[Row]:
    """One row for each cell of the part `name`."""
    rows = []
    for cell, lines in groups(ledger, cells):
        row = {"part": name, **cell, "label": label(cell), "seeds": len(lines)}
        row["stopped_early"] = sum("failure" in line for line in lines)
        row["steps"] = lines[0]["steps"]
        row["steps_effective"] = effective_steps(cell, lines[0]["steps"])
        for column in ("loss", "accuracy", "time_s"):
            mean, deviation = spread([last(line, column) for line in lines])
            key = "time_s" if column == "time_s" else f"validation_{column}"
            row |= {key: mean, f"{key}_sd": deviation}
        for column in ("test_loss", "test_accuracy"):
            mean, deviation = spread([line.get(column, math.nan) for line in lines])
            row |= {column: mean, f"{column}_sd": deviation}
        rows.append(row)
    return rows


def best(ledger: Ledger) -> list[tuple[Cell, list[Row]]]:
    """Of each tuned algorithm, the rate with the least mean validation loss at the last step; a
    rate of which any seed stopped early does not count."""
    chosen: dict[str, tuple[float, Cell, list[Row]]] = {}
    for cell, lines in groups(ledger, part("rates")):
        loss = spread([last(line, "loss") for line in lines])[0]
        name = label(cell)
        if not math.isnan(loss) and (name not in chosen or loss < chosen[name][0]):
            chosen[name] = loss, cell, lines
    return [(cell, lines) for _, cell, lines in chosen.values()]


def targets(chosen: Iterable[tuple[Cell, list[Row]]]) -> list[Row]:
    """Virtual milliseconds to each target: mean and deviation over seeds if all reached it."""
    rows = []
    for cell, lines in chosen:
        row: Row = {"algorithm": label(cell), "rate": f"{cell['rate']:g}"}
        for target in TARGETS:
            times = [reached(line["evaluations"], target) * 1e3 for line in lines]
            row[f"ms to {target:.2f}"] = if_all(times, 0)
        rows.append(row)
    return rows


def outcome(cell: Cell, lines: list[Row]) -> Row:
    """The columns that every table of final results has."""
    stopped = sum("failure" in line for line in lines)
    effective = effective_steps(cell, lines[0]["steps"])
    row: Row = {"algorithm": label(cell), "rate": f"{cell['rate']:.3g}"}
    row["effective steps"] = f"{effective:g} of {lines[0]['steps']}"
    if stopped:
        return row | {"validation loss": f"{stopped} of {len(lines)} seeds not finite"}
    row["validation loss"] = plus_minus(*spread([last(x, "loss") for x in lines]), 3)
    row["validation accuracy"] = plus_minus(*spread([last(x, "accuracy") for x in lines]), 3)
    row["test accuracy"] = plus_minus(*spread([x["test_accuracy"] for x in lines]), 3)
    seconds = spread([last(x, "time_s") for x in lines])[0]
    row["virtual ms"] = f"{seconds * 1e3:.0f}"
    row["ms per effective step"] = f"{seconds * 1e3 / effective:.2f}" if effective else "none done"
    return row


def outcomes(ledger: Ledger, name: str) -> list[Row]:
    """Final results of a part."""
    return [outcome(cell, lines) for cell, lines in groups(ledger, part(name))]


def ablation(ledger: Ledger, name: str, heading: str) -> list[Row]:
    """Validation accuracy of each algorithm, one column for each value of `heading`."""
    rows: dict[str, Row] = {}
    for cell, lines in groups(ledger, part(name)):
        kind = "DaSGD d=2 xi=0.25" if cell.get("merge") == "convex" else None
        kind = kind or ("delta d=2" if cell.get("merge") == "delta" else label(cell))
        text = plus_minus(*spread([last(x, "accuracy") for x in lines]), 3)
        rows.setdefault(kind, {"algorithm": kind})[f"{heading} {cell[heading]}"] = text
    return list(rows.values())


def corrected(ledger: Ledger) -> list[Row]:
    """DaSGD at the common and at the corrected rate, beside Local at the common one."""
    at_common = {label(c): lines for c, lines in groups(ledger, part("grid"))}
    at_corrected = {label(c): lines for c, lines in groups(ledger, part("corrected"))}
    rows = []
    for cell in [LOCAL, *CORRECTED]:
        name = label(cell)
        if name not in at_common:
            continue
        row: Row = {"algorithm": name, "effective share": f"{share(cell):.3f}"}
        row[f"loss at {COMMON_RATE}"] = plus_minus(
            *spread([last(x, "loss") for x in at_common[name]]), 3
        )
        if name in at_corrected:
            row["corrected rate"] = f"{corrected_rate(cell):.3f}"
            losses = [last(x, "loss") for x in at_corrected[name]]
            row["loss at it"] = plus_minus(*spread(losses), 3)
        rows.append(row)
    return rows


def rates(ledger: Ledger) -> list[Row]:
    """Validation loss of every tuned algorithm at every rate of the grid."""
    found = {(label(c), c["rate"]): lines for c, lines in groups(ledger, part("rates"))}
    rows = []
    for cell in TUNED:
        row: Row = {"algorithm": label(cell)}
        for rate in RATES:
            losses = [last(x, "loss") for x in found.get((label(cell), rate), [])]
            text = plus_minus(*spread(losses), 3) if losses else "not run"
            row[f"loss at {rate}"] = "not finite" if text == "-" else text
        rows.append(row)
    return rows


def step_times(ledger: Ledger) -> list[Row]:
    """Milliseconds a step, and per effective step at xi = 0.25, in units of t_p too."""
    rows: dict[tuple[Any, ...], Row] = {}
    for line in ledger.lines.values():
        cell = line["cell"]
        if not cell.get("timed"):
            continue
        delay = cell.get("delay")
        name = f"DaSGD or delta d={delay}" if delay else label(cell)
        row = rows.setdefault((cell["algorithm"], delay), {"algorithm": name})
        ratio = "2" if cell["step_time_s"] < 2e-3 else "1"
        setting = f"t_c = {ratio} t_p, {cell['progress'].replace('poll', 'looks')}"
        row[setting] = f"{line['step_s'] / cell['step_time_s']:.2f}"
    return list(rows.values())


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    import mnist_own_rates as own

    chosen = best(ledger)
    at_common = [cell for cell in part("rates") if cell["rate"] == COMMON_RATE]
    tables = {
        "grid": outcomes(ledger, "grid"),
        "corrected": corrected(ledger),
        "rates": rates(ledger),
        "best": [outcome(cell, lines) for cell, lines in chosen],
        "targets-common": targets(groups(ledger, at_common)),
        "targets-best": targets(chosen),
        "times": step_times(ledger),
        "tau": ablation(ledger, "tau", "tau"),
        "workers": ablation(ledger, "workers", "ranks"),
        "batch": ablation(ledger, "batch", "batch"),
        "large": outcomes(ledger, "large"),
    }
    return fill_all(text, tables | own.tables(ledger))


def write(folder: Path) -> None:
    """summary.csv, the page's tables, and all figures that the ledger has runs for."""
    import mnist_own_rates as own
    from mnist_figures import FIGURES

    def rows(ledger: Ledger) -> list[Row]:
        found = [row for name in PARTS for row in summary(ledger, name, part(name))]
        return found + summary(ledger, "own", own.cells(ledger))

    publish(folder, page, rows, FIGURES | {"own": own.figure})


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument(
        "--limit", type=float, default=2100.0, help="seconds of a core for all but `own`"
    )
    options.add_argument("--parts", nargs="*", choices=[*PARTS, "own"], help="what to run [all]")


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    """The parts asked for, or all in the order of their table; the times of steps; own rates."""
    import mnist_own_rates as own

    datasets = load(arguments.data)

    def one(cell: Cell) -> Row:
        return run_cell(cell, datasets)

    names = arguments.parts or [*PARTS, "own"]
    cells = [cell for name in names if name != "own" for cell in part(name)]
    run_missing(cells, ledger, one, arguments.limit)
    run_missing(timed_cells(), ledger, lambda cell: time_cell(cell, datasets[0]))
    if "own" in names:
        own.run(ledger, one)


def main() -> int:
    return study(__doc__, "study-mnist", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
