"""`mpisgd advise`: which delay and tau, how sure, and what every algorithm would take; with
`--backups`, how many machines to do without (backups_command).

From a net, a device and a network, or from measured seconds (--step-time, --all-reduce-time).
With measured seconds the overlapped mini-batch assumes eight equal buckets that become ready
evenly over the last two thirds of the step, each at its share of the all-reduce time, and says so.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from allreduce.collectives import NAMES
from mpisgd.commands import advise_backups
from mpisgd.predict import calibration, devices, epoch, measured, nets, options, study
from mpisgd.predict.advice import Advice, advise, assumption, caution
from mpisgd.predict.costs import COSTS
from mpisgd.predict.terms import glossary
from mpisgd.values import quantities
from mpisgd.values.errors import UsageError
from mpisgd.values.tables import FORMATS, Column, render

MODEL_SPREAD = "0.3"  # the upper end of the error that PALEO's authors claim
MEASURED_SPREAD = "0.1"
SHARED = (
    "source",
    "ranks",
    "ratio",
    "delay",
    "tau",
    "delay_low",
    "delay_high",
    "lower_ratio",
    "upper_ratio",
    "sure",
    "allreduce_s",
)
BY_ALGORITHM = (
    "algorithm",
    "compute_s",
    "exposed_s",
    "slowed_s",
    "noise_s",
    "step_s",
    "round_s",
    "effective_share",
    "effective_step_s",
    "hidden_share",
    "exchange_s",
    "fastest",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `mpisgd advise`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "columns:\n" + glossary((*SHARED, *BY_ALGORITHM, "command"))
    add = parser.add_argument
    add("--ranks", help="those that compute, as in 8 or 2,4,8 (8)")
    add("--step-time", metavar="TIME", help="measured seconds of a local step, as in 20ms")
    add("--all-reduce-time", metavar="TIME", help="measured seconds of an all-reduce")
    add(
        "--from",
        dest="source",
        metavar="FILE",
        help="instead of times: the result file of a "
        "minibatch run, or a .toml of mpisgd calibrate (with --ranks, --batch, --bytes); with "
        "--backups, of a run with parameter servers",
    )
    add("--net", help=f"instead of times: one of {', '.join(nets.NETS)}")
    add("--allreduce", default="butterfly", help=f"one of {', '.join(COSTS)} (butterfly)")
    add("--batch", metavar="N", help="samples a rank (with --net: 64)")
    add(
        "--spread",
        metavar="X",
        help=f"relative uncertainty of t_c/t_p ({MEASURED_SPREAD}; with --net {MODEL_SPREAD})",
    )
    cluster = options.add_cluster(parser, None, None)
    parser.set_defaults(cluster_defaults={act.dest: act.default for act in cluster})
    options.add_conditions(parser)
    advise_backups.add_arguments(parser)
    add("--format", choices=FORMATS, default="table", help="of the output (table)")


def run(arguments: argparse.Namespace) -> int:
    """Print the advice. Raises UsageError."""
    if advise_backups.chosen(arguments):
        return advise_backups.run(arguments)
    counts = quantities.ranks("--ranks", arguments.ranks or "8")
    file = None
    if arguments.source is not None:
        file = _take_from_file(arguments, counts)
        counts = [file.ranks]
    settings = () if file is None else file.settings
    found = list(
        _modelled(arguments, counts) if arguments.net else _measured(arguments, counts, settings)
    )
    kinds = ("modelled" if arguments.net else "measured",) * 2
    if file is not None:
        kinds = file.step_is, file.allreduce_is
    if arguments.format == "table":
        print("\n\n".join(_text(advice, *kinds) for advice in found))
    else:
        for line in assumption(found[0]):
            print(f"mpisgd advise: note: {line}", file=sys.stderr)
        rows = [row for advice in found for row in _rows(advice)]
        print(render((*SHARED, *BY_ALGORITHM, "command"), rows, arguments.format))
    return 0


def _take_from_file(arguments: argparse.Namespace, counts: list[int]) -> measured.Found:
    """What --from tells, filled in."""
    for option in ("net", "step_time", "all_reduce_time"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')}", None, "not together with --from")
    if arguments.source.endswith(".toml"):
        if len(counts) != 1 or arguments.batch is None or arguments.bytes is None:
            raise UsageError("--from", arguments.source, "needs one --ranks, --batch and --bytes")
        batch = quantities.whole("--batch", arguments.batch)
        nbytes = int(quantities.size("--bytes", arguments.bytes))
        found = measured.from_calibration(
            arguments.source, counts[0], batch, nbytes, arguments.allreduce
        )
        arguments.bytes = None
        calibration.tell(arguments.source)
    else:
        found = measured.from_run(arguments.source)
    arguments.step_time, arguments.all_reduce_time = f"{found.step_s}s", f"{found.allreduce_s}s"
    arguments.allreduce, arguments.batch = found.allreduce, str(found.batch)
    return found


def _modelled(arguments: argparse.Namespace, counts: list[int]) -> list[Advice]:
    for option in ("step_time", "all_reduce_time"):
        if getattr(arguments, option) is not None:
            raise UsageError("--" + option.replace("_", "-"), None, "give times or --net, not both")
    asked = study.Study(
        device=devices.find(arguments.device or "titanx"),
        network=options.network(arguments, arguments.network or "eth20-pcie3"),
        nets=_single("--net", arguments.net, nets.NETS),
        workers=tuple(counts),
        allreduces=_single("--allreduce", arguments.allreduce, COSTS),
        batch=quantities.whole("--batch", arguments.batch or 64),
        **options.shared(arguments),
    )
    return [_advise_case(case, arguments.spread or MODEL_SPREAD) for case in study.cases(asked)]


def _single(place: str, name: str, known: Iterable[str]) -> tuple[str]:
    names = quantities.choices(place, name, known)
    if len(names) != 1:
        raise UsageError(place, name, "one name")
    return (names[0],)


def _advise_case(case: study.Case, spread: Any) -> Advice:
    asked, step = case.study, case.step
    return advise(
        step.step_s,
        case.whole_allreduce_s,
        case.workers,
        tau=asked.tau,
        xi=asked.xi,
        merge=asked.merge,
        spread=quantities.number("--spread", spread, high=0.999),
        conditions=asked.conditions,
        allreduce=case.allreduce,
        batch=step.batch,
        bucket=asked.bucket_bytes,
        parts=epoch.buckets(step, asked.message_bytes(case.net), asked.bucket_bytes),
        ready_s=step.forward_s + step.backward_s,
        part_s=case.allreduce_s,
        pair_s=case.exchange_s(asked.message_bytes(case.net)),
        settings=() if asked.wire is None else ("--wire", asked.wire),
    )


def _measured(
    arguments: argparse.Namespace, counts: list[int], settings: tuple[str, ...]
) -> list[Advice]:
    for option in ("step_time", "all_reduce_time"):
        if getattr(arguments, option) is None:
            name = "--" + option.replace("_", "-")
            raise UsageError(name, None, "needed unless --net says what to model")
    for option, default in arguments.cluster_defaults.items():
        if getattr(arguments, option) != default:
            name = "--" + option.replace("_", "-")
            raise UsageError(name, None, "has no part in measured times; it goes with --net")
    values = options.shared(arguments)
    known = dict.fromkeys((*COSTS, *NAMES))  # of what was measured no formula is needed
    (allreduce,) = _single("--allreduce", arguments.allreduce, known)
    batch = arguments.batch
    return [
        advise(
            quantities.duration("--step-time", arguments.step_time, open_low=True),
            quantities.duration("--all-reduce-time", arguments.all_reduce_time),
            workers,
            tau=values["tau"],
            xi=values["xi"],
            merge=values["merge"],
            spread=quantities.number("--spread", arguments.spread or MEASURED_SPREAD, high=0.999),
            conditions=values["conditions"],
            allreduce=allreduce,
            batch=None if batch is None else quantities.whole("--batch", batch),
            settings=settings,
        )
        for workers in counts
    ]


def _rows(advice: Advice) -> list[dict[str, Any]]:
    common = {key: getattr(advice, key) for key in SHARED if hasattr(advice, key)}
    common |= {"source": study.SOURCE, "ranks": advice.workers}
    return [common | row | {"fastest": row["algorithm"] == advice.fastest} for row in advice.rows]


def _text(advice: Advice, step_is: str, allreduce_is: str) -> str:
    """step_is, allreduce_is: where t_p and t_c come from."""
    other = f"{allreduce_is} " if allreduce_is != step_is else ""
    sure = (
        f"sure within {advice.spread:.0%}: the same d for t_c/t_p in "
        f"({advice.lower_ratio:g}, {advice.upper_ratio:g}]"
        if advice.sure
        else f"not sure: d is {advice.delay_low} to {advice.delay_high} within {advice.spread:.0%}"
    )
    lines = [
        f"# {advice.workers} ranks, {step_is} t_p {advice.step_s:.4g} s, {other}t_c "
        f"{advice.allreduce_s:.4g} s, t_c/t_p {advice.ratio:.4g}: "
        f"delay {advice.delay}, tau {advice.tau}",
        f"# {sure}",
        f"# step times are predictions of a model; least seconds per effective step "
        f"(merge {advice.merge}, xi {advice.xi:g}): {advice.fastest}",
        render([Column(key) for key in BY_ALGORITHM], _rows(advice), "table"),
        *(f"# {line}" for line in [*assumption(advice), *caution(advice.tau)]),
        advice.command,
    ]
    if advice.fastest != "dasgd" and advice.workers > 1:
        lines += ["# or, with that delay:", advice.command_of("dasgd")]
    return "\n".join(lines)
