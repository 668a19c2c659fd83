"""`mpisgd replay`: a recorded run whose bits depend on who came when again, serially, to the same.

Of one with parameter servers the file says which gradient went into which update of which shard,
and at which version of each shard it was computed. That is all that the order of arrivals decided;
the rest follows from the experiment. Gradients are summed in order of workers, as the servers did.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from mpisgd.commands import replay_models, replay_rounds
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.effective import averages
from mpisgd.values import progress, tables
from mpisgd.values.errors import UsageError

COLUMNS = ("file", "algorithm", "updates", "gradients", "recorded", "replayed", "same")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd replay`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="result files of mpisgd train")
    parser.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


def run(arguments: argparse.Namespace) -> int:
    """Replay each file; exit code 0 if all come to the recorded bits, 1 if not."""
    rows = [_compared(file) for file in arguments.files]
    print(tables.render(COLUMNS, rows, arguments.format))
    return 0 if all(row["same"] for row in rows) else 1


def _compared(file: str) -> dict[str, Any]:
    from mpisgd.experiment.recorded import recorded as experiment_of
    from mpisgd.store.reader import read

    with read(file) as result:
        recorded = result.summary.get("parameters_sha256")
        partial = "gradients" in result.steps and not len(result.updates)
        if not isinstance(recorded, str) or not (partial or len(result.updates)):
            raise UsageError(file, None, "no complete run with parameter servers or partial rounds")
        experiment = experiment_of(result.config, file)
        if partial:
            return _rounds(file, result, experiment, recorded)
        pushes = {name: result.updates[name] for name in result.updates}
    replayed = replay(experiment, pushes)
    used, updates = int((pushes["used"] == 1).sum()), int(pushes["update"].max())
    return _row(file, experiment, updates, used, recorded, replayed)


def _rounds(file: str, result: Any, experiment: Experiment, recorded: str) -> dict[str, Any]:
    schedule = replay_rounds.schedule_of(result, experiment)
    steps = {name: result.steps[name] for name in replay_rounds.NEEDED if name in result.steps}
    gradients = replay_rounds.checked(steps)
    if experiment.algorithm == replay_rounds.ALGORITHM:
        replayed, updates = replay_rounds.replay_rounds(experiment, steps, schedule), len(gradients)
    else:
        replayed = replay_models.replay_models(experiment, steps, schedule)
        updates = averages(result.config, len(gradients))
    return _row(file, experiment, updates, int(gradients.sum()), recorded, replayed)


def _row(
    file: str, experiment: Experiment, updates: int, gradients: int, recorded: str,
    parameters: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    from mpisgd.training.parameters import digest

    replayed = digest(parameters)
    return {
        "file": file, "algorithm": experiment.algorithm, "updates": updates,
        "gradients": gradients, "recorded": recorded[:16], "replayed": replayed[:16],
        "same": recorded == replayed,
    }  # fmt: skip


def replay(experiment: Experiment, pushes: Mapping[str, np.ndarray]) -> np.ndarray:
    """The flat parameters at the end of that run with those rows of /updates.

    Raises UsageError if the rows contradict each other.
    """
    from mpisgd.experiment.building import load

    return _Replay(experiment, load(experiment), pushes).run()


def _check_rows(
    pushes: Mapping[str, np.ndarray], names: tuple[str, ...], servers: int, workers: int
) -> None:
    """UsageError unless the columns `names` are there and tell of these servers and workers."""
    bounds = {"server": (0, servers - 1), "worker": (0, workers - 1), "used": (0, 1),
              "step": (1, None), "version_read": (0, None)}  # fmt: skip
    for name in names:
        low, high = bounds.get(name, (None, None))
        if name not in pushes:
            raise UsageError(f"/updates/{name}", None, "is needed, and was not recorded")
        for bound, wrong in ((low, np.less), (high, np.greater)):
            if bound is not None and wrong(pushes[name], bound).any():
                most = "any" if high is None else high
                allowed = f"{servers} servers and {workers} workers leave {low} to {most}"
                raise UsageError(f"/updates/{name}", None, allowed)


class _Replay:
    """Shards by their versions, and gradients as they are needed."""

    def __init__(self, experiment: Experiment, dataset: Any, pushes: Mapping[str, np.ndarray]):
        from mpisgd.experiment.building import Place
        from mpisgd.servers.roles import Builder

        self.builder = Builder(experiment, dataset)
        count = len(self.builder.roles.servers)
        self.servers = [self.builder.server(None, index) for index in range(count)]
        size = len(self.builder.roles.workers)
        self.workers = [self.builder.worker(Place(number, size), number) for number in range(size)]
        names = ("server", "worker", "step", "version_read", "used", "update", "samples")
        _check_rows(pushes, names, count, size)
        self.rows = list(zip(*(pushes[name].tolist() for name in names), strict=True))
        self.batches: list[dict[int, list[tuple[int, int]]]] = [
            defaultdict(list) for _ in range(count)
        ]
        self.read: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (worker, step)
        self.made: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # updates by shard
        self.uses: Counter[tuple[int, int]] = Counter()  # shards that still need a gradient
        self._sort()
        self.readers = self._readers()
        self.history = [{0: server.parameters.copy()} for server in self.servers]
        self.gradients: dict[tuple[int, int], np.ndarray] = {}

    def run(self) -> np.ndarray:
        """Make every update as soon as its gradients can be computed."""
        with closing(progress.shown("replay", sum(map(len, self.batches)), unit="update")) as bar:
            while self._moved(bar):
                pass
        flat = self.builder.parameters.flat
        for server, shard, batches in zip(
            self.servers, self.builder.shards, self.batches, strict=True
        ):
            if server.version != max(batches, default=0):
                raise UsageError(
                    "/updates", None, f"update {server.version + 1} cannot be replayed"
                )
            flat[shard] = server.parameters
        return flat

    def _moved(self, bar: progress.Bar) -> bool:
        """Whether any update could be made; all that can are."""
        moved = False
        for index, server in enumerate(self.servers):
            while (batch := self.batches[index].get(server.version + 1)) and all(
                self._ready(key) for key in batch
            ):
                self._update(index, batch)
                bar.update()
                moved = True
        return moved

    def _sort(self) -> None:
        steps: dict[int, set[int]] = defaultdict(set)
        for server, worker, step, version, used, update, _ in self.rows:
            self.read[worker, step][server] = version
            steps[worker].add(step)
            if used:
                self.made[worker, step][server] = update
                self.batches[server][update].append((worker, step))
                self.uses[worker, step] += 1
        self.deals: dict[tuple[int, int], int] = {}
        for worker, numbers in steps.items():
            batch_index = 1
            for step in sorted(numbers):
                self.deals[worker, step] = batch_index
                again = self.builder.experiment.requeue and not self.uses[worker, step]
                batch_index += 0 if again else 1

    def _readers(self) -> list[Counter[int]]:
        """How many gradients, which some shard uses, read each version of each shard."""
        readers: list[Counter[int]] = [Counter() for _ in self.servers]
        for key in self.uses:
            if self.uses[key]:
                for server, version in self._versions(key).items():
                    readers[server][version] += 1
        return readers

    def _versions(self, key: tuple[int, int]) -> dict[int, int]:
        """Which versions the gradient was computed at; of a shard that had ended, the last."""
        last = {server: max(batches, default=0) for server, batches in enumerate(self.batches)}
        if self.builder.experiment.prefetch:
            last |= self._ahead(*key)
        return last | self.read[key]

    def _ahead(self, worker: int, step: int) -> dict[int, int]:
        """Of a shard that ended while the gradient was computed: what the one before the last
        made."""
        if step <= 2:
            return dict.fromkeys(range(len(self.servers)), 0)
        return self.made[worker, step - 2]

    def _ready(self, key: tuple[int, int]) -> bool:
        if key in self.gradients:
            return True
        versions = self._versions(key)
        if any(version > self.servers[server].version for server, version in versions.items()):
            return False
        from mpisgd.training.gradient import clip

        worker = key[0]
        who = self.workers[worker]
        for server, version in versions.items():
            who.parameters.flat[self.builder.shards[server]] = self.history[server][version]
            self._forget(server, version)
        inputs, targets = who.batch(self.deals[key])
        who.model.gradient(who.parameters, inputs, targets, who.gradient, lambda share: None)
        if who.clip is not None:
            clip(who.gradient.flat, who.clip)
        self.gradients[key] = who.gradient.flat.copy()
        return True

    def _forget(self, server: int, version: int) -> None:
        self.readers[server][version] -= 1
        if not self.readers[server][version] and version < self.servers[server].version:
            del self.history[server][version]

    def _update(self, index: int, batch: list[tuple[int, int]]) -> None:
        from mpisgd.servers.messages import Push

        server, shard = self.servers[index], self.builder.shards[index]
        pushes = [
            Push(
                worker, step, self.read[worker, step][index], self._samples(worker, step), 0.0,
                self.gradients[worker, step][shard], 0.0,
            )
            for worker, step in batch
        ]  # fmt: skip
        before = server.version
        server.update(pushes)
        if not self.readers[index][before]:
            self.history[index].pop(before, None)
        self.history[index][server.version] = server.parameters.copy()
        for key in batch:
            self.uses[key] -= 1
            if not self.uses[key]:
                del self.gradients[key]

    def _samples(self, worker: int, step: int) -> int:
        who = self.workers[worker]
        return len(who.sampler.indices(self.deals[worker, step], worker))
