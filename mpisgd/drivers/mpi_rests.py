"""Rests of several real servers: nothing is on its way any more, and all of it is saved.

Server 0 holds its answers back, and takes in what workers send until it has a gradient of each. It
tells the other servers which steps those are of: once they have all of those, nothing more can come
to them, and they hand in what they are. Then it tells each worker which servers will not answer it:
once all others have, the worker hands in what it is. Rank 0 writes, then lets all of them go on.
"""

import sys
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from allreduce.errors import Stalled
from mpisgd.checkpoint.messages import (
    BACK,
    TAG,
    WORKERS_TAG,
    Heartbeat,
    coming,
    handing_in,
    receive,
)
from mpisgd.drivers.mpi_saving import Run, Saver
from mpisgd.servers.messages import Request
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.training.site import Steps
from mpisgd.worlds.mpi_servers import MpiServerSite, MpiWorkerSite, Pause

TO_SERVERS, TO_WORKERS = 31960, 31961  # tags of server 0's words
REST, STOP, END = range(3)  # what other servers are to do; END: no rest will come any more


class SharedSaver(Saver):
    """Saves a run of several servers: each rank its part of it."""

    def _begin_server(self, server: Server) -> None:
        bench: Any = server.site
        resumed = self.checkpointing.resumed
        if resumed is not None:
            bench.restore(resumed.state["server"]["site"])
            server.restore(resumed.state["server"]["own"])
            server.forget_notices()
        if server.index:
            server.defers = True
            bench.part = ServerPart(self.run, server, bench)
            return
        bench.part = self.leader = Leader(self.run, bench)
        if resumed is not None:
            assert self.run.evaluator is not None
            self.run.evaluator.restore(resumed.state.get("evaluator", {}))

    def _begin_worker(self, worker: ServedWorker) -> None:
        bench: Any = worker.site
        bench.part = WorkerPart(self.run, worker, bench)
        if self.checkpointing.resumed is not None:
            state = self.checkpointing.resumed.state["worker"]
            bench.restore(state["site"])
            worker.restore(state["own"])

    def save(self, server: Server) -> Steps:
        """At the end of an update, or before all are told to stop."""
        if server.stopping:
            self.run.signals.met()
        if (yield from self.leader.everyone_waits(server)):
            servers, workers, heartbeat = yield from self.leader.line_up(server)
            with Pause(self.run.inner):
                self._write(server, servers, workers, heartbeat)
            yield from heartbeat.release()
        if server.stopping:
            self.leader.tell(STOP)
        assert server.rests is not None
        server.rests.rested(self.run.inner.now())

    def _write(
        self,
        server: Server,
        servers: Mapping[int, Mapping[str, Any]],
        workers: Mapping[int, Mapping[str, Any]],
        heartbeat: Heartbeat,
    ) -> None:
        """`servers`, `workers`: what they have told, by rank."""
        run, told = self.run, (servers, workers)
        assert self.checkpoint_writer is not None
        for rows, name in ((run.ledger, "updates"), (run.rows, "steps")):
            rows.hand_over()
            shipped = [
                max((table[rank][name] for table in told if rank in table), default=0)
                for rank in range(run.inner.size)
            ]
            rows.catch_up(shipped)
            heartbeat.beat()
        self.hand_over()
        reported = {rank: its["reported"] for rank, its in workers.items()}
        added = sum(its["added"] for its in servers.values())
        sections = self._shared_sections(server, servers, workers, heartbeat)
        self.checkpoint_writer.write(self.meta(server, reported, added), sections, heartbeat.beat)

    def _shared_sections(
        self, server: Server, servers: Mapping, workers: Mapping, heartbeat: Heartbeat
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Rank by rank: only one more than its own is in memory."""
        inner, evaluator, bench = self.run.inner, self.run.evaluator, self.leader.bench
        assert evaluator is not None
        for rank in range(inner.size):
            yield str(rank), {"site": inner.state()}
        own = {"own": server.state(), "site": bench.state()}
        yield "0", {"server": own, "evaluator": evaluator.state()}
        for kind, tag, ranks in (("server", TAG, servers), ("worker", WORKERS_TAG, workers)):
            for rank in ranks:
                state = receive(inner.comm, rank, inner.deadline, heartbeat.beat, tag)
                yield str(rank), {kind: state}


class Leader:
    """Server 0, who leads others to a rest."""

    def __init__(self, run: Run, bench: MpiServerSite):
        self.run, self.bench, self.comm = run, bench, run.inner.comm
        self._words: list[Any] = []

    def called(self) -> bool:
        """Never: it calls."""
        return False

    def attend(self) -> Generator[None, None, bool]:
        """Never."""
        yield from ()
        return False

    def conclude(self) -> Steps:
        """It has ended, and with it all rests."""
        self.tell(END)
        while not all(word.Test() for word in self._words):
            yield

    def tell(self, kind: int) -> None:
        """Other servers what to do, once they have as many verdicts and steps of workers."""
        word = np.array([kind, self.bench.verdicts.count, *self.bench.steps])
        self._words = [sent for sent in self._words if not sent.Test()]
        for rank in self.run.builder.roles.servers[1:]:
            self._words.append(self.comm.Isend(word, rank, TO_SERVERS))

    def everyone_waits(self, server: Server) -> Generator[None, None, bool]:
        """Take in messages until each worker waits for an answer. Whether the run can be saved:
        not without a worker that is silent, nor with what is not finite."""
        bench, patience_s = self.bench, self.run.inner.deadline / 2
        while True:
            silent = server.serves - server.waiting.keys() - {each.source for each in bench.inbox}
            if not silent:
                break
            message = yield from bench.next_letter(bench.now() + patience_s)
            if message is None:
                names = ", ".join(map(str, sorted(silent)))
                print(f"mpisgd: no checkpoint after step {server.step}: nothing came from worker "
                      f"{names} for {patience_s:g} s", file=sys.stderr, flush=True)  # fmt: skip
                return False
            bench.inbox.append(message)
        failed = any(Request(*message.header).failed_step for message in bench.inbox)
        return not failed and server.failed is None

    def line_up(self, server: Server) -> Generator[None, None, tuple[dict, dict, Heartbeat]]:
        """Until all other servers and all workers have handed in what they are.

        By rank, what each of them tells; and the signs of life that they need until they are let
        go on. Raises Stalled.
        """
        roles, deadline = self.run.builder.roles, self.run.inner.deadline
        others = roles.servers[1:]
        waiting = [(rank, TAG + BACK) for rank in others]
        waiting += [(rank, WORKERS_TAG + BACK) for rank in roles.workers]
        heartbeat = Heartbeat(self.comm, waiting, deadline)
        self.tell(REST)
        servers = {}
        for rank in others:
            servers[rank] = yield from coming(self.comm, rank, deadline, TAG, heartbeat.beat)
        for number, rank in enumerate(roles.workers):
            due = [True, *(number in its["waiting"] for its in servers.values())]
            word = np.array(due, np.uint8)
            self._words.append(self.comm.Isend(word, rank, TO_WORKERS))
        workers = {}
        for rank in roles.workers:
            workers[rank] = yield from coming(
                self.comm, rank, deadline, WORKERS_TAG, heartbeat.beat
            )
        sent = [0, *(its["snapshots"] for its in servers.values())]
        began = time.monotonic()
        while self.bench.snapshots.taken != sent:
            if time.monotonic() - began > deadline:
                raise Stalled(f"rank 0 waited {deadline:.0f} s for shards to evaluate")
            self.bench.take_in()
            heartbeat.beat()
            yield
        return servers, workers, heartbeat


class _Part:
    """One that is led. Words come from `leader`, the rank of server 0."""

    tag: int  # of what it hands in
    words: int  # tag of the leader's words

    def __init__(self, run: Run, numbers: np.ndarray):
        """`numbers`: a word."""
        self.run, self.comm = run, run.inner.comm
        self.leader = run.builder.roles.servers[0]
        self._numbers, self._has_word = numbers, False

    def called(self) -> bool:
        """Whether a word has come, and what it speaks of."""
        if not self._has_word and self.comm.Iprobe(self.leader, self.words):
            self.comm.Recv(self._numbers, self.leader, self.words)
            self._has_word = True
        return self._has_word and self._ready()

    def _ready(self) -> bool:
        raise NotImplementedError

    def conclude(self) -> Steps:
        """Nothing."""
        yield from ()

    def _hand_in(self, told: dict[str, Any], own: Any, site: Any) -> Steps:
        """Until the leader lets it go on. Rows that it counts are on their way."""
        run = self.run
        run.ledger.hand_over()
        run.rows.hand_over()
        told |= {"updates": run.ledger.shipped, "steps": run.rows.shipped}
        states = [told, {"own": own, "site": site}]
        yield from handing_in(self.comm, states, run.inner.deadline, self.tag)


class ServerPart(_Part):
    """Another server's."""

    tag, words = TAG, TO_SERVERS

    def __init__(self, run: Run, server: Server, bench: MpiServerSite):
        super().__init__(run, np.zeros(2 + len(bench.steps), int))
        self.server, self.bench = server, bench
        self._ended = False

    def _ready(self) -> bool:
        kind, verdicts, *steps = self._numbers.tolist()
        if kind != REST:
            return True
        came = self.bench.steps
        return self.bench.verdicts.count >= verdicts and all(
            came[worker] >= steps[worker] for worker in self.server.serves
        )

    def attend(self) -> Generator[None, None, bool]:
        """What the word says."""
        server, self._has_word = self.server, False
        if self._numbers[0] == REST:
            told = {
                "waiting": np.array(sorted(server.waiting), int),
                "added": self.run.ledger.added,
                "snapshots": self.bench.snapshots.sent,
            }
            yield from self._hand_in(told, server.state(), self.bench.state())
            return False
        self._ended = self._numbers[0] == END
        wakes = not self._ended and server.going and not server.follows
        server.stopping |= not self._ended
        return wakes

    def conclude(self) -> Steps:
        """Rests come as long as server 0 has not ended."""
        while not self._ended:
            if self.called():
                yield from self.attend()
            yield


class WorkerPart(_Part):
    """A worker's."""

    tag, words = WORKERS_TAG, TO_WORKERS

    def __init__(self, run: Run, worker: ServedWorker, bench: MpiWorkerSite):
        super().__init__(run, np.zeros(len(run.builder.roles.servers), np.uint8))
        self.worker, self.bench = worker, bench

    def _ready(self) -> bool:
        return self.worker.awaited == set(np.flatnonzero(self._numbers).tolist())

    def attend(self) -> Generator[None, None, bool]:
        """Hand in what it is."""
        self._has_word = False
        told = {"reported": self.bench.reported}
        yield from self._hand_in(told, self.worker.state(), self.bench.state())
        return False
