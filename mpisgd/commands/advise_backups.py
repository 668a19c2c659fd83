"""`mpisgd advise --backups`: which of M machines' gradients to wait for, and how sure that is.

The expected time of an update for every N of M, from a distribution (--step-time, --straggler) or
from the gradients of a measured run (--from), times the iterations to converge (--iterations).
"""

import argparse
import sys
from typing import TYPE_CHECKING

from mpisgd.predict.figures import check
from mpisgd.store.target import check_not_read, check_target
from mpisgd.values import quantities
from mpisgd.values.errors import UsageError
from mpisgd.values.tables import render

if TYPE_CHECKING:
    from mpisgd.predict.backup_advice import Row
    from mpisgd.predict.backups import Times

STALE = ("finish", "abandon")
DEFAULT_CURVE = "power:1"
OWN = ("straggler", "iterations", "stale", "draws", "seed", "figure", "overwrite")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `--backups`."""
    add = parser.add_argument_group("backups of parameter servers").add_argument
    add("--backups", action="store_true", help="how many of --ranks machines should be backups")
    add("--straggler", metavar="SPEC", help="who is slow, and how, as mpisgd train has it")
    add("--iterations", metavar="CURVE", help="to converge: points as in 50:137500,100:76200, "
        f"chen (these), a .json file, power:X or critical:N0 ({DEFAULT_CURVE}: used gradients "
        "alone)")  # fmt: skip
    add("--stale", choices=STALE, help="what becomes of out-of-date work (finish)")
    add("--draws", metavar="N", help="gradients of each machine, where they are drawn (4096)")
    add("--seed", metavar="N", help="of what is drawn (0)")
    add("--figure", metavar="FILE", help="draw N against the time: .png, .svg or .pdf (needs "
        "matplotlib)")  # fmt: skip
    add("--overwrite", action="store_true", help="replace an existing --figure")
    defaults = {action.dest: action.default for action in parser._actions}
    parser.set_defaults(backups_defaults=defaults)


def chosen(arguments: argparse.Namespace) -> bool:
    """Whether `--backups` was given. UsageError for options that go only with, or never with it."""
    with_it = ("backups", "format", "ranks", "step_time", "source", *OWN)
    for name, default in arguments.backups_defaults.items():
        given = getattr(arguments, name, default) != default
        option = "--" + name.replace("_", "-")
        if given and arguments.backups and name not in with_it:
            raise UsageError(option, None, "has no part in advice on backups")
        if given and not arguments.backups and name in OWN:
            raise UsageError(option, None, "goes with --backups")
    return bool(arguments.backups)


def run(arguments: argparse.Namespace) -> int:
    """Print the advice. Raises UsageError."""
    from mpisgd.predict import backup_advice, backups, curves

    if arguments.figure is not None:
        check(arguments.figure)
        read = filter(None, (arguments.source, arguments.iterations))
        check_not_read(arguments.figure, read, "--figure")
        check_target(arguments.figure, arguments.overwrite, option="--figure")
    what = arguments.source or f"{arguments.straggler or 'equal machines'}, {arguments.step_time}"
    stale, found, texts = arguments.stale or STALE[0], [], []
    for times in _times(arguments, stale):
        machines = int(times.needed[-1])
        curve = curves.curve(arguments.iterations or DEFAULT_CURVE, machines)
        rows = backups.rows(times, curve.iterations)
        _check_finite(rows)
        known: Row = {"machines": machines, "stale": stale}
        # Iterations relative to those at N = M times seconds are no seconds.
        relative: Row = {} if curve.known else dict.fromkeys(backup_advice.SECONDS)
        found.append(
            [
                known | row | relative | {"extrapolated": curve.extrapolated(row["needed"])}
                for row in rows
            ]
        )
        texts.append(backup_advice.text(found[-1], curve, what))
    cautions = _cautions(arguments, [rows[-1]["machines"] for rows in found])
    if arguments.format == "table":
        print("\n".join([*cautions, "\n\n".join(texts)]))
    else:
        for line in cautions:
            print(f"mpisgd: {line.removeprefix('# ')}", file=sys.stderr)
        rows = [row for rows in found for row in rows]
        print(render(tuple(backup_advice.TERMS), rows, arguments.format))
    if arguments.figure is not None:
        backup_advice.draw(arguments.figure, found)
    return 0


def _times(arguments: argparse.Namespace, stale: str) -> "list[Times]":
    from mpisgd.predict import backups, measured

    draws = quantities.whole("--draws", arguments.draws or 4096, low=64, high=10**6)
    seed = quantities.whole("--seed", arguments.seed or 0, low=0)
    counts = []
    if arguments.ranks is not None:
        counts = quantities.ranks("--ranks", arguments.ranks, backups.MOST_MACHINES)
    if arguments.source is not None:
        for name in ("step_time", "straggler"):
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(option, None, "not together with --from")
        if arguments.source.endswith(".toml"):
            allowed = "a result file of a run with parameter servers"
            raise UsageError("--from", arguments.source, allowed)
        pools = measured.gradient_seconds(arguments.source)
        return [
            backups.of_measured(pools, count, stale, seed, draws)
            for count in counts or [len(pools)]
        ]
    if arguments.step_time is None:
        raise UsageError("--step-time", None, "needed unless --from names a measured run")
    step_s = quantities.duration("--step-time", arguments.step_time, open_low=True)
    return [
        backups.of_distribution(arguments.straggler, step_s, count, stale, seed, draws)
        for count in counts or [8]
    ]


def _cautions(arguments: argparse.Namespace, machines: list[int]) -> list[str]:
    """What makes the advice weaker than its intervals say."""
    from mpisgd.predict import measured

    if arguments.source is None:
        return []
    return [f"# caution: {line}" for line in measured.cautions(arguments.source, machines)]


def _check_finite(rows: "list[Row]") -> None:
    if not any(row["converge_s"] < float("inf") for row in rows):
        raise UsageError("--straggler", None, "no split has a finite expected time")
