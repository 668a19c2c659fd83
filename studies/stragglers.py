"""The straggler study: `python studies/stragglers.py run` plays, `figures` draws and tabulates.

Keeps one line for each finished cell in results/study-stragglers/runs.jsonl, and skips those.

100 virtual workers with a tail like that of Chen et al. 2016. Cells of part `run` are runs of
servers and workers in the virtual world, of which only the times are kept; cells of part `splits`
are what `mpisgd advise --backups` says of every N of 100.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import sys
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, run_missing, study
from pages import (
    fill_all,
    legend,
    panels,
    save,
    write_csv,
    write_page,
)
from runs import Run, made_with, significant

from mpisgd.experiment.building import load
from mpisgd.experiment.experiment import Experiment
from mpisgd.predict import backups, measured
from mpisgd.predict.curves import curve
from mpisgd.report.servers import arrival_seconds
from mpisgd.store.writer import Writer

Cell = Mapping[str, Any]
Line = Mapping[str, Any]

WORKERS = 100
STEP_S = 1.6  # seconds
TAIL = "lognormal:0.06,pareto:1.5:0.015"
UPDATES = 300
SEED = 1
CURVE = "chen"
RULES = ({"backups": 0, "stale": "finish"}, {"backups": 4, "stale": "finish"},
         {"backups": 4, "stale": "abandon"})  # fmt: skip
DRAWS = 1 << 14  # gradients of a machine, for the splits
KEPT = ("needed", "update_s", "update_low_s", "update_high_s", "converge_s", "converge_low_s",
        "converge_high_s", "over_best", "over_best_low", "over_best_high", "best")  # fmt: skip
FEW = {
    "model": "quadratic", "data": "noise", "data_samples": 1000, "batch": 1, "rate": 0.01,
    "momentum": 0.0, "evaluate_every": 0,
}  # fmt: skip


def cells() -> list[Cell]:
    """All of them; what is measured comes right behind the run that it is measured from."""
    runs = [{"part": "run", **rule, "seed": SEED} for rule in RULES]
    splits = [
        {"part": "splits", "method": method, "stale": stale}
        for method in ("measured", "sampled")
        for stale in backups.STALE
    ]
    return [runs[0], *splits, *runs[1:]]


def values(cell: Cell, updates: int = UPDATES) -> dict[str, Any]:
    """The fields of a run's Experiment."""
    names = ("backups", "stale", "seed")
    own = {name: cell[name] for name in names}
    return {
        **FEW, **own, "algorithm": "backup", "straggler": TAIL, "step_time_s": STEP_S,
        "steps": updates, "servers": 1,
    }  # fmt: skip


def run_cell(cell: Cell) -> dict[str, Any]:
    """What the ledger keeps."""
    began = time.process_time()
    kept = times_of_run(cell) if cell["part"] == "run" else times_of_splits(cell)
    return kept | {"cpu_s": round(time.process_time() - began, 1)} | made_with()


def played(cell: Cell, updates: int = UPDATES) -> dict[str, np.ndarray]:
    """/updates of a run in the virtual world: 100 workers and a server."""
    return _played(tuple(cell.items()), updates)


@lru_cache(maxsize=1)
def _played(items: tuple[tuple[str, Any], ...], updates: int) -> dict[str, np.ndarray]:
    given = values(dict(items), updates)
    run = Run(given, WORKERS + 1, load(Experiment.read(given)))
    failure = run.finish()
    assert not failure, failure
    return dict(run.result.updates)


def times_of_run(cell: Cell) -> dict[str, Any]:
    """Seconds of an update, and to the k-th gradient: mean, and largest of all."""
    pushes = played(cell)
    place, seconds = arrival_seconds(pushes)
    used = pushes["used"] == 1
    made = (pushes["arrived_s"] + pushes["waited_s"])[used & (pushes["update"] == UPDATES)].max()
    counts = np.bincount(place)[1:]
    means = np.bincount(place, seconds)[1:] / counts
    whole = counts >= counts[0] / 2
    return {
        "update_s": significant(made / UPDATES),
        "used_share": significant(used.mean()),
        "largest_s": significant(seconds.max()),
        "arrivals_s": [significant(mean) for mean in means[whole].tolist()],
    }


