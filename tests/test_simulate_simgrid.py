"""SimGrid plays the same schedules: to the same seconds where both mean the same network."""

import xml.etree.ElementTree as ET
from importlib.util import find_spec

import numpy as np
import pytest
from test_simulate_command import output, parser, rows

from allreduce.algorithms import ALGORITHMS, build
from allreduce.errors import AllreduceError
from allreduce.network import Network, network
from allreduce.simulate import simulate
from allreduce.simulate.program import prepare
from allreduce.simulate.simgrid import MISSING, Case, platform, play
from mpisgd.commands import simulate as command
from mpisgd.values.errors import UsageError

with_simgrid = pytest.mark.skipif(find_spec("simgrid") is None, reason="needs the extra simgrid")

FAIR = Network(
    "fair", latency_s=25e-6, bandwidth_Bps=1.25e9, sum_s_per_B=2.5e-10, overhead_s=1e-6,
    sharing="fair",
)  # fmt: skip
SERVERS = network("titanx-20g").with_(sharing="fair", eager_limit_B=np.inf)


def both(net, cases, model="raw"):
    """Seconds of every rank of (schedule, bytes, start, chunks), here and there."""
    programs = [
        Case(prepare(schedule, nbytes, net, chunks=chunks), start.tolist())
        for schedule, nbytes, start, chunks in cases
    ]
    here = [simulate(s, n, net, start=start, chunks=c) for s, n, start, c in cases]
    return here, play(programs, net, model)


@with_simgrid
@pytest.mark.parametrize("net", [FAIR, SERVERS], ids=["flat", "servers"])
def test_simgrid_agrees_where_messages_are_buffered_and_share_links(net):
    late = np.random.default_rng(1)
    cases = [
        (build(name, ranks, net.nodes(ranks)), nbytes, late.random(ranks) * skew, chunks)
        for name in ALGORITHMS
        for ranks in (5, 9)
        for nbytes, skew, chunks in ((4, 0.0, 1), (100_000, 1e-4, 1), (1_000_000, 0.0, 3))
    ]
    here, there = both(net, cases)
    for case, ours, its in zip(cases, here, there, strict=True):
        assert its == pytest.approx(ours, rel=1e-5, abs=1e-8), case  # its clock ticks in ns


@with_simgrid
def test_simgrid_agrees_on_handshakes_where_no_send_outlasts_its_receive():
    shaking = FAIR.with_(eager_limit_B=1000)
    cases = [
        (build(name, 8), 100_000, np.zeros(8), 1)
        for name in ("butterfly", "halving-doubling", "ring")
    ]
    here, there = both(shaking, cases)
    assert np.array(there) == pytest.approx(np.array(here), rel=1e-5, abs=1e-8)
    assert here[0].max() > simulate(cases[0][0], 100_000, FAIR).max()


@with_simgrid
def test_its_default_model_stretches_latencies_and_bandwidths_as_the_page_says():
    alone = FAIR.with_(sum_s_per_B=0.0, overhead_s=0.0)
    _, there = both(alone, [(build("tree", 2), 1_000_000, np.zeros(2), 1)], "LV08")
    one_way = 13.01 * alone.latency_s + 1e6 / (0.97 * alone.bandwidth_Bps)
    assert there[0].max() == pytest.approx(2 * one_way, rel=1e-6)


@with_simgrid
def test_the_command_states_the_difference(capsys):
    words = ("--algorithm", "ring,tree", "--ranks", "4", "--bytes", "1K", "--sharing", "fair")
    for row in rows(capsys, *words, "--cross", "simgrid"):
        assert row["simgrid_s"] == pytest.approx(row["median_s"], rel=1e-4)
        assert abs(row["difference"]) < 1e-4
    for row in rows(capsys, *words, "--cross", "simgrid:LV08"):
        assert row["difference"] == pytest.approx(row["simgrid_s"] / row["median_s"] - 1)
        assert row["difference"] > 1  # latencies count


def test_its_platform_has_the_links_and_latencies_of_the_network():
    net = network("titanx-20g").with_(duplex="half")
    case = Case(prepare(build("ring", 9, net.nodes(9)), 9000, net), [0.0] * 9)
    zone = ET.fromstring(platform([case, case]).split("\n", 2)[2])[0]
    links = {link.get("id"): link.attrib for link in zone.iter("link")}
    routes = {
        (route.get("src"), route.get("dst")): [links[part.get("id")] for part in route]
        for route in zone.iter("route")
    }
    assert len(routes) == 18  # a ring of 9, and back for answers
    for pair, latency, slowest in ((("9.0", "9.1"), 10e-6, 16e9), (("9.7", "9.8"), 25e-6, 2.5e9)):
        assert sum(float(link["latency"][:-1]) for link in routes[pair]) == latency
        rate = min(float(link["bandwidth"][:-3]) for link in routes[pair])
        assert rate == pytest.approx(slowest)


def test_mistakes_are_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    for words, line in (
        (("--cross", "simgrid"), f"--cross 'simgrid': {MISSING}"),
        (("--cross", "ns3"), "--cross 'ns3': one of simgrid, simgrid:LV08"),
        (
            ("--cross", "simgrid", "--look-every", "1ms"),
            "--cross 'simgrid': not with --look-every: ranks wait there",
        ),
        (("--cross", "simgrid", "--ranks", "300"), "--ranks '300': at most 256 with --cross"),
    ):
        with pytest.raises(UsageError) as mistake:
            command.run(parser().parse_args(list(words)))
        assert str(mistake.value) == line
    assert "'mpisgd[simgrid]'" in MISSING
    assert "python3-simgrid" in MISSING
    with pytest.raises(AllreduceError, match=r"SimGrid has no noise: only 0\.0 can be compared"):
        play([], FAIR.with_(noise=0.1))


def test_without_it_there_are_no_such_columns(capsys):
    assert "simgrid" not in output(capsys, "--ranks", "2")
