"""Tables and figures of the study in `plain_net`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Group, Ledger, groups
from full_length_figures import COLUMNS, ENDS, FEWEST, compared, halfway, shown
from mnist import label
from pages import cost, ends, fill_all, last, panels, plus_minus, publish, summary
from plain_net import (
    ABLATED,
    RANKS,
    SAMPLES,
    SEEDS,
    TABLE,
    Setting,
    common_rate,
    halves,
    judged,
    result,
    steps,
    tuning,
)
from runs import spread

from mpisgd.training.effective import effective_steps

Row = dict[str, Any]

AXES = {
    "workers": ("ranks", "workers"), "batch": ("batch", "samples a worker and step"),
    "tau": ("tau", "tau (local steps)"), "xi": ("xi", "xi"), "delay": ("delay", "d (steps)"),
}  # fmt: skip


def name(setting: Mapping[str, Any]) -> str:
    """What is not the same in all settings of a table."""
    return label(dict(setting))


def found(ledger: Ledger, settings: Iterable[Setting]) -> list[Group]:
    """(setting with its own rate, finished lines of the seeds of results)."""
    cells = [cell for one in settings for cell in result(one, judged(ledger, one)[1], SEEDS)]
    return [group for group in groups(ledger, cells) if len(group[1]) >= FEWEST]


def rates(ledger: Ledger, settings: Iterable[Setting]) -> list[Row]:
    """Validation loss on the tuning seed at each rate that was judged."""
    rows: list[Row] = []
    columns: set[float] = set()
    for one in settings:
        tried, chosen = judged(ledger, one)
        if chosen is not None:
            losses = {rate: last(ledger[tuning(one, rate)], "loss") for rate in tried}
            columns |= set(losses)
            rows.append({"": name(one), **losses, "chosen": f"{chosen:g}"})
    return [
        {"": row[""]}
        | {f"{rate:g}": shown(row[rate]) if rate in row else "" for rate in sorted(columns)}
        | {"chosen": row["chosen"]}
        for row in rows
    ]


def outcomes(groups_found: Iterable[Group]) -> list[Row]:
    """Each at the end, at its own rate."""
    rows: list[Row] = []
    for one, lines in groups_found:
        row: Row = {"algorithm": name(unrated(one)), "peak rate": f"{one['rate']:g}"}
        row |= {"seeds": len(lines), "steps": steps(one)}
        row["effective steps"] = f"{effective_steps(one, steps(one)):.0f}"
        row["averages"] = steps(one) // one.get("tau", 1)
        rows.append(row | ends(lines, ENDS))
    return rows


def named(groups_found: Iterable[Group]) -> dict[str, list[Row]]:
    """Finished lines by the setting's name."""
    return {name(unrated(one)): lines for one, lines in groups_found}


def differences(ledger: Ledger) -> list[Row]:
    """Each less mini-batch, and less Local."""
    lines = named(found(ledger, TABLE))
    others = [one for one in lines if one not in ("mini-batch", "Local")]
    pairs = [(one, "mini-batch") for one in ("Local", *others)]
    return compared(lines, pairs + [(one, "Local") for one in others])


def half(ledger: Ledger) -> list[Row]:
    """Longer, at one rate: as the same table of the residual net."""
    return halfway(named(groups(ledger, halves())))


def at_common(ledger: Ledger, key: str) -> list[Group]:
    """(setting with the base point's rate, finished lines) along one of ABLATED."""
    rate = common_rate(ledger)
    return groups(ledger, [cell for one in ABLATED[key] for cell in result(one, rate, SEEDS)])


def losses(lines: Iterable[Row]) -> list[float]:
    """Validation losses at the end."""
    return [last(line, "loss") for line in lines]


def ablations(ledger: Ledger) -> list[Row]:
    """Validation loss of each setting at the base point's rate."""
    rows: list[Row] = []
    for key, (column, heading) in AXES.items():
        for one, lines in at_common(ledger, key):
            row: Row = {"": f"{heading} {one[column]:g}", "steps": steps(one)}
            row["effective steps"] = f"{effective_steps(one, steps(one)):.0f}"
            row["seeds"] = len(lines)
            row[f"loss at {one['rate']:g}"] = plus_minus(*spread(losses(lines)), 3)
            rows.append(row)
    return rows


def unrated(cell: Mapping[str, Any]) -> Setting:
    """The setting of a cell without its seed."""
    return {key: value for key, value in cell.items() if key != "rate"}


def ablations_figure(ledger: Ledger) -> Any:
    """Validation loss along each of ABLATED at the base point's rate: seeds, and their means."""
    base = f"{RANKS} workers of 16, tau 4, d 2, xi 0.25, rate {common_rate(ledger):g}"
    drawn, axes = panels(len(ABLATED), f"{SAMPLES:,} samples; base point: {base}", 2.6, 3.8)
    for axis, (key, (column, heading)) in zip(axes, AXES.items(), strict=True):
        several = at_common(ledger, key)
        for one, lines in several:
            axis.plot([one[column]] * len(lines), losses(lines), "o", color="#9ecae1")
        means = [float(np.mean(losses(lines))) for _, lines in several]
        axis.plot([one[column] for one, _ in several], means, color="#3182bd", marker="_")
        axis.set_xlabel(heading)
        if column in ("ranks", "batch", "tau"):
            axis.set_xscale("log", base=2)
        ticks = [one[column] for one in ABLATED[key]]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].set_ylabel("validation loss, averaged model")
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "rates": rates(ledger, TABLE), "outcomes": outcomes(found(ledger, TABLE)),
        "differences": differences(ledger), "ablations": ablations(ledger),
        "half": half(ledger),
        "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, lambda ledger: summary(ledger, COLUMNS), {"ablations": ablations_figure})
