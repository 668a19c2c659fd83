"""Tables of the MNIST study, from its ledger. A run that stopped early, and a target that was not
reached, stay in the tables and are shown so."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ledger import Ledger, groups
from mnist_cells import (
    COMMON_RATE,
    CORRECTED,
    LOCAL,
    RATES,
    TARGETS,
    TUNED,
    Cell,
    corrected_rate,
    part,
    share,
)
from mnist_cells import PARTS as PART_NAMES
from pages import fill, markdown, plus_minus, write_csv
from virtual_run import spread

from mpisgd.training.effective import effective_steps

Row = dict[str, Any]


def label(cell: Cell) -> str:
    """An algorithm's short name, without what the page holds fixed."""
    if cell["algorithm"] == "minibatch":
        return "mini-batch"
    if cell["algorithm"] == "local":
        return "Local"
    if cell["merge"] == "delta":
        return f"delta d={cell['delay']}"
    return f"DaSGD d={cell['delay']} xi={cell['xi']:g}"


def last(line: Row, name: str) -> float:
    """A column's value at the last step; NaN for a run that stopped before it."""
    return math.nan if "failure" in line else line["evaluations"][name][-1]


def summary(ledger: Ledger, name: str) -> list[Row]:
    """One row for each cell of a part."""
    rows = []
    for cell, lines in groups(ledger, part(name)):
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


def reached(line: Row, target: float) -> float:
    """Virtual seconds at the first evaluation with at least `target` accuracy; NaN if none."""
    evaluations = line["evaluations"]
    pairs = zip(evaluations["time_s"], evaluations["accuracy"], strict=True)
    return next((time for time, accuracy in pairs if accuracy >= target), math.nan)


def targets(chosen: Iterable[tuple[Cell, list[Row]]]) -> list[Row]:
    """Virtual milliseconds to each target: mean and deviation over seeds if all reached it."""
    rows = []
    for cell, lines in chosen:
        row: Row = {"algorithm": label(cell), "rate": f"{cell['rate']:g}"}
        for target in TARGETS:
            times = [reached(line, target) * 1e3 for line in lines]
            there = sum(not math.isnan(time) for time in times)
            text = plus_minus(*spread(times), 0)
            row[f"ms to {target:.2f}"] = (
                text if there == len(times) else f"not reached ({there} of {len(times)} seeds did)"
            )
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
    for name, rows in tables.items():
        text = fill(text, name, markdown(rows) if rows else "not run")
    return text


def write(folder: Path) -> None:
    """summary.csv, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    write_csv(folder / "summary.csv", [r for name in PART_NAMES for r in summary(ledger, name)])
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
