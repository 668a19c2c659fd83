"""Checkpoints of real ranks: rank 0 has the file, and everything goes through it."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from allreduce.communicator import Communicator
from mpisgd.checkpoint import fitting, identity, place
from mpisgd.checkpoint.file import Checkpoint, write
from mpisgd.checkpoint.messages import BACK, TAG, Heartbeat, finished, handing_in, receive, send
from mpisgd.checkpoint.options import AUTO, Saving
from mpisgd.checkpoint.resume import Choice, Resumed, choose
from mpisgd.checkpoint.writer import Checkpointing
from mpisgd.data import Dataset
from mpisgd.experiment.experiment import Experiment
from mpisgd.mpi import session
from mpisgd.store.recording import Store
from mpisgd.training.recorder import Recorder
from mpisgd.values.errors import UsageError

COMPLETE, BEGIN, GO_ON = range(3)


def choose_together(
    comm: Communicator, saving: Saving, experiment: Experiment, dataset: Dataset, output: str | None
) -> tuple[Choice, Mapping[str, Any]]:
    """As `choose`, on every rank, with its own state; and the identity, of use on rank 0.

    Raises UsageError on every rank.
    """
    mine = identity.identity(experiment, dataset, virtual=False)
    without: dict[str, str] = {}  # rank 0's: digests of checkpoints of which a part is damaged
    while True:
        choice, refused = Choice(experiment, None, False, []), None
        if comm.Get_rank() == 0:
            try:
                saving.check()
                misfit = partial(fitting.misfit, experiment, dataset, False)
                choice = choose(saving, experiment, mine, output, without, misfit)
            except UsageError as mistake:
                refused = mistake
        session.agree(comm, refused, experiment.deadline_s)
        if saving.resume is not None:
            choice = _told(comm, choice, experiment.deadline_s)
        if choice.resumed is not None and "parts" in choice.resumed.meta:
            try:
                choice = _with_part(comm, saving, choice, experiment, dataset)
            except UsageError as damage:  # on every rank
                if saving.resume != AUTO:
                    raise
                taken = None if choice.resumed is None else choice.resumed.checkpoint
                if taken is not None:
                    without[taken.digest] = str(damage)
                continue
        return choice, mine


def _told(comm: Communicator, choice: Choice, deadline: float) -> Choice:
    """Rank 0's choice on every rank, each with its own state."""
    resumed, adopted = choice.resumed, choice.experiment
    kind = COMPLETE if choice.complete else BEGIN if resumed is None else GO_ON
    config = {name: getattr(adopted, name) for name in ("tau", "delay", *identity.CHOSEN)}
    word = json.dumps([kind, config]) if comm.Get_rank() == 0 else ""
    kind, config = json.loads(session.texts(comm, word, deadline)[0])
    if comm.Get_rank() == 0:
        if resumed is not None:
            heartbeat = _pulse(comm, deadline, TAG)
            for rank in range(1, comm.Get_size()):
                told: dict[str, Any] = {"meta": _octets(resumed.meta)}
                if "parts" not in resumed.meta:
                    told["state"] = resumed.section(str(rank))
                heartbeat.leave_out(rank)
                send(comm, told, rank, deadline, heartbeat.beat)
            choice = choice._replace(resumed=resumed._replace(state=resumed.section("0")))
        return choice
    resumed = None
    if kind == GO_ON:
        received = receive(comm, 0, deadline)
        meta = json.loads(received["meta"].tobytes())
        resumed = Resumed(meta, state=received.get("state", {}))
    experiment = identity.adopted(choice.experiment, {"config": config})
    return Choice(experiment, resumed, kind == COMPLETE, [])


def _with_part(
    comm: Communicator, saving: Saving, choice: Choice, experiment: Experiment, dataset: Dataset
) -> Choice:
    """The choice with the state that this rank wrote itself. UsageError on every rank."""
    rank, resumed, refused = comm.Get_rank(), choice.resumed, None
    assert resumed is not None
    if rank:
        path = place.part(saving.source, resumed.step, rank)
        try:
            own = Checkpoint(path)
            if own.digest != resumed.meta["parts"].get(str(rank)):
                raise UsageError("--resume", str(path), "is of another checkpoint")
            resumed = resumed._replace(state=own.state(str(rank)))
            if reason := fitting.unlike(experiment, dataset, rank, resumed.state):
                raise UsageError("--resume", str(path), reason)
        except FileNotFoundError:
            refused = UsageError("--resume", str(path), "there is no such file")
        except UsageError as mistake:
            refused = mistake
    session.agree(comm, refused, experiment.deadline_s)
    return choice._replace(resumed=resumed)


