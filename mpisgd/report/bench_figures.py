"""Figures of benchmarks: latency, bandwidth, ours over the library's, overlap over looks, and
errors of the model.

A panel is a set-up (file, library, ranks, type, place) while few curves are in it; else a set-up
and algorithm, with all others of the set-up in grey behind it.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from mpisgd.bench.allreduce import fastest
from mpisgd.report.panels import ACROSS, PANELS
from mpisgd.report.panels import legend as _legend
from mpisgd.report.panels import panels as _panels
from mpisgd.values.drawing import STYLES, style

TOGETHER = 9  # curves in a panel
LEAST = -0.5  # hidden share in view: what work does not hide but delays has no floor
GREY = "#d9d9d9"
SETUP = ("file", "library", "ranks", "dtype", "in_place")
WORK = ("file", "library", "ranks", "work", "bytes")
COMPARED = ("ci_low_s", "ci_high_s", "wrong", "chunks", "in_place")
Row = dict[str, Any]


class Curve(NamedTuple):
    """One algorithm in one panel. number: which of this algorithm's; `pieces`: as 4 chunks."""

    algorithm: str
    number: int
    pieces: str
    rows: list[Row]


def latency(rows: Sequence[Row], time: str) -> Any:
    """Median seconds over message size."""
    return _over_bytes(rows, "median_s", f"median seconds ({time})", "All-reduces")


def bandwidth(rows: Sequence[Row], time: str) -> Any:
    """Bus bandwidth over message size."""
    return _over_bytes(rows, "busbw_GBps", f"bus bandwidth (GB/s, {time} time)", "All-reduces")


def ratio(rows: Sequence[Row], time: str) -> Any:
    """The fastest of ours over the fastest of the library's calls, with the ratio's interval."""
    known = [
        row for row in rows
        if _has(row, "median_s") and None not in (row.get(key) for key in COMPARED)
    ]  # fmt: skip
    title, setups = _setups(known, SETUP)
    compared = {name: fastest(of) for name, of in setups.items()}
    compared = {name: best for name, best in compared.items() if best}
    if not compared:
        return None
    figure, panels = _panels(list(compared), f"Fastest of ours over the library's: {title}")
    for axes, best in zip(panels, compared.values(), strict=False):
        axes.plot([row["bytes"] for row in best], [row["ratio"] for row in best], color=GREY)
        for row in best:
            ends = (row[key] or row["ratio"] for key in ("ratio_low", "ratio_high"))
            reach = [[abs(end - row["ratio"])] for end in ends]
            look = style(row["ours"]) | {"linestyle": "none"}
            axes.errorbar(row["bytes"], row["ratio"], reach, label=row["ours"], capsize=2, **look)
        axes.axhline(1, color="#999999", linestyle=":", zorder=0)
        _bytes_below(axes)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:.2g}")
    figure.supylabel(f"ratio of medians, 95 % interval ({time} time)", fontsize="small")
    return _legend(figure)


def errors(rows: Sequence[Row], time: str) -> Any:
    """The model's error over message size: the rounds, and their medians in a line."""
    told = [row for row in rows if _has(row, "error", part="communication")]
    title, setups = _setups(told, SETUP)
    if not setups:
        return None
    figure, panels = _panels(list(setups), f"Error of the model: {title}", share=True)
    for axes, of in zip(panels, setups.values(), strict=False):
        for curve in _curves(of):
            look = style(curve.algorithm, curve.number)
            axes.plot(*_points(curve, "error"), **look | {"linestyle": "none", "alpha": 0.4})
            rounds: dict[int, list[float]] = {}
            for octets, value in zip(*_points(curve, "error"), strict=True):
                rounds.setdefault(octets, []).append(value)
            text = f"{curve.algorithm} {curve.pieces}".strip()
            axes.plot(list(rounds), [median(each) for each in rounds.values()], label=text, **look)
        axes.axhline(0, color="#999999", linestyle=":", zorder=0)
        _bytes_below(axes)
        axes.yaxis.set_major_formatter("{x:+.0%}")
    figure.supylabel(f"(simulated - measured) / measured ({time} time)", fontsize="small")
    return _legend(figure)


