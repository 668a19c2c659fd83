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
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mpisgd import tables
from mpisgd.lab import INTERFACE, Lab
from mpisgd.store.reader import read

DDP = "DDP on gloo"
OURS = {
    "compute alone": "--algorithm local --tau 1000000",
    "minibatch": "--algorithm minibatch",
    "minibatch-overlap": "--algorithm minibatch-overlap --bucket {bucket}",
}
MODELS = {  # name -> what else the experiment needs
    "torch:mlp": "--hidden 512,448 --data synthetic",
    "torch:cnn": "--data digits",
}
STEPS_PER_EPOCH = 4  # whole batches only
WARM_UP = 8
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
    runs = [*OURS, DDP]
    samples: dict[str, list[float]] = {name: [] for name in runs}
    shuffled = random.Random(options.seed)
    with Lab(options.hosts, options.rate, mpiexec=options.mpiexec) as lab:
        for launch in range(options.launches):
            for name in shuffled.sample(runs, len(runs)):
                step_s = _ddp(lab, options) if name == DDP else _ours(lab, name, options)
                samples[name].append(step_s)
                print(f"launch {launch + 1} {name}: {step_s * 1e3:.2f} ms", file=sys.stderr)
    rows = _rows(samples, options)
    print(tables.render(COLUMNS, rows, "table"))
    if options.output:
        method = {
            "method": __doc__, "options": vars(options), "runs": OURS, "samples_s": samples,
            "rows": rows,
        }  # fmt: skip
        Path(options.output).write_text(json.dumps(method, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mpiexec", help="of the MPI to measure; its python runs the ranks")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--model", choices=MODELS, default="torch:mlp")
    parser.add_argument("--data-path", help="CIFAR-10 for torch:cnn, in place of the digits")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--bucket", type=int, default=1 << 18, help="bytes of a bucket, of both")
    parser.add_argument("--allreduce", default="halving-doubling")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output")
    parser.add_argument("--worker", metavar="ADDRESS", help="be a rank of DDP (used by itself)")
    return parser.parse_args()


def _ours(lab: Lab, name: str, options: argparse.Namespace) -> float:
    """Seconds a step of one of our algorithms."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "run.h5")
        words = [
            _python(options), "-m", "mpisgd", "train", *OURS[name].format(**vars(options)).split(),
            *experiment_words(options), "--output", file,
        ]  # fmt: skip
        _run(lab, words, options)
        with read(file) as run:
            begins = run.steps["start_s"][WARM_UP]
            ends = run.steps["start_s"][-1] + run.steps["step_s"][-1]
            return float((ends - begins).max()) / (options.steps - WARM_UP)


def experiment_words(options: argparse.Namespace) -> list[str]:
    """The experiment, as `mpisgd train` reads it."""
    words = MODELS[options.model].split()
    if options.model == "torch:cnn" and options.data_path:
        words = ["--data", "cifar10", "--data-path", options.data_path]
    elif options.model == "torch:mlp":
        words += ["--data-samples", str(STEPS_PER_EPOCH * options.batch * options.hosts)]
    return [
        "--model", options.model, *words, "--batch", str(options.batch),
        "--steps", str(options.steps), "--evaluate-every", "0", "--lr", "0.01",
        "--allreduce", options.allreduce,
    ]  # fmt: skip


def _ddp(lab: Lab, options: argparse.Namespace) -> float:
    """Seconds a step of DDP: the slowest rank's."""
    words = [_python(options), os.path.abspath(__file__), "--worker", lab.addresses[0]]
    for key in ("hosts", "steps", "model", "data_path", "batch", "bucket", "allreduce"):
        if getattr(options, key) is not None:
            words += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
    done = _run(lab, words, options)
    # A rank's line may lie behind something that its MPI or PyTorch had to say.
    times = [line.partition("seconds ")[2] for line in done.splitlines() if "seconds " in line]
    assert len(times) == options.hosts, done
    return max(map(float, times))


def _python(options: argparse.Namespace) -> str:
    return (
        sys.executable if options.mpiexec is None else str(Path(options.mpiexec).parent / "python")
    )


def _run(lab: Lab, words: list[str], options: argparse.Namespace) -> str:
    done = lab.run(words, ranks=options.hosts, timeout=120)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


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
        if step == WARM_UP + 1:
            began = time.perf_counter()
        inputs, targets = map(torch.from_numpy, dataset.batch(sampler.indices(step, rank)))
        optimiser.zero_grad()
        shaped = inputs.reshape(len(inputs), *made.sample)
        made.criterion.loss(module(shaped), shaped, targets).backward()
        optimiser.step()
    seconds = (time.perf_counter() - began) / (options.steps - WARM_UP)
    distributed.barrier()
    distributed.destroy_process_group()
    print(f"seconds {seconds!r}", flush=True)
    return 0


def _setting(options: argparse.Namespace, size: int) -> tuple[Any, Any, Any, Any]:
    """The model, where it starts, the data and who takes which samples: as in `mpisgd train`."""
    from mpisgd import train
    from mpisgd.arguments import from_arguments
    from mpisgd.data.shards import Sampler

    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    experiment = from_arguments(parser.parse_args(experiment_words(options)))
    dataset = train.load(experiment)
    experiment = train.resolve_for(experiment, dataset, size)
    model = train.build_model(experiment, dataset, 0, size)
    parameters = train.build_parameters(experiment, model)
    return model, parameters, dataset, Sampler(dataset.samples, size, options.batch, 0)


def _rows(samples: dict[str, list[float]], options: argparse.Namespace) -> list[dict[str, Any]]:
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return [
        {
            "model": options.model, "hosts": options.hosts, "rate": options.rate,
            "batch": options.batch, "bucket": options.bucket, "run": name,
            "launches": len(samples[name]), "step_ms": median * 1e3,
            "spread_ms": (max(samples[name]) - min(samples[name])) * 1e3,
            "over_ddp": median / medians[DDP],
        }
        for name, median in medians.items()
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
