"""Gradients against finite differences, and what every model promises."""

import warnings

import numpy as np
import pytest

from mpisgd.data import load
from mpisgd.models import MODELS, build, layers
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError

CASES = [
    ("softmax", {}),
    ("mlp", {"hidden": (5,)}),
    ("mlp", {"hidden": (7, 1, 6)}),
    ("bag", {"hidden": (3,)}),
    ("quadratic", {"rank": 1, "size": 3, "curvature_spread": 0.5}),
]
every_model = pytest.mark.parametrize(("name", "options"), CASES)


def made(name, options, dtype="float64", extra=0):
    data = "documents" if name == "bag" else "synthetic"
    dataset = load(data, samples=40, features=6, classes=4, seed=3)
    model = build(name, dataset, **options)
    parameters = Parameters(model.shapes, dtype, extra)
    model.initialise(parameters, np.random.default_rng(1))
    parameters.flat += 0.05  # biases that are not zero
    return dataset, model, parameters


def silent(share):
    pass


def test_every_row_of_the_table_is_tested_here():
    elsewhere = {"mnist-cnn", "resnet8", "resnet20"}  # tests/test_cnn.py; test_torch.py has its own
    assert {name for name, _ in CASES} == {
        name for name in MODELS if name not in elsewhere and not name.startswith("torch:")
    }


@every_model
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_the_gradient_is_that_of_the_loss(name, options, rows):
    dataset, model, parameters = made(name, options)
    inputs, targets = dataset.batch(np.arange(rows))
    gradient = parameters.like()
    model.gradient(parameters, inputs, targets, gradient, silent)
    other = parameters.like()
    step = 1e-6
    for i in range(parameters.size):
        value = parameters.flat[i]
        losses = []
        for shifted in (value + step, value - step):
            parameters.flat[i] = shifted
            losses.append(model.gradient(parameters, inputs, targets, other, silent))
        parameters.flat[i] = value
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(
            gradient.flat[i], rel=1e-5, abs=1e-7
        )


@every_model
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_is_overwritten_and_the_rest_left_alone(name, options, dtype):
    dataset, model, parameters = made(name, options, dtype, extra=2)
    batch = dataset.batch(np.arange(9))
    first, second = parameters.like(), parameters.like()
    second.buffer[:] = np.nan
    before = parameters.buffer.copy()
    losses = [model.gradient(parameters, *batch, g, silent) for g in (first, second)]
    assert losses[0] == losses[1]
    assert first.flat.tobytes() == second.flat.tobytes()
    assert np.isnan(second.extra).all()
    assert parameters.buffer.tobytes() == before.tobytes()


@every_model
def test_batches_of_other_sizes_in_between_change_no_bit(name, options):
    dataset, model, parameters = made(name, options, "float32")
    batch = dataset.batch(np.arange(16))
    first, second = parameters.like(), parameters.like()
    model.gradient(parameters, *batch, first, silent)
    for rows in (3, 0, 30):
        model.gradient(parameters, *dataset.batch(np.arange(rows)), second, silent)
    model.evaluate(parameters, *dataset.test(0, 4))
    model.gradient(parameters, *batch, second, silent)
    assert first.flat.tobytes() == second.flat.tobytes()


@every_model
def test_an_empty_batch_has_no_loss_and_no_gradient(name, options):
    dataset, model, parameters = made(name, options)
    gradient = parameters.like()
    gradient.flat[:] = 7
    shares: list[float] = []
    batch = dataset.batch(np.arange(0))
    assert model.gradient(parameters, *batch, gradient, shares.append) == 0.0
    assert not gradient.flat.any()
    assert shares == [1.0]
    lows: list[int] = []
    assert model.gradient(parameters, *batch, gradient, silent, lows.append) == 0.0
    assert lows == [0]  # all of it may go: the others wait for this rank's share
    assert tuple(model.evaluate(parameters, *dataset.test(0, 0))) == (0.0, 0, 0)


@every_model
def test_parts_weighted_by_their_sizes_make_the_whole(name, options):
    """Law 1's arithmetic: the mean over M B samples is the weighted mean over the ranks'."""
    dataset, model, parameters = made(name, options)
    indices = np.arange(25)
    whole, part = parameters.like(), parameters.like()
    loss = model.gradient(parameters, *dataset.batch(indices), whole, silent)
    summed, losses = np.zeros(parameters.size), 0.0
    for piece in np.split(indices, [4, 4, 17]):
        losses += len(piece) * model.gradient(parameters, *dataset.batch(piece), part, silent)
        summed += len(piece) * part.flat
    assert losses / 25 == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(summed / 25, whole.flat, rtol=1e-10, atol=1e-13)


