"""`mpisgd tune`: which all-reduce is the fastest for which ranks and bytes, into a table for
`train --allreduce auto`, and from it a rules file for the MPI library itself (docs/tune.md)."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from mpisgd.store.lock import held_together, save
from mpisgd.store.target import check_not_read, check_target
from mpisgd.tuning import table as tables_of
from mpisgd.tuning.rules import FORMATS, mpich, openmpi
from mpisgd.tuning.table import FORCED, Cell, Table
from mpisgd.values import files, progress, tables
from mpisgd.values.errors import UsageError, named
from mpisgd.values.options import duration, number, whole, wholes

if TYPE_CHECKING:
    from mpisgd.mpi.cores import Places
    from mpisgd.tuning.measuring import Settings

SIZES = "64,1K,4K,16K,64K,256K,1M,4M,16M"
TOML = "toml"
LOADED = 0.5  # of a machine's cores: more were at work before, for others
LEAST = 8  # repetitions that a 99 % interval takes
COLUMNS: tuple[tables.Column | str, ...] = (
    "nodes", "ranks_per_node", "bytes", "fastest", "chunks", "median_s", "ours", "ours_s",
    "library", "library_s", "forced", "forced_s", "settled",
)  # fmt: skip
KINDS: dict[str, Callable[[str], bool]] = {
    "ours": lambda name: not name.startswith("mpi"),
    "library": lambda name: name.startswith("mpi") and not name.startswith(FORCED),
    "forced": lambda name: name.startswith(FORCED),
}
MACHINE = ("cpu", "platform", "variables")  # of what the environment tells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd tune`."""
    add = parser.add_argument
    add("--algorithms", default="all", metavar="NAMES", help="with commas: all-reduces, and "
        f"{FORCED}NAME or {FORCED}all, the library's own algorithms [all]")  # fmt: skip
    add("--sizes", default=SIZES, metavar="SIZES", help=f"bytes [{SIZES}]")
    add("--chunks", default="1,8", metavar="N", help="messages a transfer is cut in [1,8]")
    add("--nodes", metavar="N", help="numbers of nodes [powers of two, and all]")
    add("--ranks-per-node", metavar="N", help="of ranks on each [powers of two, and all]")
    add("--tolerance", default="0.03", metavar="X", help="enough when the fastest is known, or "
        "taking it costs at most this share more [0.03]")  # fmt: skip
    add("--min-repetitions", default="10", metavar="N", help="[10]")
    add("--max-repetitions", default="500", metavar="N", help="[500]")
    add("--time-budget", default="2s", metavar="T", help="a race [2s]")
    add("--deadline", default="60s", metavar="T", help="without progress [60s]")
    add("--from", dest="source", metavar="TABLE", help="measure nothing: take this table")
    add("--output", metavar="FILE", help="the table, or rules, to write")
    add("--overwrite", action="store_true", help="replace an existing --output")
    add("--format", choices=(TOML, *FORMATS), default=TOML, help="of --output: rules for the "
        "library's own all-reduce, else the table [toml]")  # fmt: skip
    add("--blas-threads", metavar="N", help="BLAS threads of each rank [1]")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; 0, or 2 for a user's mistake."""
    if arguments.output is not None:
        if arguments.source is not None:
            check_not_read(arguments.output, [arguments.source])
        if arguments.format == TOML and not arguments.output.endswith(".toml"):
            raise UsageError("--output", arguments.output, "a name that ends in .toml")
        check_target(arguments.output, arguments.overwrite)
    if arguments.source is not None:
        _give(_read(arguments.source), arguments, partial(save, option="--output"))
        return 0
    from allreduce.forced import let_choose
    from mpisgd.mpi import session

    chosen = _settings(arguments)
    let_choose()
    comm = session.world()
    return session.guarded(comm, partial(_run, comm, chosen, arguments), chosen.deadline_s)


@named("--from")
def _read(path: str) -> Table:
    from mpisgd.experiment.experiment import from_file

    return tables_of.parse(path, from_file(path))


