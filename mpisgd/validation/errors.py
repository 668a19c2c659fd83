"""The table of errors: (simulated - measured) / measured, of each cell and of groups of cells.

Each round calibrates anew and has its own errors; a cell's is the median over rounds, so that what
a machine does meanwhile strikes both sides of a quotient, and its ends are the rounds' extremes.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mpisgd.predict.links import fastest
from mpisgd.values.tables import Column

LABEL = ("part", "algorithm", "bytes", "chunks", "unseen")
COLUMNS: tuple[Column | str, ...] = (
    *LABEL, "rounds", "measured_s", "measured_low_s", "measured_high_s", "simulated_s",
    *(Column(key, "+.1%") for key in ("error", "error_low", "error_high")),
)  # fmt: skip
LEFT_OUT = ("chunks", "rounds", "measured_low_s", "measured_high_s")  # on a screen: it is narrow
SHOWN = tuple(column for column in COLUMNS if column not in LEFT_OUT)
WIDTH = tuple(column for column in COLUMNS if str(column[0]).endswith(("_low", "_high")))
ONE_ROUND = "one round: no width; --rounds 3 says how far rounds differ"
SUMMARY: tuple[Column | str, ...] = (
    "part", "of", "cells",
    *(Column(key, form) for key, form in (
        ("signed_median", "+.1%"), ("median", ".1%"), ("worst", "+.1%"),
    )), "worst_is",
)  # fmt: skip


def typical(seconds: np.ndarray, share: float) -> float:
    """The median of the fastest `share` of repetitions; seconds [repetition, rank], of which a
    repetition has the slowest rank's."""
    return statistics.median(fastest(seconds.max(axis=1).tolist(), share))


def table(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a cell, from one a cell and round, which has LABEL, `measured_s`, `simulated_s`."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[key] for key in LABEL), []).append(row)
    return [
        dict(zip(LABEL, label, strict=True))
        | {"rounds": len(found)}
        | _spread("measured", [row["measured_s"] for row in found], "_s")
        | {"simulated_s": statistics.median(row["simulated_s"] for row in found)}
        | _spread("error", [error(row) for row in found])
        for label, found in cells.items()
    ]


def error(row: Mapping[str, Any]) -> float:
    """Signed, a share of what was measured."""
    return row["simulated_s"] / row["measured_s"] - 1


def summary(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for all cells of a part, and each algorithm, size and kind of held-out cell that
    several have: the median of the signed errors, that of the absolute ones, and the worst."""
    found = []
    for part in dict.fromkeys(cell["part"] for cell in cells):
        inside = [cell for cell in cells if cell["part"] == part]
        groups: dict[str, list[Mapping[str, Any]]] = {"all": inside}
        for key, form in (("algorithm", "{}"), ("bytes", "{} B"), ("unseen", "unseen: {}")):
            for cell in inside if len({each[key] for each in inside}) > 1 else ():
                groups.setdefault(form.format(cell[key]), []).append(cell)
        found += [
            {"part": part, "of": name, **_group(group)}
            for name, group in groups.items()
            if name == "all" or len(group) > 1
        ]
    return found


def _group(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    worst = max(cells, key=lambda cell: abs(cell["error"]))
    return {
        "cells": len(cells),
        "signed_median": statistics.median(cell["error"] for cell in cells),
        "median": statistics.median(abs(cell["error"]) for cell in cells),
        "worst": worst["error"],
        "worst_is": " ".join(str(worst[key]) for key in ("algorithm", "bytes") if worst[key]),
    }


def _spread(name: str, values: Sequence[float], unit: str = "") -> dict[str, float]:
    return {
        f"{name}{unit}": statistics.median(values),
        f"{name}_low{unit}": min(values),
        f"{name}_high{unit}": max(values),
    }