class Gathering:
    """Called at a rest, on every rank, with its state: rank 0 writes all of them, and nobody goes
    on before that is done. What was recorded so far reaches the `store` first."""

    def __init__(
        self,
        comm: Communicator,
        checkpointing: Checkpointing,
        recorder: Recorder,
        store: Store | None,
        deadline: float,
    ):
        """Files of an earlier run go, unless it goes on."""
        self.comm, self.recorder, self.store, self.deadline = comm, recorder, store, deadline
        self.saving, self.identity = checkpointing.saving, checkpointing.identity
        self.checkpoint_writer = None
        if comm.Get_rank() == 0:
            self.checkpoint_writer = checkpointing.checkpoint_writer()
        self.steps: list[int] = []  # of this rank's parts that are there, earlier runs' included
        if checkpointing.resumed is not None:
            steps = place.part_steps(self.saving.place, comm.Get_rank())
            self.steps = [step for step in steps if step <= checkpointing.resumed.step]

    def __call__(self, step: int, state: Mapping[str, Any], shipped: list[int]) -> None:
        """`shipped`: messages with records that each rank has sent."""
        if self.checkpoint_writer is None:
            told = self._write_part(step, state) if self.saving.per_rank else state
            finished(handing_in(self.comm, [told], self.deadline))
            self._prune(step)
            return
        heartbeat = _pulse(self.comm, self.deadline, TAG + BACK)
        self.recorder.rows.catch_up(shipped)
        heartbeat.beat()
        if self.store is not None:
            self.store.settle()
        meta = {
            "step": step,
            "evaluation": self.recorder.last_evaluation,
            "keep": {"evaluation": self.recorder.evaluated},
        }
        states = self._states(state, heartbeat)
        if self.saving.per_rank:
            meta["parts"] = dict(self._parts(heartbeat))
            states = iter([("0", state)])
        self.checkpoint_writer.write(meta, states, heartbeat.beat)
        finished(heartbeat.release())

    def _write_part(self, step: int, state: Mapping[str, Any]) -> dict[str, Any]:
        """The rank's own file; its digest, for rank 0."""
        rank = self.comm.Get_rank()
        told = {"step": step, "number": 0, "keep": {}, "evaluation": {}, "written_utc": ""}
        path = place.part(self.saving.place, step, rank)
        self._pulse = Heartbeat(self.comm, [(0, TAG)], self.deadline)
        digest = write(path, {**self.identity, **told}, [(str(rank), state)], self._pulse.beat)
        return {"sha256": np.frombuffer(bytes.fromhex(digest), np.uint8)}

    def _parts(self, heartbeat: Heartbeat) -> Iterator[tuple[str, str]]:
        for rank in range(1, self.comm.Get_size()):
            told = receive(self.comm, rank, self.deadline, heartbeat.beat)
            yield str(rank), told["sha256"].tobytes().hex()

    def _prune(self, step: int) -> None:
        """The checkpoint of `step` and the one before it need their parts, older ones are gone."""
        self.steps.append(step)
        for old in self.steps[:-2] if self.saving.per_rank else []:
            place.part(self.saving.place, old, self.comm.Get_rank()).unlink(missing_ok=True)
        del self.steps[:-2]

    def _states(
        self, own: Mapping[str, Any], heartbeat: Heartbeat
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Rank by rank: only one more than its own is in memory."""
        yield "0", own
        for rank in range(1, self.comm.Get_size()):
            yield str(rank), receive(self.comm, rank, self.deadline, heartbeat.beat)


def _pulse(comm: Communicator, deadline: float, tag: int) -> Heartbeat:
    """Rank 0's, to all others."""
    return Heartbeat(comm, [(rank, tag) for rank in range(1, comm.Get_size())], deadline)


def _octets(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