def _settings(arguments: argparse.Namespace) -> "Settings":
    """From the command line; `mpi:` names are looked at where the library is known."""
    from allreduce.collectives import CARRIERS
    from allreduce.measure import Rule
    from mpisgd.bench import options
    from mpisgd.tuning.measuring import DTYPE, Settings

    own = [name for name in arguments.algorithms.split(",") if name.startswith(FORCED)]
    rest = [name for name in arguments.algorithms.split(",") if name not in own]
    known = tuple(name for name, row in CARRIERS.items() if row.host)
    names = options.algorithms(",".join(rest), known, known) if rest else ()
    sizes = options.counts(arguments.sizes, DTYPE)
    least = whole(LEAST, 10**6).read("--min-repetitions", arguments.min_repetitions)
    most = whole(least, 10**6).read("--max-repetitions", arguments.max_repetitions)
    budget = duration().read("--time-budget", arguments.time_budget)
    return Settings(
        (*names, *own, *([f"{FORCED}all"] if "all" in rest else [])),
        tuple(sorted(sizes)),
        options.chunks(arguments.chunks),
        _counts("--nodes", arguments.nodes),
        _counts("--ranks-per-node", arguments.ranks_per_node),
        Rule(least, most, budget, number(0, 1).read("--tolerance", arguments.tolerance)),
        options.deadline(arguments),
    )


def _counts(option: str, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(dict.fromkeys(wholes(1).read(option, text))) or None


def _run(comm: Any, chosen: "Settings", arguments: argparse.Namespace) -> int:
    from mpisgd.mpi import cores, session
    from mpisgd.tuning.measuring import measure

    where, load = cores.places(comm, chosen.deadline_s), os.getloadavg()[0]
    mistake = None
    try:
        chosen = chosen.on(where.nodes)
    except UsageError as error:
        mistake = error
    session.agree(comm, mistake, chosen.deadline_s)
    session.agree_on(comm, "options", repr(chosen), chosen.deadline_s)
    with held_together(comm, arguments.output, chosen.deadline_s):
        bar = None
        if comm.Get_rank() == 0:
            if where.crowded:
                print(f"mpisgd tune: {where.crowded}", file=sys.stderr)
            bar = progress.shown("tune", chosen.races, unit="race")
        cells = measure(comm, chosen, where.nodes, bar.update if bar else _nothing)
        if bar is not None:
            bar.close()
            machine = _machine(where)
            if told := disturbances(where, load, cells):
                machine["disturbed"] = told
                print(f"mpisgd tune: warning: disturbed, and the table says so: {'; '.join(told)}",
                      file=sys.stderr)  # fmt: skip
            _give(Table(tuple(cells), machine), arguments, files.write)
    return 0


def disturbances(where: "Places", load: float, cells: Sequence[Cell]) -> list[str]:
    """Why not to believe a table: too few cores, others at work on rank 0's machine when it began
    (`load`: there, over a minute), more races open than settled."""
    found = []
    if where.ranks_per_core > 1:
        found.append(f"{where.ranks_per_core:.3g} ranks on a core")
    if load > LOADED * (cores := os.cpu_count() or 1):
        found.append(f"a load of {load:.3g} on {cores} cores when it began")
    unsettled = sum(not cell.settled for cell in cells)
    if 2 * unsettled > len(cells):
        found.append(f"{unsettled} of {len(cells)} races not settled")
    return found


def _give(
    table: Table,
    arguments: argparse.Namespace,
    write: Callable[[str, bytes], object],
) -> None:
    """Write --output, and print the table; without --output print the rules, if these are asked
    for."""
    text = table.toml() if arguments.format == TOML else _rules(table, arguments.format)
    if arguments.output is not None:
        write(arguments.output, text.encode())
    if arguments.output is None and arguments.format != TOML:
        print(text, end="")
    else:
        print(tables.render(COLUMNS, map(_row, table.cells), "table"))


def _rules(table: Table, form: str) -> str:
    if form == "openmpi":
        return openmpi(table)
    from allreduce.errors import AllreduceError
    from allreduce.forced import selection

    try:
        return mpich(table, selection())
    except AllreduceError as mistake:
        raise UsageError("--format", form, str(mistake)) from None


def _row(cell: Cell) -> dict[str, Any]:
    """The fastest that `train` may take, and of each kind the fastest."""
    row: dict[str, Any] = cell._asdict() | {"settled": "yes" if cell.settled else "no"}
    for name, fits in KINDS.items():
        if (best := cell.fastest(fits)) is not None:
            row |= {name: best.algorithm, f"{name}_s": best.median_s}
    if (best := cell.fastest(lambda name: not name.startswith(FORCED))) is not None:
        row |= {"fastest": best.algorithm, "chunks": best.chunks, "median_s": best.median_s}
    return row


def _machine(where: "Places") -> dict[str, Any]:
    from allreduce.native import described
    from mpisgd.store.environment import environment

    own = environment()
    known = {key: own[key] for key in MACHINE}
    created = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    told = {"created_utc": created, **described(), **where.described(), **known}
    return {key: value for key, value in told.items() if not isinstance(value, dict) or value}


def _nothing() -> None:
    """Only rank 0 tells."""
