"""Measured networks and steps: the file, and what reads it."""

import json
import tomllib
from types import SimpleNamespace

import pytest

from allreduce import point_to_point
from allreduce.network import Network, network
from mpisgd.cli import main
from mpisgd.commands import calibrate
from mpisgd.experiment import step_times
from mpisgd.experiment.experiment import Experiment
from mpisgd.mpi import mpiexec
from mpisgd.predict import calibration, links, networks
from mpisgd.predict.links import Measured

EXACT = {
    "latency_s": Measured(5e-5, 4e-5, 6e-5, 9),
    "bandwidth_Bps": Measured(25e6, 24e6, 26e6, 9),
    "overhead_s": Measured(1e-6, 1e-6, 1e-6, 9),
    "eager_limit_B": Measured(4096.0, 4096.0, 4096.0, 1),
    "sum_s_per_B": Measured(1e-10, 1e-10, 1e-10, 9),
    "look_s": Measured(1e-6, 1e-6, 1e-6, 9),
}
STEPS = {8: Measured(0.01, 0.01, 0.01, 9), 32: Measured(0.02, 0.02, 0.02, 9)}


@pytest.fixture
def file(tmp_path):
    """A calibration of four hosts with one rank each, as the command writes it."""
    hosts = ["h0", "h1", "h2", "h3"]
    path = tmp_path / "found.toml"
    found = links.network_of("found", EXACT, hosts)
    path.write_text(found.toml() + calibrate._notes(EXACT, STEPS, Experiment(), hosts))
    return path


def test_the_file_reads_back_as_the_network(file):
    found = network(str(file))
    assert found == Network(
        "found", 5e-5, 25e6, 1e-10, 1e-6, 1e-6, eager_limit_B=4096.0, ranks_per_node=1
    )
    assert tomllib.loads(file.read_text())["calibration"]["hosts"] == 4


def test_ranks_of_one_host_know_only_the_way_inside():
    found = links.network_of("one", EXACT, ["h"] * 4)
    assert found.ranks_per_node == 4
    assert (found.node_latency_s, found.node_bandwidth_Bps) == (5e-5, 25e6)


def test_several_ranks_a_host_share_its_uplink():
    inside = {f"node_{key}": EXACT[key] for key in ("latency_s", "bandwidth_Bps")}
    found = links.network_of("two", EXACT | inside, ["h0", "h0", "h1", "h1"])
    assert (found.ranks_per_node, found.uplink_Bps) == (2, 25e6)


def test_the_closed_forms_take_it_too(file):
    found = networks.find(str(file))
    assert networks.between(found).gbps == pytest.approx(0.2)
    assert (found.ranks_per_node, found.sum_s_per_B) == (1, 1e-10)


@pytest.mark.parametrize(("batch", "seconds"), [(4, 0.01), (8, 0.01), (20, 0.015), (64, 0.04)])
def test_step_times_of_a_calibration(file, batch, seconds):
    assert step_times.seconds(str(file), batch) == pytest.approx(seconds)


