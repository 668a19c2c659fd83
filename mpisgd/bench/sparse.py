"""`mpisgd bench sparse`: sums of matrices of which ranks have few rows, by rows and as a whole."""

import argparse
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from allreduce import measure as timing
from allreduce.algorithms import allgather
from allreduce.collectives import CARRIERS
from allreduce.measure import Rule
from allreduce.schedule import Schedule
from allreduce.sparse import Sparse, SparsePlan, add, draw
from mpisgd.bench import options, record
from mpisgd.bench.allreduce import ratio
from mpisgd.bench.operations import MOCK_UPS, Vectors, operation
from mpisgd.experiment.backends import HOST
from mpisgd.values import tables
from mpisgd.values.errors import UsageError, affordable
from mpisgd.values.options import number, whole
from mpisgd.values.schedules import build

GATHER = "gather"  # all parts to all, which add them
SPARSE = (GATHER, "butterfly")
DENSE = ("butterfly", "halving-doubling", "ring", "mpi")
DTYPE = np.dtype(np.float32)
DENSITIES = "0.001,0.003,0.01,0.03,0.1,0.3"
COLUMNS = (
    tables.Column("density", "g"), "rows", "algorithm", "ranks", "bytes", "repetitions",
    "median_s", "p10_s", "p90_s", "ci_low_s", "ci_high_s", "library", "wrong",
)  # fmt: skip
FASTEST: tuple[tables.Column | str, ...] = (
    tables.Column("density", "g"), "sparse", "sparse_s", "dense", "dense_s",
    *(tables.Column(key, ".3f") for key in ("ratio", "ratio_low", "ratio_high")), "use",
)  # fmt: skip


class Case(NamedTuple):
    """One row: a share of the rows that each rank has, summed by rows; None: the whole matrix."""

    density: float | None
    algorithm: str


