"""`mpisgd validate`: calibrate, simulate and measure the same all-reduces and training steps, with
cells that the calibration never saw, and say by how much the model errs (docs/validate.md)."""

import argparse
import random
from dataclasses import asdict
from functools import partial
from typing import Any

from allreduce.errors import AllreduceError
from allreduce.measure import Rule, gather
from mpisgd.bench import options, record
from mpisgd.experiment.experiment import Experiment
from mpisgd.mpi import session
from mpisgd.store.lock import held_together
from mpisgd.store.target import check_target
from mpisgd.validation import errors
from mpisgd.validation.allreduces import DTYPE
from mpisgd.validation.rounds import Round, Settings
from mpisgd.validation.steps import FIRST, RUNS, TAU, Training
from mpisgd.values import tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import number, whole
from mpisgd.values.schedules import build, digests

ALGORITHMS = "tree,butterfly,halving-doubling,ring"
SIZES = "64K,256K,1M,4M"
WARM_UP = 2  # calls of each all-reduce in each round


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd validate`."""
    add = parser.add_argument
    add("--algorithms", default=ALGORITHMS, metavar="NAMES", help=f"all-reduces [{ALGORITHMS}]")
    add("--sizes", default=SIZES, metavar="SIZES", help=f"bytes of their vectors [{SIZES}]")
    add("--chunks", default="1", metavar="N", help="messages a transfer is cut in, as 1,4 [1]")
    add("--runs", default="all", metavar="NAMES", help=f"trained: none, all, or with commas some "
        f"of {', '.join(RUNS)} [all]")  # fmt: skip
    add("--rounds", default="3", metavar="N", help="each calibrates, and measures all, anew [3]")
    add("--messages", default="10", metavar="N", help="of each size in a calibration [10]")
    add(
        "--fastest",
        default="1",
        metavar="X",
        help="take medians over this share of all "
        "repetitions, the fastest, in calibration and measurement alike: 0.2 on a busy machine [1]",
    )
    add("--allow", metavar="X", help="exit code 1 if a cell's error is beyond this share")
    add("--batch", default="64", metavar="N", help="of training; steps are calibrated at half and "
        "twice of it [64]")  # fmt: skip
    add("--steps", default="32", metavar="N", help=f"of a run; the first {FIRST} warm up [32]")
    add("--step-time", metavar="TIME", help="pad gradients to this, such as 40ms [they are real]")
    add("--hidden", default="512,448", metavar="N,N", help="layers of the mlp [512,448]")
    add("--allreduce", default="halving-doubling", metavar="NAME", help="of training [%(default)s]")
    options.add_arguments(parser, minimum=5, budget="1s", what="of an all-reduce and round")
    parser.set_defaults(benchmark="validate")


def run(arguments: argparse.Namespace) -> int:
    """Validate on all ranks; rank 0 prints and writes. 1 where an error is beyond --allow."""
    chosen = _settings(arguments)
    comm = session.world()
    return session.guarded(comm, partial(_run, comm, chosen, arguments), chosen.deadline_s)


def _settings(arguments: argparse.Namespace) -> Settings:
    rule, deadline_s = options.rule(arguments), options.deadline(arguments)
    fastest = number(0, 1, above=True).read("--fastest", arguments.fastest)
    training = Training(
        whole(2, 1 << 20).read("--batch", arguments.batch),
        whole(FIRST + TAU, 10**6).read("--steps", arguments.steps),
        arguments.step_time, arguments.hidden, arguments.allreduce, 1, deadline_s, fastest,
    )  # fmt: skip
    words = {"all": RUNS, "none": ()}.get(arguments.runs, arguments.runs.split(","))
    runs = tuple(dict.fromkeys(words))
    if unknown := [name for name in runs if name not in RUNS]:
        raise UsageError("--runs", unknown[0], f"none, all, or some of {', '.join(RUNS)}")
    try:
        build(arguments.allreduce, 2)
    except AllreduceError as error:
        raise UsageError("--allreduce", arguments.allreduce, str(error)) from None
    for name in runs:
        Experiment.read(training.options(name, 2, training.batch))
    allow = None if arguments.allow is None else number(0).read("--allow", arguments.allow)
    sizes = options.counts(arguments.sizes, DTYPE)
    if 0 in sizes:
        raise UsageError("--sizes", arguments.sizes, "at least 4 B")
    return Settings(
        options.algorithms(arguments.algorithms, (), tuple(ALGORITHMS.split(","))), sizes,
        options.chunks(arguments.chunks), runs,
        whole(1, 1000).read("--rounds", arguments.rounds),
        whole(6, 10**5).read("--messages", arguments.messages),
        Rule(rule.minimum, rule.maximum, rule.budget_s, rule.tolerance, WARM_UP),
        options.seed(arguments), deadline_s, allow, fastest, training,
    )  # fmt: skip


def _run(comm: Any, chosen: Settings, arguments: argparse.Namespace) -> int:
    mistake, own = None, {}
    try:
        if comm.Get_size() < 2:
            raise UsageError("mpisgd validate", None, "needs 2 ranks; start more with mpiexec -n")
        own = digests(chosen.algorithms, comm.Get_size())
        if arguments.output is not None and comm.Get_rank() == 0:
            check_target(arguments.output, arguments.overwrite)
    except UsageError as error:
        mistake = error
    session.agree(comm, mistake, chosen.deadline_s)
    session.agree_on(comm, "options", repr((chosen, own)), chosen.deadline_s)
    with held_together(comm, arguments.output, chosen.deadline_s):
        return _validate(comm, chosen, arguments)


def _validate(comm: Any, chosen: Settings, arguments: argparse.Namespace) -> int:
    where = record.places(comm, arguments, chosen.deadline_s)
    shuffle = random.Random(chosen.seed).shuffle
    cells, runs, rows = chosen.cells(), list(chosen.runs), []
    config = {"benchmark": "validate", **asdict(chosen)}
    parts = chosen.rounds * (1 + len(cells) + len(runs))
    with record.Record(comm, where, arguments, config, parts, {}) as log:
        for turn in range(chosen.rounds):
            shuffle(cells)
            shuffle(runs)
            this = Round(comm, chosen, where, log.step)
            for row, seconds in (*this.allreduces(cells), *this.steps(runs)):
                rows.append({"round": turn, **row})
                log.case({"benchmark": "validate", **rows[-1]}, seconds)
        found = errors.table(sorted(rows, key=partial(_place, chosen)))
        log.complete({"errors": found, "groups": errors.summary(found)})
    if log.speaks:
        _print(found, chosen, arguments.format)
    worst = max((abs(cell["error"]) for cell in found), default=0.0)
    beyond = chosen.allow is not None and worst > chosen.allow
    return int(gather(comm, [beyond], chosen.deadline_s)[0, 0])  # rank 0 knows


def _print(found: list[dict[str, Any]], chosen: Settings, form: str) -> None:
    """The table of errors, and to a reader its groups and whether rounds can differ."""
    on_screen = form == "table"
    columns = errors.SHOWN if on_screen and len(chosen.chunks) == 1 else errors.COLUMNS
    if on_screen and chosen.rounds == 1:
        columns = tuple(column for column in columns if column not in errors.WIDTH)
    print(tables.render(columns, found, form))
    if on_screen:
        print("\n" + tables.render(errors.SUMMARY, errors.summary(found), "table"), flush=True)
    if chosen.rounds == 1:
        record.warn(f"note: {errors.ONE_ROUND}", "validate")


def _place(chosen: Settings, row: dict[str, Any]) -> tuple[int, ...]:
    """In the order of the options."""
    if row["part"] == "step":
        return 1, chosen.runs.index(row["algorithm"])
    sizes, names = chosen.sizes.index(row["bytes"]), chosen.algorithms.index(row["algorithm"])
    return 0, sizes, names, chosen.chunks.index(row["chunks"])
