"""Servers and workers in a virtual run: who is there, what is saved, how it is summed up."""

from collections.abc import Mapping
from typing import Any

from mpisgd.data import Dataset
from mpisgd.drivers.job import Job
from mpisgd.drivers.rows import Recording
from mpisgd.experiment.virtual_time import virtual_network, virtual_steps
from mpisgd.models.statistics import estimated
from mpisgd.servers.evaluation import check_finite, summary
from mpisgd.servers.roles import Builder
from mpisgd.store.weights import Weights
from mpisgd.training.evaluation import means
from mpisgd.worlds.virtual_servers import VirtualServers


class Served:
    """The servers and workers of an experiment on a virtual network."""

    def __init__(self, job: Job, recording: Recording):
        experiment, checkpointing = job.experiment, job.checkpointing
        builder = Builder(experiment, job.dataset)
        self.recording, self.evaluator = recording, builder.evaluator(recording)
        self.world = VirtualServers(
            virtual_network(experiment), builder, virtual_steps(experiment), self.evaluator,
            recording.update, recording.step,
            keep=None if checkpointing is None else self._save,
            rests=None if checkpointing is None else checkpointing.rests(0.0),
        )  # fmt: skip
        self.first = self.world.servers[0]
        if checkpointing is not None:
            self._write = checkpointing.checkpoint_writer().write
        if job.resumed is not None:
            self.world.restore(job.resumed.sections())

    def run(self) -> None:
        self.world.run()
        check_finite(self.world.servers, self.evaluator)

    @property
    def begun(self) -> list[int]:
        """The last step that each worker has begun."""
        return [worker.step for worker in self.world.workers]

    @property
    def lost(self) -> set[int]:
        """Ranks of workers that ended before the run did."""
        places = [site.place for site in self.world.worker_sites]
        return {places[worker] for server in self.world.servers for worker in server.lost}

    def summary(self) -> dict[str, Any]:
        return summary(self.world.servers, self.evaluator)

    @property
    def weights(self) -> Weights:
        return self.evaluator.weights

    def evaluate(self, dataset: Dataset) -> tuple[float, float]:
        model, parameters = self.evaluator.model, self.evaluator.parameters
        with estimated(model, self.evaluator.dataset, parameters):
            return means(model, dataset, parameters)

    def _save(self, sections: Mapping[str, Any]) -> None:
        self.recording.flush()
        told = self.recording.told() | {"reported": self.recording.reported}
        self._write({"step": self.first.step, **told}, sections.items())