def test_a_virtual_run_takes_the_step_of_its_networks_file(file, capsys):
    """0.02 s at a batch of 32, if the same is trained."""
    words = ["train", "--virtual", "2", "--steps", "3", "--format", "json", "--algorithm", "local"]
    words += ["--network", str(file)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["time_s"] >= 0.06
    assert f"mpisgd: note: a step takes 0.02 s, as calibrated in {file}" in printed.err
    assert main([*words, "--hidden", "8"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["time_s"] > 0
    assert "has no step of this --model, --hidden, --data and --dtype" in printed.err
    assert main([*words, "--step-time", "1s"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["time_s"] >= 3
    assert printed.err.count("calibrated") == 0


def test_the_shortest_call_is_the_overhead_and_the_way_stays_what_was_measured():
    halves, calls = [1e-4, 1.1e-4, 0.9e-4], [5e-6, 4e-5, 9e-5]
    overhead = links.overhead(calls, 1e-4)
    assert (overhead.value, overhead.low) == (5e-6, 5e-6)
    latency = Measured.of([max(0.0, half - 2 * overhead.value) for half in halves])
    assert latency.value + 2 * overhead.value == pytest.approx(1e-4)
    assert links.overhead([9e-5, 9e-5], 1e-4).value == 5e-5


def test_a_latency_that_may_be_nothing_is_said(capsys):
    found = EXACT | {"latency_s": Measured(4.87e-8, 0.0, 1.97e-3, 30)}
    calibrate._warn(EXACT)
    assert capsys.readouterr().err == ""
    calibrate._warn(found)
    (line,) = capsys.readouterr().err.splitlines()
    assert "warning: latency_s is not known: 4.87e-08, 95 % interval 0 to 0.00197" in line
    notes = tomllib.loads(calibrate._notes(found, STEPS, Experiment(), ["a", "b"]))
    assert notes["calibration"]["doubtful"] == ["latency_s"]
    notes = tomllib.loads(calibrate._notes(EXACT, STEPS, Experiment(), ["a", "b"]))
    assert "doubtful" not in notes["calibration"]


@pytest.mark.parametrize(("low", "high", "doubtful"), [(1.0, 2.0, 0), (1.0, 2.01, 1), (0, 1, 1)])
def test_a_quantity_known_to_no_better_than_a_factor_of_two_is_marked(
    tmp_path, capsys, low, high, doubtful
):
    found = EXACT | {"look_s": Measured(1.0, low, high, 9)}
    steps = STEPS | {16: Measured(1.0, low, high, 9)}
    calibrate._warn(found | {f"step at batch {batch}": each for batch, each in steps.items()})
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 2 * doubtful
    assert err.count("is uncertain") == 2 * (doubtful and low > 0)
    path = tmp_path / "wide.toml"
    path.write_text(
        Network("wide").toml() + calibrate._notes(found, steps, Experiment(), ["a", "b"])
    )
    table = calibration.table(str(path))
    assert table.get("doubtful", []) == ["look_s", "step_s"] * doubtful
    assert table["step_s_interval"][2] == [low, high]
    lines = calibration.doubts(str(path), unused=["look_s"])
    assert len(lines) == doubtful
    assert all(f"interval is {low:.3g} to {high:.3g};" in line for line in lines)
    virtual = ["train", "--virtual", "2", "--steps", "1", "--network", str(path)]
    for more, told in (([], doubtful), (["--step-time", "1ms"], 0)):
        assert main([*virtual, *more]) == 0
        assert capsys.readouterr().err.count("step_s of ") == told


def test_a_step_beyond_the_calibrated_batches_is_called_extrapolated(file, capsys):
    assert step_times.outside(str(file), 8) == step_times.outside(str(file), 32) == ""
    assert step_times.outside(str(file), 33) == "extrapolated from batches 8 to 32"
    assert step_times.outside("resnet50@titanx", 33) == step_times.outside(None, 33) == ""
    words = ["train", "--virtual", "2", "--steps", "1", "--batch", "4"]
    for option in ("--network", "--step-time"):
        assert main([*words, option, str(file)]) == 0
        told = f"a step takes 0.01 s, extrapolated from batches 8 to 32 in {file}"
        assert told in capsys.readouterr().err
    advise = ["advise", "--from", str(file), "--ranks", "2", "--batch", "64", "--bytes", "1M"]
    assert main(advise) == 0
    assert "extrapolated from batches 8 to 32 t_p 0.04 s, simulated t_c" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["simulate", "predict"])
def test_a_network_file_of_another_name_is_told_how_it_must_end(tmp_path, capsys, command):
    (tmp_path / "t.txt").write_text("latency_s = 0.1")
    for there in (tmp_path, tmp_path / "t.txt"):
        assert main([command, "--network", str(there)]) == 2
        assert "must be a file that ends in .toml" in capsys.readouterr().err


def test_a_file_that_is_read_is_not_written_over(file, tmp_path, capsys):
    before = file.read_bytes()
    alias = tmp_path / "alias.svg"
    alias.symlink_to(file)
    read = ["--network", str(file)]
    for words in (
        ["simulate", *read, "--algorithm", "ring", "--ranks", "2", "--bytes", "8", "--goal"],
        ["predict", "--ranks", "2", *read, "--figure"], ["calibrate", "--overwrite", *read],
    ):  # fmt: skip
        target = [str(alias)] if words[0] != "calibrate" else ["--output", str(file)]
        assert main([*words, *target]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"is '{file}', which is read" in err
        assert len(err.splitlines()) == 1
    assert file.read_bytes() == before


def test_whoever_uses_a_file_with_a_doubtful_latency_is_told(tmp_path, capsys):
    found = EXACT | {"latency_s": Measured(4.87e-8, 0.0, 1.97e-3, 30)}
    files = {}
    for name, each in {"doubtful": found, "exact": EXACT}.items():
        found = links.network_of(name, each, ["a", "b"])
        files[name] = tmp_path / f"{name}.toml"
        files[name].write_text(found.toml() + calibrate._notes(each, STEPS, Experiment(), ["a"]))
    told = "mpisgd: warning: latency_s of {} is not known: its 95 % interval is 0 to 0.00197;"
    virtual = ["train", "--virtual", "2", "--steps", "2", "--hidden", "4"]
    commands = (
        ["simulate", "--ranks", "2", "--bytes", "1K"], ["predict", "--ranks", "2"],
        ["advise", "--ranks", "2", "--net", "resnet50", "--device", "titanx"], virtual,
    )  # fmt: skip
    for words in commands:
        for name, file in files.items():
            assert main([*words, "--network", str(file)]) == 0
            err = capsys.readouterr().err
            line = told.format(file).replace("warning", "note" if words is virtual else "warning")
            assert (line in err) == (name == "doubtful")
            assert err.count("is not known") == (name == "doubtful")
    for words in commands[:3]:
        assert main([*words, "--network", str(files["doubtful"]), "--latency", "5us"]) == 0
        assert "is not known" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("doubtful = 3", "doubtful 3: a list of latency_s,"), ("doubtful = [3]", "a list of"),
        ("doubtful = ['foo']", "a list of"), ("latency_s_interval = 'x'", "[low, high]"),
        ("latency_s_interval = [2, 1]", "[low, high]"), ("look_s_interval = [1]", "[low, high]"),
        ("batches = [1, 2]\nstep_s = [nan, -1]", "equally many numbers above 0"),
        ("batches = [1, 2]\nstep_s = [1]", "equally many numbers above 0"),
        ("step_s_interval = [1, 2]", "[low, high], two numbers, for each batch"),
    ],
)  # fmt: skip
def test_a_calibration_that_makes_no_sense_is_refused(tmp_path, capsys, text, told):
    file = tmp_path / "hand.toml"
    file.write_text(f"bandwidth_Bps = 1e9\n[calibration]\n{text}\n")
    network = ["--network", str(file)]
    for words in (["simulate"], ["predict"], ["train", "--virtual", "2", "--steps", "1"]):
        assert main([*words, *network]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"{file}: [calibration] " in err
        assert told in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("doubtful = ['latency_s']", 1), ("doubtful = []", 0), ("= nonsense", 0),
        ("note = 'mine'", 0),
    ],
)  # fmt: skip
def test_a_calibration_written_by_hand_may_leave_out_much(tmp_path, text, lines):
    file = tmp_path / "hand.toml"
    file.write_text(f"[calibration]\n{text}\n")
    found = calibration.doubts(str(file))
    assert len(found) == lines
    assert all("latency_s" in line and "interval" not in line for line in found)
    assert calibration.doubts(str(tmp_path / "none.toml")) == []
    assert calibration.doubts("titanx-20g") == calibration.doubts(None) == []


def test_step_times_of_a_net_on_a_device():
    """PALEO's figure for its own ResNet-50 at a batch of 64 on a TITAN X."""
    assert step_times.seconds("resnet50-paleo@titanx", 64) == pytest.approx(0.3092757, rel=1e-6)
    experiment = Experiment.read({"step-time": "resnet50-paleo@titanx", "batch": 64})
    resolved = experiment.resolved(4, 10)
    assert resolved.step_seconds == pytest.approx(0.3092757, rel=1e-6)
    assert resolved.step_time_from == "resnet50-paleo@titanx"


def test_advice_from_a_calibration(file, capsys):
    words = ["advise", "--from", str(file), "--ranks", "4", "--batch", "32", "--bytes", "1MB"]
    assert main([*words, "--format", "json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    # Two rounds of 1 MB at 25 MB/s, and a little: 80 ms over steps of 20 ms.
    assert row["allreduce_s"] == pytest.approx(0.08, rel=0.01)
    assert row["delay"] == 5


def test_a_real_calibration_on_two_ranks(tmp_path):
    path = tmp_path / "here.toml"
    words = ["mpisgd", "calibrate", "--repetitions", "6", "--batches", "8", "--output", str(path)]
    done = mpiexec.find().run(2, mpiexec.own([*words, "--format", "json"]), timeout=150)
    assert done.returncode == 0, done.stderr
    rows = {row["quantity"]: row for row in json.loads(done.stdout)}
    assert rows["bandwidth_Bps"]["value"] > 1e7
    assert rows["speed at batch 8"]["value"] > 100
    assert network(str(path)).ranks_per_node == 2
    again = mpiexec.find().run(2, mpiexec.own(words), timeout=150)
    assert again.returncode == 2
    assert "exists" in again.stderr


@pytest.mark.parametrize(("hosts", "there"), [(["h0", "h1"], True), (["h0", "h0"], False)])
def test_a_lab_says_what_its_wires_let_pass_at_once(hosts, there, monkeypatch):
    """1 gbit: 125,000 bytes, of which the messages of 64 KiB show no end."""
    monkeypatch.setattr(links, "_pair", lambda *_: {})
    monkeypatch.setattr(links, "gather", lambda *_: None)
    monkeypatch.setenv("MPISGD_LAB_BURST", "125000")
    found = links.messages(SimpleNamespace(Get_rank=lambda: 0), hosts, 6, 1.0)
    assert [each.value for key, each in found.items() if key == "burst_B"] == [125000.0] * there


PAIR = SimpleNamespace(Get_rank=lambda: 0)  # the first of two ranks, the other is not here


def test_what_passes_at_once_is_taken_off_the_bandwidth(monkeypatch):
    """A wire of 25 MB/s, of which 18432 bytes take no time: the trip says more than its rate."""
    burst, rate = 18432, 25e6
    trip = (links.LARGE - burst) / rate
    seen = links.LARGE / trip
    pair = {"bandwidth_Bps": Measured(seen, seen, seen, 9)}
    monkeypatch.setattr(links, "_pair", lambda *_: dict(pair))
    monkeypatch.setattr(links, "gather", lambda *_: None)
    monkeypatch.setenv(links.BURST, str(burst))
    found = links.messages(PAIR, ["h0", "h1"], 9, 60.0)
    assert found["bandwidth_Bps"].value == pytest.approx(rate)
    assert links.messages(PAIR, ["h0", "h0"], 9, 60.0) == pair  # inside a host nothing does


@pytest.mark.parametrize(("missed", "limit"), [((), 4096), ((2048,), 4096), ((2048, 2048), 1024)])
def test_one_try_that_other_work_has_missed_does_not_change_the_eager_limit(
    missed, limit, monkeypatch
):
    left = list(missed)

    def leaves(comm, peer, first, nbytes, deadline):
        if nbytes in left:
            left.remove(nbytes)
            return False
        return nbytes <= 4096

    monkeypatch.setattr(point_to_point, "_leaves", leaves)
    assert point_to_point.eager_limit(PAIR, 1, True) == limit
