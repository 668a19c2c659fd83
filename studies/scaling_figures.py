"""Tables and figures of the study in `scaling`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger
from crossover import Way, quickest, spans, steps_to
from pages import fill_all, flat, legend, plus_minus, publish
from runs import spread
from scaling import (
    ALGORITHMS,
    ALLREDUCES,
    CHECKED,
    CLOCKED,
    EVERY,
    LIKE,
    MOST_SERVED,
    NBYTES,
    NETWORKS,
    RANKS,
    SCALINGS,
    SEEDS,
    SERVED,
    TARGETS,
    TIMED,
    TIMED_LIKE,
    TIMED_RANKS,
    TUNING,
    batch,
    cell,
    check_cells,
    compute_s,
    priced,
    result_cells,
    score,
    settled,
    shown,
    step_s,
    steps,
    time_cell,
    trained,
)

from allreduce.network import network
from mpisgd.predict import costs

Row = dict[str, Any]

LARGEST = RANKS[-1]
MAIN = TARGETS[0]  # which all come to within the longest run
PAPERS = ("tree", "butterfly")  # the all-reduces of DaSGD's paper
SETS = {"tree or butterfly": PAPERS, "halving-doubling": ("halving-doubling",)}
LOOKS = {
    "mini-batch": "#222222", "overlapped": "#ee7733", "Local": "#ee6677", "DaSGD d=1": "#66ccee",
    "DaSGD d=3": "#4477aa", "delta d=3": "#228833", "DiLoCo": "#aa3377", "async": "#ccbb44",
    "backup": "#117733",
}  # fmt: skip


class Times:
    """Steps of the ledger, and virtual seconds by the closed form with simulated averages."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger

    def steps(self, scaling: str, name: str, ranks: int, target: float) -> np.ndarray:
        """Of each seed to the target; empty while a run is missing, NaN where it is not reached."""
        cells = result_cells(self.ledger, scaling, name, ranks)
        lines = [self.ledger[one] for one in cells if one in self.ledger]
        lines = lines if len(lines) == len(cells) else []
        return np.array([np.nan if "failure" in x else steps_to(x, target) for x in lines])

    def step_s(self, scaling: str, name: str, ranks: int, link: str, allreduce: str) -> float:
        """Of a step; where there is no closed form on the virtual clock, infinite if not run."""
        if name not in CLOCKED:
            return step_s(name, scaling, ranks, link, allreduce)
        one = time_cell(name, ranks, link, "servers" if name in SERVED else allreduce)
        return float(self.ledger[one]["step_s"]) if one in self.ledger else np.inf

    def to(
        self, scaling: str, name: str, ranks: int, link: str, allreduce: str, target: float
    ) -> np.ndarray:
        """Virtual seconds of each seed to the target, with the average that its model needs."""
        count = self.steps(scaling, name, ranks, target)
        if ranks == 1:
            return count * compute_s(scaling, 1)
        final = priced(link, allreduce, ranks) if "delay" in ALGORITHMS[name] else 0.0
        return count * self.step_s(scaling, name, ranks, link, allreduce) + final

    def best(
        self, scaling: str, name: str, ranks: int, link: str, allreduces: Sequence[str],
        target: float,
    ) -> np.ndarray:  # fmt: skip
        """With the quickest of some all-reduces."""
        ways = [self.to(scaling, name, ranks, link, one, target) for one in allreduces]
        return min(ways, key=lambda seconds: seconds.mean() if len(seconds) else np.inf)

    def speed_up(self, scaling: str, target: float, seconds: np.ndarray) -> np.ndarray:
        """Over one worker with the same seed."""
        alone = self.to(scaling, "mini-batch", 1, "", "", target)
        return alone / seconds if len(alone) == len(seconds) else np.array([])


def told(values: Sequence[float], digits: int) -> str:
    """Mean and deviation, or what is missing."""
    if not len(values):
        return "not run"
    missed = int(np.isnan(values).sum())
    if missed:
        return f"missed by {missed} of {len(values)}"
    return plus_minus(*spread(list(values)), digits)