def overlap(rows: Sequence[Row], time: str) -> Any:
    """Hidden share, and below it dilation of the work, over looks; a thread at the right end."""
    told = [row for row in rows if _has(row, "hidden", "dilation", part="together")]
    title, setups = _setups(told, WORK)
    if not setups:
        return None
    names = list(setups)[: PANELS // 2]
    figure, panels = _panels(names * 2, f"Overlap: {title}", min(len(names), ACROSS))
    for number, (axes, name) in enumerate(zip(panels, names * 2, strict=True)):
        upper = number < len(names)
        _over_looks(axes, _curves(setups[name]), "hidden" if upper else "dilation")
        axes.set_ylabel("hidden share" if upper else "dilation of the work", fontsize="small")
        axes.set_xlabel("" if upper else f"looks in the work ({time} time)", fontsize="small")
    return _legend(figure)


def _over_looks(axes: Any, curves: Iterable[Curve], key: str) -> None:
    at = {id(row): _looks(row) for curve in curves for row in curve.rows}
    ticks = sorted(set(at.values()))
    for curve in curves:
        points = sorted((ticks.index(at[id(row)]), row[key]) for row in curve.rows)
        polled = [point for point in points if ticks[point[0]] < math.inf]
        look = style(curve.algorithm, curve.number)
        axes.plot(*zip(*points, strict=True), **look | {"linestyle": "none"})
        axes.plot(
            *(zip(*polled, strict=True) if polled else ((), ())), label=curve.algorithm, **look
        )
    axes.set_xticks(range(len(ticks)), [f"{t:g}" if t < math.inf else "thread" for t in ticks])
    axes.axhline(1, color="#999999", linestyle=":", zorder=0)
    below = sum(row["hidden"] < LEAST for curve in curves for row in curve.rows)
    if key == "hidden" and below:
        axes.set_ylim(LEAST, 1.1)
        axes.set_title(f"{axes.get_title()}; {below} below {LEAST}", fontsize="small")


def _looks(row: Row) -> float:
    return math.inf if row.get("progress") == "thread" else row.get("polls_asked") or 0


def _over_bytes(rows: Sequence[Row], key: str, label: str, title: str) -> Any:
    words, setups = _setups([row for row in rows if _has(row, key)], SETUP)
    panels: dict[str, tuple[list[Curve], list[Curve]]] = {}
    curves = {name: _curves(of) for name, of in setups.items()}
    together = max(map(len, curves.values()), default=0) <= TOGETHER
    for name, all_of_it in curves.items():
        if together:
            panels[name] = (all_of_it, [])
        else:
            for each in dict.fromkeys(curve.algorithm for curve in all_of_it):
                own = [curve for curve in all_of_it if curve.algorithm == each]
                panels[", ".join(filter(None, (each, name)))] = (own, all_of_it)
    if not panels:
        return None
    figure, places = _panels(list(panels), f"{title}: {words}", share=True)
    for axes, (front, behind) in zip(places, panels.values(), strict=False):
        for curve in behind:
            axes.plot(*_points(curve, key), color=GREY, linewidth=0.6, zorder=1)
        for curve in front:
            text = f"{curve.algorithm} {curve.pieces}" if together else curve.pieces
            look = style(curve.algorithm, curve.number)
            axes.plot(*_points(curve, key), label=text.strip(), **look)
        _bytes_below(axes)
        axes.set_yscale("log")
        if not together and len(front) > 1:
            axes.legend(fontsize="x-small", frameon=False)
    figure.supylabel(label, fontsize="small")
    return _legend(figure) if together else figure


def _setups(rows: Sequence[Row], keys: Sequence[str]) -> tuple[str, dict[str, list[Row]]]:
    """What all rows have in common, in words, and the rows by what tells their set-ups apart."""
    differing = [key for key in keys if len({row.get(key) for row in rows}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (not row.get("in_place"), row["bytes"])):
        found.setdefault(_words(row, differing), []).append(row)
    return _words(rows[0], [k for k in keys if k not in differing]) if rows else "", found


def _words(row: Row, keys: Iterable[str]) -> str:
    return ", ".join(_word(key, row[key]) for key in keys if row.get(key) is not None)


def _word(key: str, value: Any) -> str:
    if key == "in_place":
        return "in place" if value else "out of place"
    if key == "file":
        return str(value).rsplit("/", 1)[-1].removesuffix(".h5")[:32]
    return size(value) if key == "bytes" else f"{value} ranks" if key == "ranks" else str(value)


def size(octets: float) -> str:
    """Bytes in powers of 1024: 64 KiB."""
    power = min(3, int(math.log(max(1, octets), 1024)))
    return f"{octets / 1024**power:g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def _curves(rows: Iterable[Row]) -> list[Curve]:
    """By algorithm, then by the chunks of its messages."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((str(row.get("algorithm")), row.get("chunks") or 1), []).append(row)
    pieces = {key: f"{key[1]} chunks" if key[1] > 1 else "" for key in found}
    several = {name for name, chunks in found if chunks > 1}
    known = [*STYLES]
    order = sorted(found, key=lambda key: (known.index(key[0]) if key[0] in known else 99, key))
    return [
        Curve(key[0], sum(other[0] == key[0] for other in order[:number]),
              pieces[key] or ("1 chunk" if key[0] in several else ""), found[key])
        for number, key in enumerate(order)
    ]  # fmt: skip


def _points(curve: Curve, key: str) -> tuple[list[Any], list[Any]]:
    return [row["bytes"] for row in curve.rows], [row[key] for row in curve.rows]


def _has(row: Row, *keys: str, part: str | None = None) -> bool:
    """Whether it is this part of a benchmark, of a size > 0, and these are finite numbers."""
    numbers = [row.get(key) for key in ("bytes", *keys)]
    finite = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
    return finite and row["bytes"] > 0 and row.get("part") == part


def _bytes_below(axes: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: size(value).replace(" ", "\n"))
