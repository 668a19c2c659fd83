"""`mpisgd predict`: what training would take on a cluster, by a model of devices and networks.

The model is PALEO's for computation and closed forms for communication (docs/predict.md). Its
rows are predictions of this project; none is a published or a measured number.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from allreduce.network import Network
from mpisgd.predict import devices, epoch, nets, networks, options, study
from mpisgd.predict.advice import caution
from mpisgd.predict.costs import COSTS
from mpisgd.predict.terms import glossary
from mpisgd.store.target import check_not_read, check_target
from mpisgd.values import quantities
from mpisgd.values.errors import among
from mpisgd.values.tables import FORMATS, render

DEFAULT_RANKS = "1,2,4,8,16,32,64,128,256"

Rows = Callable[[study.Study], Iterator[dict[str, Any]]]

# What to show: how its rows are made, and the columns of its text table (JSON and CSV have all).
VIEWS: dict[str, tuple[Rows, tuple[str, ...]]] = {
    "epochs": (
        study.epoch_rows,
        (
            "source",
            "net",
            "allreduce",
            "ranks",
            "algorithm",
            "tau",
            "delay",
            "compute_s",
            "allreduce_s",
            "exchange_s",
            "exposed_s",
            "step_s",
            "effective_step_s",
            "hidden_share",
            "epoch_s",
        ),
    ),
    "delays": (
        study.delay_rows,
        (
            "source",
            "net",
            "allreduce",
            "ranks",
            "parameters",
            "compute_s",
            "allreduce_s",
            "ratio",
            "delay",
            "tau",
            "effective_share",
            "memory_share",
        ),
    ),
    "layers": (
        study.layer_rows,
        (
            "source",
            "net",
            "name",
            "parameters",
            "forward_compute_s",
            "forward_memory_s",
            "backward_compute_s",
            "backward_memory_s",
        ),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `mpisgd predict`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "columns:\n" + glossary()
    add = parser.add_argument
    add("--show", default="epochs", help=f"one of {', '.join(VIEWS)} (epochs)")
    add("--net", default="resnet50", help=f"all, or some of {', '.join(nets.NETS)} (resnet50)")
    add("--ranks", default=DEFAULT_RANKS, help="as in 1,2,4:8 (1 to 256 by powers of two)")
    add("--allreduce", default="butterfly", help=f"all, or some of {', '.join(COSTS)} (butterfly)")
    known, few = ", ".join(epoch.ALGORITHMS), ",".join(epoch.PAPER)
    add("--algorithms", default=few, help=f"all, or some of {known} (the first four)")
    add("--batch", default="64", metavar="N", help="samples a rank; strong: of all ranks (64)")
    add("--scaling", default="weak", help=f"{' or '.join(study.SCALINGS)} (weak)")
    add("--samples", default="1281167", metavar="N", help="of an epoch (ImageNet's 1,281,167)")
    options.add_cluster(parser, "titanx", "eth20-pcie3")
    options.add_conditions(parser)
    add("--delay", default="auto", metavar="D", help="steps an average may take (auto: the rule)")
    add("--format", choices=FORMATS, default="table", help="of the output (table)")
    add("--figure", metavar="FILE", help="draw the rows: .png, .svg or .pdf (needs matplotlib)")
    add("--overwrite", action="store_true", help="replace an existing --figure")


def run(arguments: argparse.Namespace) -> int:
    """Print the prediction, and draw it if asked. Raises UsageError."""
    among("--show", arguments.show, VIEWS)
    if arguments.figure is not None:
        from mpisgd.predict import figures

        figures.check(arguments.figure, arguments.show)
        check_not_read(arguments.figure, [arguments.network, arguments.device], "--figure")
        check_target(arguments.figure, arguments.overwrite, option="--figure")
    asked = study_of(arguments)
    make, narrow = VIEWS[arguments.show]
    rows = list(make(asked))
    if arguments.figure is not None:
        figures.draw(arguments.figure, arguments.show, rows)
    if arguments.format == "table":
        print(heading(asked))
        said = [name for name in narrow if any(row.get(name) is not None for row in rows)]
        print(render(said, rows, "table"))
        for line in caution(max(row.get("tau", 1) or 1 for row in rows)):
            print(f"# {line}")
    else:
        print(render(tuple(rows[0]), rows, arguments.format))
    return 0


def study_of(arguments: argparse.Namespace) -> study.Study:
    """The study that the options describe. Raises UsageError."""
    return study.Study(
        device=devices.find(arguments.device),
        network=options.network(arguments, arguments.network),
        nets=tuple(quantities.choices("--net", arguments.net, nets.NETS)),
        workers=tuple(quantities.ranks("--ranks", arguments.ranks)),
        allreduces=tuple(quantities.choices("--allreduce", arguments.allreduce, COSTS)),
        algorithms=tuple(
            quantities.choices("--algorithms", arguments.algorithms, epoch.ALGORITHMS)
        ),
        batch=quantities.whole("--batch", arguments.batch),
        samples=quantities.whole("--samples", arguments.samples),
        scaling=arguments.scaling,
        delay=options.automatic("--delay", arguments.delay, 0),
        **options.shared(arguments),
    )


def _servers(network: Network) -> str:
    """How many devices a server has, and how they are joined if there are several."""
    if network.ranks_per_node == 1:
        return "one device a server"
    return f"servers of {network.ranks_per_node} at {networks.inside(network).gbytes:g} GB/s"


def heading(asked: study.Study) -> str:
    """What every row of a text table has in common."""
    device, network, conditions = asked.device, asked.network, asked.conditions
    link = networks.between(network)
    parts = [
        f"model, not measured, not from a paper; {asked.scaling} scaling, batch {asked.batch}"
        f"{' a rank' if asked.scaling == 'weak' else ' of all ranks'}, {asked.samples} samples",
        f"device {device.name}: {device.peak_GFLOPS:g} GFLOPS, {device.bandwidth_GBps:g} GB/s; "
        f"peak share {asked.peak_share:g}, {asked.compute}"
        f"{', pipelined' if asked.pipelined else ''}",
        f"network {network.name}: {asked.topology}, {link.gbps:g} Gbps, latency "
        f"{link.latency_s:g} s, sum {link.sum_s_per_byte:g} s/byte, {_servers(network)}; "
        f"{asked.rounding}",
        f"averages {'in full' if asked.wire is None else f'by {asked.wire}, coding free'}; "
        f"merge {asked.merge}, xi {asked.xi:g}; progress {conditions.progress:g}, slowdown "
        f"{conditions.slowdown:g}, noise {conditions.noise:g}; buckets of "
        f"{asked.bucket_bytes:g} bytes",
    ]
    return "\n".join(f"# {part}" for part in parts)
