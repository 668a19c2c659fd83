"""What the flat buffers, hooks and polling around a PyTorch network cost over plain PyTorch.

    python benchmarks/torch_wrapper.py [--models torch:resnet50-cifar,...]

One process, one thread. A step of the wrapper is `Model.gradient`, with somebody who listens to
`progress` and `ready`; a plain step is what one writes in PyTorch: zero_grad, forward, loss,
backward, the same module on memory of its own. Neither updates parameters. The two take turns, in
random order within each pair; the table gives medians of both, and of the quotients of the pairs
with their quartiles, and the quotient of the two 10th percentiles, which other programs' work moves
least. `--clock cpu` counts the seconds of this process on the CPU instead of those
on the wall, for a machine that others use.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from mpisgd.data import Dataset
from mpisgd.models import build
from mpisgd.models.torch_model import TorchModel
from mpisgd.predict import nets
from mpisgd.training.parameters import Parameters
from mpisgd.values import tables

MODELS = "torch:mlp,torch:cnn,torch:vgg16-cifar,torch:mobilenetv2-cifar,torch:resnet50-cifar"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
COLUMNS = (
    "model", "batch", "parameters", "pairs",
    tables.Column("plain_ms", ".2f"), tables.Column("wrapped_ms", ".2f"),
    tables.Column("quotient", ".4f"), tables.Column("q25", ".4f"), tables.Column("q75", ".4f"),
    tables.Column("quotient_p10", ".4f"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each model")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--output")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.models.split(","):
        rows.append(compare(name, options.batch, options.seconds, CLOCKS[options.clock]))
        print(tables.render(COLUMNS, rows[-1:], "table"), file=sys.stderr)
    print(tables.render(COLUMNS, rows, "table"))
    if options.output:
        method = {"method": __doc__, "options": vars(options), "torch": torch.__version__}
        Path(options.output).write_text(json.dumps({**method, "rows": rows}, indent=1) + "\n")
    return 0


def compare(name: str, batch: int, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """One row: a model, measured for about so many seconds."""
    dataset = images(name, batch)
    model, plain = build(name, dataset), build(name, dataset)
    assert isinstance(model, TorchModel)
    assert isinstance(plain, TorchModel)
    parameters = Parameters(model.shapes)
    model.initialise(parameters, np.random.default_rng(0))
    gradient = parameters.like()
    inputs, targets = dataset.batch(np.arange(batch))
    steps = {
        "plain": plain_step(plain, parameters, inputs, targets),
        "wrapped": lambda: model.gradient(
            parameters, inputs, targets, gradient, lambda share: None, lambda low: None
        ),
    }
    times: dict[str, list[float]] = {which: [] for which in steps}
    for _ in range(2):
        for step in steps.values():
            step()
    shuffled, began = random.Random(0), time.perf_counter()
    while time.perf_counter() - began < seconds or len(times["plain"]) < 5:
        for which in shuffled.sample(list(steps), 2):
            start = clock()
            steps[which]()
            times[which].append(clock() - start)
    quotients = [w / p for w, p in zip(times["wrapped"], times["plain"], strict=True)]
    low, _, high = statistics.quantiles(quotients, n=4)
    quick = {which: float(np.percentile(seconds, 10)) for which, seconds in times.items()}
    return {
        "model": name, "batch": batch, "parameters": parameters.size, "pairs": len(quotients),
        "plain_ms": statistics.median(times["plain"]) * 1e3,
        "wrapped_ms": statistics.median(times["wrapped"]) * 1e3,
        "quotient": statistics.median(quotients), "q25": low, "q75": high,
        "quotient_p10": quick["wrapped"] / quick["plain"],
    }  # fmt: skip


def images(name: str, samples: int) -> Dataset:
    """Made-up images of the size that the model takes."""
    net = name.removeprefix("torch:")
    shape = nets.find(net).sample if net in nets.NETS else (3, 32, 32)
    classes = 10 if shape[1] == 32 else 1000
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (samples, *shape)).astype(np.uint8)
    targets = generator.integers(0, classes, samples)
    return Dataset("made up", inputs, targets, inputs, targets, classes, "", "", 1 / 255)


def plain_step(made: TorchModel, start: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Any:
    """A step as in any PyTorch program: a module without hooks, that owns its memory."""
    module = made.plain(start)
    images, labels = torch.from_numpy(inputs), torch.from_numpy(targets)

    def step() -> float:
        module.zero_grad()
        loss = made.criterion.loss(module(images), images, labels)
        loss.backward()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    sys.exit(main())