def count_rows(times: Times, scaling: str) -> list[Row]:
    """Steps to both targets at each number of workers."""
    rows: list[Row] = []
    for name in shown(scaling):
        if name in LIKE:
            continue
        for target in TARGETS:
            row: Row = {"algorithm": name, "to": f"{target:.0%}"}
            for ranks in RANKS:
                if name not in shown(scaling, ranks) or (ranks == 1 and name != "mini-batch"):
                    continue
                found = times.steps(scaling, name, ranks, target)
                row[f"{ranks} worker" + "s" * (ranks > 1)] = told(list(found), 0)
            rows.append(row)
    return rows


def speed_rows(
    times: Times, scaling: str, allreduces: Sequence[str], ranks: int, names: Sequence[str]
) -> list[Row]:
    """Speed-up to the main target with so many workers, by network, and the samples' share."""
    rows: list[Row] = []
    for name in names:
        row: Row = {"algorithm": name}
        for link in NETWORKS:
            seconds = times.best(scaling, name, ranks, link, allreduces, MAIN)
            row[link] = told(list(times.speed_up(scaling, MAIN, seconds)), 1)
        for link in NETWORKS:
            pace = min(times.step_s(scaling, name, ranks, link, one) for one in allreduces)
            row[f"samples/s, {link}"] = f"{100 * compute_s(scaling, ranks) / pace:.0f} %"
        rows.append(row)
    return rows


def winner_rows(times: Times, target: float) -> list[Row]:
    """Who is quickest where: its speed-up; bold where that is beyond Student's interval; open where
    one that missed the target in the longest run could still be quicker."""
    rows: list[Row] = []
    for scaling in SCALINGS:
        for ranks in RANKS[1:]:
            for label, allreduces in SETS.items():
                row: Row = {"scaling": scaling, "workers": ranks, "all-reduce": label}
                for link in NETWORKS:
                    row[link] = _winner(times, scaling, ranks, link, allreduces, target)
                rows.append(row)
    return rows


def _winner(
    times: Times, scaling: str, ranks: int, link: str, allreduces: Sequence[str], target: float
) -> str:
    found = {
        name: times.best(scaling, name, ranks, link, allreduces, target)
        for name in shown(scaling, ranks)
    }
    if not all(map(len, found.values())):
        return "not run"
    came = {name: seconds for name, seconds in found.items() if np.isfinite(seconds).all()}
    name, beyond = quickest(came)
    least = steps(scaling, ranks)  # of those who did not come
    for other in found.keys() - came.keys():
        pace = min(times.step_s(scaling, other, ranks, link, one) for one in allreduces)
        if least * pace < came[name].mean():
            return "open"
    gain = float(times.speed_up(scaling, target, came[name]).mean())
    return f"**{name} {gain:.1f}**" if beyond else f"{name} {gain:.1f}"


def span_rows(times: Times) -> list[Row]:
    """Who is quickest from which t_c / t_p on, where all come to the target but those that another
    with as long a step came to before; weak scaling."""
    rows: list[Row] = []
    for target in TARGETS:
        for ranks in RANKS[1:]:
            found: dict[str, Way] = {}
            names = [name for name in trained("weak", ranks) if name not in SERVED]
            for name in names:
                count = times.steps("weak", name, ranks, target)
                if len(count) and np.isfinite(count).all():
                    found[name] = Way(ALGORITHMS[name], list(count))
            beaten = {name for name in names if TIMED_LIKE.get(name) in found}
            if set(names) <= found.keys() | beaten:
                rows += [{"to": f"{target:.0%}", "workers": ranks, **row} for row in spans(found)]
    return rows


def rate_rows(ledger: Ledger) -> list[Row]:
    """The rate of each, and what its neighbours came to on the tuning seed."""
    rows: list[Row] = []
    for scaling in SCALINGS:
        for name in shown(scaling):
            row: Row = {"scaling": scaling, "algorithm": name}
            for ranks in RANKS if name not in LIKE else ():
                if name in trained(scaling, ranks):
                    row[f"{ranks} worker" + "s" * (ranks > 1)] = _rates(
                        ledger, scaling, name, ranks
                    )
            if name not in LIKE:
                rows.append(row)
    return rows


