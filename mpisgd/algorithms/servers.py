"""Parameter servers and their workers (Chen et al. 2016, arXiv 1604.00981).

Each server holds one shard of the parameters and decides alone, or as server 0 has; a worker pulls
from all of them and pushes to all of them. N workers compute gradients of B samples each.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

from mpisgd.algorithms.policies import Policy

if TYPE_CHECKING:
    from mpisgd.servers.messages import Push
    from mpisgd.servers.server import Server
    from mpisgd.servers.worker import ServedWorker

Run = Generator[None, None, None]


def work(worker: "ServedWorker") -> Run:
    """Pull the parameters, push the gradient of a batch at them, until every server has ended.

    The worker knows when parts of a gradient may leave (`--push layerwise`), and whether to wait
    for what became of it before it computes the next (`--prefetch`: one gradient later).
    """
    while (yield from worker.pull()):
        yield from worker.compute_gradient()
        worker.push()


def serve(server: "Server", policy: Policy) -> Run:
    """theta <- theta - gamma * mean(group of gradients); the same loop for every policy.

    A worker whose gradient goes into an update waits for it, and gets what it made; one whose
    gradient is dropped gets fresh parameters at once. Costs a message each way a gradient.
    """
    yield from server.welcome()
    while server.going:
        batch = yield from (server.follow() if server.follows else collect(server, policy))
        if batch:
            server.update(batch)
            yield from server.end_update(batch)
    yield from server.dismiss()


def collect(server: "Server", policy: Policy) -> Generator[None, None, list["Push"]]:
    """The gradients of one update; none when the run is to stop."""
    batch: list[Push] = []
    until = None
    while len(batch) < policy.group:
        push = yield from server.next_push(until)
        if push is None:
            return batch if server.going else []
        if policy.stale or push.version == server.version:
            batch.append(push)
            if until is None:
                until = server.patience.until(push)
        else:
            server.reply(push, used=False)
    return batch
