"""What a rank sends: told beforehand, counted on the way, recorded by the step."""

from itertools import count

import numpy as np
import pytest

import mpisgd
from allreduce.algorithms import build
from allreduce.compress import memory, sent
from allreduce.plan import Plan
from allreduce.testing.loopback import Comm, World
from allreduce.wire import Wire
from mpisgd.cli import main

COUNT, RANKS = 960, 6


class Counting:
    """A communicator that weighs what is sent by plans."""

    def __init__(self, comm: Comm):
        self.comm, self.requests, self.octets = comm, [], 0

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Send_init(self, buf, dest, tag=0):  # noqa: N802
        request, size = self.comm.Send_init(buf, dest, tag), np.asarray(buf).nbytes
        start = request.Start

        def begin():
            self.octets += size
            start()

        request.Start = begin
        return request


def weighed(name, wire=None):
    """Bytes that each rank sends in the second call of a plan, which compares nothing any more;
    and what the plans say."""
    world, told = World(RANKS), Wire(wire) if wire else None
    comms = [Counting(world.comm(rank)) for rank in range(RANKS)]
    plans = []
    for comm in comms:
        vector = np.random.default_rng(comm.Get_rank()).standard_normal(COUNT).astype("f")
        more = {} if told is None else {"wire": told}
        if wire and ":" in wire:
            more["error"] = memory(told, COUNT, "f")
        plans.append(Plan(comm, build(name, RANKS), vector, mean=True, **more))
    for _ in range(2):
        before = [comm.octets for comm in comms]
        for plan in plans:
            plan.start()
        world.drive(plans)
    passed = [comm.octets - old for comm, old in zip(comms, before, strict=True)]
    saying = [plan.sent_bytes for plan in plans]
    for plan in plans:
        plan.close()
    return passed, saying


@pytest.mark.parametrize("wire", [None, "bfloat16", "int8", "topk:0.1", "powersgd:2"])
@pytest.mark.parametrize("name", ["tree", "butterfly", "ring"])
def test_a_plan_says_what_it_sends(name, wire):
    """Of what is cut by segments and coded by blocks, but for the blocks' ends."""
    passed, saying = weighed(name, wire)
    assert sum(passed) > 0
    close = 0.0 if wire in (None, "bfloat16") else 0.1 * max(passed)
    assert np.abs(np.subtract(passed, saying)).max() <= close, (passed, saying)


def test_a_ring_sends_twice_all_but_its_own_share():
    assert sent(None, build("ring", 4), 400, 4) == (2 * 3 * 400,) * 4
    assert sent(Wire("bfloat16"), build("ring", 4), 400, 4) == (3 * 400,) * 4
    assert sent(None, build("ring", 1), 400, 4) == (0,)


TOLD = {"model": "softmax", "batch": 4, "steps": 12, "evaluate_every": 0, "ranks": 4}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"algorithm": "minibatch"}, range(12)),
        ({"algorithm": "local", "tau": 4}, (3, 7, 11)),
        ({"algorithm": "dasgd", "tau": 4, "delay": 1}, (4, 8)),
    ],
)
def test_steps_have_the_bytes_of_the_averages_that_arrive_in_them(options, steps):
    run = mpisgd.run(**TOLD, **options, allreduce="butterfly")
    bytes_ = 2 * 4 * (64 * 10 + 10 + 3)  # two rounds, float32, three signals beside it
    expected = np.zeros((12, 4))
    expected[list(steps)] = bytes_
    assert run.steps["sent_bytes"].tolist() == expected.tolist()


def test_buckets_send_what_one_average_sends():
    whole = mpisgd.run(**TOLD, algorithm="minibatch").steps["sent_bytes"]
    parts = mpisgd.run(**TOLD, algorithm="minibatch-overlap", bucket_bytes=1000)
    assert parts.steps["sent_bytes"].tolist() == whole.tolist()


def test_with_servers_nobody_counts_them():
    run = mpisgd.run(**TOLD, algorithm="async", rate=0.02, momentum=0)
    assert "sent_bytes" not in run.steps


def test_the_report_has_their_mean(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, number in zip(("minibatch", "local"), count(), strict=False):
        mpisgd.run(**TOLD, algorithm=name, output=f"{number}.h5")
    words = ["report", "0.h5", "1.h5", "--table", "runs", "--format", "csv"]
    assert main([*words, "--columns", "algorithm,sent_bytes"]) == 0
    lines = capsys.readouterr().out.split()
    assert lines[0] == "algorithm,sent_bytes"
    told = {name: float(value) for name, value in (line.split(",") for line in lines[1:])}
    assert told["minibatch"] == 4 * told["local"] > 0
