"""`interrupted_train.py SIGNAL RANK STEP WORDS...`: `mpisgd WORDS`, where rank RANK is sent SIGNAL
as it begins step STEP; no signal with 0. A server begins that step when it has used so many
gradients."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from mpisgd import cli
from mpisgd.servers.messages import Push
from mpisgd.servers.server import Server
from mpisgd.worlds.mpi import CommunicatorSite
from mpisgd.worlds.mpi_workers import MpiWorkerSite

number, rank, step = map(int, sys.argv[1:4])
begin_step = CommunicatorSite.begin_step
begin_work = MpiWorkerSite.begin_step
update = Server.update


def interrupt(its: int, at: int) -> None:
    """Once."""
    global number
    if number and (its, at) == (rank, step):
        number, sent = 0, number
        os.kill(os.getpid(), sent)


def begin(site: CommunicatorSite, at: int) -> None:
    begin_step(site, at)
    interrupt(site.rank, at)


def work(bench: MpiWorkerSite, at: int) -> None:
    begin_work(bench, at)
    interrupt(bench.inner.rank, at)


def count(server: Server, batch: Sequence[Push]) -> None:
    update(server, batch)
    site: Any = server.site
    interrupt(site.inner.rank, server.step + 1)


CommunicatorSite.begin_step = begin  # type: ignore[method-assign]
MpiWorkerSite.begin_step = work  # type: ignore[method-assign]
Server.update = count  # type: ignore[method-assign]
sys.argv[1:] = sys.argv[4:]
sys.exit(cli.main())
