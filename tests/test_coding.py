"""What `--wire` takes a rank beside its bytes: priced by the network, or by its file, or told."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
from test_partial import EVEN, PARTIAL, column
from virtual_runs import virtual

from allreduce.algorithms import build
from allreduce.compress import priced
from allreduce.network import Network, network
from allreduce.simulate import simulate
from allreduce.wire import Wire
from mpisgd import cli
from mpisgd.commands import calibrate
from mpisgd.predict import coding
from mpisgd.values.errors import UsageError

ENCODE, DECODE, COUNT, RANKS = 2.0**-20, 2.0**-21, 1 << 12, 4
CODED = Network("coded", encode_s_per_B=ENCODE, decode_s_per_B=DECODE)
WIRES = ("bfloat16", "float16", "int8", "topk:0.25", "powersgd:2")


def seconds(name: str, wire: str, net: Network) -> np.ndarray:
    schedule, travels = priced(Wire(wire), build(name, RANKS), COUNT, 4)
    return simulate(schedule, network=net, **travels._asdict())


@pytest.mark.parametrize("wire", WIRES)
def test_where_nothing_else_takes_time_it_is_the_coding(wire):
    """A ring sends and receives 2 (p-1)/p of the vector, and rounds all of it; topk chooses of all,
    and decodes what it gathers; powersgd computes once."""
    nbytes, moved = 4 * COUNT, 2 * (RANKS - 1) / RANKS * 4 * COUNT
    expected = moved * (ENCODE + DECODE) + nbytes * ENCODE
    if wire == "topk:0.25":
        expected = nbytes * ENCODE + (RANKS - 1) * 2 * nbytes / 4 * DECODE
    elif wire == "powersgd:2":
        expected = nbytes * ENCODE
    assert seconds("ring", wire, CODED) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["tree", "ring", "double-tree"])
@pytest.mark.parametrize("wire", WIRES)
def test_every_rank_takes_longer_and_in_full_none(algorithm, wire):
    lab = network("lab")
    coded = lab.with_(encode_s_per_B=1e-10, decode_s_per_B=1e-10)
    assert (seconds(algorithm, wire, coded) > seconds(algorithm, wire, lab)).all()
    full = simulate(build(algorithm, RANKS), 4 * COUNT, coded, itemsize=4)
    assert (full == simulate(build(algorithm, RANKS), 4 * COUNT, lab, itemsize=4)).all()


@pytest.mark.parametrize("wire", ["int8", "powersgd:2"])
def test_the_clock_takes_the_time_of_the_simulator(wire):
    text = f"encode_s_per_B={ENCODE},decode_s_per_B={DECODE}"
    plain = replace(PARTIAL, algorithm="minibatch", steps=2, wire=wire)
    run = virtual(plain, RANKS, dataset=EVEN, network=text)
    gradient = run.workers[0].gradient
    how = Wire(wire, shapes=tuple(gradient.shapes.values()))
    chosen = build(run.experiment.allreduce, RANKS)
    schedule, travels = priced(how, chosen, gradient.buffer.size, 8)
    expected = simulate(schedule, network=network(text), **travels._asdict())
    waited = column(run, "step_s")[0] - column(virtual(plain, RANKS, dataset=EVEN), "step_s")[0]
    assert waited == pytest.approx(expected)


FILE = """latency_s = 1e-4
[calibration.coding]
int8 = [3e-9, 1e-9]
"""


def test_a_file_knows_it_by_wire_and_the_network_may_say_otherwise(tmp_path):
    path = tmp_path / "here.toml"
    path.write_text(FILE)
    here = network(str(path))
    assert coding.priced(here, str(path), "int8").encode_s_per_B == 3e-9
    assert coding.priced(here, str(path), "bfloat16") == here
    own = here.with_(encode_s_per_B=1.0)
    assert coding.priced(own, str(path), "int8") == own
    assert coding.free(here, "bfloat16") != []
    assert coding.free(here, None) == coding.free(own, "int8") == coding.free(here, "float32") == []


@pytest.mark.parametrize("wrong", ["[1e-9]", "3e-9", "[-1e-9, 1e-9]", "[true, 1e-9]"])
def test_a_file_with_nonsense_is_refused_in_a_line(tmp_path, wrong):
    path = tmp_path / "here.toml"
    path.write_text(FILE.replace("[3e-9, 1e-9]", wrong))
    with pytest.raises(UsageError, match=r"coding int8 .*two numbers >= 0"):
        coding.known(str(path), "int8")


def test_what_is_measured_is_what_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(coding, "ELEMENTS", 1 << 14)
    found = coding.measure("topk:0.1", 2)
    assert set(found) == {"bfloat16", "float16", "int8", "topk:0.1"}
    assert all(0 < encode.value < 1e-5 and decode.value >= 0 for encode, decode in found.values())
    path = tmp_path / "here.toml"
    path.write_text(calibrate._coding(found))
    assert "calibration" in tomllib.loads(path.read_text())
    for wire, pair in found.items():
        assert coding.known(str(path), wire) == tuple(each.value for each in pair)


def test_what_is_free_is_told(capsys):
    words = ["simulate", "--algorithm", "ring", "--ranks", "4", "--wire", "int8", "--format", "csv"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "--wire int8: coding takes no time on titanx-20g" in err
    at = out.splitlines()[0].split(",").index("coding_s")
    assert float(out.splitlines()[1].split(",")[at]) == 0
    assert cli.main([*words, "--encode-rate", "1GB/s"]) == 0
    out, err = capsys.readouterr()
    assert "coding" not in err
    assert float(out.splitlines()[1].split(",")[at]) == pytest.approx(2.5 * 102e6 / 1e9, rel=1e-3)
