"""Seconds of a local step against PyTorch: same network, same batch, one thread, taking turns.

`python benchmarks/local_step.py [--output FILE.json]` prints, for `mlp` and `mnist-cnn`, medians
and quartiles of gradient steps of both in milliseconds, the ratio of the medians and the memory
that the steps of `mnist-cnn` at batch 64 need. PyTorch must be installed; it is compared in float32
with the same weights, and its gradient checked first. --clock cpu counts processor time, for a
machine that others use too.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from mpisgd.data import Dataset
from mpisgd.models import build
from mpisgd.training.parameters import Parameters
from mpisgd.values.tables import FORMATS, render

NETS: dict[str, tuple[int, ...]] = {"mlp": (128,), "mnist-cnn": (16, 16, 32, 32)}
CASES = [(model, hidden, batch) for model, hidden in NETS.items() for batch in (32, 64)]
PIXELS = (1, 28, 28)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
COLUMNS = (
    "model", "hidden", "batch", "rounds", "ours_ms", "ours_p25_ms", "ours_p75_ms", "torch_ms",
    "torch_p25_ms", "torch_p75_ms", "ratio", "memory_MB",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="steps of each, in turns [60]")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--output", help="JSON file for the rows")
    parser.add_argument("--format", choices=FORMATS, default="table")
    arguments = parser.parse_args()
    clock = CLOCKS[arguments.clock]
    rows = [measure(*case, rounds=arguments.rounds, clock=clock) for case in CASES]
    print(render(COLUMNS, rows, arguments.format))
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            import torch

            versions = {"numpy": np.__version__, "torch": torch.__version__}
            json.dump({"clock": arguments.clock, **versions, "rows": rows}, file, indent=1)
    return 0


def measure(
    model: str, hidden: tuple[int, ...], batch: int, *, rounds: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """One row: `rounds` steps of each, in turns, after three that do not count."""
    generator = np.random.default_rng(0)
    inputs = generator.random((batch, *PIXELS), np.float32)
    targets = generator.integers(0, 10, batch)
    dataset = Dataset("random", inputs, targets, inputs, targets, 10, "", "")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours, parameters, gradient = _ours(model, hidden, dataset)
    ours()
    ours()
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    theirs = _theirs(model, hidden, parameters, gradient, inputs, targets)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 3):
        for kept, step in zip(times, (ours, theirs), strict=True):
            began = clock()
            step()
            if turn >= 3:
                kept.append((clock() - began) * 1e3)
    row: dict[str, Any] = {"model": model, "hidden": "-".join(map(str, hidden)), "batch": batch,
                           "rounds": rounds}  # fmt: skip
    for who, values in zip(("ours", "torch"), times, strict=True):
        low, middle, high = statistics.quantiles(values, n=4)
        row |= {f"{who}_ms": middle, f"{who}_p25_ms": low, f"{who}_p75_ms": high}
    return row | {"ratio": row["ours_ms"] / row["torch_ms"], "memory_MB": memory}


def _ours(
    model: str, hidden: tuple[int, ...], dataset: Dataset
) -> tuple[Callable[[], float], Parameters, Parameters]:
    network = build(model, dataset, hidden=hidden)
    parameters = Parameters(network.shapes)
    network.initialise(parameters, np.random.default_rng(1))
    gradient = parameters.like()
    inputs, targets = dataset.batch(np.arange(dataset.samples))

    def step() -> float:
        return network.gradient(parameters, inputs, targets, gradient, lambda share: None)

    return step, parameters, gradient


def _theirs(
    model: str, hidden: tuple[int, ...], parameters: Parameters, gradient: Parameters,
    inputs: np.ndarray, targets: np.ndarray,
) -> Callable[[], float]:  # fmt: skip
    """PyTorch's step from the same weights; AssertionError if its gradient is another."""
    import torch

    torch.set_num_threads(1)
    make = _torch_mlp if model == "mlp" else _torch_cnn
    net, pairs = make(torch, hidden, parameters)
    images, labels = torch.from_numpy(inputs), torch.from_numpy(targets)
    criterion = torch.nn.CrossEntropyLoss()

    def step() -> float:
        net.zero_grad(set_to_none=False)
        loss = criterion(net(images), labels)
        loss.backward()
        return float(loss.detach())

    step()
    for name, leaf in pairs:
        expected = leaf.grad.numpy().T
        np.testing.assert_allclose(gradient[name], expected, rtol=1e-3, atol=1e-5, err_msg=name)
    return step


def _torch_mlp(torch: Any, hidden: tuple[int, ...], parameters: Parameters) -> tuple[Any, Any]:
    parts: list[Any] = [torch.nn.Flatten()]
    pairs = []
    for number in range(1, len(hidden) + 2):
        weight = parameters[f"layer{number}.weight"]
        layer = torch.nn.Linear(*weight.shape)
        _set(torch, layer.weight, weight.T)
        _set(torch, layer.bias, parameters[f"layer{number}.bias"])
        pairs += [(f"layer{number}.weight", layer.weight), (f"layer{number}.bias", layer.bias)]
        parts += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1]), pairs


def _torch_cnn(torch: Any, hidden: tuple[int, ...], parameters: Parameters) -> tuple[Any, Any]:
    """As a user of PyTorch would write it. Weights of convolutions are not compared: their layout
    is another, and tests/test_cnn.py does it."""
    from torch.nn.utils.parametrizations import weight_norm

    parts: list[Any] = []
    pairs = []
    for number, (inputs, outputs) in enumerate(zip((1, *hidden), hidden, strict=False), 1):
        layer = torch.nn.Conv2d(inputs, outputs, 3, padding=1)
        _set(torch, layer.weight, parameters[f"conv{number}.direction"].transpose(2, 3, 0, 1))
        _set(torch, layer.bias, parameters[f"conv{number}.bias"])
        pairs.append((f"conv{number}.bias", layer.bias))
        parts += [weight_norm(layer), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    weight = parameters["classifier.weight"]
    last = torch.nn.Linear(*weight.shape)
    _set(torch, last.weight, weight.T)
    _set(torch, last.bias, parameters["classifier.bias"])
    pairs += [("classifier.weight", last.weight), ("classifier.bias", last.bias)]
    return torch.nn.Sequential(*parts, torch.nn.Flatten(), last), pairs


def _set(torch: Any, leaf: Any, value: np.ndarray) -> None:
    with torch.no_grad():
        leaf.copy_(torch.from_numpy(np.ascontiguousarray(value)))


if __name__ == "__main__":
    sys.exit(main())
