"""A timeline for Perfetto (ui.perfetto.dev) or chrome://tracing: lanes per rank.

Format: Trace Event Format, complete events ("X"), microseconds. A lane is drawn from /events when
the run recorded it there. Otherwise each step's total is drawn from the step's start on, one part
after another, and says that it is a total: /steps keeps sums, not moments. What would be larger
than viewers take is cut after the last step that has room, and says so.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpisgd.report.accounting import clock
from mpisgd.report.collect import Named
from mpisgd.report.speed import PARTS
from mpisgd.store.reader import Run
from mpisgd.store.schema import LANES, NAMES
from mpisgd.values.errors import UsageError

LARGEST = 64_000_000  # bytes: viewers in a browser refuse more, or take minutes
SPAN_B = 160  # bytes of one in the file, about the most
BLOCK = 1 << 14  # spans turned into text at once
SHOWN = (*LANES, *(part for part in PARTS if part not in LANES))  # totals need no lane in files


class Spans(NamedTuple):
    """Intervals of one run [span]; `step` of -1: not known. `placed`: where they are is made up."""

    rank: np.ndarray
    lane: np.ndarray
    name: np.ndarray
    start_s: np.ndarray
    length_s: np.ndarray
    step: np.ndarray
    placed: bool

    def within(self, low: int, high: int) -> "Spans":
        """Those of the steps low .. high, and of none."""
        return self.only((self.step < 1) | ((low <= self.step) & (self.step <= high)))

    def only(self, chosen: np.ndarray) -> "Spans":
        """Some of them."""
        fields = {name: getattr(self, name)[chosen] for name in self._fields[:-1]}
        return self._replace(**fields)


class Timeline:
    """The JSON text of the training runs' timelines, each rank of each file a process, in pieces.

    `steps`: (first, last) to draw. `left_out`: what was not drawn, in words; "" for nothing.
    """

    def __init__(
        self, runs: Sequence[Named], steps: tuple[int, int] | None = None, most: int = LARGEST
    ):
        self.runs = [named for named in runs if named.run.kind == "train"]
        low, high = steps or (1, np.iinfo(np.int64).max)
        self.spans = [[part.within(low, high) for part in _spans(n.run)] for n in self.runs]
        self.left_out = self._cut(max(1, most // SPAN_B), low)

    def __iter__(self) -> Iterator[str]:
        yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
        offset, between = 0, ""
        for named, spans in zip(self.runs, self.spans, strict=True):
            for line in (
                *_titles(named, offset),
                *(t for part in spans for t in _text(part, offset)),
            ):
                yield between + line
                between = ",\n"
            offset += named.run.ranks
        yield "\n]}\n"

    def _cut(self, most: int, first: int) -> str:
        """Keep the steps up to the last with which there are no more than `most` spans."""
        steps = [part.step for spans in self.spans for part in spans]
        known = np.concatenate([np.zeros(0, np.int64), *steps])
        if len(known) <= most:
            return ""
        numbers, counts = np.unique(known, return_counts=True)
        room = int(np.searchsorted(np.cumsum(counts), most, "right"))
        last = int(numbers[max(1, room) - 1])
        self.spans = [[part.within(first, last) for part in spans] for spans in self.spans]
        kept = sum(len(part.step) for spans in self.spans for part in spans)
        told = f"{len(known) - kept} of {len(known)} spans, up to step {numbers[-1]}"
        return f"the trace ends with step {last}: {told}, are left out; --steps A:B chooses others"


def steps_of(text: str) -> tuple[int, int]:
    """`A:B`, `A:` or `:B`, both included. UsageError."""
    low, colon, high = text.partition(":")
    numbers = [int(word) if word.isascii() and word.isdigit() else -1 for word in (low, high)]
    first, last = numbers[0] if low else 1, numbers[1] if high else np.iinfo(np.int64).max
    if not colon or not 1 <= first <= last < 2**63:
        raise UsageError("--steps", text, "FIRST:LAST, such as 100:200; steps count from 1")
    return first, last


def _spans(run: Run) -> Iterator[Spans]:
    if {"rank", "lane", "start_s", "end_s"} <= set(run.events):
        yield _recorded(run)
    recorded = set(np.unique(run.events["lane"]).tolist()) if "lane" in run.events else set()
    for lane, part in enumerate(SHOWN):
        if part in PARTS and lane not in recorded:
            yield from _totals(run, part, lane)


def _recorded(run: Run) -> Spans:
    """What /events holds."""
    start = run.events["start_s"]
    nothing = np.full(len(start), -1)
    names, steps = run.events.get("name", nothing), run.events.get("step", nothing)
    length = run.events["end_s"] - start
    there = np.isfinite(start) & np.isfinite(length)
    columns = run.events["rank"], run.events["lane"], names, start, length, steps
    return Spans(*columns, False).only(there)


def _totals(run: Run, part: str, lane: int) -> Iterator[Spans]:
    """Each step's sum of `part`, placed behind those of the parts before it."""
    columns = run.steps
    if not {"start_s", f"{part}_s"} <= set(columns):
        return
    before = PARTS[: PARTS.index(part)]
    begin = columns["start_s"] + sum(
        np.nan_to_num(columns[f"{other}_s"]) for other in before if f"{other}_s" in columns
    )
    spent = columns[f"{part}_s"]
    row, rank = np.nonzero(np.isfinite(begin) & (spent > 0))
    name = np.full(len(row), lane)
    yield Spans(rank, name, name, begin[row, rank], spent[row, rank], row + 1, True)


def _text(spans: Spans, offset: int) -> Iterator[str]:
    """Complete events; codes that this program does not know are shown as numbers."""
    known: Sequence[str] = SHOWN if spans.placed else NAMES
    more = ', "placed": "total of the step"' if spans.placed else ""
    for low in range(0, len(spans.step), BLOCK):
        part = slice(low, low + BLOCK)
        columns = [column[part].tolist() for column in spans[:-1]]
        for rank, lane, code, start_s, length_s, step in zip(*columns, strict=True):
            name = known[code] if 0 <= code < len(known) else str(code)
            yield (
                f'{{"ph": "X", "name": "{name}", "pid": {offset + rank}, "tid": {lane}, '
                f'"ts": {start_s * 1e6:.3f}, "dur": {length_s * 1e6:.3f}, '
                f'"args": {{"step": {step}{more}}}}}'
            )


def _titles(named: Named, offset: int) -> Iterator[str]:
    """What processes and threads are called."""
    for rank in range(named.run.ranks):
        name = f"{named.name} rank {rank} ({clock(named.run)} time)"
        yield _meta(offset + rank, 0, "process_name", {"name": name})
        yield _meta(offset + rank, 0, "process_sort_index", {"sort_index": offset + rank})
        for lane, title in enumerate(SHOWN):
            shown = "communication in flight" if title == "flight" else title
            yield _meta(offset + rank, lane, "thread_name", {"name": shown})
            yield _meta(offset + rank, lane, "thread_sort_index", {"sort_index": lane})


def _meta(process: int, lane: int, name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": process, "tid": lane, "args": arguments})
