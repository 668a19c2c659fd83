"""`mpisgd bench allreduce`: seconds, bandwidth and errors, by algorithm and size."""

import argparse
import math
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from allreduce import measure as timing
from allreduce.collectives import CARRIERS, NAMES, carrier
from allreduce.errors import AllreduceError
from allreduce.measure import Rule
from mpisgd.bench import arrivals, memory, options, record
from mpisgd.bench.memory import Memory
from mpisgd.bench.operations import MOCK_UPS, Vectors, operation
from mpisgd.mpi import devices, session
from mpisgd.tuning import auto
from mpisgd.values import tables
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import AUTO

PLACES = {"in-place": (True,), "out-of-place": (False,), "both": (True, False)}
DTYPES = ("float32", "float16", "float64")
COLUMNS = (
    "algorithm", "ranks", "bytes", "dtype", "in_place", "chunks", "repetitions",
    "median_s", "p10_s", "p90_s", "p99_s", "ci_low_s", "ci_high_s", "skew_s",
    "algbw_GBps", "busbw_GBps", "library", "wrong",
)  # fmt: skip
FASTEST: tuple[tables.Column | str, ...] = (
    "bytes", "in_place", "ours", "chunks", "ours_s", "library", "library_s",
    *(tables.Column(key, ".3f") for key in ("ratio", "ratio_low", "ratio_high")), "use",
)  # fmt: skip
DEVICE_COLUMNS = ("memory", "device_s")
PICKS: tuple[tables.Column | str, ...] = (
    "bytes", "in_place", "auto", "chunks", "median_s", "best", "best_s",
    tables.Column("regret", ".1%"), "by",
)  # fmt: skip
OSU_COLUMNS = ("osu_avg_s", "osu_min_s", "osu_max_s")