def _rates(ledger: Ledger, scaling: str, name: str, ranks: int) -> str:
    rates, best = settled(ledger, scaling, name, ranks)
    if best is None:
        return "not run"
    most, place = steps(scaling, ranks), rates.index(best)
    beside = [
        score(ledger[cell(scaling, name, ranks, rate, TUNING)], most)
        for rate in rates[place - 1 : place + 2]
    ]
    words = (f"{one:.0f}" if one < most else "missed" for one in beside)
    return f"{best:g} ({', '.join(words)})"


def model_rows(ranks: int = LARGEST) -> list[Row]:
    """t_c of all workers in units of t_p: closed forms beside the simulation."""
    rows: list[Row] = []
    for link, preset in NETWORKS.items():
        for allreduce in ALLREDUCES:
            row: Row = {"network": link, "all-reduce": allreduce}
            simulated = priced(link, allreduce, ranks)
            for topology in ("leader", "shared-nic"):
                forms = costs.allreduce_s(
                    allreduce, ranks, NBYTES, network(preset), topology=topology
                )
                row[f"predicted, {topology}"] = f"{forms / compute_s('weak', ranks):.2f}"
            row["simulated"] = f"{simulated / compute_s('weak', ranks):.2f}"
            rows.append(row)
    return rows


def clock_rows(ledger: Ledger) -> list[Row]:
    """Seconds of a step: the closed form beside the virtual clock, in units of t_p."""
    rows: list[Row] = []
    t_p = compute_s("weak", TIMED_RANKS)
    for link in TIMED:
        for allreduce in ALLREDUCES:
            row: Row = {"network": link, "all-reduce": allreduce}
            for name in ALGORITHMS:
                one = time_cell(name, TIMED_RANKS, link, allreduce)
                if name in (*TIMED_LIKE, *SERVED) or one not in ledger:
                    continue
                virtual = ledger[one]["step_s"]
                off = 100 * (step_s(name, "weak", TIMED_RANKS, link, allreduce) / virtual - 1)
                row[name] = f"{virtual / t_p:.2f} ({off:+.1f} %)"
            rows.append(row)
    return rows


def check_rows(times: Times) -> list[Row]:
    """Runs of the whole beside steps times seconds of a step."""
    rows: list[Row] = []
    for one in check_cells():
        if one not in times.ledger:
            continue
        line, name = times.ledger[one], one["name"]
        (trained_so,) = result_cells(times.ledger, "weak", name, CHECKED, SEEDS[:1])
        steps_alone = times.ledger[trained_so]["evaluations"]
        whole = line["evaluations"]
        place = max(i for i, step in enumerate(whole["step"]) if step % EVERY[CHECKED] == 0)
        last, seconds = whole["step"][place], whole["time_s"][place]
        product = last * times.step_s("weak", name, CHECKED, one["network"], one["allreduce"])
        if "delay" in ALGORITHMS[name]:
            product += priced(one["network"], one["allreduce"], CHECKED)
        pairs = list(zip(whole["accuracy"], steps_alone["accuracy"], strict=False))
        rows.append({
            "algorithm": name, "all-reduce": one["allreduce"], "steps": f"{last:.0f}",
            "virtual s": f"{seconds:.4g}", "steps x seconds": f"{product:.4g}",
            "off": f"{100 * (product / seconds - 1):+.2f} %",
            "accuracy differs by at most": f"{max(abs(a - b) for a, b in pairs):.5f}",
        })  # fmt: skip
    return rows


def lines(
    times: Times, scaling: str, names: Sequence[str], allreduces: Sequence[str], link: str
) -> Iterator[tuple[str, list[int], np.ndarray]]:
    """(algorithm, workers, speed-ups [workers, seed]) as far as all seeds came to the target."""
    for name in names:
        ranks, found = [1], [np.ones(len(SEEDS))]
        for count in RANKS[1:]:
            if name not in shown(scaling, count):
                continue
            seconds = times.best(scaling, name, count, link, allreduces, MAIN)
            gains = times.speed_up(scaling, MAIN, seconds)
            if len(gains) == len(SEEDS) and np.isfinite(gains).all():
                ranks.append(count)
                found.append(gains)
        yield name, ranks, np.array(found)


