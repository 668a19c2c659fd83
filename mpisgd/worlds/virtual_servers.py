"""Servers and workers as processes of a Cluster: the same generators, in virtual time.

A message costs what it would cost in an all-reduce: its sender and its receiver an overhead each,
and a long one a handshake for which both must look. Who waits looks all the time, and so does who
rests, has ended or has died; a worker that computes does so at the looks of its gradient, a server
that adds never (see `Cluster`). While a worker's push is not answered its looks have their price.
A notice needs no look: it ends a computation when it comes, and costs its overhead then. A server
and a worker on one rank work side by side, and between them nothing takes time.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from allreduce.errors import Stalled
from allreduce.network import Network
from allreduce.simulate.events import Cluster
from mpisgd.algorithms.servers import serve, work
from mpisgd.checkpoint.rests import RUN, Rests
from mpisgd.checkpoint.state import flatten, unflatten
from mpisgd.experiment.stragglers import StepTimer
from mpisgd.servers.evaluation import Evaluator
from mpisgd.servers.messages import LEADER, Request
from mpisgd.servers.roles import Builder
from mpisgd.worlds.virtual_sites import VirtualServerSite, VirtualWorkerSite

Steps = Generator[None, None, None]


class VirtualServers:
    """All servers and workers of one experiment on `network`, nothing begun.

    `record_update(row)`, `record_step(rank, step, columns)`: where rows go.
    """

    def __init__(
        self,
        network: Network,
        builder: Builder,
        step_timer: StepTimer,
        evaluator: Evaluator,
        record_update: Callable[[dict[str, float]], None] = lambda row: None,
        record_step: Callable[[int, int, dict[str, float]], None] = lambda rank, step, row: None,
        keep: Callable[[Mapping[str, Any]], object] | None = None,
        rests: Rests | None = None,
    ):
        """`keep` saves the run, at a rest; `rests`: when that is."""
        self.network, self.step_timer, self.evaluator = network, step_timer, evaluator
        self.record_update, self.record_step = record_update, record_step
        roles = builder.roles
        self.processes = [*roles.servers, *roles.workers]  # the rank of each
        self.server_sites = [VirtualServerSite(self, n) for n in range(len(roles.servers))]
        self.worker_sites = [VirtualWorkerSite(self, n) for n in range(len(roles.workers))]
        self.servers = [builder.server(site, site.number, rests) for site in self.server_sites]
        self.workers = [builder.worker(site, site.number) for site in self.worker_sites]
        self.policy = builder.policy
        self.keep = keep
        self.is_to_rest = False  # once nothing is on its way
        self.restarts = 0
        self.runs: list[Steps] = []  # by the number of the process
        self._going: set[int] = set()
        self._ranks, self._seed = builder.experiment.ranks, builder.experiment.seed
        self._begin(0.0)

    @property
    def sites(self) -> "list[VirtualServerSite | VirtualWorkerSite]":
        """By the number of their process."""
        return [*self.server_sites, *self.worker_sites]

    def run(self) -> None:
        """Until all have ended or died. Raises NotFinite.

        When nothing is on its way any more, who waits for a message gets None. Stalled if nobody
        waits but those who have been told so; processes may raise it themselves.
        """
        while self._going:
            if self._beginning:
                self._advance(self._beginning.popleft())
            elif self.is_to_rest and self.cluster.quiet:
                self.rest()
            else:
                self._go_on()

    def rest(self) -> None:
        """Nothing is on its way: save the run, and let all begin anew as a restored one does."""
        sections = {name: unflatten(flatten(state)) for name, state in self.state().items()}
        if self.keep is not None and not self._failing():
            self.keep(sections)
        self.restore(sections)
        for server in self.servers if self.servers[0].stopping else []:
            server.stopping = True

    def ask_to_stop(self) -> None:
        """As a signal does."""
        for site in self.sites:
            site.asked_to_stop = True

    def leave(self, process: int) -> None:
        """It is never resumed. What is on its way from it, and to it, arrives."""
        self._going.discard(process)
        self.cluster.linger(process)

    def state(self) -> dict[str, dict[str, Any]]:
        """By section: RUN, and one for each server and worker. At a rest."""
        time_s = max(site.now() for site in self.sites)
        run = {
            "time_s": time_s, "restarts": self.restarts, "evaluator": self.evaluator.state()
        }  # fmt: skip
        return {RUN: run} | {
            name: {"own": who.state(), "site": who.site.state()} for name, who in self._named()
        }

    def restore(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from there. Raises BadState."""
        run = sections[RUN]
        self.evaluator.restore(run.get("evaluator", {}))
        for name, who in self._named():
            who.restore(sections[name]["own"])
            who.site.restore(sections[name]["site"])
        self.restarts = run["restarts"] + 1
        rests = self.servers[0].rests
        if rests is not None:
            rests.rested(run["time_s"])
        self._begin(run["time_s"])

    def _begin(self, time_s: float) -> None:
        """All begin at that time, on a network where nothing is on its way. How often that has
        happened decides the noise to come."""
        self.is_to_rest = False
        self.cluster = Cluster(
            self.network, self._ranks, self._seed, began=time_s, made=self.restarts,
            processes=self.processes,
        )  # fmt: skip
        self.runs = [serve(server, self.policy) for server in self.servers]
        self.runs += map(work, self.workers)
        self._going = set(range(len(self.runs)))
        for site in self.sites:
            if site.is_dead:
                self.leave(site.process)
        self._beginning = deque(sorted(self._going))

    def _advance(self, process: int) -> None:
        try:
            next(self.runs[process])
        except StopIteration:
            self.leave(process)

    def _go_on(self) -> None:
        """Whose time is next; if it is nobody's, all are told so."""
        try:
            event = self.cluster.next(until_quiet=self.is_to_rest)
        except Stalled:
            self._give_up()
            return
        if event is not None:
            self._advance(event.rank)
        elif not (self.is_to_rest and self.cluster.quiet):
            self._give_up()

    def _give_up(self) -> None:
        waiting = [site for site in self.sites if not site.told and self.cluster.wake(site.process)]
        if not waiting:
            raise Stalled(f"{len(self._going)} virtual processes wait for what nobody sends")
        for site in waiting:
            site.told = True

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Servers and workers by the names of their sections."""
        yield from ((f"server{server.index}", server) for server in self.servers)
        yield from ((f"worker{worker.rank}", worker) for worker in self.workers)

    def _failing(self) -> bool:
        """Whether anything that was not finite is known, or will be read: that is not saved."""
        messages = (
            message
            for site in self.server_sites
            for message in site.inbox
            if message.source != LEADER
        )
        failed = any(Request(*message.header).failed_step for message in messages)
        return failed or any(server.failed is not None for server in self.servers)
