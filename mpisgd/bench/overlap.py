"""`mpisgd bench overlap`: how much of an all-reduce is hidden behind fixed work."""

import argparse
import random
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from allreduce import measure as timing
from allreduce.collectives import CARRIERS, NAMES, carrier
from allreduce.measure import Rule
from mpisgd.bench import options, record
from mpisgd.bench.device import DeviceGemm
from mpisgd.bench.memory import Memory
from mpisgd.bench.operations import Vectors, library_of, pending
from mpisgd.bench.work import Gemm, Sleep, Span, Work, beside
from mpisgd.mpi import devices, session
from mpisgd.tuning import auto
from mpisgd.values import tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import duration, wholes
from mpisgd.values.schedules import AUTO
from mpisgd.worlds.pending import ProgressThread, ThreadedAllreduce

POLLED = tuple(name for name, row in CARRIERS.items() if row.polled)
DEFAULT = ("butterfly", "halving-doubling", "mpi-nonblocking")
WORKS = ("gemm", "sleep")
PROGRESS = ("poll", "thread")
DTYPE = np.dtype(np.float32)
COLUMNS = (
    "algorithm", "ranks", "bytes", "chunks", "work", "progress", "polls", "repetitions",
    "compute_s", "communication_s", "together_s", "exposed_s",
    tables.Column("hidden", ".3f"),
    tables.Column("osu_overlap_percent", ".1f"),
    tables.Column("imb_overlap_percent", ".1f"),
    tables.Column("dilation", ".3f"),
    "longest_poll_s", "library",
)  # fmt: skip
DEVICE_COLUMNS = ("memory", tables.Column("device_dilation", ".3f"))


class Case(NamedTuple):
    """One row: an algorithm on a size, and who moves it on. `auto` is known on ranks."""

    algorithm: str
    bytes: int
    chunks: int
    progress: str
    polls: int


