"""Tables and the figure of the study in `full_length`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from command import Group, Ledger, groups
from full_length import (
    BATCH,
    DECOUPLED,
    DILOCO,
    FURTHER,
    IN_TIME,
    LONG,
    LONG_IN_TIME,
    MAIN,
    NAMES,
    RANKS,
    SCALED,
    SCREEN,
    SETTLE,
    STEPS,
    VARIANTS,
    WIDE,
    Row,
    halves,
    length,
    options,
    settled,
    tuning_loss,
    wanted,
)
from pages import band, cost, difference, ends, fill_all, last, legend, panels, publish, summary

from mpisgd.values.statistics import half_width

COLUMNS = ("test_accuracy", "test_loss", "accuracy", "loss", "train_loss", "time_s")
ENDS = {
    "test accuracy (%)": ("test_accuracy", 100, 1), "test loss": ("test_loss", 1, 3),
    "training loss": ("train_loss", 1, 3), "virtual ms": ("time_s", 1e3, 0),
}  # fmt: skip
LOOKS = {
    "mini-batch": "#222222", "Local": "#ee6677", "DaSGD, xi 0.25": "#4477aa",
    "DaSGD, xi 0.25, Local's rate corrected": "#66ccee", "DaSGD, xi 0.5": "#aa3377",
    "delta": "#228833", "overwrite": "#ccbb44", **dict.fromkeys(DILOCO, "#ee9955"),
}  # fmt: skip
SET_UP = f"resnet8 of width 8, {RANKS} virtual workers"
FEWEST = 3  # seeds of what the page shows
SHORT = "mini-batch, in DaSGD's time"
COMPARED = (
    ("test accuracy, points", "test_accuracy", 100, 1), ("test loss", "test_loss", 1, 3),
)  # fmt: skip


def results(ledger: Ledger, names: Iterable[str] = NAMES) -> list[Group]:
    """(cell without its seed, finished lines) of each algorithm whose rate has settled."""
    found = []
    for name in names:
        cells = [one for one in wanted(ledger, name) if one["steps"] == length(name)]
        found += [(one, lines) for one, lines in groups(ledger, cells) if len(lines) >= FEWEST]
    return found


def rates(ledger: Ledger) -> list[Row]:
    """What each rate came to, at the lengths at which it was judged."""
    rows = []
    for name in (*MAIN, *DILOCO, *LONG):
        tried = sorted(
            {line["cell"]["rate"] for line in ledger.lines.values() if line["cell"]["name"] == name}
        )
        for steps in (SCREEN, SETTLE):
            row: Row = {"algorithm": name, "steps": steps}
            for rate in tried:
                loss = tuning_loss(ledger, name, rate, steps)
                row[f"{rate:g}"] = "" if loss is None else shown(loss)
            _, chosen = settled(ledger, name)
            row["chosen"] = "" if chosen is None or steps == SCREEN else f"{chosen:g}"
            if any(row.get(f"{rate:g}") for rate in tried):
                rows.append(row)
    columns = sorted({float(key) for row in rows for key in row if key[0].isdigit()})
    order = ["algorithm", "steps", *(f"{rate:g}" for rate in columns), "chosen"]
    return [{key: row.get(key, "") for key in order} for row in rows]


def shown(loss: float) -> str:
    return f"{loss:.3f}" if math.isfinite(loss) else "not finite"


def outcomes(groups_found: Iterable[Group]) -> list[Row]:
    """Each algorithm at the end of its steps."""
    rows: list[Row] = []
    for one, lines in groups_found:
        row: Row = {"algorithm": one["name"], "steps": one["steps"]}
        row |= {"peak rate": f"{one['rate']:g}", "seeds": len(lines)}
        row["effective steps"] = f"{lines[0]['share'] * one['steps']:.0f}"
        rows.append(row | ends(lines, ENDS))
    return rows


def compared(found: Mapping[str, list[Row]], pairs: Iterable[tuple[str, str]]) -> list[Row]:
    """The first of each pair less the second: seed by seed, in points of test accuracy and in test
    loss."""
    rows: list[Row] = []
    for one, other in pairs:
        if one in found and other in found:
            first, second = common(found[one], found[other])
            row: Row = {"": f"{one} less {other}", "seeds": len(first)}
            for heading, name, factor, digits in COMPARED:
                told = difference(first, second, name, factor, digits)
                beyond = "" if told["told apart"] == "yes" else ", not told apart"
                row[heading] = f"{told['difference']} ({told['95 % interval']}{beyond})"
            rows.append(row)
    return rows


def common(*found: Iterable[Row]) -> list[list[Row]]:
    """The lines of the seeds that all have, in one order."""
    by_seed = [{line["cell"]["seed"]: line for line in lines} for lines in found]
    seeds = sorted(set.intersection(*map(set, by_seed)))
    return [[lines[seed] for seed in seeds] for lines in by_seed]


def differences(ledger: Ledger) -> list[Row]:
    """After equally many steps: each less mini-batch, less Local, and other merges less DaSGD's."""
    found = named([group for group in results(ledger) if group[0]["steps"] == STEPS])
    merges = [(name, MAIN[-1]) for name in FURTHER]
    return compared(found, versus(list(found)) + merges)


