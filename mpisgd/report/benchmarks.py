"""Benchmark files as rows: what was measured, with quantiles of the longest rank, and what they say
themselves of whom to use."""

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


_CASE = (
    FILE, RANKS,
    Column("density", "g", "share of a matrix's rows that each rank had", "", True),
    Column("bytes", "", "bytes of a rank's message", "", True),
    Column("in_place", "", "whether source and result are one buffer", "", True),
)  # fmt: skip
_CHUNKS = Column("chunks", "", "pieces that its message is cut in", "", True)
VERDICTS = {
    "fastest": ("Which to use", (
        *_CASE,
        Column("ours", "", "the fastest of the schedules of this suite", "", True), _CHUNKS,
        Column("ours_s", "", "its median seconds", "s", True),
        Column("library", "", "the fastest call of the MPI library", "", True),
        Column("library_s", "", "its median seconds", "s", True),
        Column("sparse", "", "the fastest that sums rows", "", True),
        Column("sparse_s", "", "its median seconds", "s", True),
        Column("dense", "", "the fastest that sums the whole matrix", "", True),
        Column("dense_s", "", "its median seconds", "s", True),
        Column("ratio", ".3f", "of the medians, the first over the second", "1", True),
        Column("ratio_low", ".3f", "its lower end, by the medians' 95 % intervals", "1", True),
        Column("ratio_high", ".3f", "its upper end", "1", True),
        Column("use", "", "either, where 1 lies between them", "", True),
    )),
    "auto": ("What auto took", (
        *_CASE,
        Column("auto", "", "what --allreduce auto takes", "", True), _CHUNKS,
        Column("median_s", "", "its median seconds", "s", True),
        Column("best", "", "the fastest that was measured", "", True),
        Column("best_s", "", "its median seconds", "s", True),
        Column("regret", ".1%", "by how much the first took longer", "1", True),
        Column("by", "", "what it was chosen by", "", True),
    )),
}  # fmt: skip
"""Tables that a benchmark keeps in its summary, under these names: title and columns."""


def columns(
    rows: Sequence[Mapping[str, Any]], known: tuple[Column, ...] = COLUMNS
) -> tuple[Column, ...]:
    """Those that are known, and what else the benchmarks of these rows stored, before the last
    two."""
    keys = {column.key for column in known}
    more = dict.fromkeys(key for row in rows for key in row if key not in keys)
    stored = "as the benchmark stored it"
    return (*known[:-2], *(Column(key, meaning=stored) for key in more), *known[-2:])


def verdicts(named: Named, table: str) -> list[dict[str, Any]]:
    """The rows of one of VERDICTS; none where the file has no such table."""
    told = named.run.summary.get(table) if named.run.kind == "bench" else None
    rows = told if isinstance(told, list) else []
    about = {"file": named.name, "ranks": named.run.ranks}
    return [about | row for row in rows if isinstance(row, dict)]


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
