"""The same schedules played by SimGrid: an outside reading of what they cost.

Ranks are hosts and actors, links those of `network.paths` with one latency a way; messages up to
the eager limit are buffered, longer ones shake hands, as in `simulate`. What differs: SimGrid's
messages share links (max-min fair, which is `sharing` fair, here for all); a long send is over
when it has arrived, one latency later than here; and leave is given while a rank adds.
SimGrid has one simulation a process, so it gets one of its own.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from allreduce.errors import AllreduceError
from allreduce.network import Network
from allreduce.simulate.program import Program

# raw: what `simulate` computes as well. LV08 is SimGrid's default, fitted to TCP on Ethernet:
# latencies times 13.01, bandwidths times 0.97, 5 % of a message's rate taken from the way back,
# a window of 4 MiB that bounds the rate of far messages, and those get less of a shared link.
MODELS = {
    "raw": ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0"),
    "LV08": ("network/model:LV08",),
}
SETTINGS = ("network/optim:Full",)  # lazy updates forget links behind one without a limit (3.32)
MISSING = (
    "SimGrid is missing: install the extra simgrid (pip install 'mpisgd[simgrid]') or, for "
    "Debian's own Python, its package python3-simgrid"
)
NO_LIMIT_BPS = 1e18  # of links that are there for their latency alone
ALONE = {"noise": 0.0, "burst_B": 0.0, "rendezvous_duplex": "full"}  # what it has no word for


class Case(NamedTuple):
    """A program of `prepare`, and when each rank starts it (s)."""

    program: Program
    start: Sequence[float]


def play(cases: Sequence[Case], network: Network, model: str = "raw") -> list[np.ndarray]:
    """When each rank is done (s from time 0), of each case, on the `network` it was prepared for.

    `model`: one of MODELS. AllreduceError without SimGrid, or for a network beyond its words.
    """
    for field, value in ALONE.items():
        if getattr(network, field) != value:
            raise AllreduceError(f"SimGrid has no {field}: only {value} can be compared")
    costs = network.overhead_s, network.sum_s_per_B
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return [np.array(ends) for ends in pool.submit(_play, cases, model, costs).result()]
        except ImportError as error:
            missing = error.name == "simgrid"
            raise AllreduceError(MISSING if missing else f"SimGrid: {error}") from None
        except BrokenProcessPool:
            raise AllreduceError("SimGrid ended its process; it may have said why") from None


def _play(cases: Sequence[Case], model: str, costs: tuple[float, float]) -> list[list[float]]:
    """In a process of its own. Cases follow one another in one simulation."""
    simgrid = _imported()
    words = (*SETTINGS, *MODELS[model])
    engine = simgrid.Engine(["-", "--log=root.thres:error", *(f"--cfg={word}" for word in words)])
    with TemporaryDirectory() as folder:
        path = Path(folder, "platform.xml")
        path.write_text(platform(cases), encoding="ascii")
        engine.load_platform(str(path))
    return [_Player(simgrid, n, case, costs).ends(engine) for n, case in enumerate(cases)]


def _imported() -> Any:
    """SimGrid, without what it says of its start."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        import simgrid

        return simgrid
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


class _Player:
    """One case: an actor a rank, one more for each end of a handshake."""

    def __init__(self, simgrid: Any, number: int, case: Case, costs: tuple[float, float]):
        self.simgrid, self.number, self.costs = simgrid, number, costs
        self.program, self.start = case
        self.began = simgrid.Engine.clock
        self.done = [0.0] * len(case.start)
        self.arriving = self.program.arriving()

    def ends(self, engine: Any) -> list[float]:
        """When each rank is done."""
        ranks = range(len(self.start))
        actors = [self._aside(self._host(rank), self._act, rank) for rank in ranks]
        for message, to in enumerate(self.program.destination):
            self._box("data", message).set_receiver(actors[to])  # it sets out unasked for
        engine.run()
        return self.done

    def _act(self, rank: int) -> None:
        """Play the rank's steps, each when the one before is over."""
        sleep, program, host = self.simgrid.this_actor.sleep_for, self.program, self._host(rank)
        overhead, per_byte = self.costs
        sleep(self.start[rank])
        posted = []  # SimGrid wants what is on its way kept
        for step in range(program.first[rank], program.first[rank + 1]):
            shaken = [message for message in self.arriving[step] if program.handshake[message]]
            ends = [self._aside(host, self._answer, message) for message in shaken]
            for message in program.sends[step]:
                sleep(overhead)
                if program.handshake[message]:
                    ends.append(self._aside(host, self._ask, message))
                else:
                    box = self._box("data", message)
                    posted.append(box.put_async("", program.nbytes[message]))
            for message in self.arriving[step]:
                self._box("data", message).get()
            for end in ends:
                end.join()
            sleep(overhead * len(self.arriving[step]) + per_byte * program.sum_bytes[step])
        self.done[rank] = self.simgrid.Engine.clock - self.began
        for comm in posted:
            comm.wait()

    def _ask(self, message: int) -> None:
        """The sender's end of a handshake, and the message."""
        source, to = self.program.source[message], self.program.destination[message]
        self.simgrid.Comm.sendto(self._host(source), self._host(to), 0)
        self._box("answer", message).get()
        self._box("data", message).put("", self.program.nbytes[message])

    def _answer(self, message: int) -> None:
        """The receiver's: a latency from when both are there."""
        self._box("answer", message).put("", 0)

    def _host(self, rank: int) -> Any:
        return self.simgrid.Host.by_name(f"{len(self.start)}.{rank}")

    def _box(self, what: str, message: int) -> Any:
        return self.simgrid.Mailbox.by_name(f"{what} {self.number}.{message}")

    def _aside(self, host: Any, act: Callable[[int], None], what: int) -> Any:
        if hasattr(host, "add_actor"):  # from 4.1 on
            return host.add_actor(act.__name__, partial(act, what))
        return self.simgrid.Actor.create(act.__name__, host, partial(act, what))


def platform(cases: Sequence[Case]) -> str:
    """Hosts, links and routes of all cases as SimGrid's XML; cases of one size share them."""
    lines: list[str] = []
    links: dict[str, str] = {}
    routes: dict[tuple[str, str], list[str]] = {}
    for size in sorted({len(start) for _, start in cases}):
        lines += [f'<host id="{size}.{rank}" speed="1Gf"/>' for rank in range(size)]
    for program, start in cases:
        size = len(start)
        ways = zip(program.source, program.destination, program.path, program.latency, strict=True)
        for source, destination, path, latency in ways:
            names = [f"{size}.latency.{latency}"]
            links[names[0]] = f'{NO_LIMIT_BPS}Bps" latency="{latency}s" sharing_policy="FATPIPE'
            back = f"{size}.{destination}", f"{size}.{source}"
            routes.setdefault(back, names[:1])  # for answers, if nothing goes there
            for link, cost in path:
                names.append(f"{size}.{link}")
                links[names[-1]] = f'{1 / cost}Bps" latency="0s'
            routes[back[::-1]] = names
    lines += [f'<link id="{name}" bandwidth="{facts}"/>' for name, facts in links.items()]
    for (one, other), names in routes.items():
        inside = "".join(f'<link_ctn id="{name}"/>' for name in names)
        lines.append(f'<route src="{one}" dst="{other}" symmetrical="NO">{inside}</route>')
    head = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
    zone = '<platform version="4.1"><zone id="all" routing="Full">'
    return "\n".join([head + zone, *lines, "</zone></platform>\n"])
