"""`train --workload`: what ranks do takes as long when played elsewhere; others read it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from test_simulate_goal import parse_goal, play_goal

import mpisgd
from allreduce.network import network
from allreduce.simulate.chakra import trace
from allreduce.simulate.workload import Operation, Workload
from mpisgd.values.errors import UsageError

NETWORK = "latency_s=1e-4,bandwidth_Bps=1e8,progress=perfect"
SMALL = {
    "ranks": 4, "model": "softmax", "data_samples": 64, "batch": 8, "steps": 6, "step_time": "1ms",
    "network": NETWORK,
}  # fmt: skip
RUNS = {
    "minibatch": {},
    "local": {"tau": 2},
    "dasgd": {"tau": 3, "delay": 2, "steps": 8, "straggler": "exponential"},
    "diloco": {"tau": 2},
    "minibatch-overlap": {"bucket": "1KiB"},
}


def run(path, algorithm, **options):
    return mpisgd.run(algorithm=algorithm, workload=path, **{**SMALL, **RUNS[algorithm], **options})


@pytest.mark.parametrize("algorithm", sorted(RUNS))
def test_a_run_takes_as_long_where_its_operations_are_played(tmp_path, algorithm):
    path = tmp_path / "run.goal"
    steps = run(path, algorithm).steps
    played = play_goal(parse_goal(path.read_text()), network(NETWORK))
    assert played == pytest.approx((steps["start_s"] + steps["step_s"]).max(), abs=1e-7)


def test_work_is_cut_at_looks_while_an_average_is_in_flight(tmp_path):
    path, looks = tmp_path / "run.goal", NETWORK.replace("perfect", "looks")
    steps = run(path, "dasgd", network=looks, delay=1).steps
    for rank, (operations, _) in parse_goal(path.read_text()).items():
        calcs = [each[1] for each in operations.values() if each[0] == "calc"]
        computed = steps["compute_s"][:, rank].sum()
        assert sum(calcs) * 1e-9 == pytest.approx(computed, abs=1e-7)  # sums are free there
        assert len([calc for calc in calcs if calc]) > len(steps["compute_s"])


def test_a_checkpoint_loses_nothing(tmp_path):
    alone, saved = tmp_path / "alone.goal", tmp_path / "saved.goal"
    run(alone, "local")
    run(saved, "local", checkpoint=tmp_path / "c.h5", checkpoint_every=2)
    assert saved.read_text() == alone.read_text()


def fields(data):
    """[(field, value)] of a protobuf message: numbers, or bytes."""
    found, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        value = varint()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found.append((key >> 3, value))
    return found


def test_a_chakra_trace_says_the_operations():
    workload = Workload(2)
    workload.compute(0, 300.0)
    workload.compute(0, 1.5e-7)
    first, second, third = trace(workload, 0)
    assert fields(first[1:]) == [(1, b"0.0.4")]
    assert len(second) == second[0] + 1
    node = fields(second[1:])
    assert node[:4] == [(1, 0), (2, b"calc 0"), (3, 4), (7, 300_000_000)]
    assert fields(node[-1][1]) == [(1, b"runtime_ns"), (9, 300_000_000_000)]
    assert (5, b"\0") in fields(third[1:])  # waits for node 0


@pytest.mark.skipif(find_spec("chakra") is None, reason="needs mlc-chakra, Chakra's own reader")
def test_chakra_reads_the_traces_of_a_run(tmp_path):
    run(tmp_path / "run.goal", "dasgd")
    run(tmp_path / "run.et", "dasgd")
    programs = parse_goal((tmp_path / "run.goal").read_text())
    for rank, (operations, needs) in programs.items():
        told = tmp_path / f"run.{rank}.json"
        words = ["--input_filename", tmp_path / f"run.{rank}.et", "--output_filename", told]
        module = [sys.executable, "-m", "chakra.src.jsonizer.jsonizer", *words]
        subprocess.run(module, check=True, timeout=120)
        nodes = json.loads("[" + told.read_text().replace("}{", "},{") + "]")[1:]
        assert len(nodes) == len(operations)
        assert sorted(needs) == sorted(
            (f"l{int(node.get('id', 0)) + 1}", f"l{int(before) + 1}")
            for node in nodes
            for before in node.get("dataDeps", ())
        )
        for node, (kind, amount, *ends) in zip(nodes, operations.values(), strict=True):
            facts = {each["name"]: next(iter([*each.values()][1:])) for each in node["attr"]}
            if kind == "calc":
                assert int(facts["runtime_ns"]) == amount
                continue
            assert node["type"] == f"COMM_{kind.upper()}_NODE"
            peer = facts["comm_dst" if kind == "send" else "comm_src"]
            assert [int(facts["comm_size"]), peer, facts["comm_tag"]] == [amount, *ends]


def test_tags_are_used_once_though_all_reduces_overlap():
    told = Workload(2)
    from allreduce.algorithms import build
    from allreduce.simulate.program import prepare

    programs = [prepare(build(name, 2), 8, network("ideal")) for name in ("tree", "ring", "tree")]
    numbers = [told.collective(program) for program in programs]
    for rank, order in enumerate((numbers, numbers[::-1])):  # ranks start them as they like
        for number in order:
            told.start(rank, number)
    sent, received = (
        sorted(
            (operation.tag, operation.amount)
            for operation in told.operations(rank)
            if operation.kind == kind
        )
        for rank, kind in enumerate(("send", "recv"))
    )
    assert sent == received
    assert len({tag for tag, _ in sent}) == len(sent) == 4
    assert all(isinstance(each, Operation) for each in told.operations(0))


def test_mistakes_are_one_line(tmp_path):
    (tmp_path / "run.1.et").touch()
    for path, options, allowed in (
        (tmp_path / "run.txt", {}, r"ends in \.goal .* or \.et"),
        (tmp_path / "run.et", {}, r"run\.1\.et': exists"),
        (tmp_path / "x.goal", {"algorithm": "async", "lr": 0.1}, "no servers"),
        (tmp_path / "x.goal", {"algorithm": "minibatch-partial"}, "none late"),
        (tmp_path / "no" / "x.goal", {}, "there is no folder"),
    ):
        with pytest.raises(UsageError, match=allowed):
            mpisgd.run(**{"algorithm": "local", **SMALL, **options}, workload=path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.1.et"]


@pytest.mark.parametrize(
    ("workload", "beside", "whose"),
    [
        ("a.goal", {"output": "./a.goal"}, "--output's"),
        ("a.et", {"output": "a.3.et"}, "--output's"),
        ("a.goal", {"checkpoint": "a.goal"}, "a checkpoint's"),
        ("a.et", {"output": "a.h5", "checkpoint": "a.0.et"}, "a checkpoint's"),
    ],
)
def test_it_is_no_other_output_of_the_run(workload, beside, whose, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"would be both {whose} and --workload's"):
        run(workload, "local", **beside)
    assert list(tmp_path.iterdir()) == []
