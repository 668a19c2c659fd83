"""Tables and figures of the study in `plain_net`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Group, Ledger, groups
from full_length_figures import COLUMNS, ENDS, FEWEST, compared, interval, shown
from mnist import label
from pages import cost, ends, fill_all, last, legend, panels, save, summary, write_csv, write_page
from plain_net import (
    ABLATED,
    LARGE,
    RANKS,
    SAMPLES,
    SEEDS,
    SMALL,
    TABLE,
    Setting,
    common_rate,
    judged,
    result,
    steps,
    tuning,
)

from mpisgd.training.effective import effective_steps
from mpisgd.values.statistics import half_width

Row = dict[str, Any]

AXES = {
    "workers": ("ranks", "workers"), "batch": ("batch", "samples a worker and step"),
    "tau": ("tau", "tau (local steps)"), "xi": ("xi", "xi"), "delay": ("delay", "d (steps)"),
}  # fmt: skip


def name(setting: Mapping[str, Any]) -> str:
    """What is not the same in all settings of a table."""
    text = "DiLoCo" if setting["algorithm"] == "diloco" else label(dict(setting))
    if setting in LARGE:
        text += f", {setting['ranks'] * setting['batch']:,} a step"
        text += f", warm-up of {setting['warm_up']}" if setting["warm_up"] else ""
    tau = setting.get("tau", 4)
    return text + (f", tau {tau}" if tau != 4 else "")


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


def large(ledger: Ledger) -> list[Row]:
    """Large batches less those of equal samples that average as often or as late."""
    lines = named(found(ledger, [*SMALL, *LARGE]))
    great = [name(one) for one in LARGE]
    return compared(lines, [(one, name(other)) for other in SMALL for one in great])


def at_common(ledger: Ledger, key: str) -> list[Group]:
    """(setting with the base point's rate, finished lines) along one of ABLATED."""
    rate = common_rate(ledger)
    return groups(ledger, [cell for one in ABLATED[key] for cell in result(one, rate, SEEDS)])


def losses(lines: Iterable[Row]) -> list[float]:
    """Validation losses at the end."""
    return [last(line, "loss") for line in lines]


def ablations(ledger: Ledger) -> list[Row]:
    """Validation loss of each setting at the common rate, and at its own."""
    rows: list[Row] = []
    for key, (column, heading) in AXES.items():
        for one, lines in at_common(ledger, key):
            row: Row = {"": f"{heading} {one[column]:g}", "steps": steps(one)}
            row["effective steps"] = f"{effective_steps(one, steps(one)):.0f}"
            row[f"loss at {one['rate']:g}"] = interval(losses(lines), 3)
            for mine, at_own in found(ledger, [unrated(one)]):
                row |= {"own rate": f"{mine['rate']:g}", "loss at it": interval(losses(at_own), 3)}
            rows.append(row)
    return rows


def unrated(cell: Mapping[str, Any]) -> Setting:
    """The setting of a cell without its seed."""
    return {key: value for key, value in cell.items() if key != "rate"}


def ablations_figure(ledger: Ledger) -> Any:
    """Validation loss along each of ABLATED, at the common rate and at each setting's own."""
    drawn, axes = panels(len(ABLATED), f"{SAMPLES:,} samples; base point: {RANKS} workers of 16, "
                         "tau 4, d 2, xi 0.25", 2.6, 4.0)  # fmt: skip
    for axis, (key, (column, heading)) in zip(axes, AXES.items(), strict=True):
        both = at_common(ledger, key), found(ledger, ABLATED[key])
        looks = ({"color": "#4477aa", "marker": "^"}, {"color": "#ee6677", "marker": "o"})
        kinds = f"at {common_rate(ledger):g}, the base point's rate", "each at its own rate"
        for several, look, kind in zip(both, looks, kinds, strict=True):
            if several:
                x = [one[column] for one, _ in several]
                y = [float(np.mean(losses(lines))) for _, lines in several]
                error = [half_width(losses(lines)) for _, lines in several]
                axis.errorbar(x, y, error, capsize=2, label=kind, **look)  # type: ignore[arg-type]
        axis.set_xlabel(heading)
        if column in ("ranks", "batch", "tau"):
            axis.set_xscale("log", base=2)
        ticks = [one[column] for one in ABLATED[key]]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].set_ylabel("validation loss, averaged model")
    legend(drawn, axes, 2)
    return drawn


def large_figure(ledger: Ledger) -> Any:
    """Large batches: validation loss over the rate, and bands of those of equal samples."""
    drawn, axes = panels(2, f"{SAMPLES:,} samples, step decay: large batches over the peak rate "
                         "(one seed)", 4.6, 4.4)  # fmt: skip
    for place, one in enumerate(LARGE):
        axis = axes[place // 2]
        tried = [rate for rate in judged(ledger, one)[0] if tuning(one, rate) in ledger]
        axis.plot(
            tried, losses(ledger[tuning(one, rate)] for rate in tried), marker="o",
            color=("#222222", "#ccbb44")[place % 2],
            label="with warm-up" if one["warm_up"] else "without warm-up",
        )  # fmt: skip
        axis.set(xscale="log", xlabel="rate", title=f"{one['ranks'] * one['batch']:,} a step")
    colours = ("#888888", "#ee6677", "#4477aa")
    for (one, lines), colour in zip(found(ledger, SMALL), colours, strict=False):
        middle, half = float(np.mean(losses(lines))), half_width(losses(lines))
        for axis in axes:
            axis.axhline(middle, color=colour, linestyle="--", label=f"{name(unrated(one))}, 128")
            axis.axhspan(middle - half, middle + half, color=colour, alpha=0.15)
    axes[0].set_ylabel("validation loss, averaged model")
    legend(drawn, axes, 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "rates": rates(ledger, TABLE), "outcomes": outcomes(found(ledger, TABLE)),
        "differences": differences(ledger), "ablations": ablations(ledger),
        "rates-large": rates(ledger, [*SMALL, *LARGE]),
        "large": outcomes(found(ledger, [*SMALL, *LARGE])), "differences-large": large(ledger),
        "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figures, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    write_csv(folder / "summary.csv", summary(ledger, COLUMNS))
    save(ablations_figure(ledger), folder / "ablations.png")
    save(large_figure(ledger), folder / "large.png")
    write_page(folder, page, ledger)
