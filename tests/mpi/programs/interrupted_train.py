"""`interrupted_train.py SIGNAL RANK STEP WORDS...`: `mpisgd WORDS`, where rank RANK is sent SIGNAL
as it begins step STEP; no signal with 0. A rank with a server begins that step when all have
used so many gradients."""

import os
import sys
from collections.abc import Sequence

from mpisgd import cli
from mpisgd.letters import Push
from mpisgd.server import Server
from mpisgd.worlds.communicator import CommunicatorSite

number, rank, step = map(int, sys.argv[1:4])
begin_step = CommunicatorSite.begin_step


def begin(site: CommunicatorSite, at: int) -> None:
    begin_step(site, at)
    if number and (site.rank, at) == (rank, step):
        os.kill(os.getpid(), number)


CommunicatorSite.begin_step = begin  # type: ignore[method-assign]
update = Server.update


def count(server: Server, batch: Sequence[Push]) -> None:
    update(server, batch)
    if number and server.step + 1 == step:
        os.kill(os.getpid(), number)


Server.update = count  # type: ignore[method-assign]
sys.argv[1:] = sys.argv[4:]
sys.exit(cli.main())