def times_of_splits(cell: Cell) -> dict[str, Any]:
    """The advice: KEPT of each N."""
    if cell["method"] == "sampled":
        times = backups.of_distribution(TAIL, STEP_S, WORKERS, cell["stale"], 0, DRAWS)
    else:
        times = backups.of_measured(_pools(), WORKERS, cell["stale"], 0, DRAWS)
    rows = backups.rows(times, curve(CURVE, WORKERS).iterations)
    return {"how": times.method, **{name: [_short(row[name]) for row in rows] for name in KEPT}}


def _pools() -> list[np.ndarray]:
    """Gradients' seconds of the run without backups, by way of a result file."""
    pushes = played(cells()[0])
    names, columns = tuple(pushes), [column.tolist() for column in pushes.values()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        with Writer(path, kind="train", config={}, environment={}, ranks=WORKERS + 1) as store:
            store.updates(dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
            store.complete({})
        return measured.gradient_seconds(str(path))


def _short(value: Any) -> Any:
    return significant(value) if isinstance(value, float) else value


COLOURS = {"finish": "#ee6677", "abandon": "#4477aa"}
STYLES = {"sampled": "-", "measured": "--"}
SHOWN = (1, 10, 25, 50, 75, 90, 94, 95, 96, 97, 98, 99, 100)


def runs(ledger: Ledger) -> list[tuple[dict[str, Any], Line]]:
    """(rule, line) of the runs that are done, without backups first."""
    cells = [(rule, {"part": "run", **rule, "seed": SEED}) for rule in RULES]
    return [(rule, ledger[cell]) for rule, cell in cells if cell in ledger]


def splits(ledger: Ledger) -> list[tuple[str, str, Line]]:
    """(method, stale, line) of the advice that is done."""
    found = []
    for method in STYLES:
        for stale in COLOURS:
            cell = {"part": "splits", "method": method, "stale": stale}
            if cell in ledger:
                found.append((method, stale, ledger[cell]))
    return found


def name_of(rule: Mapping[str, Any]) -> str:
    """As in 96 + 4, abandon."""
    backups = rule["backups"]
    return f"{WORKERS - backups} + {backups}" + (f", {rule['stale']}" if backups else "")


def compared(ledger: Ledger) -> list[dict[str, Any]]:
    """One row a run: seconds of an update, and of all updates to converge by the curve."""
    iterations, rows = curve(CURVE, WORKERS).iterations, []
    for rule, line in runs(ledger):
        count = iterations(WORKERS - rule["backups"])
        rows.append(
            {
                "workers": name_of(rule), "update (s)": f"{line['update_s']:.3f}",
                "used gradients": f"{line['used_share']:.1%}",
                "slowest gradient (s)": f"{line['largest_s']:.0f}",
                "iterations": f"{count:.0f}", "converged (h)": line["update_s"] * count / 3600,
            }
        )  # fmt: skip
    for row in rows:
        row["of 100 + 0"] = f"{row['converged (h)'] / rows[0]['converged (h)']:.3f}"
    return [row | {"converged (h)": f"{row['converged (h)']:.1f}"} for row in rows]


def arrivals(ledger: Ledger) -> list[dict[str, Any]]:
    """Mean seconds to the k-th gradient, a column a run."""
    rows = []
    for k in SHOWN:
        row: dict[str, Any] = {"k": k}
        for rule, line in runs(ledger):
            seconds = line["arrivals_s"]
            row[name_of(rule)] = f"{seconds[k - 1]:.3f}" if k <= len(seconds) else "-"
        rows.append(row)
    return rows


def best(ledger: Ledger) -> list[dict[str, Any]]:
    """One row for each advice: the best split and how sure it is."""
    rows = []
    for method, stale, line in splits(ledger):
        at = line["best"].index(True)
        equal = [
            n for n, low in zip(line["needed"], line["over_best_low"], strict=True) if low <= 0
        ]
        n = line["needed"][at]
        rows.append(
            {
                "times": line.get("how", method), "stale work": stale,
                "best": f"{n} + {WORKERS - n}",
                "not told apart": f"N = {min(equal)} to {max(equal)}",
                "96 + 4 over it": _margin(line, 95), "100 + 0 over it": _margin(line, 99),
                "update at 96 (s)": _update(line, 95, 3), "at 100 (s)": _update(line, 99, 2),
            }
        )  # fmt: skip
    return rows


def _margin(line: Line, at: int) -> str:
    low, high = line["over_best_low"][at], line["over_best_high"][at]
    return f"{line['over_best'][at]:.1%} [{low:.1%}, {high:.1%}]"


def _update(line: Line, at: int, digits: int) -> str:
    values = (line[name][at] for name in ("update_s", "update_low_s", "update_high_s"))
    middle, low, high = (f"{value:.{digits}f}" for value in values)
    return f"{middle} [{low}, {high}]"


def draw_arrivals(ledger: Ledger) -> Any:
    """Mean time to the k-th gradient."""
    title = f"{WORKERS} virtual workers, {TAIL}, {UPDATES} updates"
    figure, (axes,) = panels(1, title, 6.4, 4.2)
    for (rule, line), colour in zip(runs(ledger), ("#222222", *COLOURS.values()), strict=False):
        seconds = line["arrivals_s"]
        axes.plot(range(1, len(seconds) + 1), seconds, ".-", color=colour, label=name_of(rule))
    axes.set_yscale("log")
    axes.set_yticks([1.5, 2, 3, 5, 8], ["1.5", "2", "3", "5", "8"])
    axes.minorticks_off()
    axes.set_xlabel("k")
    axes.set_ylabel("mean virtual seconds to the k-th gradient")
    legend(figure, [axes], 3)
    return figure


def draw_splits(ledger: Ledger) -> Any:
    """Expected time to converge against N, its least marked."""
    figure, (axes,) = panels(1, f"{WORKERS} workers, {TAIL}, iterations: {CURVE}", 6.4, 4.2)
    for method, stale, line in splits(ledger):
        hours = [seconds / 3600 for seconds in line["converge_s"]]
        colour, at = COLOURS[stale], line["best"].index(True)
        axes.plot(
            line["needed"],
            hours,
            STYLES[method],
            color=colour,
            label=f"{stale}, {line.get('how', method)}",
        )
        axes.plot(line["needed"][at], hours[at], "o", color=colour)
    axes.set_yscale("log")
    axes.set_yticks([40, 50, 70, 100, 150], ["40", "50", "70", "100", "150"])
    axes.minorticks_off()
    axes.set_xlabel("N, gradients that an update waits for; N + b = 100")
    axes.set_ylabel("expected hours to converge")
    axes.set_xlim(left=30)
    axes.set_ylim(36, 180)
    legend(figure, [axes], 2)
    return figure


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {"compared": compared(ledger), "arrivals": arrivals(ledger), "best": best(ledger)}
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """splits.csv, both figures, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    rows = [
        {"method": method, "stale": stale} | {name: line[name][i] for name in line if name in KEPT}
        for method, stale, line in splits(ledger)
        for i in range(WORKERS)
    ]
    write_csv(folder / "splits.csv", rows)
    save(draw_arrivals(ledger), folder / "arrivals.png")
    save(draw_splits(ledger), folder / "splits.png")
    write_page(folder, page, ledger)


def main() -> int:
    return study(
        __doc__, "study-stragglers",
        lambda arguments, ledger: run_missing(cells(), ledger, run_cell), write,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
