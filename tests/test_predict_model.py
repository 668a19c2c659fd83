"""The layer model against its oracles and laws; devices and networks of one's own."""

import pytest

from allreduce.network import Network
from mpisgd.predict import devices, nets, networks, paleo
from mpisgd.predict.devices import DEVICES, Device
from mpisgd.values.errors import UsageError

TITANX = DEVICES["titanx"]
PALEO_NET = nets.layers("resnet50-paleo")


def test_devices_of_the_papers():
    assert (TITANX.peak_GFLOPS, TITANX.bandwidth_GBps) == (6144, 336.5)
    assert (DEVICES["k80"].peak_GFLOPS, DEVICES["k80"].bandwidth_GBps) == (5600, 480)


@pytest.mark.parametrize(
    ("batch", "share", "forward", "backward", "update", "whole"),
    [
        (64, 1.0, 95.6108, 212.8087, 0.8562, 309.2757),
        (32, 1.0, 47.9466, 106.6866, 0.8562, 155.4894),
        (64, 0.62, 154.2110, 343.2398, 0.8562, 498.3070),
    ],
)
def test_paleo_step(batch, share, forward, backward, update, whole):
    step = paleo.step_time(PALEO_NET, TITANX, batch, peak_share=share)
    shown = [step.forward_s, step.backward_s, step.update_s]
    assert [round(1e3 * s, 4) for s in shown] == [forward, backward, update]
    assert 1e3 * step.step_s == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "flop", "backward_flop", "times"),
    [
        ("conv1", 236.028, 236.028, (2.459, 0.679, 2.459, 0.681)),
        ("res2a_branch2b", 223.027, 446.054, (2.323, 0.285, 4.646, 0.570)),
        ("res3a_branch1", 205.521, 999.309, (2.141, 0.835, 10.409, 2.482)),
        ("fc1000", 4.096, 8.192, (0.043, 0.025, 0.085, 0.050)),
    ],
)
def test_paleo_layers(name, flop, backward_flop, times):
    layer = next(layer for layer in PALEO_NET if layer.name == name)
    work = paleo.layer_work(layer, 1)
    assert [round(work.forward.flop / 1e6, 3), round(work.backward.flop / 1e6, 3)] == [
        flop,
        backward_flop,
    ]
    step = paleo.step_time(PALEO_NET, TITANX, 64)
    time = next(time for time in step.layers if time.name == name)
    assert tuple(round(1e3 * second, 3) for second in time[2:6]) == times


def test_pipelined_takes_the_longer_of_arithmetic_and_memory():
    plain = paleo.step_time(PALEO_NET, TITANX, 64)
    piped = paleo.step_time(PALEO_NET, TITANX, 64, pipelined=True)
    for layer in piped.layers:
        assert layer.forward_s == max(layer.forward_compute_s, layer.forward_memory_s)
        assert layer.backward_s == max(layer.backward_compute_s, layer.backward_memory_s)
    assert piped.forward_s < plain.forward_s
    assert piped.backward_s < plain.backward_s
    assert piped.update_s < plain.update_s


def test_flops_is_the_simplest_model():
    layers = nets.layers("resnet50")
    step = paleo.step_time(layers, TITANX, 64, compute="flops", peak_share=0.5)
    assert step.step_s == pytest.approx(3 * 64 * 2 * 4_089_184_256 / (0.5 * 6144e9), rel=1e-9)


def test_groups_divide_arithmetic_and_weights():
    layer = next(one for one in nets.layers("resnext50") if one.groups == 32)
    dense = paleo.layer_work(layer._replace(groups=1), 2)
    grouped = paleo.layer_work(layer, 2)
    assert grouped.forward.flop == dense.forward.flop / 32
    assert grouped.backward.flop == dense.backward.flop / 32
    assert grouped.forward.nbytes < dense.forward.nbytes


@pytest.mark.parametrize("name", nets.NETS)
def test_every_net_has_a_time_and_a_memory(name):
    layers = nets.layers(name)
    small, large = (paleo.step_time(layers, TITANX, batch) for batch in (1, 64))
    assert 0 < small.step_s < large.step_s < 64 * small.step_s
    assert small.update_s == large.update_s
    assert paleo.memory_bytes(layers, 2) > 12 * small.parameters


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"peak_share": 0}, "--peak-share"),
        ({"peak_share": 1.1}, "--peak-share"),
        ({"compute": "magic"}, "--compute"),
    ],
)
def test_step_time_refuses(bad, place):
    with pytest.raises(UsageError, match=place):
        paleo.step_time(PALEO_NET, TITANX, 1, **bad)
    with pytest.raises(UsageError, match="--batch"):
        paleo.step_time(PALEO_NET, TITANX, 0)


# --- devices and networks of one's own


def test_own_device_and_network(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("peak_GFLOPS = 100\nbandwidth_GBps = 20.0\nmemory_GB = 8\n")
    assert devices.find(str(file)) == Device("mine", 100.0, 20.0, 8.0)
    pairs = "name=x,peak_GFLOPS=100,bandwidth_GBps=20,memory_GB=8"
    assert devices.find(pairs) == Device("x", 100.0, 20.0, 8.0)
    net = networks.find("name=lab,bandwidth_Bps=25e6,latency_s=1e-4,ranks_per_node=2")
    assert net == Network("lab", 1e-4, 25e6, ranks_per_node=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("titan", "titanx"),
        ("name=x,peak_GFLOPS=100", "lacks bandwidth_GBps"),
        ("name=x,speed=3", "keys are name"),
        ("name=x,peak_GFLOPS=0,bandwidth_GBps=1,memory_GB=1", "> 0"),
        ("name=x,peak_GFLOPS=nan,bandwidth_GBps=1,memory_GB=1", "peak_GFLOPS"),
        ("no/such.toml", "No such file"),
    ],
)
def test_device_refuses(text, words):
    with pytest.raises(UsageError, match=words):
        devices.find(text)


def test_network_refuses(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("bandwidth_Bps = \n")
    with pytest.raises(UsageError, match="not TOML"):
        networks.find(str(broken))
    with pytest.raises(UsageError, match="--topology 'star'"):
        networks.check("star")
    for pair in ("ranks_per_node=0", "latency_s=-1.0", "speed=1", "bandwidth_Bps=fast", "preset=x"):
        with pytest.raises(UsageError, match=pair.partition("=")[0]):
            networks.find(f"name=x,{pair}")
