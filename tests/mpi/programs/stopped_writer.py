"""`stopped_writer.py WORDS...`: `mpisgd WORDS`, whose process for results is stopped at step 2."""

import os
import signal
import sys
from typing import Any

from mpisgd import cli
from mpisgd.store.remote import RemoteWriter
from mpisgd.worlds.mpi import CommunicatorSite

begin_writer, begin_step = RemoteWriter.__init__, CommunicatorSite.begin_step
WRITERS: list[RemoteWriter] = []


def begun(writer: RemoteWriter, *arguments: Any, **options: Any) -> None:
    begin_writer(writer, *arguments, **options)
    WRITERS.append(writer)


def begin(site: CommunicatorSite, step: int) -> None:
    begin_step(site, step)
    for writer in WRITERS if step == 2 else []:
        os.kill(writer._process.pid, signal.SIGSTOP)


RemoteWriter.__init__ = begun  # type: ignore[method-assign]
CommunicatorSite.begin_step = begin  # type: ignore[method-assign]
sys.exit(cli.main())
