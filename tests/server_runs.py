"""Runs with virtual servers and workers for tests: an Experiment in, all that they did out."""

from typing import Any, NamedTuple

import numpy as np

from mpisgd.data import Dataset
from mpisgd.drivers.job import Job
from mpisgd.drivers.rows import Recording
from mpisgd.drivers.virtual_served import Served
from mpisgd.experiment.building import load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.servers.evaluation import check_finite
from mpisgd.worlds.virtual_servers import VirtualServers

TINY: dict[str, Any] = {
    "model": "quadratic",
    "data": "noise",
    "data_samples": 240,
    "batch": 4,
    "rate": 0.05,
    "momentum": 0.9,
    "dtype": "float64",
    "evaluate_every": 0,
    "step_time_s": 1.0,
}
EVERY: list[tuple[str, dict[str, Any]]] = [
    ("async", {}),
    ("async", {"prefetch": True}),
    ("backup", {"backups": 2}),
    ("backup", {"backups": 2, "stale": "abandon"}),
    ("softsync", {"group": 3}),
    ("softsync", {"group": 2, "staleness_rate": True}),
    ("softsync", {"group": 3, "prefetch": True}),
    ("timeout", {"timeout_s": 0.4}),
    ("timeout", {"timeout_s": 0.4, "stale": "abandon"}),
]
"""All policies, as algorithm and options."""
LAYERS: dict[str, Any] = {
    "model": "mlp", "data": "synthetic", "hidden": "16,12,8", "dtype": "float32",
}  # fmt: skip
"""Changes that make it a net of four layers."""


class Kept(Recording):
    """All rows of /updates and /steps."""

    def __init__(self, ranks: int) -> None:
        super().__init__(None, None, ranks)
        self.rows: list[dict[str, float]] = []
        self.steps: list[tuple[int, int, dict[str, float]]] = []

    def step(self, rank: int, step: int, columns: dict[str, float]) -> None:
        self.steps.append((rank, step, columns))

    def update(self, row: dict[str, float]) -> None:
        self.rows.append(row)


class Finished(NamedTuple):
    """A run that is over."""

    virtual_servers: VirtualServers
    rows: list[dict[str, float]]
    steps: list[tuple[int, int, dict[str, float]]]  # (rank, step, columns of /steps)

    @property
    def parameters(self) -> np.ndarray:
        """The flat parameters as the servers hold them."""
        return np.concatenate([server.parameters for server in self.virtual_servers.servers])

    @property
    def time_s(self) -> float:
        """When the last update was made."""
        return self.virtual_servers.evaluator.last["time_s"]

    def column(self, name: str, **where: float) -> np.ndarray:
        """A column of /updates, of the rows that have these values."""
        chosen = [row for row in self.rows if all(row[k] == v for k, v in where.items())]
        return np.array([row[name] for row in chosen])

    @property
    def pushes(self) -> dict[str, np.ndarray]:
        return {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}


def prepare(
    ranks: int, dataset: Dataset | None = None, **changes: Any
) -> tuple[Experiment, Finished]:
    """An experiment like TINY and its servers and workers, nothing begun."""
    experiment = Experiment.read(TINY | changes)
    dataset = load(experiment) if dataset is None else dataset
    experiment = resolve_for(experiment, dataset, ranks)
    recording = Kept(ranks)
    virtual_servers = Served(Job(experiment, dataset), recording).world
    return experiment, Finished(virtual_servers, recording.rows, recording.steps)


def served(ranks: int, **changes: Any) -> Finished:
    """Run an experiment like TINY, with `changes`, on virtual ranks."""
    _, finished = prepare(ranks, **changes)
    finished.virtual_servers.run()
    check_finite(finished.virtual_servers.servers)
    return finished


def combined(
    rows: list[tuple[str, dict[str, Any]]], ways: list[dict[str, Any]]
) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Algorithms and their options with ways to read and write, but for those that are refused."""
    return [
        (name, options, way)
        for name, options in rows
        for way in ways
        if not ("prefetch" in options and way.get("push") == "layerwise")
    ]
