"""The seconds of the virtual clock: the DaSGD paper's Fig. 4, the stall law, the price of looks."""

import math

import numpy as np
import pytest

from allreduce.network import PRESETS, Network
from mpisgd.drivers import virtual
from mpisgd.experiment.building import algorithm_run, load, resolve_for
from mpisgd.experiment.experiment import Experiment

STEP_S = 1.0


class Rows:
    """A recorder that keeps what it is given."""

    def __init__(self):
        self.steps, self.evaluations = [], []

    def step(self, step, columns):
        self.steps.append(columns)

    def evaluation(self, worker, sums, time_s, step):
        self.evaluations.append(time_s)


def train(monkeypatch, network: Network, ranks: int = 2, **values) -> tuple[float, list[Rows]]:
    """(the last rank's end in s, everybody's rows) of a run on `network`, 1 s a step."""
    monkeypatch.setattr(virtual, "virtual_network", lambda experiment: network)
    values = {"model": "quadratic", "data": "noise", "batch": 1, "evaluate_every": 0} | values
    experiment = Experiment.read({"step_time_s": STEP_S, **values})
    dataset = load(experiment)
    experiment = resolve_for(experiment, dataset, ranks)
    rows = [Rows() for _ in range(ranks)]
    clock, workers = virtual.world(experiment, dataset, rows)
    clock.run([algorithm_run(experiment, worker) for worker in workers])
    return max(clock.times), rows


def network(seconds: float, progress: str = "perfect") -> Network:
    """On which an all-reduce of two ranks takes `seconds`."""
    return Network("test", latency_s=seconds, progress=progress)


@pytest.mark.parametrize(
    ("algorithm", "options", "averages"),
    [("minibatch", {}, 6), ("local", {"tau": 3}, 2), ("dasgd", {"tau": 3, "delay": 1}, 0)],
)
def test_figure_4(monkeypatch, algorithm, options, averages):
    """Six steps, t_c = 0.75 t_p: 6p + 6c, 6p + 2c and 6p."""
    end, _ = train(monkeypatch, network(0.75), algorithm=algorithm, steps=6, **options)
    assert end == 6 * STEP_S + averages * 0.75


@pytest.mark.parametrize("tau", range(1, 9))
def test_a_round_stalls_for_what_the_delay_does_not_hide(monkeypatch, tau):
    for delay in range(min(tau, 5) + 1):
        for cost in (0.0, 0.5, 1.0, 2.25, 4.5):
            steps = 3 * tau + delay
            end, rows = train(
                monkeypatch, network(cost), algorithm="dasgd", tau=tau, delay=delay, steps=steps
            )
            # With delay = tau a step that starts an average has merged the one before it.
            stalls = (steps - delay) // tau * max(0.0, cost - delay * STEP_S)
            assert end == pytest.approx(steps * STEP_S + stalls, rel=1e-12)
            waits = sum(row["wait_s"] for row in rows[0].steps)
            assert waits == pytest.approx(stalls, abs=1e-12)


def test_local_steps_cost_one_average_a_round(monkeypatch):
    for tau, steps in ((1, 5), (3, 7), (4, 8)):
        end, _ = train(monkeypatch, network(0.5), algorithm="local", tau=tau, steps=steps)
        assert end == steps * STEP_S + steps // tau * 0.5


def test_looking_rarely_costs_time(monkeypatch):
    """Four ranks need two rounds of 0.5 s, which fit into one step; but a quadratic looks only at
    the end of a step, so that the second round starts there, and every merge waits for it."""
    options = {"algorithm": "dasgd", "tau": 4, "delay": 1, "steps": 40, "ranks": 4}
    perfect, _ = train(monkeypatch, network(0.5), **options)
    looked, _ = train(monkeypatch, network(0.5, "looks"), **options)
    assert perfect == 40 * STEP_S
    assert looked == 40 * STEP_S + 9 * 0.5


def test_the_final_average_is_in_the_evaluation_and_not_in_the_steps(monkeypatch):
    end, rows = train(monkeypatch, network(0.5), algorithm="local", tau=2, steps=5)
    assert rows[0].evaluations == [end + 0.5]
    end, rows = train(monkeypatch, network(0.5), algorithm="minibatch", steps=5)
    assert rows[0].evaluations == [end]


def test_slow_networks_change_seconds_and_not_bits(monkeypatch):
    losses = []
    for net in (PRESETS["ideal"], PRESETS["lab"], PRESETS["titanx-20g"]):
        _, rows = train(monkeypatch, net, ranks=8, algorithm="dasgd", steps=12)
        losses.append([[row["loss"] for row in r.steps] for r in rows])
    assert np.array_equal(losses[0], losses[1])
    assert np.array_equal(losses[0], losses[2])
    assert all(math.isfinite(x) for r in losses[0] for x in r)