@every_model
def test_evaluation_adds_up_over_parts(name, options):
    dataset, model, parameters = made(name, options)
    inputs, targets = dataset.batch(np.tile(np.arange(40), 20))  # more than one piece inside
    whole = model.evaluate(parameters, inputs, targets)
    parts = [
        model.evaluate(parameters, inputs[p], targets[p])
        for p in (slice(0, 1), slice(1, 300), slice(300, 800))
    ]
    assert whole.samples == 800
    assert sum(part.samples for part in parts) == 800
    assert sum(part.correct for part in parts) == whole.correct
    assert sum(part.loss_sum for part in parts) == pytest.approx(whole.loss_sum, rel=1e-12)


@pytest.mark.parametrize(("name", "options"), CASES[:4])
def test_the_evaluated_loss_is_the_trained_one(name, options):
    dataset, model, parameters = made(name, options)
    batch = dataset.batch(np.arange(20))
    loss = model.gradient(parameters, *batch, parameters.like(), silent)
    sums = model.evaluate(parameters, *batch)
    assert sums.loss_sum / sums.samples == pytest.approx(loss, rel=1e-12)


def test_correct_counts_the_largest_output():
    dataset = load("synthetic", samples=4, features=3, classes=3)
    model = build("softmax", dataset)
    parameters = Parameters(model.shapes)
    parameters["layer1.weight"][:] = np.eye(3)
    inputs = np.array([[9, 0, 0], [0, 0, 9], [0, 9, 0]], np.float32)
    assert model.evaluate(parameters, inputs, np.array([0, 1, 1])).correct == 2


