"""Backprop-overlapped mini-batch SGD against PyTorch's DDP on gloo, in the lab: seconds a step.

    python benchmarks/ddp_gloo.py --hosts 2 --rate 200mbit --output FILE.json [--model torch:mlp]

Same network (PyTorch runs it in both), same samples, batch, link, bucket size and update rule (SGD,
momentum 0.9); one rank a host, one thread a rank. Launches are in random order within each of
--launches turns; the table gives medians over launches, and the spread. DDP runs this script on
every host; its ranks find each other through the first host's address. A step goes from the fetch
of its batch to the update; the first steps warm up (DDP makes its buckets anew after the first).
Needs root, see `mpisgd lab`, and PyTorch.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab_runs import (
    ALONE,
    FIRST,
    RUNS,
    Samples,
    command_python,
    data_words,
    finish,
    finished,
    measured,
    medians,
    parser,
    run_in_lab,
    timing,
    training_words,
)

from mpisgd.mpi.lab import INTERFACE, Lab
from mpisgd.values import tables

DDP = "DDP on gloo"
OURS = (ALONE, "minibatch", "minibatch-overlap")
MODELS = {  # name -> what else the experiment needs
    "torch:mlp": "--hidden 512,448 --data synthetic",
    "torch:cnn": "--data digits",
}
PORT = 29400
RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
COLUMNS = (
    "model", "hosts", "rate", "batch", "bucket", "run", "launches",
    tables.Column("step_ms", ".2f"), tables.Column("spread_ms", ".2f"),
    tables.Column("over_ddp", ".3f"),
)  # fmt: skip


def main() -> int:
    options = _options()
    if options.worker:
        return work(options)

    def launch(lab: Lab, name: str) -> float:
        return _ddp(lab, options) if name == DDP else _ours(lab, name, options)

    samples = measured([*OURS, DDP], options, launch)
    runs = {name: " ".join(algorithm_words(name, options)) for name in OURS}
    finish(COLUMNS, _rows(samples, options), samples, options, __doc__, runs=runs)
    return 0


def _options() -> argparse.Namespace:
    made = parser(str(__doc__), batch=256)
    made.add_argument("--model", choices=MODELS, default="torch:mlp")
    made.add_argument("--data-path", help="CIFAR-10 for torch:cnn, in place of the digits")
    made.add_argument("--bucket", type=int, default=1 << 18, help="bytes of a bucket, of both")
    made.add_argument("--worker", metavar="ADDRESS", help="be a rank of DDP (used by itself)")
    return made.parse_args()


def _ours(lab: Lab, name: str, options: argparse.Namespace) -> float:
    """Seconds a step of one of our algorithms."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.h5"
        line = [
            command_python(options.mpiexec), "-m", "mpisgd", "train",
            *algorithm_words(name, options), *experiment_words(options), "--output", str(file),
        ]  # fmt: skip
        run_in_lab(lab, options.hosts, line)
        with finished(file) as (_, step_s):
            return step_s


def algorithm_words(name: str, options: argparse.Namespace) -> list[str]:
    """One of OURS, with buckets as large as DDP's."""
    buckets = ["--bucket", str(options.bucket)] if name == "minibatch-overlap" else []
    return [*RUNS[name].split(), *buckets]


def experiment_words(options: argparse.Namespace) -> list[str]:
    """The experiment, as `mpisgd train` reads it."""
    words = MODELS[options.model].split()
    if options.model == "torch:cnn" and options.data_path:
        words = ["--data", "cifar10", "--data-path", options.data_path]
    elif options.model == "torch:mlp":
        words += data_words(options)
    return ["--model", options.model, *words, *training_words(options)]


def _ddp(lab: Lab, options: argparse.Namespace) -> float:
    """Seconds a step of DDP: the slowest rank's."""
    words = [
        command_python(options.mpiexec),
        os.path.abspath(__file__),
        "--worker",
        lab.addresses[0],
    ]
    for key in ("hosts", "steps", "model", "data_path", "batch", "bucket", "allreduce"):
        if getattr(options, key) is not None:
            words += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
    done = run_in_lab(lab, options.hosts, words)
    # A rank's line may lie behind another's, or behind what its MPI or PyTorch had to say.
    times = re.findall(r"seconds (\d+\.\d+)", done)
    assert len(times) == options.hosts, done
    return max(map(float, times))


def work(options: argparse.Namespace) -> int:
    """One rank of DDP: the experiment's network, samples and update, PyTorch's loop."""
    os.environ["OMP_NUM_THREADS"] = "1"
    rank, size = (
        int(next(os.environ[n] for n in names if n in os.environ)) for names in (RANK, SIZE)
    )
    os.environ |= {"GLOO_SOCKET_IFNAME": INTERFACE, "MASTER_ADDR": options.worker}
    os.environ |= {"MASTER_PORT": str(PORT), "RANK": str(rank), "WORLD_SIZE": str(size)}
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    made, parameters, dataset, sampler = _setting(options, size)
    module = DistributedDataParallel(
        made.plain(parameters), bucket_cap_mb=options.bucket / 2**20, gradient_as_bucket_view=True
    )
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    began = 0.0
    for step in range(1, options.steps + 1):
        if step == FIRST + 1:
            began = time.perf_counter()
        inputs, targets = map(torch.from_numpy, dataset.batch(sampler.indices(step, rank)))
        optimiser.zero_grad()
        shaped = inputs.reshape(len(inputs), *made.sample)
        made.criterion.loss(module(shaped), shaped, targets).backward()
        optimiser.step()
    seconds = (time.perf_counter() - began) / (options.steps - FIRST)
    distributed.barrier()
    distributed.destroy_process_group()
    print(f"seconds {seconds!r}", flush=True)
    return 0


def _setting(options: argparse.Namespace, size: int) -> tuple[Any, Any, Any, Any]:
    """The model, where it starts, the data and who takes which samples: as in `mpisgd train`."""
    from mpisgd.commands import train
    from mpisgd.data.shards import Sampler
    from mpisgd.experiment import building
    from mpisgd.experiment.arguments import from_arguments

    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    experiment = from_arguments(parser.parse_args(experiment_words(options)))
    dataset = building.load(experiment)
    experiment = building.resolve_for(experiment, dataset, size)
    model = building.build_model(experiment, dataset, 0, size)
    parameters = building.build_parameters(experiment, model)
    return model, parameters, dataset, Sampler(dataset.samples, size, options.batch, 0)


def _rows(samples: Samples, options: argparse.Namespace) -> list[dict[str, Any]]:
    middle = medians(samples)
    return [
        {
            "model": options.model, "hosts": options.hosts, "rate": options.rate,
            "batch": options.batch, "bucket": options.bucket, "run": name,
            **timing(samples[name]), "over_ddp": median / middle[DDP],
        }
        for name, median in middle.items()
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
