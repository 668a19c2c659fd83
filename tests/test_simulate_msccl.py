"""MSCCL XML: as its library's reader takes it, and played as its GPUs would, it all-reduces."""

import os
import random
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict, deque

import pytest
from test_simulate_command import output, parser

from allreduce.algorithms import ALGORITHMS, build
from allreduce.errors import AllreduceError
from allreduce.schedule import Schedule, refine, transfers
from allreduce.simulate.msccl import msccl
from mpisgd.commands import simulate as command
from mpisgd.values.errors import UsageError

BUFFERS = {"s": ("srcoff",), "r": ("dstoff",), "rrc": ("srcoff", "dstoff"), "nop": ()}


def read(text):
    """{gpu: [(send, recv, [step as numbers, with its type])]}, refusing what the library does."""
    algo = ET.fromstring(text)
    assert algo.get("coll") == "allreduce"
    assert algo.get("proto") in ("Simple", "LL", "LL128")
    gpus = {}
    for gpu in algo:
        blocks, peers = [], Counter()
        for number, tb in enumerate(gpu):
            assert int(tb.get("id")) == number
            send, recv = int(tb.get("send")), int(tb.get("recv"))
            assert int(gpu.get("id")) not in (send, recv)
            peers.update([("send", send)] * (send >= 0) + [("recv", recv)] * (recv >= 0))
            steps = [
                {k: v if k in ("type", "srcbuf", "dstbuf") else int(v) for k, v in step.items()}
                for step in tb
            ]
            chained = False
            for place, step in enumerate(steps):
                assert step["s"] == place < 256
                assert 0 <= step["cnt"] < 72
                assert not (chained and step["depid"] < 0)  # of a chain the last has one, too
                chained = step["type"] == "nop"
                for offset in BUFFERS[step["type"]]:
                    assert 0 <= step[offset] <= int(gpu.get("i_chunks")) - step["cnt"]
                assert step["type"] == "nop" or (send if step["type"] == "s" else recv) >= 0
            assert not chained
            blocks.append((send, recv, steps))
        assert max(peers.values(), default=1) == 1  # a connection belongs to one block
        gpus[int(gpu.get("id"))] = blocks
    assert list(gpus) == list(range(int(algo.get("ngpus"))))
    for blocks in gpus.values():
        for _, _, steps in blocks:
            for step in steps:
                if step["depid"] >= 0:
                    assert blocks[step["depid"]][2][step["deps"]]["hasdep"] == 1
    return gpus, int(algo.get("nchunksperloop"))


def play(gpus, chunks, rng):
    """What each chunk of each GPU is, blocks advancing in any order: counts of contributions."""
    data = {gpu: [Counter([gpu]) for _ in range(chunks)] for gpu in gpus}
    fifo = defaultdict(deque)
    at = {(gpu, tb): 0 for gpu, blocks in gpus.items() for tb in range(len(blocks))}
    left = {where for where in at if gpus[where[0]][where[1]][2]}
    while left:
        ready = []
        for gpu, tb in sorted(left):
            _, recv, steps = gpus[gpu][tb]
            step = steps[at[gpu, tb]]
            done = step["depid"] < 0 or at[gpu, step["depid"]] > step["deps"]
            here = step["type"] in ("s", "nop") or fifo[recv, gpu]
            if done and here:
                ready.append((gpu, tb, step))
        assert ready, "a dead lock"
        gpu, tb, step = rng.choice(ready)
        send, recv, steps = gpus[gpu][tb]
        low, high = step["srcoff"], step["srcoff"] + step["cnt"]
        if step["type"] == "s":
            fifo[gpu, send].append([Counter(each) for each in data[gpu][low:high]])
        elif step["type"] != "nop":
            came = fifo[recv, gpu].popleft()
            assert len(came) == step["cnt"]
            mine = data[gpu][low:high] if step["type"] == "rrc" else [Counter()] * len(came)
            low = step["dstoff"]
            data[gpu][low : low + len(came)] = [a + b for a, b in zip(mine, came, strict=True)]
        at[gpu, tb] += 1
        if at[gpu, tb] == len(steps):
            left.remove((gpu, tb))
    assert not any(fifo.values())
    return data


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_played_in_any_order_every_gpu_has_every_contribution_once(name, ranks):
    gpus, chunks = read(msccl(build(name, ranks)))
    for seed in range(3):
        data = play(gpus, chunks, random.Random(seed))
        assert all(each == Counter(range(ranks)) for gpu in data.values() for each in gpu)


