"""Tables and the figure of the study in `hours`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger
from hours import (
    EPOCHS,
    KINDS,
    NAMES,
    OWN,
    SAMPLES,
    SEEDS,
    SERVERS,
    SHARED,
    TUNING,
    cell,
    gradients,
    rate_of,
    split,
    timed,
    wanted,
    whole,
)
from pages import band, banded, cost, fill_all, last, legend, panels, publish
from runs import spread
from settling import mean_loss, table

Row = dict[str, Any]
Line = dict[str, Any]

TARGETS = (0.85, 0.88, 0.90)  # the first since not all come to the others, see the page
PORTS = {OWN: "its own", SHARED: "one of eight ranks"}
COLOURS = {"backup": "#228833", "async": "#ccbb44"}


def results(ledger: Ledger, name: str) -> list[Line]:
    """The lines of all seeds at the settled rate; none while one is missing."""
    cells = wanted(ledger, name)
    there = [ledger[of] for of in cells if of in ledger and of["seed"] in SEEDS]
    return there if len(there) == len(SEEDS) else []


def steps_to(line: Line, target: float, column: str = "step") -> float:
    """Steps, or another column, at a test accuracy of the averaged parameters, on the line between
    evaluations; NaN if it was not reached."""
    places, accuracy = np.array([0.0, *line[column]]), np.array([0.1, *line["ema_accuracy"]])
    above = np.flatnonzero(accuracy >= target)
    if not len(above):
        return math.nan
    at = slice(above[0] - 1, above[0] + 1)
    return float(np.interp(target, accuracy[at], places[at]))


def step_s(ledger: Ledger, name: str, ports: str = OWN) -> list[float]:
    """Seconds of a step with all servers, a value for each seed."""
    lines = [ledger[of] for of in timed(name, ports) if of in ledger]
    return [line["time_s"][-1] / line["step"][-1] for line in lines]


def epochs_to(line: Line, target: float) -> float:
    """Passes through the data, of used samples."""
    used = line["samples_used"][-1] / line["step"][-1]
    return steps_to(line, target) * used / SAMPLES


def minutes_to(ledger: Ledger, name: str, line: Line, target: float, ports: str = OWN) -> float:
    return steps_to(line, target) * spread(step_s(ledger, name, ports))[0] / 60


def outcomes(ledger: Ledger) -> list[Row]:
    """The table: epochs and virtual minutes to each target, and the accuracy at the end."""
    rows = []
    for name in NAMES:
        lines, seconds = results(ledger, name), step_s(ledger, name)
        if not lines or not seconds:
            continue
        kind, workers = split(name)
        row: Row = {"workers": workers, "servers": SERVERS[workers], "algorithm": kind}
        row["rate"] = f"{lines[0]['cell']['rate']:.3g}"
        row["staleness"] = f"{spread([line['staleness'] for line in lines])[0]:.0f}"
        for target in TARGETS:
            epochs = [epochs_to(line, target) for line in lines]
            row[f"epochs to {target:.0%}"] = _reached(epochs, 2)
            minutes = [minutes_to(ledger, name, line, target) for line in lines]
            row[f"minutes to {target:.0%}"] = _reached(minutes, 1)
        row["test accuracy at the end (%)"] = banded(
            [100 * last(line, "ema_accuracy") for line in lines], 1
        )
        rows.append(row)
    return rows


def _reached(values: list[float], digits: int) -> str:
    there = sum(not math.isnan(value) for value in values)
    if there < len(values):
        return f"not reached ({there} of {len(values)})"
    return banded(values, digits)


def versus(ledger: Ledger, workers: int) -> list[tuple[Line, Line]]:
    """(async's line, that of backups) of each seed that both have."""
    apart, together = (results(ledger, f"{kind}, {workers}") for kind in ("async", "backup"))
    return list(zip(apart, together, strict=False))


def differences(ledger: Ledger) -> list[Row]:
    """Async over backups at each number of workers, seed by seed: ratios, and points at the end."""
    rows = []
    for workers in SERVERS:
        pairs = versus(ledger, workers)
        if not pairs:
            continue
        row: Row = {"workers": workers}
        for target in TARGETS:
            epochs = [epochs_to(x, target) / epochs_to(y, target) for x, y in pairs]
            row[f"epochs to {target:.0%}, async over backup"] = _reached(epochs, 2)
        points = [100 * (last(x, "ema_accuracy") - last(y, "ema_accuracy")) for x, y in pairs]
        rows.append(row | {"points at the end": banded(points, 2)})
    return rows


def minute_ratios(ledger: Ledger) -> list[Row]:
    """Async's minutes over those of backups, seed by seed, for each kind of ports."""
    rows = []
    for workers in SERVERS:
        pairs = versus(ledger, workers)
        for ports, whose in PORTS.items():
            seconds = [step_s(ledger, f"{kind}, {workers}", ports) for kind in ("async", "backup")]
            if not pairs or not all(seconds):
                continue
            paced = spread(seconds[0])[0] / spread(seconds[1])[0]
            row: Row = {"workers": workers, "a rank's port is": whose}
            for target in TARGETS:
                ratios = [paced * steps_to(x, target) / steps_to(y, target) for x, y in pairs]
                row[f"minutes to {target:.0%}, async over backup"] = _reached(ratios, 2)
            rows.append(row)
    return rows


def paces(ledger: Ledger) -> list[Row]:
    """What a step takes with all servers and Inception's messages."""
    rows = []
    for name in NAMES:
        for ports, whose in PORTS.items():
            seconds, count = step_s(ledger, name, ports), gradients(name)
            if not seconds:
                continue
            kind, workers = split(name)
            rows.append({
                "workers": workers, "servers": SERVERS[workers], "algorithm": kind,
                "a rank's port is": whose, "seconds a step": banded(seconds, 3),
                "gradients used a step": count,
                "gradients a second": banded([count / s for s in seconds], 1),
            })  # fmt: skip
    return rows


def checks(ledger: Ledger) -> list[Row]:
    """Runs that learn with all servers and letters at once, beside the same in two parts."""
    rows = []
    for ports, of in ((one, of) for one in PORTS for of in whole(ledger, one)):
        parted = cell("epochs", of["name"], of["rate"], of["seed"])
        if of not in ledger or parted not in ledger:
            continue
        row: Row = {"algorithm": of["name"], "a rank's port is": PORTS[ports]}
        for target in TARGETS:
            seconds = steps_to(ledger[of], target, "time_s")
            row[f"minutes to {target:.0%}, at once"] = f"{seconds / 60:.2f}"
            told = minutes_to(ledger, of["name"], ledger[parted], target, ports)
            row[f"in two parts, {target:.0%}"] = f"{told:.2f}"
        rows.append(row)
    return rows


def rates(ledger: Ledger) -> list[Row]:
    """Validation loss at every rate that was judged."""

    def loss(name: str, rate: float) -> float | None:
        return mean_loss(ledger, [cell("epochs", name, rate, seed) for seed in TUNING], "ema_loss")

    return table({name: rate_of(ledger, name) for name in NAMES}, loss, "algorithm", 4)


def figure(ledger: Ledger) -> Any:
    """Test accuracy over epochs and over virtual time."""
    drawn, axes = panels(2 * len(SERVERS), f"mlp on {SAMPLES} MNIST images, {EPOCHS} epochs", 3.4)
    for index, workers in enumerate(SERVERS):
        pair = axes[index], axes[index + len(SERVERS)]
        for kind in KINDS:
            name = f"{kind}, {workers}"
            lines, seconds = results(ledger, name), step_s(ledger, name)
            if not lines or not seconds:
                continue
            steps = np.array(lines[0]["step"])
            places = (np.array(lines[0]["samples_used"]) / SAMPLES, steps * spread(seconds)[0] / 60)
            rows = [[100 * value for value in line["ema_accuracy"]] for line in lines]
            for one, place in zip(pair, places, strict=True):
                band(one, place, rows, COLOURS[kind], kind)
        for one, text in zip(pair, ("epochs", "virtual minutes"), strict=True):
            one.set_title(f"{workers} workers, {SERVERS[workers]} servers", fontsize="small")
            one.set_xlabel(text)
            one.set_ylim(70, 96)
    axes[0].set_ylabel("test accuracy (%), averaged parameters")
    legend(drawn, axes, 2)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "outcomes": outcomes(ledger), "differences": differences(ledger),
        "minutes": minute_ratios(ledger), "paces": paces(ledger),
        "checks": checks(ledger), "rates": rates(ledger), "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def summary(ledger: Ledger) -> list[Row]:
    """One row for each run, its last evaluation."""
    names = ("step", "time_s", "samples_used", "ema_loss", "ema_accuracy")
    return [
        {**line["cell"], **{name: last(line, name) for name in names if name in line},
         "staleness": line.get("staleness", math.nan), "cpu_s": line["cpu_s"]}
        for line in ledger.lines.values()
    ]  # fmt: skip


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, summary, {"accuracy": figure})
