"""A timeline for Perfetto (ui.perfetto.dev) or chrome://tracing: lanes per rank.

Format: Trace Event Format, complete events ("X"), microseconds. A lane is drawn from /events when
the run recorded it there. Otherwise each step's total is drawn from the step's start on, one part
after another, and says that it is a total: /steps keeps sums, not moments.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpisgd.report.accounting import clock
from mpisgd.report.collect import Named
from mpisgd.report.speed import PARTS
from mpisgd.store.reader import Run
from mpisgd.store.schema import LANES, NAMES


def timeline(runs: Sequence[Named]) -> str:
    """The JSON text of the training runs' timelines, each rank of each file a process."""
    lines = []
    offset = 0
    for named in runs:
        if named.run.kind == "train":
            lines += [json.dumps(event) for event in _events(named, offset)]
            offset += named.run.ranks
    return '{"displayTimeUnit": "ms", "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"


def _events(named: Named, offset: int) -> Iterator[dict[str, Any]]:
    run = named.run
    for rank in range(run.ranks):
        name = f"{named.name} rank {rank} ({clock(run)} time)"
        yield _meta(offset + rank, 0, "process_name", {"name": name})
        yield _meta(offset + rank, 0, "process_sort_index", {"sort_index": offset + rank})
        for lane, title in enumerate(LANES):
            shown = "communication in flight" if title == "flight" else title
            yield _meta(offset + rank, lane, "thread_name", {"name": shown})
            yield _meta(offset + rank, lane, "thread_sort_index", {"sort_index": lane})
    recorded = set(np.unique(run.events["lane"]).tolist()) if "lane" in run.events else set()
    yield from _recorded(run, offset)
    for lane, part in enumerate(LANES):
        if part in PARTS and lane not in recorded:
            yield from _totals(run, part, lane, offset)


def _recorded(run: Run, offset: int) -> Iterator[dict[str, Any]]:
    """What /events holds; codes that this program does not know are shown as numbers."""
    if not {"rank", "lane", "start_s", "end_s"} <= set(run.events):
        return
    columns = [run.events[key].tolist() for key in ("rank", "lane", "start_s", "end_s")]
    count = len(columns[0])
    names = run.events["name"].tolist() if "name" in run.events else [-1] * count
    steps = run.events["step"].tolist() if "step" in run.events else [-1] * count
    for rank, lane, start, end, code, step in zip(*columns, names, steps, strict=True):
        known = NAMES[code] if 0 <= code < len(NAMES) else str(code)
        yield _span(offset + rank, lane, known, start, end - start, {"step": step})


def _totals(run: Run, part: str, lane: int, offset: int) -> Iterator[dict[str, Any]]:
    """Each step's sum of `part`, placed behind those of the parts before it."""
    columns = run.steps
    if not {"start_s", f"{part}_s"} <= set(columns):
        return
    before = PARTS[: PARTS.index(part)]
    begin = columns["start_s"] + sum(
        np.nan_to_num(columns[f"{other}_s"]) for other in before if f"{other}_s" in columns
    )
    spent = columns[f"{part}_s"]
    for row, rank in np.argwhere(np.isfinite(begin) & (spent > 0)).tolist():
        arguments = {"step": row + 1, "placed": "total of the step"}
        yield _span(offset + rank, lane, part, begin[row, rank], spent[row, rank], arguments)


def _span(
    process: int, lane: int, name: str, start_s: float, length_s: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": lane,
        "ts": round(float(start_s) * 1e6, 3),
        "dur": round(float(length_s) * 1e6, 3),
        "args": arguments,
    }


def _meta(process: int, lane: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": lane, "args": arguments}