@every_model
def test_progress_rises_to_one(name, options):
    dataset, model, parameters = made(name, options)
    shares: list[float] = []
    model.gradient(parameters, *dataset.batch(np.arange(8)), parameters.like(), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert shares[0] > 0


@pytest.mark.parametrize("hidden", [(200,), (130, 300)])
@pytest.mark.parametrize("rows", [5, 150])
def test_large_products_are_cut_and_come_out_the_same(monkeypatch, hidden, rows):
    dataset, model, parameters = made("mlp", {"hidden": hidden})
    batch = dataset.batch(np.arange(rows) % 40)
    whole, cut = parameters.like(), parameters.like()
    few: list[float] = []
    many: list[float] = []
    loss = model.gradient(parameters, *batch, whole, few.append)
    monkeypatch.setattr(layers, "BLOCK", 1000)
    assert model.gradient(parameters, *batch, cut, many.append) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(cut.flat, whole.flat, rtol=1e-9, atol=1e-12)
    assert len(few) == 3 * (len(hidden) + 1) - 1  # each product once
    assert len(many) > len(few)
    assert many == sorted(many)
    assert many[-1] == few[-1] == 1.0


def test_small_products_are_not_cut():
    dataset = load("digits")
    model = build("mlp", dataset, hidden=(64,))
    parameters = Parameters(model.shapes)
    shares: list[float] = []
    model.gradient(parameters, *dataset.batch(np.arange(32)), parameters.like(), shares.append)
    assert len(shares) == 5


def test_whether_anybody_listens_changes_no_bit(monkeypatch):
    monkeypatch.setattr(layers, "BLOCK", 1000)
    dataset, model, parameters = made("mlp", {"hidden": (200,)}, "float32")
    batch = dataset.batch(np.arange(30))
    first, second = parameters.like(), parameters.like()
    model.gradient(parameters, *batch, first, silent)
    model.gradient(parameters, *batch, second, [].append)
    assert first.flat.tobytes() == second.flat.tobytes()


def test_the_loss_is_stable_for_huge_outputs():
    dataset = load("synthetic", samples=4, features=2, classes=2)
    model = build("softmax", dataset)
    parameters, gradient = Parameters(model.shapes), Parameters(model.shapes)
    parameters["layer1.weight"][:] = [[3e30, 0], [0, 3e30]]
    inputs = np.eye(2, dtype=np.float32)
    assert model.gradient(parameters, inputs, np.array([0, 1]), gradient, silent) == 0
    loss = model.gradient(parameters, inputs, np.array([0, 0]), gradient, silent)
    assert loss == pytest.approx(1.5e30)
    assert np.isfinite(gradient.flat).all()


@every_model
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_comes_out_without_warnings(name, options, poison):
    dataset, model, parameters = made(name, options, "float32")
    parameters.flat[:] = poison
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient = parameters.like()
        loss = model.gradient(parameters, *dataset.batch(np.arange(5)), gradient, silent)
        sums = model.evaluate(parameters, *dataset.test(0, 4))
    assert not np.isfinite(loss)
    assert not np.isfinite(sums.loss_sum)


@every_model
def test_both_dtypes_start_at_the_same_point(name, options):
    _, model, wide = made(name, options)
    narrow = Parameters(model.shapes, "float32")
    model.initialise(wide, np.random.default_rng(5))
    model.initialise(narrow, np.random.default_rng(5))
    assert (wide.flat.astype(np.float32) == narrow.flat).all()


def test_he_initialisation():
    dataset = load("synthetic", samples=2, features=200, classes=10)
    model = build("mlp", dataset, hidden=(300,))
    parameters = Parameters(model.shapes)
    parameters.flat[:] = 9
    model.initialise(parameters, np.random.default_rng(0))
    assert parameters["layer1.weight"].std() == pytest.approx((2 / 200) ** 0.5, rel=0.02)
    assert parameters["layer2.weight"].std() == pytest.approx((2 / 300) ** 0.5, rel=0.05)
    assert not parameters["layer1.bias"].any()
    assert not parameters["layer2.bias"].any()


def quadratics(size, **options):
    dataset = load("noise", samples=20, features=5)
    return dataset, [build("quadratic", dataset, rank=r, size=size, **options) for r in range(size)]


def test_the_quadratics_objective_is_the_mean_over_ranks():
    dataset, models = quadratics(4, curvature_spread=0.7, optimum_spread=2.0, condition=30.0)
    parameters = Parameters(models[0].shapes, "float64")
    models[0].initialise(parameters, np.random.default_rng(2))
    losses = [float(np.sum(m.curvature * (parameters.flat - m.optimum) ** 2)) / 2 for m in models]
    sums = [m.evaluate(parameters, *dataset.test(0, 2)) for m in models]
    assert len(set(sums)) == 1
    assert sums[0].loss_sum == pytest.approx(2 * np.mean(losses), rel=1e-12)
    assert (sums[0].correct, sums[0].samples) == (0, 2)
    assert models[0].curvature.max() / models[0].curvature.min() == pytest.approx(30)


def test_the_quadratics_mean_gradient_vanishes_at_its_solution():
    _, models = quadratics(3, curvature_spread=0.7)
    parameters = Parameters(models[0].shapes, "float64")
    parameters.flat[:] = models[0].solution
    gradients = []
    for model in models:
        gradient = parameters.like()
        model.gradient(parameters, np.zeros((1, 5)), np.zeros(1), gradient, silent)
        gradients.append(gradient.flat.copy())
    assert np.abs(gradients).max() > 0.1
    np.testing.assert_allclose(np.mean(gradients, axis=0), 0, atol=1e-12)


def test_the_quadratics_noise_is_the_mean_of_the_batch():
    dataset, models = quadratics(2)
    assert (models[0].curvature == models[1].curvature).all()  # law 4 needs one Hessian
    assert (models[0].optimum != models[1].optimum).all()
    parameters = Parameters(models[1].shapes, "float64")
    gradient = parameters.like()
    inputs, targets = dataset.batch(np.arange(7))
    models[1].gradient(parameters, inputs, targets, gradient, silent)
    expected = -models[1].curvature * models[1].optimum + inputs.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(gradient.flat, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("cnnn", "digits", {}, "--model 'cnnn': one of softmax, mlp"),
        ("mlp", "digits", {"hidden": ()}, "--hidden"),
        ("mlp", "digits", {"hidden": (4, 0)}, "--hidden '4,0'"),
        ("mlp", "noise", {}, "--data 'noise'"),
        ("softmax", "noise", {}, "--data 'noise'"),
        ("quadratic", "noise", {"condition": 0.5}, "condition 0.5"),
        ("quadratic", "noise", {"optimum_spread": -1.0}, "optimum_spread -1"),
        ("quadratic", "noise", {"curvature_spread": float("nan")}, "curvature_spread nan"),
    ],
)
def test_mistakes_are_one_line(name, data, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        build(name, load(data), **options)
    assert "\n" not in str(caught.value)