class Case(NamedTuple):
    """One row: an algorithm on a size. `auto` is known on ranks (Settings.on)."""

    algorithm: str
    bytes: int
    in_place: bool
    chunks: int


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    places: tuple[bool, ...]
    chunks: tuple[int, ...]
    in_turn: bool
    backend: str
    device: str | None
    cuda_aware: str
    rule: Rule
    seed: int
    deadline_s: float
    tuning: str | None = None
    auto: tuple[tuple[int, str, int, str], ...] = ()  # bytes, algorithm, chunks, by what
    arrival: str | None = None

    def on(self, comm: Any, hosts: list[str], nodes: list[int]) -> "Settings":
        """With what `auto` stands for, for each size."""
        if AUTO not in self.algorithms:
            return self
        from mpisgd.predict.links import quick

        def fits(algorithm: str) -> bool:
            return algorithm in NAMES and carrier(algorithm).host

        measured = partial(quick, comm, hosts, self.deadline_s)
        return replace(self, auto=auto.by_size(self.tuning, self.sizes, nodes, fits, measured))

    def is_auto(self, case: Case) -> bool:
        return (case.bytes, case.algorithm, case.chunks) in {each[:3] for each in self.auto}

    def check(self, comm: Any) -> None:
        """UsageError for what the number of ranks does not allow, or a device that is not there."""
        devices.module_of(self.backend, self.device)
        if AUTO in self.algorithms:
            auto.read(self.tuning)
        arrivals.read(self.arrival, comm)
        try:
            timing.trials(comm.Get_size(), self.dtype)
        except AllreduceError as mistake:
            raise UsageError("--dtype", self.dtype, str(mistake)) from None

    def cases(self) -> list[Case]:
        """In the order of the table; the library cuts messages by itself."""
        every = product(self.sizes, self.algorithms, self.places, self.chunks)
        cut = {n for n in self.algorithms if n not in MOCK_UPS and carrier(n).chunked}
        named = [
            Case(name, size, in_place, chunks if name in cut else 1)
            for size, name, in_place, chunks in every
            if name != AUTO and (name in cut or chunks == self.chunks[0])
        ]
        chosen = [Case(n, s, p, chunks) for s, n, chunks, _ in self.auto for p in self.places]
        order = {size: number for number, size in enumerate(self.sizes)}
        return sorted(dict.fromkeys([*named, *chosen]), key=lambda case: order[case.bytes])

    def blocks(self) -> list[list[Case]]:
        """What is measured together, in random order: the same on all ranks."""
        blocks: dict[Any, list[Case]] = {}
        for case in self.cases():
            blocks.setdefault((case.bytes, case.in_place) if self.in_turn else case, []).append(
                case
            )
        order = list(blocks.values())
        shuffle = random.Random(self.seed).shuffle
        shuffle(order)
        for block in order:
            shuffle(block)
        return order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd bench allreduce` alone."""
    known = ", ".join((*CARRIERS, AUTO))
    add = parser.add_argument
    add("--algorithms", default="all", metavar="NAMES", help=f"with commas: {known} [all]")
    add("--sizes", metavar="SIZES", help="bytes, such as 4:64M or 4,1K,1M [4:1M]")
    add("--tuning", metavar="FILE", help="what the algorithm auto chooses by: a table of tune, or "
        "a network [MPISGD_TUNING]")  # fmt: skip
    add("--dtype", choices=DTYPES, default="float32", help="of the elements [float32]")
    place = parser.add_mutually_exclusive_group()
    for name in PLACES:
        place.add_argument(f"--{name}", dest="place", action="store_const", const=name,
                           help="where the result lies [in-place]")  # fmt: skip
    parser.set_defaults(place="in-place")
    add("--chunks", default="1", metavar="N", help="messages a transfer is cut in, as 1,4 [1]")
    add("--arrival", metavar="RUN.h5", help="before each call ranks are as late as they came to "
        "that run's averages; seconds count from the last")  # fmt: skip
    add("--in-turn", action="store_true", help="call all algorithms of a size in turn, so that "
        "what else goes on strikes all alike; by default each is measured by itself")  # fmt: skip
    add("--no-mock-ups", action="store_true", help="with mpi, don't also measure what its "
        "reduce + bcast and reduce-scatter + allgather take")  # fmt: skip
    add("--osu", action="store_true", help="also the columns of the OSU benchmarks")


def settings(arguments: argparse.Namespace) -> Settings:
    """From the command line. UsageError."""
    names = options.algorithms(
        arguments.algorithms, (*CARRIERS, *MOCK_UPS, AUTO), memory.default(arguments)
    )
    if arguments.tuning is not None and AUTO not in names:
        raise UsageError("--tuning", arguments.tuning, f"only with {AUTO} among --algorithms")
    if "mpi" in names and not arguments.no_mock_ups:
        names = tuple(dict.fromkeys((*names, *MOCK_UPS)))
    dtype = np.dtype(arguments.dtype)
    sizes = arguments.sizes or f"{max(4, dtype.itemsize)}:1M"
    return Settings(
        names,
        options.counts(sizes, dtype),
        dtype.name,
        PLACES[arguments.place],
        options.chunks(arguments.chunks),
        arguments.in_turn,
        arguments.backend,
        arguments.device,
        arguments.cuda_aware,
        options.rule(arguments),
        options.seed(arguments),
        options.deadline(arguments),
        arguments.tuning,
        arrival=arguments.arrival,
    )


def measure(comm: Any, chosen: Settings, arguments: argparse.Namespace) -> int:
    """Measure, record, print; 1 if any sum was wrong."""
    where = record.places(comm, arguments, chosen.deadline_s)
    lies = Memory.of(comm, chosen)
    names, without = lies.possible(comm, chosen.algorithms)
    chosen = replace(chosen, algorithms=names)
    chosen = chosen.on(comm, where.hosts, where.nodes)
    session.agree_on(comm, "an all-reduce that they chose", repr(chosen.auto), chosen.deadline_s)
    blocks = chosen.blocks()
    rows: dict[Case, dict[str, Any]] = {}
    config = {"benchmark": "allreduce", **asdict(chosen)}
    with record.Record(comm, where, arguments, config, len(blocks), lies.facts()) as log:
        log.notes([*lies.notes(), *without])
        for block in blocks:
            for case, row, seconds in _measure(comm, block, chosen, where.nodes, lies):
                rows[case] = row
                log.case({"benchmark": "allreduce", **row}, seconds)
            log.step()
        table = [rows[case] for case in chosen.cases()]
        verdicts, best = mock_up_rule(table), fastest(table)
        picks = regrets(table, chosen)
        wrongs = sum(row["wrong"] for row in table)
        log.complete({"mock_up_rule": verdicts, "fastest": best, "auto": picks, "wrong": wrongs})
    wrong = [row for row in table if row["wrong"]]
    if log.speaks:
        columns = COLUMNS + (DEVICE_COLUMNS if lies.on_device else ())
        columns += OSU_COLUMNS if arguments.osu else ()
        shown = [tables.render(columns, table, arguments.format)]
        if best and arguments.format == "table":
            shown.append(tables.render(FASTEST, best, "table"))
        if picks and arguments.format == "table":
            shown.append(tables.render(PICKS, picks, "table"))
        print("\n\n".join(shown), flush=True)
        for verdict in verdicts:
            record.warn(verdict)
        for row in wrong:
            record.warn(f"wrong: {row['wrong']} sums of {row['algorithm']} at {row['bytes']} B")
    return 1 if wrong else 0


def mock_up_rule(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Where the library's all-reduce is slower than its own parts one after another: its tuning
    is bad there. Differences within the intervals of the medians do not count."""
    found = {(row["algorithm"], row["bytes"], row["in_place"]): row for row in rows}
    verdicts = []
    for (name, octets, in_place), row in found.items():
        native = found.get(("mpi", octets, in_place))
        if name in MOCK_UPS and native and native["ci_low_s"] > row["ci_high_s"]:
            ratio = native["median_s"] / row["median_s"]
            place = "in place" if in_place else "out of place"
            verdicts.append(f"mock-up rule: mpi takes {ratio:.2f} of {name}, {octets} B {place}")
    return verdicts


def fastest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a size (and place): the fastest of ours and of the library, their ratio, whom to use.

    The ratio's ends are those of the medians' intervals, low over high and high over low; where 1
    lies between them, or there is no interval, neither is known to be faster.
    """
    groups: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for row in rows:
        if row["algorithm"] not in MOCK_UPS and not row["wrong"]:
            groups.setdefault((row["bytes"], row["in_place"]), []).append(row)
    found = []
    for (octets, in_place), group in groups.items():
        sides: tuple[list, list] = ([], [])
        for row in group:
            sides[carrier(row["algorithm"]).scheduled].append(row)
        if all(sides):
            theirs, ours = (min(side, key=lambda row: row["median_s"]) for side in sides)
            found.append({"bytes": octets, "in_place": in_place, **_compared(ours, theirs)})
    return found


def regrets(rows: Iterable[dict[str, Any]], chosen: Settings) -> list[dict[str, Any]]:
    """One row a size (and place): what `auto` took, and by which share it was slower than the
    fastest of all that were measured."""
    found = []
    every = [row for row in rows if row["algorithm"] not in MOCK_UPS and not row["wrong"]]
    told = {size: by for size, *_, by in chosen.auto}
    for row in every:
        if chosen.is_auto(Case(*(row[key] for key in Case._fields))):
            alike = [r for r in every if all(r[k] == row[k] for k in ("bytes", "in_place"))]
            best = min(alike, key=lambda r: r["median_s"])
            found.append({
                **{key: row[key] for key in ("bytes", "in_place", "chunks", "median_s")},
                "auto": row["algorithm"], "best": best["algorithm"], "best_s": best["median_s"],
                "regret": row["median_s"] / best["median_s"] - 1, "by": told[row["bytes"]],
            })  # fmt: skip
    return found


def _compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    return {
        "ours": ours["algorithm"],
        "chunks": ours["chunks"],
        "ours_s": ours["median_s"],
        "library": theirs["algorithm"],
        "library_s": theirs["median_s"],
        **ratio(ours, theirs, ours["algorithm"], theirs["algorithm"]),
    }


def ratio(one: dict[str, Any], other: dict[str, Any], name: str, its: str) -> dict[str, Any]:
    """Of the medians of two rows, with its ends, and which of both names to use."""
    low, high = one["ci_low_s"] / other["ci_high_s"], one["ci_high_s"] / other["ci_low_s"]
    return {
        "ratio": one["median_s"] / other["median_s"],
        "ratio_low": None if math.isnan(low) else low,
        "ratio_high": None if math.isnan(high) else high,
        "use": name if high < 1 else its if low > 1 else "either",
    }


def _measure(
    comm: Any, block: list[Case], chosen: Settings, nodes: list[int], lies: Memory
) -> list[tuple[Case, dict[str, Any], np.ndarray]]:
    """The rows of a block, and their samples [repetition, rank]."""
    dtype, first = np.dtype(chosen.dtype), block[0]
    vectors = Vectors(lies.module, first.bytes // dtype.itemsize, dtype, first.in_place)
    late = arrivals.read(chosen.arrival, comm)
    made = [
        operation(
            comm, case.algorithm, vectors, chunks=case.chunks, nodes=nodes,
            order=None if late is None else late.order, deadline=chosen.deadline_s,
            cuda_aware=lies.awareness.aware,
        )
        for case in block
    ]  # fmt: skip
    calls = [each.run for each in made]
    timed = calls if late is None else [late.delayed(comm.Get_rank(), call) for call in calls]
    seconds = timing.repeat(comm, timed, chosen.rule, deadline=chosen.deadline_s)
    if late is not None:
        seconds = late.since_last(seconds, chosen.rule.warm_up)
    wrong = [vectors.count_wrong(comm, call, chosen.deadline_s) for call in calls]
    there = [
        lies.by_device(comm, case.algorithm, call, chosen.rule.maximum, chosen.deadline_s)
        for case, call in zip(block, calls, strict=True)
    ]
    for each in made:
        each.close()
    return [
        (case, _row(comm.Get_size(), chosen.dtype, case, samples, faults) | more, samples)
        for case, samples, faults, more in zip(block, seconds, wrong, there, strict=True)
    ]


def _row(ranks: int, dtype: str, case: Case, seconds: np.ndarray, wrong: int) -> dict[str, Any]:
    found = timing.summarise(seconds)
    return {
        **case._asdict(),
        **found._asdict(),
        **timing.osu(seconds),
        "ranks": ranks,
        "dtype": dtype,
        "library": record.library_told(),
        "algbw_GBps": timing.algorithm_bandwidth(case.bytes, found.median_s) / 1e9,
        "busbw_GBps": timing.bus_bandwidth(case.bytes, found.median_s, ranks) / 1e9,
        "wrong": wrong,
    }
