"""A training run of virtual servers and workers, in this process."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from allreduce.errors import Stalled
from mpisgd.checkpoint.writer import Checkpointing
from mpisgd.commands.train import progress_bar, report
from mpisgd.data import Dataset
from mpisgd.drivers.virtual import StopSignals, VirtualRecorder, finish, open_store, virtual_network
from mpisgd.experiment.building import VIRTUAL_STEP_S
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.remarks import tell_stopped
from mpisgd.experiment.stragglers import step_timer
from mpisgd.models.statistics import described, estimate_of
from mpisgd.mpi.session import LEFT_EARLY, NOT_FINITE
from mpisgd.servers.evaluation import Evaluator
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.servers.worker import not_finite
from mpisgd.training.worker import NotFinite
from mpisgd.worlds.post import Post
from mpisgd.worlds.virtual_servers import VirtualServers

ROWS = 1024  # rows of /updates handed to the store at once


def train(
    experiment: Experiment,
    dataset: Dataset,
    arguments: argparse.Namespace,
    checkpointing: Checkpointing | None = None,
) -> int:
    """Train on `experiment.ranks` virtual ranks; the exit code. `experiment` is resolved."""
    builder = Builder(experiment, dataset)
    store, bar = (
        open_store(experiment, arguments, checkpointing),
        progress_bar(experiment, checkpointing),
    )
    recorders = {rank: VirtualRecorder(rank, store, {}, None) for rank in builder.roles.workers}
    ledger = Ledger(store, bar)
    evaluator = builder.evaluator(store)
    virtual_servers = world(builder, evaluator, ledger, recorders)
    if checkpointing is not None:
        keep(checkpointing, experiment, virtual_servers, ledger, recorders)
    reason: str | None = None
    try:
        code, reason = _run(virtual_servers, evaluator)
    except BaseException as failure:
        reason = repr(failure)
        raise
    finally:
        if bar is not None:
            bar.close()
        ledger.flush()
        finish(list(recorders.values()), store)
        if store is not None and reason is not None:
            store.close(reason=reason)
    if code > 128:
        tell_stopped(virtual_servers.servers[0].step, arguments.output)
    elif reason is not None:
        print(f"mpisgd: {reason}", file=sys.stderr)
    if reason is not None:
        return code
    if store is not None:
        store.complete(evaluator.last | summary(virtual_servers.servers, evaluator))
    report(experiment, evaluator.last, arguments)
    return 0


def _run(virtual_servers: VirtualServers, evaluator: Evaluator) -> tuple[int, str | None]:
    """To the end: the exit code, and the reason for one that is not 0."""
    try:
        with StopSignals(virtual_servers.ask_to_stop) as asked:
            virtual_servers.run()
        check_finite(virtual_servers.servers, evaluator)
    except NotFinite as failure:
        return NOT_FINITE, str(failure)
    except Stalled as stall:
        return LEFT_EARLY, str(stall)
    first = virtual_servers.servers[0]
    if first.stopping:
        told = f"stopped by signal {asked.number} after step {first.step}"
        return 128 + asked.number, told
    return 0, None


def keep(
    checkpointing: Checkpointing,
    experiment: Experiment,
    virtual_servers: VirtualServers,
    ledger: "Ledger",
    recorders: Mapping[int, VirtualRecorder],
) -> None:
    """Let the run be saved, and go on from where it was. Nothing has begun."""
    identity = {**checkpointing.identity, "config": experiment.config()}
    checkpoint_writer, resumed = (
        checkpointing._replace(identity=identity).checkpoint_writer(),
        checkpointing.resumed,
    )
    virtual_servers.servers[0].rests = checkpointing.rests(0.0)
    for server in virtual_servers.servers[1:]:
        server.defers = True
    evaluator = virtual_servers.evaluator
    if resumed is not None:
        evaluator.last, kept = resumed.meta["evaluation"], resumed.meta["keep"]
        evaluator.evaluated, ledger.added = kept["evaluation"], kept["updates"]
        for rank, recorder in recorders.items():
            recorder.reported = resumed.meta["reported"][rank]
        virtual_servers.restore(resumed.sections())

    def save(sections: Mapping[str, Any]) -> None:
        ledger.flush()
        finish(list(recorders.values()), ledger.store)
        reported = [0] * experiment.ranks
        for rank, recorder in recorders.items():
            reported[rank] = recorder.reported
        meta = {
            "step": virtual_servers.servers[0].step,
            "evaluation": evaluator.last,
            "keep": {"evaluation": evaluator.evaluated, "updates": ledger.added},
            "reported": reported,
        }
        checkpoint_writer.write(meta, sections.items())

    virtual_servers.keep = save


def world(
    builder: Builder,
    evaluator: Evaluator,
    ledger: "Ledger | None" = None,
    recorders: Any = None,
) -> VirtualServers:
    """The servers and workers of an experiment on a virtual network, nothing begun."""
    experiment = builder.experiment
    rows: dict[int, Any] = recorders if recorders is not None else defaultdict(_Nobody)
    post = Post(virtual_network(experiment), experiment.ranks, experiment.seed)
    seconds = VIRTUAL_STEP_S if experiment.step_seconds is None else experiment.step_seconds
    return VirtualServers(
        post, builder, step_timer(experiment.straggler, seconds, experiment.seed), evaluator,
        (ledger or Ledger(None)).add, lambda rank, step, columns: rows[rank].step(step, columns),
    )  # fmt: skip


class Ledger:
    """Rows of /updates on their way to a store, if there is one."""

    def __init__(self, store: Any, bar: Any = None):
        self.store, self.bar = store, bar
        self.added = 0  # rows so far, those before a restart included
        self.rows: list[dict[str, float]] = []

    def add(self, row: dict[str, float]) -> None:
        if self.bar is not None and row["server"] == 0 and row["used"]:
            self.bar.update()
        self.added += 1
        if self.store is not None:
            self.rows.append(row)
            if len(self.rows) >= ROWS:
                self.flush()

    def flush(self) -> None:
        """Hand over what is left."""
        if self.store is not None:
            self.store.updates(self.rows)
            self.rows = []


def check_finite(servers: list[Server], evaluator: Evaluator | None = None) -> None:
    """Raise NotFinite if a worker met what was not."""
    told = [server.failed for server in servers]
    told += [] if evaluator is None else [evaluator.failed]
    failures = [failed for failed in told if failed is not None]
    if failures:
        raise not_finite(*min(failures))


def summary(servers: list[Server], evaluator: Evaluator) -> dict[str, Any]:
    """What a result file says of the whole run."""
    from mpisgd.commands.replay import digest

    return {
        "parameters_sha256": digest(evaluator.parameters.flat),
        **described(evaluator.model, estimate_of(evaluator.dataset)),
        "lost_workers": sorted(set().union(*(server.lost for server in servers))),
    }


class _Nobody:
    def step(self, step: int, columns: dict[str, float]) -> None:
        """Rows that nobody wants."""
