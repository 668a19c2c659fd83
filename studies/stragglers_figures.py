"""Figures and tables of the straggler study, from its ledger."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drawing import legend, panels, save
from ledger import Ledger
from pages import fill, markdown, write_csv
from stragglers_runs import CURVE, KEPT, RULES, SEED, TAIL, UPDATES, WORKERS

from mpisgd.predict.curves import curve

Line = Mapping[str, Any]
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
    for name, rows in (
        ("compared", compared(ledger)), ("arrivals", arrivals(ledger)), ("best", best(ledger))
    ):  # fmt: skip
        text = fill(text, name, markdown(rows))
    return text


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
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