@dataclass(frozen=True)
class Settings:
    """What is measured. `work_s` None: as long as the communication alone."""

    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    chunks: int
    work: str
    work_s: float | None
    backend: str
    device: str | None
    cuda_aware: str
    polls: tuple[int, ...]
    progress: tuple[str, ...]
    rule: Rule
    seed: int
    deadline_s: float
    tuning: str | None = None
    auto: tuple[tuple[int, str, int, str], ...] = ()  # bytes, algorithm, chunks, by what

    def on(self, comm: Any, hosts: list[str], nodes: list[int]) -> "Settings":
        """With what `auto` stands for, for each size."""
        if AUTO not in self.algorithms:
            return self
        from mpisgd.predict.links import quick

        def fits(algorithm: str) -> bool:
            return algorithm in NAMES and carrier(algorithm).host and carrier(algorithm).polled

        measured = partial(quick, comm, hosts, self.deadline_s)
        return replace(self, auto=auto.by_size(self.tuning, self.sizes, nodes, fits, measured))

    def check(self, comm: Any) -> None:
        """UsageError for what MPI does not allow, or a device that is not there."""
        devices.module_of(self.backend, self.device)
        if AUTO in self.algorithms:
            auto.read(self.tuning)
        library = library_of(comm)
        if "thread" in self.progress and library.Query_thread() < library.THREAD_MULTIPLE:
            allowed = "poll: this MPI library was not started for threads"
            raise UsageError("--progress", "thread", allowed)

    def cases(self) -> list[Case]:
        """In the order of the table; a thread polls as often as it likes."""
        ways = [("poll", polls) for polls in self.polls] if "poll" in self.progress else []
        ways += [("thread", 0)] if "thread" in self.progress else []
        named = [
            (name, size, self.chunks if carrier(name).chunked else 1)
            for name, size in product(self.algorithms, self.sizes)
            if name != AUTO
        ]
        chosen = [(name, size, chunks) for size, name, chunks, _ in self.auto]
        return [Case(*each, *way) for each in dict.fromkeys([*named, *chosen]) for way in ways]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd bench overlap` alone."""
    known, default = ", ".join((*POLLED, AUTO)), ",".join(DEFAULT)
    add = parser.add_argument
    add("--algorithms", default=default, metavar="NAMES", help=f"all, or {known} [{default}]")
    add("--sizes", default="64K,1M,4M", metavar="SIZES", help="bytes, as 64K:4M [64K,1M,4M]")
    add("--tuning", metavar="FILE", help="what the algorithm auto chooses by: a table of tune, or "
        "a network [MPISGD_TUNING]")  # fmt: skip
    add("--chunks", default="1", metavar="N", help="messages a transfer is cut in [1]")
    add("--work", choices=WORKS, default="gemm", help="a core at work, or idle as beside an "
        "accelerator [gemm]")  # fmt: skip
    add("--work-time", metavar="TIME", help="such as 5ms [as long as the communication alone]")
    add("--polls", default="0,1,4,16,64", metavar="N", help="looks in the work [0,1,4,16,64]")
    add("--progress", default="poll,thread", metavar="WHO", help="[poll,thread]")


def settings(arguments: argparse.Namespace) -> Settings:
    """From the command line. UsageError."""
    blocking = CARRIERS.keys() - POLLED
    if blocking & set(arguments.algorithms.split(",")):
        allowed = f"{', '.join(blocking)} blocks; choose from {', '.join(POLLED)}"
        raise UsageError("--algorithms", arguments.algorithms, allowed)
    progress = tuple(dict.fromkeys(arguments.progress.split(",")))
    if not set(progress) <= set(PROGRESS):
        raise UsageError("--progress", arguments.progress, f"some of {', '.join(PROGRESS)}")
    sizes = options.counts(arguments.sizes, DTYPE)
    polls = wholes(0).read("--polls", arguments.polls)
    if not polls:
        raise UsageError("--polls", arguments.polls, "whole numbers >= 0 with commas")
    chunks = options.chunks(arguments.chunks)
    if len(chunks) > 1:
        raise UsageError("--chunks", arguments.chunks, "one number")
    return Settings(
        options.algorithms(arguments.algorithms, (*POLLED, AUTO), POLLED),
        sizes,
        chunks[0],
        arguments.work,
        None if arguments.work_time is None
        else duration(1e-6).read("--work-time", arguments.work_time),
        arguments.backend,
        arguments.device,
        arguments.cuda_aware,
        tuple(dict.fromkeys(polls)),
        progress,
        options.rule(arguments),
        options.seed(arguments),
        options.deadline(arguments),
        arguments.tuning,
    )  # fmt: skip


def measure(comm: Any, chosen: Settings, arguments: argparse.Namespace) -> int:
    """Measure, record, print."""
    where = record.places(comm, arguments, chosen.deadline_s)
    lies = Memory.of(comm, chosen)
    names, without = lies.possible(comm, chosen.algorithms)
    chosen = replace(chosen, algorithms=names).on(comm, where.hosts, where.nodes)
    session.agree_on(comm, "an all-reduce that they chose", repr(chosen.auto), chosen.deadline_s)
    told = [
        f"auto takes {name}{f' in {chunks} chunks' if chunks > 1 else ''} ({by})"
        for _, name, chunks, by in chosen.auto
    ]
    cases = chosen.cases()
    order = list(cases)
    random.Random(chosen.seed).shuffle(order)  # the same on all ranks
    rows: dict[Case, dict[str, Any]] = {}
    config = {"benchmark": "overlap", **asdict(chosen)}
    with ExitStack() as stack:
        log = stack.enter_context(
            record.Record(comm, where, arguments, config, len(cases), lies.facts())
        )
        log.notes([*lies.notes(), *without, *told])
        thread = stack.enter_context(_Thread(comm)) if "thread" in chosen.progress else None
        bench = _Bench(comm, chosen, where.nodes, thread, lies)
        for case in order:
            rows[case], samples = bench.measure(case)
            for part, seconds in samples.items():
                log.case({"benchmark": "overlap", "part": part, **rows[case]}, seconds)
            log.step()
        log.complete({})
    if log.speaks:
        table = [rows[case] for case in cases]
        columns = (*COLUMNS, *(DEVICE_COLUMNS if lies.on_device else ()))
        print(tables.render(columns, table, arguments.format), flush=True)
        for line in fewer_looks(table):
            record.warn(line)
    return 0


def fewer_looks(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Where work had no room for the looks asked for, in one line, and why."""
    found = [
        f"{row['polls_asked']} became {row['polls']} ({row['algorithm']}, {row['bytes']} B)"
        for row in rows
        if row["polls"] is not None and row["polls"] < row["polls_asked"]
    ]
    why = "work that short has no more gaps between its pieces; --work-time makes it longer"
    return [f"--polls: {', '.join(found)}: {why}"] if found else []


class _Thread:
    """A progress thread on a communicator of its own."""

    def __init__(self, comm: Any):
        self._own = comm.Dup()
        self.progress = ProgressThread(self._own)

    def __enter__(self) -> ProgressThread:
        return self.progress

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:  # else what is in flight might never arrive
            self.progress.close()
            self._own.Free()


class _Bench:
    """What the cases share."""

    def __init__(
        self,
        comm: Any,
        chosen: Settings,
        nodes: list[int],
        thread: ProgressThread | None,
        lies: Memory,
    ):
        self.comm, self.chosen, self.nodes, self.thread = comm, chosen, nodes, thread
        self.lies = lies

    def measure(self, case: Case) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """One row, and the samples [repetition, rank] of its parts."""
        plan, in_flight = self._pending(case)

        def communicate() -> None:
            in_flight.start()
            in_flight.wait()

        work, spans = self._work(self._alone(communicate)), []
        seconds = self._repeat(
            lambda: work(_nowhere, 0),
            communicate,
            lambda: spans.append(beside(in_flight, work, case.polls)),
        )
        plan.close()
        samples = dict(zip(("compute", "communication", "together"), seconds, strict=True))
        samples["exposed"], longest, polls = self._told(spans[-seconds.shape[1] :])
        there = self._device_row(case, work) if isinstance(work, DeviceGemm) else {}
        return self._row(case, samples, longest, polls) | there, samples

    def _pending(self, case: Case) -> tuple[Any, Any]:
        """The plan, and what starts it and waits for it."""
        threaded = case.progress == "thread"
        plan = pending(
            self.thread.comm if threaded and self.thread else self.comm, case.algorithm,
            Vectors(self.lies.module, case.bytes // DTYPE.itemsize, DTYPE, in_place=True),
            chunks=case.chunks, nodes=self.nodes, deadline=self.chosen.deadline_s,
            cuda_aware=self.lies.awareness.aware,
        )  # fmt: skip
        if threaded and self.thread:
            return plan, ThreadedAllreduce(self.thread, plan, time.perf_counter)
        return plan, plan

    def _alone(self, communicate: Any) -> float:
        """Seconds of work: as asked, or as long as the communication alone."""
        if self.chosen.work_s is not None:
            return self.chosen.work_s
        return timing.summarise(self._repeat(communicate)[0]).median_s

    def _work(self, seconds: float) -> Work:
        """The same on all ranks."""
        if self.chosen.work == "sleep":
            return Sleep(seconds)
        if self.lies.on_device:
            told = timing.gather(
                self.comm, DeviceGemm.calibrate(self.lies.module), self.chosen.deadline_s
            )
            dimension, piece_s = told[int(np.argmax(told[:, 1]))]  # the slowest rank's
            return DeviceGemm(self.lies.module, int(dimension), seconds, piece_s)
        told = timing.gather(self.comm, [Gemm(1).piece_s()], self.chosen.deadline_s)
        return Gemm(max(1, round(seconds / float(np.median(told)))))

    def _repeat(self, *operations: Any) -> np.ndarray:
        chosen = self.chosen
        return timing.repeat(self.comm, operations, chosen.rule, deadline=chosen.deadline_s)

    def _device_row(self, case: Case, work: DeviceGemm) -> dict[str, Any]:
        """More columns, by the device's clock: the work was called alone and beside, in turn."""
        alone, beside = np.median(work.seconds[0::2]), np.median(work.seconds[1::2])
        told = timing.gather(self.comm, [beside / alone], self.chosen.deadline_s)
        return {"memory": self.lies.words(case.algorithm), "device_dilation": float(told.max())}

    def _told(self, spans: list[Span]) -> tuple[np.ndarray, float, int]:
        """Exposed seconds [repetition, rank], the longest poll anywhere, polls in one call."""
        own = [value for span in spans for value in span]
        told = timing.gather(self.comm, own, self.chosen.deadline_s)
        every = told.reshape(told.shape[0], -1, len(Span._fields))
        return every[:, :, 0].T, float(every[:, :, 1].max()), int(every[:, :, 2].max())

    def _row(
        self, case: Case, samples: dict[str, np.ndarray], longest: float, polls: int
    ) -> dict[str, Any]:
        found = {part: timing.summarise(seconds) for part, seconds in samples.items()}
        medians = {f"{part}_s": summary.median_s for part, summary in found.items()}
        polled = case.progress == "poll"
        return {
            **case._asdict(),
            **medians,
            **timing.overlap(**medians)._asdict(),
            "ranks": self.comm.Get_size(),
            "work": self.chosen.work,
            "polls": polls if polled else None,
            "polls_asked": case.polls if polled else None,
            "longest_poll_s": longest if polled and polls else None,
            "repetitions": found["together"].repetitions,
            "library": record.library_told(),
        }


def _nowhere() -> None:
    """Nothing is in flight."""
