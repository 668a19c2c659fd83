"""Effective steps are what is left of a count that every step raises by one."""

import numpy as np
import pytest

from mpisgd.algorithms.averaging import dasgd
from mpisgd.training.effective import effective_share, effective_steps, idle


class Counter:
    """A worker all of whose ranks count their steps: the mean is what each of them holds."""

    def __init__(self, steps):
        self.count, self.last, self.counts = np.zeros(1), steps, []
        self.gradient, self.parameters = type("Flat", (), {"flat": None}), self.count

    def steps(self):
        yield from range(1, self.last + 1)

    def mean(self, parameters, keep_started):
        return self

    def share(self, steps):
        return 1.0

    def start(self, share):
        self.started = self.count.copy()

    def wait(self):
        yield
        return self.started

    def compute_gradient(self):
        yield

    def update(self, gradient):
        self.count += 1

    def merge(self, rule, mean, started, xi):
        rule(self.count, mean, started, xi)

    def end_step(self):
        self.counts.append(self.count.item())
        yield


@pytest.mark.parametrize("tau", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("merge", "xi"),
    [("convex", 0.0), ("convex", 0.25), ("convex", 1.0), ("delta", 1.0), ("overwrite", 0.0)],
)
def test_effective_steps_are_what_the_algorithm_itself_keeps_of_a_count(tau, merge, xi):
    for delay in range(tau + 1):
        config = {"algorithm": "dasgd", "tau": tau, "delay": delay, "xi": xi, "merge": merge}
        worker = Counter(30)
        for _ in dasgd(worker, tau, delay, xi, merge):
            pass
        found = [effective_steps(config, k) for k in range(1, 31)]
        assert found == pytest.approx(worker.counts)
        worth = [found[k + tau] - found[k] for k in range(delay, 29 - tau)]  # in every round alike
        assert worth == pytest.approx([tau * effective_share(tau, delay, xi, merge)] * len(worth))


DASGD = {"algorithm": "dasgd", "tau": 4, "delay": 1, "xi": 0.25, "merge": "convex"}


@pytest.mark.parametrize(
    ("config", "steps", "effective"),
    [
        (DASGD, 4, 4.0),  # nothing merged yet
        (DASGD, 5, 4.25),
        (DASGD, 0, 0.0),
        (DASGD | {"delay": 0}, 9, 9.0),
        (DASGD | {"delay": 4}, 8, 5.0),
        (DASGD | {"delay": 4, "xi": 0.0}, 8, 4.0),
        (DASGD | {"merge": "delta", "xi": 1.0}, 9, 9.0),
        (DASGD | {"merge": "overwrite", "xi": 0.0, "delay": 3}, 11, 5.0),
        ({"algorithm": "local", "tau": 4}, 9, 9.0),
        ({"algorithm": "minibatch"}, 9, 9.0),
    ],
)
def test_what_was_merged_counts_and_not_what_will_be(config, steps, effective):
    assert effective_steps(config, steps) == effective


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"algorithm": "local", "tau": 100, "steps": 20}, "never averages: 20 steps"),
        ({"algorithm": "local", "tau": 20, "steps": 20}, None),
        ({"algorithm": "local", "tau": 100, "steps": 20, "ranks": 1}, None),
        (DASGD | {"tau": 84, "delay": 83, "steps": 30}, "enters at --tau 84 + --delay 83"),
        ({"algorithm": "post-local", "tau": 4, "switch": 17, "steps": 20}, "--switch 17 + --tau 4"),
        ({"algorithm": "post-local", "tau": 4, "switch": 16, "steps": 20}, None),
        (DASGD | {"steps": 5}, None),
        (DASGD | {"steps": 4}, "never averages"),
        (DASGD | {"delay": "auto", "tau": None, "steps": 4}, None),
        (DASGD | {"tau": 2, "delay": 2, "xi": 0.0, "steps": 20}, "learns nothing"),
        (DASGD | {"tau": 2, "delay": 2, "steps": 20}, None),
        ({"algorithm": "minibatch", "steps": 1}, None),
        ({"algorithm": "local"}, None),
    ],
)
def test_a_run_that_cannot_do_what_it_says_is_told(config, told):
    assert (idle(config) is None) if told is None else (told in str(idle(config)))
