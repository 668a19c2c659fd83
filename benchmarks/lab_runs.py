"""What measurements of training runs in the lab share: options, command lines, launches, files.

Each run of a comparison is launched several times, in random order within each of the launches, so
that none gets the best minute of the machine. A measurement is seconds per step, without the first
steps, which warm up; a table has medians over launches, and the spread.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpisgd.mpi.lab import Lab
from mpisgd.store.reader import Run, read
from mpisgd.validation.steps import ALONE, FIRST, STEPS_PER_EPOCH, TAU
from mpisgd.validation.steps import RUNS as OPTIONS
from mpisgd.values import tables

RUNS = {
    name: " ".join(f"--{key} {value}" for key, value in found.items())
    for name, found in OPTIONS.items()
}
# How often each averages, in a round of TAU steps.
AVERAGES = {ALONE: 0, "minibatch": TAU, "minibatch-overlap": TAU}
MODEL = "--model mlp --hidden 512,448 --data synthetic"  # 251,402 parameters: 1.006 MB
LONGEST_S = 120  # of a training run

Samples = dict[str, list[float]]  # seconds per step of each launch, by the run's name


def parser(about: str, batch: int) -> argparse.ArgumentParser:
    """A parser with the options that all comparisons have; `batch` is the default."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--hosts", type=int, default=2)
    made.add_argument("--rate", default="200mbit")
    made.add_argument("--mpiexec", help="of the MPI to measure; its python runs the ranks")
    made.add_argument("--launches", type=int, default=5)
    made.add_argument("--steps", type=int, default=48)
    made.add_argument("--batch", type=int, default=batch)
    made.add_argument("--allreduce", default="halving-doubling")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--output")
    return made


def words(name: str, options: argparse.Namespace, output: str | Path) -> list[str]:
    """The words of `mpisgd train` for one of RUNS; `options` are lab_overlap.py's."""
    line = [
        "train", *RUNS[name].split(), *MODEL.split(), *training_words(options),
        *data_words(options), "--chunks", str(options.chunks), "--output", str(output),
    ]  # fmt: skip
    return line + (["--step-time", options.step_time] if options.step_time else [])


def training_words(options: argparse.Namespace) -> list[str]:
    """Those of every comparison: nothing is evaluated on the way, nothing diverges."""
    return [
        "--batch", str(options.batch), "--steps", str(options.steps), "--evaluate-every", "0",
        "--lr", "0.01", "--allreduce", options.allreduce,
    ]  # fmt: skip


def data_words(options: argparse.Namespace) -> list[str]:
    """As many synthetic samples as make whole batches."""
    return ["--data-samples", str(STEPS_PER_EPOCH * options.batch * options.hosts)]


def measured(
    names: Iterable[str], options: argparse.Namespace, launch: Callable[[Lab, str], float]
) -> Samples:
    """Every launch of every run; `launch` does one and gives its seconds per step."""
    samples: Samples = {name: [] for name in names}
    shuffled = random.Random(options.seed)
    with Lab(options.hosts, options.rate, mpiexec=options.mpiexec) as lab:
        for turn in range(options.launches):
            for name in shuffled.sample(list(samples), len(samples)):
                samples[name].append(launch(lab, name))
                step_ms = samples[name][-1] * 1e3
                print(f"launch {turn + 1} {name}: {step_ms:.2f} ms", file=sys.stderr)
    return samples


def run_in_lab(lab: Lab, hosts: int, line: Sequence[str], timeout: float = LONGEST_S) -> str:
    """What a command printed as `hosts` ranks; SystemExit with all it said, if it failed."""
    done = lab.run(line, ranks=hosts, timeout=timeout)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def finished(output: str | Path) -> Iterator[tuple[Run, float]]:
    """The run in a result file, and its seconds per step from step FIRST on."""
    with read(str(output)) as run:
        ends = run.steps["start_s"][-1] + run.steps["step_s"][-1]
        spent = float((ends - run.steps["start_s"][FIRST]).max())
        yield run, spent / (len(run.steps["start_s"]) - FIRST)


def timing(seconds: Sequence[float]) -> dict[str, Any]:
    """A row's columns about the launches of one run."""
    return {
        "launches": len(seconds), "step_ms": statistics.median(seconds) * 1e3,
        "spread_ms": (max(seconds) - min(seconds)) * 1e3,
    }  # fmt: skip


def medians(samples: Samples) -> dict[str, float]:
    """Seconds per step of each run, the median over launches."""
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def finish(
    columns: Sequence[tables.Column | str], rows: Sequence[Mapping[str, Any]], samples: Samples,
    options: argparse.Namespace, method: str | None, **more: Any,
) -> None:  # fmt: skip
    """Print the table; write --output: how it was done, the options, all samples and the rows."""
    print(tables.render(columns, rows, "table"))
    if options.output:
        found = {"method": method, "options": vars(options), **more}
        found |= {"samples_s": samples, "rows": list(rows)}
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def command_python(mpiexec: str | None) -> str:
    """The Python that goes with an MPI."""
    return sys.executable if mpiexec is None else str(Path(mpiexec).parent / "python")
