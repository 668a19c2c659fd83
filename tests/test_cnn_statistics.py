"""What normalising layers remember, over all ranks: pooled, estimated, and in result files."""

from typing import Any

import numpy as np
import pytest
from test_cnn import images
from virtual_runs import virtual

from mpisgd.cli import main
from mpisgd.experiment.experiment import Experiment
from mpisgd.models import build
from mpisgd.models.statistics import (
    ESTIMATE_BATCHES,
    ESTIMATE_ROWS,
    POOLED,
    estimated,
    forget,
    moments,
    pooled,
)
from mpisgd.store.reader import read
from mpisgd.training.parameters import Parameters, digest

DATASET = images((1, 8, 8), samples=60)
NORMALISED = Experiment(
    model="resnet8", hidden=(2,), data="digits", batch=4, steps=6, rate=0.05, evaluate_every=3
)
COMMON = ["train", "--data", "digits", "--data-samples", "120", "--batch", "4", "--steps", "6"]
WORDS = [*COMMON, "--model", "resnet8", "--hidden", "2", "--augment", "crop-flip"]


class Holder:
    """Something with statistics."""

    def __init__(self, groups):
        """`groups`: for each rank's samples (rows, channels), what it would remember."""
        self.statistics = Parameters({"n.mean": (2,), "n.variance": (2,), "n.count": (1,)}, float)
        forget(self.statistics)
        if len(groups):
            self.statistics["n.mean"][:] = groups.mean(axis=0)
            self.statistics["n.variance"][:] = groups.var(axis=0)
            self.statistics["n.count"][:] = len(groups)


def test_pooled_statistics_are_those_of_all_samples_together():
    """The law of total variance, with ranks of different sizes and one that saw nothing."""
    samples = np.random.default_rng(0).standard_normal((30, 2)) * [1, 5] + [3, -40]
    ranks = [Holder(part) for part in np.split(samples, [4, 17, 17])]
    sums = np.sum([moments(rank) for rank in ranks], axis=0)
    for rank in ranks:
        own = rank.statistics.flat.copy()
        with pooled(rank, sums):
            np.testing.assert_allclose(rank.statistics["n.mean"], samples.mean(axis=0))
            np.testing.assert_allclose(rank.statistics["n.variance"], samples.var(axis=0))
            assert rank.statistics["n.count"] == 30
        assert np.array_equal(rank.statistics.flat, own)


def test_statistics_of_nothing_stay_as_they_are():
    rank = Holder(np.zeros((0, 2)))
    own = rank.statistics.flat.copy()
    with pooled(rank, moments(rank)):
        assert np.array_equal(rank.statistics.flat, own)


def test_equal_ranks_pool_to_their_own_statistics():
    model = _trained()
    own = model.statistics.flat.copy()
    with pooled(model, 3 * moments(model)):
        for name, view in model.statistics.views.items():
            factor = 3 if name.endswith("count") else 1
            np.testing.assert_allclose(view / factor, _part(model, own, name), rtol=1e-9)


def _trained() -> Any:
    model: Any = build("resnet8", DATASET, hidden=(2,))
    parameters = Parameters(model.shapes)
    model.initialise(parameters, np.random.default_rng(1))
    model.gradient(parameters, *DATASET.batch(np.arange(20)), parameters.like(), lambda share: None)
    return model


def _part(model, flat, name):
    start = 0
    for other, view in model.statistics.views.items():
        if other == name:
            return flat[start : start + view.size]
        start += view.size
    raise AssertionError(name)


def test_estimates_are_of_the_training_samples_and_leave_no_trace():
    model = _trained()
    parameters = Parameters(model.shapes)
    model.initialise(parameters, np.random.default_rng(2))
    own, values = model.statistics.flat.copy(), parameters.flat.copy()
    with estimated(model, DATASET, parameters):
        assert model.statistics["stem.norm.count"] == DATASET.samples  # one batch, as few as it has
        first = model.statistics.flat.copy()
    assert np.array_equal(model.statistics.flat, own)
    assert np.array_equal(parameters.flat, values)
    model.statistics.flat[:] = 1e9  # whatever it remembered before
    with estimated(model, DATASET, parameters):
        assert np.array_equal(model.statistics.flat, first)
    assert ESTIMATE_BATCHES * ESTIMATE_ROWS == 1024


def test_ranks_are_evaluated_with_all_their_statistics():
    """Twice the same samples on two ranks is what one rank sees; and the ranks keep their own."""
    finished = virtual(NORMALISED, 3, algorithm="local", tau=2)
    models: list[Any] = [worker.model for worker in finished.workers]
    kept = [model.statistics.flat for model in models]
    assert not np.array_equal(kept[0], kept[1])
    model = models[0]
    sums, _ = finished.rows[0].evaluations[6]
    losses = []
    mean = finished.workers[0].parameters.like()
    mean.flat[...] = finished.mean
    everyone = np.sum([moments(worker.model) for worker in finished.workers], axis=0)
    for added in (everyone, moments(model)):
        with pooled(model, added):
            given = finished.workers[0].dataset.test(0, finished.workers[0].dataset.test_samples)
            losses.append(model.evaluate(mean, *given).loss_sum)
    assert sums[0] == pytest.approx(losses[0], rel=1e-5)
    assert sums[0] != pytest.approx(losses[1], rel=1e-4)  # rank 0's alone would show


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ("--algorithm minibatch", POOLED),
        ("--algorithm backup", "estimated from 120 training samples"),  # all there are
        ("--algorithm backup --data-samples 1200", "estimated from 1024 training samples"),
    ],
)
def test_the_result_file_says_how(tmp_path, options, method):
    path = str(tmp_path / "run.h5")
    assert main([*WORDS, *options.split(), "--virtual", "3", "--output", path]) == 0
    with read(path) as result:
        assert result.summary["normalisation"] == method
        assert result.config["augment"] == "crop-flip"
        assert result.config["hidden"] == [2]
        assert np.isfinite(result.evaluation["loss"]).all()


def test_a_model_without_statistics_says_nothing(tmp_path):
    path = str(tmp_path / "run.h5")
    words = [*COMMON, "--model", "mnist-cnn", "--hidden", "2", "--virtual", "2"]
    assert main([*words, "--output", path]) == 0
    with read(path) as result:
        assert "normalisation" not in result.summary


@pytest.mark.parametrize("options", ["--algorithm async", "--algorithm backup --requeue"])
def test_a_run_with_servers_is_replayed_to_the_bit(tmp_path, options, capsys):
    """The estimate of the statistics, and the augmentation, depend on nothing that is not kept."""
    path = str(tmp_path / "run.h5")
    words = [*WORDS, *options.split(), "--straggler", "lognormal:0.5", "--virtual", "4"]
    assert main([*words, "--output", path]) == 0
    assert main(["replay", path]) == 0
    assert "True" in capsys.readouterr().out
    with read(path) as result:
        assert len(result.summary["parameters_sha256"]) == len(digest(np.zeros(1)))
