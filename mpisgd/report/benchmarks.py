"""Benchmark files as rows: what was measured, with quantiles of the longest rank."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpisgd.report.accounting import clock, lab_rate
from mpisgd.report.collect import Named
from mpisgd.report.columns import ALGORITHM, CLOCK, FILE, LAB_RATE, RANKS, shown
from mpisgd.values.tables import Column

COLUMNS = (
    FILE, ALGORITHM,
    Column("part", "", "communication, work, what of the first is exposed, or a step", "", True),
    RANKS,
    Column("bytes", "", "bytes of a rank's message", "", True),
    Column("density", "", "share of a matrix's rows that each rank had, where only these were "
           "summed", "", True),
    Column("dtype", "", "type of its elements"),
    Column("in_place", "", "whether source and result are one buffer", "", True),
    Column("chunks", "", "pieces that a message is cut in", "", True),
    Column("repetitions", "", "how often it was measured"),
    Column("median_s", "", "median seconds (benchmarks: of the rank that took longest)", "s", True),
    Column("p10_s", "", "a tenth took at most so many seconds", "s", True),
    Column("p90_s", "", "nine tenths took at most so many seconds", "s", True),
    Column("p99_s", "", "99 of 100 took at most so many seconds", "s"),
    Column("skew_s", "", "median of the longest rank's seconds less the shortest's", "s"),
    Column("ci_low_s", "", "low end of the median's 95 % interval"),
    Column("ci_high_s", "", "high end of the median's 95 % interval"),
    Column("algbw_GBps", "", "bytes over seconds, 10^9 bytes a second", "GB/s"),
    Column("busbw_GBps", "", "algbw times 2 (p - 1) / p: what the link carries", "GB/s", True),
    Column("library", "", "the MPI library that ran it"),
    Column("wrong", "", "results that were not what they should be", "1", True),
    Column("progress", "", "what moves a message on while there is work: poll or thread", "", True),
    Column("polls", "", "looks at it in that time", "", True),
    Column("polls_asked", "", "looks asked for: more than polls where work had no room for them"),
    Column("round", "", "of a validation, each of which calibrates anew"),
    Column("simulated_s", "", "what the model says of it", "s", True),
    Column("error", "+.1%", "(simulated - measured) / measured", "1", True),
    Column("hidden", ".3f", "share of the communication that the work hides", "1", True),
    CLOCK, shown(LAB_RATE),
)  # fmt: skip
LABEL = (
    "file", "algorithm", "part", "ranks", "bytes", "density", "dtype", "in_place", "chunks",
    "progress", "polls_asked", "round",
)  # fmt: skip
"""What tells rows apart."""


def columns(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """COLUMNS, and what else the benchmarks of these rows stored, before the last two."""
    known = {column.key for column in COLUMNS}
    more = dict.fromkeys(key for row in rows for key in row if key not in known)
    stored = "as the benchmark stored it"
    return (*COLUMNS[:-2], *(Column(key, meaning=stored) for key in more), *COLUMNS[-2:])


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
    low, middle, high, highest = np.quantile(longest, (0.1, 0.5, 0.9, 0.99)).tolist()
    values: dict[str, Any] = {
        "repetitions": len(longest), "median_s": middle, "p10_s": low, "p90_s": high,
        "p99_s": highest, "skew_s": float(np.median(longest - np.nanmin(heard, axis=1))),
    }  # fmt: skip
    size, ranks = row.get("bytes"), row.get("ranks")
    whole = row.get("part", "communication") == "communication"  # not work, nor what is exposed
    whole &= row.get("density") is None  # of rows alone nobody knows what links carried
    if whole and isinstance(size, int) and isinstance(ranks, int) and middle > 0:
        values["algbw_GBps"] = size / middle / 1e9
        # One rank moves nothing: it has no bus bandwidth.
        values["busbw_GBps"] = size / middle / 1e9 * 2 * (ranks - 1) / ranks if ranks > 1 else None
    return values
