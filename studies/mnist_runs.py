"""Running the cells of the MNIST study: data, virtual cluster, what a line of the ledger holds."""

from collections.abc import Callable
from typing import Any

from ledger import Ledger
from mnist_cells import BATCH, RANKS, TAU, Cell
from parts import parts
from virtual_run import Run, made_with, significant

from mpisgd import data
from mpisgd.data import Dataset

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


def run_all(
    cells: list[Cell], ledger: Ledger, path: str, tell: Callable[[str], object], limit_s: float
) -> None:
    """Run what the ledger lacks, until `limit_s` seconds of a core are spent in all lines."""
    missing = [cell for cell in cells if cell not in ledger]
    datasets = load(path) if missing else None
    for index, cell in enumerate(missing):
        ledger.refresh()
        if cell in ledger:
            continue
        spent = sum(line.get("cpu_s", 0.0) for line in ledger.lines.values())
        if spent > limit_s:
            tell(f"stopped: {spent:.0f} s of a core spent, {len(missing) - index} cells left")
            return
        assert datasets is not None
        result = run_cell(cell, datasets)
        ledger.add(cell, result)
        last = result["evaluations"]["loss"][-1:] or ["-"]
        tell(f"{index + 1}/{len(missing)} {cell} loss {last[0]} ({result['cpu_s']} s)")


def time_all(ledger: Ledger, path: str, tell: Callable[[str], object]) -> None:
    """Virtual seconds per step for t_c of 1 and 2 t_p, progress perfect and at looks only."""
    cells = [
        {"timed": True, "algorithm": name, "step_time_s": STEP_S * factor, "progress": progress}
        | extra
        for factor in (1, 2)
        for progress in ("perfect", "poll")
        for name, extra in TIMED
    ]
    missing = [cell for cell in cells if cell not in ledger]
    datasets = load(path) if missing else None
    for cell in missing:
        assert datasets is not None
        given = values({"ranks": RANKS, "batch": BATCH, **cell})
        del given["timed"], given["epochs"]
        run = Run(given | {"steps": TIMED_STEPS, "evaluate_every": 0}, RANKS, datasets[0])
        run.finish()
        ends = (run.result.steps["start_s"] + run.result.steps["step_s"])[:, 0]
        step_s = (ends[-1] - ends[SKIPPED_STEPS - 1]) / (TIMED_STEPS - SKIPPED_STEPS)
        ledger.add(cell, {"step_s": significant(step_s), "cpu_s": round(run.cpu_s, 2)})
        tell(f"{cell} {step_s * 1e3:.3f} ms a step")
