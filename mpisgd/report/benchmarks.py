"""Benchmark files as rows: what was measured, with quantiles of the longest rank."""

from typing import Any

import numpy as np

from mpisgd.report.accounting import clock, lab_rate
from mpisgd.report.collect import Named

KEYS = (
    "algorithm", "part", "ranks", "bytes", "dtype", "in_place", "chunks", "repetitions", "median_s",
    "p10_s", "p90_s", "ci_low_s", "ci_high_s", "algbw_GBps", "busbw_GBps", "wrong",
)  # fmt: skip


def rows(named: Named) -> list[dict[str, Any]]:
    """One row a case, as `bench` stored it; what follows from the samples is filled in."""
    found = []
    for case in named.run.cases:
        values = _measured(case.row, case.seconds) | case.row
        place = {"file": named.name, "clock": clock(named.run), "lab_rate": lab_rate(named.run)}
        found.append(place | values)
    return found


def _measured(row: dict[str, Any], seconds: np.ndarray) -> dict[str, Any]:
    """Quantiles over repetitions of the longest rank, and bandwidths where bytes are known."""
    heard = seconds[~np.isnan(seconds).all(axis=1)] if seconds.size else seconds[:0]
    if not len(heard):
        return {"repetitions": 0}
    longest = np.nanmax(heard, axis=1)
    low, middle, high = np.quantile(longest, (0.1, 0.5, 0.9)).tolist()
    values: dict[str, Any] = {
        "repetitions": len(longest), "median_s": middle, "p10_s": low, "p90_s": high
    }  # fmt: skip
    size, ranks = row.get("bytes"), row.get("ranks")
    whole = row.get("part", "communication") == "communication"  # not work, nor what is exposed
    if whole and isinstance(size, int) and isinstance(ranks, int) and middle > 0:
        values["algbw_GBps"] = size / middle / 1e9
        # One rank moves nothing: it has no bus bandwidth.
        values["busbw_GBps"] = size / middle / 1e9 * 2 * (ranks - 1) / ranks if ranks > 1 else None
    return values
