"""Networks: what they refuse, how files and presets are read, which links a message takes."""

import math

import numpy as np
import pytest

from allreduce.network import PRESETS, Network, NetworkError, link_count, network, paths

SERVERS = Network(
    "servers",
    latency_s=5.0,
    bandwidth_Bps=4.0,
    uplink_Bps=2.0,
    ranks_per_node=4,
    node_latency_s=1.0,
    node_bandwidth_Bps=8.0,
    ranks_per_bus=2,
    bus_Bps=16.0,
)


def route(network, source, destination, size=8):
    """(latency, [(link, seconds per byte), ...]) of one message."""
    found = paths(network, np.array([source]), np.array([destination]), size)
    taken = [
        (link, cost)
        for link, cost in zip(found.links[0].tolist(), found.seconds_per_byte[0], strict=True)
        if link >= 0
    ]
    return found.latency[0], taken


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("latency_s", -1e-6, ">= 0"),
        ("latency_s", math.inf, ">= 0"),
        ("latency_s", math.nan, ">= 0"),
        ("latency_s", "1us", ">= 0"),
        ("bandwidth_Bps", 0, "> 0"),
        ("bandwidth_Bps", math.nan, "> 0"),
        ("uplink_Bps", -1.0, "> 0"),
        ("sum_s_per_B", True, ">= 0"),
        ("noise", -0.1, ">= 0"),
        ("eager_limit_B", -1, ">= 0"),
        ("ranks_per_node", 0, "whole number >= 1"),
        ("ranks_per_node", 2.0, "whole number >= 1"),
        ("ranks_per_bus", -1, "whole number >= 0"),
        ("ranks_per_bus", 3, "divisor of ranks_per_node 4"),
        ("duplex", "both", "full, half"),
        ("progress", "polls", "looks, perfect"),
        ("name", 3, "text"),
    ],
)
def test_nonsense_is_refused_in_one_line_with_key_value_and_remedy(key, value, allowed):
    with pytest.raises(NetworkError) as caught:
        SERVERS.with_(**{key: value})
    message = str(caught.value)
    assert message == f"{caught.value.place}: {caught.value.reason}"
    assert key in message
    assert repr(value) in message
    assert allowed in message
    assert "\n" not in message


def test_an_unknown_field_is_an_error():
    with pytest.raises(NetworkError, match="unknown key 'speed'"):
        SERVERS.with_(speed=1)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_by_its_name_and_survives_a_file(name, tmp_path):
    found = network(name)
    assert found.name == name
    path = tmp_path / "other.toml"
    path.write_text(found.toml())
    assert network(str(path)) == found


def test_the_paper_s_clusters_have_the_paper_s_figures():
    titan, k80 = network("titanx-20g"), network("k80-10g")
    assert (titan.uplink_Bps, k80.uplink_Bps) == (2.5e9, 1.25e9)
    for cluster in (titan, k80):
        assert cluster.ranks_per_node == 8
        assert cluster.node_bandwidth_Bps == 16e9


def test_a_file_starts_from_a_preset_and_takes_its_name_from_the_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('preset = "titanx-20g"\nlatency_s = 1\n')
    assert network(str(path)) == network("titanx-20g").with_(name="mine", latency_s=1.0)
    path.write_text("")
    assert network(str(path)) == Network("mine")
    path.write_text(Network('odd "\\\n name').toml())
    assert network(str(path)).name == 'odd "\\\n name'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency = 1", "unknown key 'latency'"),
        ("latency_s = -1", "latency_s"),
        ("latency_s = ", "not TOML"),
        ('preset = "nowhere"', "preset 'nowhere'"),
    ],
)
def test_a_wrong_file_is_one_line(text, message, tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(NetworkError, match=message) as caught:
        network(str(path))
    assert "\n" not in str(caught.value)


def test_what_does_not_exist_is_named(tmp_path):
    with pytest.raises(NetworkError, match="titanx-20g"):
        network("titan")
    with pytest.raises(NetworkError, match="No such file"):
        network(str(tmp_path / "none.toml"))


def test_a_message_takes_the_ports_buses_and_uplinks_on_its_way():
    # Ranks 0..3 on node 0 (buses 01, 23), 4..7 on node 1.
    near, bus, far = route(SERVERS, 0, 1), route(SERVERS, 0, 2), route(SERVERS, 0, 5)
    assert near[0] == bus[0] == 1.0
    assert far[0] == 5.0
    assert [cost for _, cost in near[1]] == [1 / 8, 1 / 8]
    assert [cost for _, cost in bus[1]] == [1 / 8, 1 / 16, 1 / 16, 1 / 8]
    assert [cost for _, cost in far[1]] == [1 / 4, 1 / 16, 1 / 2, 1 / 2, 1 / 16, 1 / 4]


def test_links_are_shared_by_those_who_should_share_them():
    def shared(first, second, on=SERVERS):
        return len(
            {link for link, _ in route(on, *first)[1]} & {k for k, _ in route(on, *second)[1]}
        )

    assert shared((0, 4), (3, 6)) == 2  # both uplinks
    assert shared((0, 4), (1, 6)) == 3  # and the bus out
    assert shared((0, 4), (4, 0)) == 0
    assert shared((0, 1), (1, 0)) == 0
    assert shared((0, 1), (1, 0), SERVERS.with_(duplex="half")) == 2
    assert shared((0, 4), (4, 0), SERVERS.with_(duplex="half")) == 6
    assert shared((0, 1), (0, 4)) == 0  # a port into the node, and one to the network
    numbers = [
        link for a in range(8) for b in range(8) if a != b for link, _ in route(SERVERS, a, b)[1]
    ]
    assert max(numbers) < link_count(8)


def test_what_is_infinitely_fast_is_no_link():
    assert route(network("ideal"), 0, 1) == (0.0, [])
    assert len(route(network("ethernet-10g"), 0, 1)[1]) == 2


def test_nodes_hold_consecutive_ranks():
    assert SERVERS.nodes(6) == [0, 0, 0, 0, 1, 1]