def rows_of(scaling: str) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """The figure's rows: (title, all-reduces, algorithms)."""
    names = [name for name in shown(scaling) if name not in SERVED]
    rows = [(label, allreduces, names) for label, allreduces in SETS.items()]
    if set(SERVED) <= set(shown(scaling)):
        allreduces, beside = SETS["halving-doubling"], ["mini-batch", *SERVED]
        rows.append(("servers", allreduces, beside))
    return rows


def figure(times: Times, scaling: str) -> Any:
    """Speed-up over workers: a column for each network, a row for each set of all-reduces, and one
    for servers."""
    from matplotlib.figure import Figure

    rows = rows_of(scaling)
    drawn = Figure(figsize=(13, 0.6 + 3.2 * len(rows)), layout="constrained")
    axes = drawn.subplots(len(rows), len(NETWORKS), sharex=True, sharey=True, squeeze=False)
    what = "8 samples a worker" if scaling == "weak" else f"{batch('strong', 1)} samples a step"
    drawn.suptitle(f"How much sooner {MAIN:.0%} is reached than by one worker: {what}")
    free = [times.steps(scaling, "mini-batch", ranks, MAIN) for ranks in RANKS]
    for row, (label, allreduces, names) in zip(axes, rows, strict=True):
        for axis, link in zip(row, NETWORKS, strict=True):
            _panel(axis, lines(times, scaling, names, allreduces, link), scaling, free)
            axis.set_title(f"{link}, {label}", fontsize="medium")
        row[0].set_ylabel("time of one worker / time")
    for axis in axes[-1]:
        axis.set_xlabel("workers")
    legend(drawn, axes.flat, 6)
    return drawn


def _panel(
    axis: Any, found: Iterable[tuple[str, list[int], np.ndarray]], scaling: str,
    free: Sequence[np.ndarray],
) -> None:  # fmt: skip
    for name, ranks, gains in found:
        middle, width = gains.mean(axis=1), gains.std(axis=1, ddof=1)
        axis.plot(ranks, middle, marker="o", markersize=3, color=LOOKS[name], label=name)
        axis.fill_between(ranks, middle - width, middle + width, color=LOOKS[name], alpha=0.15)
    if all(len(each) for each in free):
        paces = [compute_s(scaling, ranks) for ranks in RANKS]
        bound = [(free[0] * paces[0] / (n * t)).mean() for n, t in zip(free, paces, strict=True)]
        axis.plot(RANKS, bound, "--", color="#777777", label="mini-batch, averages free")
    axis.axhline(1, color="#777777", linewidth=0.6)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(RANKS, map(str, RANKS))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    times = Times(ledger)
    spent = sum(line["cpu_s"] for line in ledger.lines.values()) / 60
    tables: dict[str, Sequence[Row]] = {
        f"winners-{100 * target:.0f}": winner_rows(times, target) for target in TARGETS
    }
    for scaling in SCALINGS:
        tables[f"steps-{scaling}"] = count_rows(times, scaling)
        for label, allreduces in zip(("papers", "halving"), SETS.values(), strict=True):
            most = RANKS[-1]
            tables[f"speed-{scaling}-{label}"] = speed_rows(
                times, scaling, allreduces, most, shown(scaling, most)
            )
    served = ["mini-batch", *SERVED]
    tables |= {
        "served": speed_rows(times, "weak", SETS["halving-doubling"], MOST_SERVED, served),
        "spans": span_rows(times), "rates": rate_rows(ledger), "model": model_rows(),
        "clock": clock_rows(ledger),
        "check": check_rows(times),
        "made": [{"runs": len(ledger.lines), "core minutes": f"{spent:.0f}"}],
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figures, and the page's tables."""
    publish(
        folder, page, lambda ledger: flat(ledger, without=("evaluations",)),
        {each: lambda ledger, each=each: figure(Times(ledger), each) for each in SCALINGS},
    )  # fmt: skip