@dataclass(frozen=True)
class Settings:
    """What is measured, of matrices (height, width) float32. `words`: how rows are drawn."""

    algorithms: tuple[str, ...]
    sparse: tuple[str, ...]
    densities: tuple[float, ...]
    height: int
    width: int
    words: bool
    rule: Rule
    seed: int
    deadline_s: float

    def check(self, comm: Any) -> None:
        """Nothing: all is known by now."""

    def cases(self) -> list[Case]:
        """In the order of the table."""
        rows = [Case(density, name) for density in self.densities for name in self.sparse]
        return [*rows, *(Case(None, name) for name in self.algorithms)]

    def part(self, density: float, rank: int) -> Sparse:
        """What a rank has: small whole numbers, whose sums are exact in any order."""
        count = max(1, round(density * self.height))
        random = np.random.default_rng((self.seed, rank))
        rows = draw(self.height, count, random, words=self.words)
        return Sparse(rows, random.integers(1, 9, (count, self.width)).astype(DTYPE))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd bench sparse` alone."""
    add = parser.add_argument
    add("--rows", default="50000", metavar="N", help="of the matrix [50000]")
    add("--width", default="64", metavar="N", help="float32 numbers of a row [64]")
    add("--densities", default=DENSITIES, metavar="SHARES", help="of the rows, that each rank has, "
        f"with commas [{DENSITIES}]")  # fmt: skip
    add("--words", action="store_true", help="row n is drawn with a chance as 1 / n, as words are, "
        "so that ranks have common ones; by default all alike")  # fmt: skip
    add("--sparse", default=",".join(SPARSE), metavar="NAMES", help="who sums rows: gather, or "
        f"schedules, along which they are merged [{','.join(SPARSE)}]")  # fmt: skip
    add("--algorithms", default=",".join(DENSE), metavar="NAMES", help="who sums the whole matrix "
        f"[{','.join(DENSE)}]")  # fmt: skip


def settings(arguments: argparse.Namespace) -> Settings:
    """From the command line. UsageError."""
    if arguments.backend != HOST:
        raise UsageError("--backend", arguments.backend, "numpy: rows are summed on the host")
    share, texts = number(0, 1, above=True), arguments.densities.split(",")
    height = whole(1, 10**9).read("--rows", arguments.rows)
    width = whole(1, 10**6).read("--width", arguments.width)
    with affordable("--rows", arguments.rows):
        np.empty((height, width), DTYPE)  # pages are taken when they are written
    host = (name for name, row in CARRIERS.items() if row.host)
    return Settings(
        options.algorithms(arguments.algorithms, (*host, *MOCK_UPS), DENSE),
        options.algorithms(arguments.sparse, (GATHER,), SPARSE, "--sparse"),
        tuple(dict.fromkeys(share.read("--densities", text) for text in texts)),
        height,
        width,
        arguments.words,
        options.rule(arguments),
        options.seed(arguments),
        options.deadline(arguments),
    )


def measure(comm: Any, chosen: Settings, arguments: argparse.Namespace) -> int:
    """Measure, record, print; 1 if any sum was wrong."""
    where = record.places(comm, arguments, chosen.deadline_s)
    order = chosen.cases()
    random.Random(chosen.seed).shuffle(order)  # the same on all ranks
    rows: dict[Case, dict[str, Any]] = {}
    config = {"benchmark": "sparse", **asdict(chosen)}
    with record.Record(comm, where, arguments, config, len(order), {}) as log:
        for case in order:
            rows[case], seconds = _measure(comm, case, chosen, where.nodes)
            log.case({"benchmark": "sparse", **rows[case]}, seconds)
            log.step()
        table = [rows[case] for case in chosen.cases()]
        best = fastest(table)
        log.complete({"fastest": best, "wrong": sum(row["wrong"] for row in table)})
    if log.speaks:
        shown = [tables.render(COLUMNS, table, arguments.format)]
        if best and arguments.format == "table":
            shown.append(tables.render(FASTEST, best, "table"))
        print("\n\n".join(shown), flush=True)
    return 1 if any(row["wrong"] for row in table) else 0


def fastest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a density: the fastest by rows and of the whole matrix, their ratio, which to use.

    The ratio's ends are those of the medians' intervals; where 1 lies between them, or there is no
    interval, neither is known to be faster.
    """
    right = [row for row in rows if not row["wrong"]]
    whole = [row for row in right if row["density"] is None]
    found = []
    for density in dict.fromkeys(row["density"] for row in right if row["density"] is not None):
        alike = [row for row in right if row["density"] == density]
        if whole:
            one, other = (min(each, key=lambda row: row["median_s"]) for each in (alike, whole))
            found.append({
                "density": density, "sparse": one["algorithm"], "sparse_s": one["median_s"],
                "dense": other["algorithm"], "dense_s": other["median_s"],
                **ratio(one, other, "sparse", "dense"),
            })  # fmt: skip
    return found


def _measure(
    comm: Any, case: Case, chosen: Settings, nodes: list[int]
) -> tuple[dict[str, Any], np.ndarray]:
    """The row of a case, and its samples [repetition, rank]."""
    rank, size, deadline = comm.Get_rank(), comm.Get_size(), chosen.deadline_s
    if case.density is None:
        vectors = Vectors(np, chosen.height * chosen.width, DTYPE, True)
        made = operation(comm, case.algorithm, vectors, nodes=nodes, deadline=deadline)
        rows, octets = chosen.height, vectors.source.nbytes
        (seconds,) = timing.repeat(comm, [made.run], chosen.rule, deadline=deadline)
        wrong = vectors.count_wrong(comm, made.run, deadline)
        made.close()
    else:
        part = chosen.part(case.density, rank)
        rows, octets = part.rows.size, part.octets
        plan = SparsePlan(comm, _schedule(case, size, nodes), chosen.height, deadline=deadline)

        def run() -> Sparse:
            plan.start(part)
            return plan.wait()

        (seconds,) = timing.repeat(comm, [run], chosen.rule, deadline=deadline)
        wrong = _count_wrong(comm, run(), case.density, chosen)
    found = timing.summarise(seconds)._asdict()
    return {
        **case._asdict(), "rows": rows, "ranks": size, "bytes": octets, **found, "wrong": wrong,
        "library": record.library_told(),
    }, seconds  # fmt: skip


def _schedule(case: Case, size: int, nodes: list[int]) -> Schedule:
    return allgather(size) if case.algorithm == GATHER else build(case.algorithm, size, nodes)


def _count_wrong(comm: Any, found: Sparse, density: float, chosen: Settings) -> int:
    """How many elements are not the sum of all ranks' parts, on all ranks together."""
    wanted = chosen.part(density, 0)
    for rank in range(1, comm.Get_size()):
        wanted = add(wanted, chosen.part(density, rank))
    if np.array_equal(found.rows, wanted.rows):
        wrong = int(np.count_nonzero(found.values != wanted.values))
    else:
        wrong = wanted.values.size
    return int(timing.gather(comm, [wrong], chosen.deadline_s).sum())
