"""The laws of `fits` on the curves of a scaling table, and how far they reach."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpisgd.report.columns import CLOCK
from mpisgd.report.fits import Fit, amdahl, normal_form, universal
from mpisgd.report.scaling import NAMES, SCALING
from mpisgd.values.tables import Column

FURTHER = 4  # times the most ranks that were measured: as far as laws are extrapolated
FEWEST = {"amdahl": 3, "universal": 4, "extra-p": 5}  # points: one more than coefficients

COLUMNS = (
    *(column for column in SCALING if column.key in ("scaling", *NAMES, "settings")),
    CLOCK,
    Column("law", "", "amdahl: serial share sigma; universal: Gunther's, contention sigma and "
           "coherency kappa; extra-p: the normal form of the seconds of a step", "", True),
    Column("points", "", "rank counts that it is fitted to", "", True),
    Column("formula", "", "what was found; p: ranks", "", True),
    Column("smape_percent", ".2f", "symmetric mean absolute percentage error of the fit", "", True),
    Column("sigma", ".4g", "serial share, or contention", "1"),
    Column("sigma_half_width", ".2g", "of its 95 % interval"),
    Column("kappa", ".4g", "cost of coherency, for each pair of ranks", "1"),
    Column("kappa_half_width", ".2g", "of its 95 % interval"),
    Column("extrapolated_ranks", "", f"{FURTHER} times the most ranks measured", "", True),
    Column("extrapolated_samples_per_s", "", "what the law says there: nobody has measured it",
           "1/s", True),
    Column("extrapolated_low", "", "low end of its 95 % interval, if the law holds", "", True),
    Column("extrapolated_high", "", "high end of it", "", True),
)  # fmt: skip


def fitted(points: Sequence[Mapping[str, Any]]) -> list[Fit]:
    """The laws that a curve has points enough for, in samples per second over ranks. `points`: its
    rows of the scaling table."""
    known = [row for row in points if row["samples_per_s"] and row["step_samples"]]
    ranks = [float(row["ranks"]) for row in known]
    throughput = [row["samples_per_s"] for row in known]
    found = []
    if len(known) >= FEWEST["amdahl"]:
        found.append(amdahl(ranks, throughput))
    if len(known) >= FEWEST["universal"]:
        found.append(universal(ranks, throughput))
    if len(known) >= FEWEST["extra-p"]:
        found.append(_step_seconds(known, ranks))
    return found


def rows(scaling: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each law of each curve of the scaling table."""
    curves: dict[Any, list[Mapping[str, Any]]] = {}
    for row in scaling:
        key = (row["base"], *(row[name] for name in ("scaling", *NAMES, "settings", "clock")))
        curves.setdefault(key, []).append(row)
    return [_row(points, fit) for points in curves.values() for fit in fitted(points)]


def _step_seconds(points: Sequence[Mapping[str, Any]], ranks: Sequence[float]) -> Fit:
    """The normal form of the seconds of a step, told as samples per second."""
    strong = points[0]["scaling"] == "strong"
    fit = normal_form(ranks, [r["step_samples"] / r["samples_per_s"] for r in points], strong)
    assert fit is not None
    first = points[0]["step_samples"] / (1 if strong else ranks[0])

    def at(where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q = np.asarray(where, float)
        samples = first * (np.ones(len(q)) if strong else q)
        middle, low, high = fit.at(q)
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.where(low > 0, samples / low, np.inf)
            return samples / middle, samples / high, most

    return fit._replace(at=at)


def _row(points: Sequence[Mapping[str, Any]], fit: Fit) -> dict[str, Any]:
    far = FURTHER * max(row["ranks"] for row in points)
    middle, low, high = (float(values[0]) for values in fit.at(np.array([far])))
    row = {key: points[0][key] for key in ("scaling", *NAMES, "settings", "clock")}
    for name in ("sigma", "kappa"):
        row[name], row[f"{name}_half_width"] = fit.coefficients.get(name, (None, None))
    return row | {
        "law": fit.law, "points": len(points), "formula": fit.formula,
        "smape_percent": fit.smape, "extrapolated_ranks": far,
        "extrapolated_samples_per_s": middle, "extrapolated_low": low, "extrapolated_high": high,
    }  # fmt: skip