def test_the_player_finds_a_step_that_does_not_wait():
    text = msccl(build("butterfly", 4)).replace('depid="0"', 'depid="-1"')
    wrong = 0
    for seed in range(20):
        algo = ET.fromstring(text)
        gpus = {int(g.get("id")): [(int(t.get("send")), int(t.get("recv")), [
            {k: v if k in ("type", "srcbuf", "dstbuf") else int(v) for k, v in s.items()}
            for s in t]) for t in g] for g in algo}  # fmt: skip
        data = play(gpus, 1, random.Random(seed))
        wrong += any(each != Counter(range(4)) for gpu in data.values() for each in gpu)
    assert wrong


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_two_blocks_write_a_chunk_at_once(name):
    """Of receives into one chunk each waits, be it by others, for the one before."""
    gpus, _ = read(msccl(build(name, 8)))
    for blocks in gpus.values():
        writes = [
            (tb, step) for tb, (_, _, steps) in enumerate(blocks) for step in steps
            if step["type"] in ("r", "rrc")
        ]  # fmt: skip

        def before(tb, place, blocks=blocks):
            """All that is over when that step begins."""
            over, open_ = set(), [(tb, place)]
            while open_:
                one, at = open_.pop()
                step = blocks[one][2][at]
                follows = [(one, at - 1)] if at else []
                follows += [(step["depid"], step["deps"])] if step["depid"] >= 0 else []
                new = [where for where in follows if where not in over]
                over.update(new)
                open_ += new
            return over

        for number, (tb, step) in enumerate(writes):
            for other, earlier in writes[:number]:
                spans = [range(s["dstoff"], s["dstoff"] + s["cnt"]) for s in (step, earlier)]
                if set(spans[0]) & set(spans[1]):
                    places = (tb, step["s"]), (other, earlier["s"])
                    assert places[1] in before(*places[0]) or places[0] in before(*places[1])


def test_what_the_library_would_not_read_is_refused():
    often = Schedule(2, 1, (transfers([0], [1]),) * 257).named("often")
    with pytest.raises(AllreduceError, match="often: 257 steps with one rank: MSCCL reads 256"):
        msccl(often)
    ring, _ = read(msccl(build("ring", 8)))  # few steps wait for more than one
    for blocks in ring.values():
        assert [s["type"] for *_, steps in blocks for s in steps].count("nop") == 3


def test_steps_of_more_chunks_than_it_reads_are_cut():
    gpus, chunks = read(msccl(refine(build("tree", 2), 200)))
    data = play(gpus, chunks, random.Random(0))
    assert data == {gpu: [Counter(range(2))] * 200 for gpu in range(2)}


def test_the_command_writes_it(tmp_path, capsys):
    path = tmp_path / "tree.xml"
    words = ("--algorithm", "tree", "--ranks", "4", "--msccl", str(path))
    output(capsys, *words)
    assert path.read_text() == msccl(build("tree", 4))
    for more, told in (
        ((), "exists; pass --overwrite"),
        (("--overwrite", "--bytes", "1K,2K"), "give one algorithm"),
        (("--overwrite", "--wire", "topk:0.01"), "--wire 'topk:0.01': only float32 with --msccl"),
        (("--overwrite", "--wire", "powersgd:4"), "only float32 with --msccl"),
        (("--overwrite", "--wire", "bfloat16"), "only float32 with --msccl"),
        (("--overwrite", "--chunks", "4"), "--chunks '4': only 1 with --msccl"),
    ):
        with pytest.raises(UsageError, match=told):
            command.run(parser().parse_args([*words, *more]))
    assert path.read_text() == msccl(build("tree", 4))
    output(capsys, *words, "--overwrite", "--wire", "float32")


@pytest.mark.parametrize("other", ["a", "./a", "link", ".a.lock"])
def test_two_outputs_that_are_one_file_are_refused(other, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink("a", "link")
    with pytest.raises(UsageError, match=r"would be both --goal's and --msccl's; rename one"):
        command.run(parser().parse_args(["--ranks", "2", "--goal", "a", "--msccl", other]))
    assert os.listdir() == ["link"]