def versus(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each with the first, and with the second."""
    return [(name, names[at]) for at in (0, 1) for name in names[at + 1 :]]


def named(groups_found: Iterable[Group]) -> dict[str, list[Row]]:
    """Finished lines by their algorithm."""
    return {one["name"]: lines for one, lines in groups_found}


def variants(ledger: Ledger) -> list[Row]:
    """What the kind of weight decay changes, and what lies between the algorithms in each variant;
    of 32 workers also in DaSGD's time, and mini-batch at the larger rate."""
    found = named(results(ledger, [*MAIN, *VARIANTS]))
    kinds = DECOUPLED, LONG, WIDE, SCALED
    within = [pair for several in kinds for pair in versus(list(several))]
    in_time = [
        (name, short)
        for short in LONG_IN_TIME
        for name in LONG
        if LONG[name] != LONG_IN_TIME[short]
    ]
    scaled = zip(SCALED, WIDE, strict=True)
    return compared(found, [*DECOUPLED.items(), *within, *in_time, *scaled])


def halfway(found: Mapping[str, list[Row]]) -> list[Row]:
    """Validation losses of SETTLE steps at one rate, and less Local's of the same seed."""
    rows: list[Row] = []
    local = {line["cell"]["seed"]: last(line, "loss") for line in found.get("Local", [])}
    for name, lines in found.items():
        row: Row = {"algorithm": name, "effective steps": f"{lines[0]['share'] * SETTLE:.0f}"}
        for line in lines:
            seed, loss = line["cell"]["seed"], last(line, "loss")
            row[f"seed {seed}"] = shown(loss)
            row[f"less Local, {seed}"] = f"{loss - local[seed]:+.3f}"
        rows.append(row)
    return rows


def half(ledger: Ledger) -> list[Row]:
    """All algorithms at half the length."""
    return halfway(named(groups(ledger, halves(ledger))))


def equal_time(ledger: Ledger) -> list[Row]:
    """What ends when DaSGD does less those that were laid out for its time."""
    found = named(results(ledger))
    names = [name for name in found if "delay" in options(name)]
    return compared(found, [(name, other) for other in IN_TIME for name in names])


def break_even(ledger: Ledger) -> list[Row]:
    """From which t_c / t_p on each, in its steps, is as good as mini-batch laid out for its time.

    Mini-batch's accuracy and loss are taken to be lines over the logarithm of its steps, through
    the means at its two lengths; what varies over seeds is the difference to its runs of full
    length.
    """
    found = named(results(ledger))
    rows: list[Row] = []
    if not {SHORT, "mini-batch"} <= set(found):
        return rows
    for name in found:
        told = options(name)
        if name in IN_TIME or "tau" not in told:
            continue
        waits = 0 if "delay" in told else 1 / told["tau"]
        row: Row = {"algorithm": name}
        for heading, column, *_ in COMPARED:
            slope = float(np.mean(behind(found, "mini-batch", SHORT, column)))
            share = [one / slope for one in behind(found, name, "mini-batch", column)]
            steps = [STEPS * (STEPS / IN_TIME[SHORT]) ** one for one in share]
            by = heading.partition(",")[0]
            row[f"mini-batch's steps, by {by}"] = interval(steps, 0)
            row[f"t_c / t_p, by {by}"] = interval([ratio(count, waits) for count in steps], 2)
        rows.append(row)
    return rows


def behind(found: Mapping[str, list[Row]], one: str, other: str, column: str) -> list[float]:
    """A column at the end of `one` less that of `other`, of the seeds that both have."""
    pairs = zip(*common(found[one], found[other]), strict=True)
    return [last(first, column) - last(second, column) for first, second in pairs]


def ratio(steps: float, waits: float) -> float:
    """The t_c / t_p at which so many steps of mini-batch, (1 + r) t_p each, take as long as STEPS
    steps with the share `waits` of an average each, (1 + waits r) t_p."""
    return (STEPS - steps) / (steps - waits * STEPS)


def interval(values: Sequence[float], digits: int) -> str:
    """Their mean and its 95 % interval; of one value itself."""
    mean, half = float(np.mean(values)), half_width(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({mean - half:.{digits}f} to {mean + half:.{digits}f})"


def curves(found: Iterable[Group]) -> Any:
    """Validation accuracy over samples: means and Student's 95 % bands."""
    drawn, (axis,) = panels(1, f"{SET_UP}, at the rates of the table", 7.0, 4.8)
    for one, lines in found:
        if one["name"] not in IN_TIME:
            values = 100 * np.array([line["accuracy"] for line in lines])
            samples = np.array(lines[0]["step"]) * RANKS * BATCH / 1e3
            colour, label = LOOKS[one["name"]], f"{one['name']}, rate {one['rate']:g}"
            band(axis, samples, values, colour, label)
    axis.set(xlabel="thousand samples computed", ylabel="validation accuracy (%), averaged model")
    legend(drawn, [axis], 2)
    return drawn


def over_time(found: Iterable[Group]) -> Any:
    """What each reaches in the time that it was laid out for, side by side where it is the same;
    two lengths of one are joined."""
    drawn, (axis,) = panels(1, f"{SET_UP}: each where its one-cycle ends", 7.0, 4.8)
    points: dict[str, list[tuple[float, float, float]]] = {}
    for one, lines in found:
        values = [100 * last(line, "test_accuracy") for line in lines]
        place = 1e3 * lines[0]["time_s"][-1], float(np.mean(values)), half_width(values)
        points.setdefault(one["name"].removesuffix(", in DaSGD's time"), []).append(place)
    for index, (name, ended) in enumerate(points.items()):
        x, y, half = zip(*ended, strict=True)
        beside = np.array(x) + 4 * (index - (len(points) - 1) / 2)  # many end at one time
        axis.errorbar(
            beside, y, half, color=LOOKS[name], marker="o", linestyle="--", capsize=3, label=name
        )
    axis.set(xlabel="virtual milliseconds, t_c = 0.65 t_p", ylabel="test accuracy (%)")
    legend(drawn, [axis], 2)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "rates": rates(ledger), "outcomes": outcomes(results(ledger)),
        "differences": differences(ledger),
        "time": equal_time(ledger), "even": break_even(ledger),
        "half": half(ledger), "made": cost(ledger), "variant-differences": variants(ledger),
        "variants": outcomes(results(ledger, VARIANTS)),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figures, and the page's tables."""
    publish(
        folder, page, lambda ledger: summary(ledger, COLUMNS),
        {"accuracy": lambda ledger: curves(results(ledger)),
         "time": lambda ledger: over_time(results(ledger))},
    )  # fmt: skip
