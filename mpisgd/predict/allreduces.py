"""What a schedule costs on a network, repetition by repetition: the rows of `mpisgd simulate`."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from allreduce.compress import priced
from allreduce.network import Network
from allreduce.schedule import Schedule
from allreduce.simulate import simgrid, simulate
from allreduce.simulate.goal import goal
from allreduce.simulate.program import Messages, messages, prepare
from allreduce.wire import Carried, Wire

COLUMNS = (
    "algorithm",
    "ranks",
    "bytes",
    "wire",
    "network",
    "rounds",
    "messages",
    "busiest_B",
    "median_s",
    "p10_s",
    "p90_s",
    "first_s",
    "coding_s",
    "algbw_GBps",
    "busbw_GBps",
)
CROSSED = ("simgrid_s", "difference")  # more of them, with --cross


class Conditions(NamedTuple):
    """How a schedule is played: what `simulate` is told beside schedule, size and network.
    `arrivals` [average, rank]: when ranks start, in turn, instead of `skew`."""

    chunks: int
    seeds: range
    skew: float
    look_every: float | None
    wire: str | None = None
    arrivals: np.ndarray | None = None

    def carried(self, schedule: Schedule, nbytes: int) -> tuple[Schedule, Carried]:
        """By which schedule and as what `nbytes` travel: with a wire, of float32."""
        if self.wire is None:
            return schedule, Carried(nbytes, 1)
        return priced(Wire(self.wire), schedule, nbytes // 4, 4)

    def starts(self, ranks: int) -> Iterator[tuple[np.ndarray, float]]:
        """When ranks start (s), and from when seconds count, of each repetition."""
        for seed in self.seeds:
            if self.arrivals is None:
                yield self.skew * np.random.default_rng([seed, 1]).random(ranks), 0.0
            else:
                start = self.arrivals[seed % len(self.arrivals)]
                yield start, start.max()

    def ends(self, schedule: Schedule, nbytes: int, chosen: Network) -> np.ndarray:
        """When the last and the first rank are done (s): shape (2, repetitions)."""
        ends = []
        schedule, travels = self.carried(schedule, nbytes)
        for seed, (start, last) in zip(self.seeds, self.starts(schedule.size), strict=True):
            seconds = simulate(
                schedule,
                network=chosen,
                start=start,
                chunks=self.chunks,
                seed=seed,
                look_every=self.look_every,
                **travels._asdict(),
            )
            ends.append((seconds.max() - last, seconds.min() - last))
        return np.array(ends).T


def row(conditions: Conditions, chosen: Network, schedule: Schedule, nbytes: int) -> dict[str, Any]:
    """One row of COLUMNS: `nbytes` by this schedule."""
    last, first = conditions.ends(schedule, nbytes, chosen)
    median, low, high = np.percentile(last, (50, 10, 90)).tolist()
    name = schedule.name
    schedule, travels = conditions.carried(schedule, nbytes)
    sent = messages(schedule, travels.nbytes, travels.itemsize, chunks=conditions.chunks)
    rate = nbytes / median / 1e9 if median else math.nan
    ranks = schedule.size
    return {
        "algorithm": name,
        "ranks": ranks,
        "bytes": nbytes,
        "wire": conditions.wire,
        "network": chosen.name,
        "rounds": len(schedule.rounds),
        "messages": len(sent.source),
        "busiest_B": int(np.bincount(sent.source, sent.nbytes, ranks).max()),
        "median_s": median,
        "p10_s": low,
        "p90_s": high,
        "first_s": float(np.median(first)),
        "coding_s": _coding_s(travels, chosen, sent, ranks),
        "algbw_GBps": rate,
        "busbw_GBps": rate * 2 * (ranks - 1) / ranks if ranks > 1 else math.nan,
    }


def _coding_s(travels: Carried, chosen: Network, sent: Messages, ranks: int) -> float:
    """Seconds that the rank with most to code codes."""
    out, into = (np.bincount(end, sent.nbytes, ranks) for end in (sent.source, sent.destination))
    once = travels.codes if len(sent.nbytes) else 0.0
    encode = chosen.encode_s_per_B * (travels.encodes * out + once)
    return float((encode + chosen.decode_s_per_B * travels.decodes * into).max())


def crossed(
    conditions: Conditions, chosen: Network, cases: Sequence[tuple[Schedule, int]], model: str
) -> list[float]:
    """Median seconds of each case in SimGrid's `model`, as in column median_s."""
    played, lasts = [], []
    for schedule, nbytes in cases:
        schedule, travels = conditions.carried(schedule, nbytes)
        program = prepare(schedule, network=chosen, chunks=conditions.chunks, **travels._asdict())
        for start, last in conditions.starts(schedule.size):
            played.append(simgrid.Case(program, start.tolist()))
            lasts.append(last)
    ends = [each.max() for each in simgrid.play(played, chosen, model)]
    return np.median((np.array(ends) - lasts).reshape(len(cases), -1), axis=1).tolist()


def goal_text(conditions: Conditions, chosen: Network, schedule: Schedule, nbytes: int) -> str:
    """The schedule as LogGOPSim reads it."""
    schedule, travels = conditions.carried(schedule, nbytes)
    return goal(
        schedule, travels.nbytes, sum_s_per_B=chosen.sum_s_per_B, itemsize=travels.itemsize,
        chunks=conditions.chunks, adds=travels.adds,
    )  # fmt: skip
