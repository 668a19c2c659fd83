"""The model bag: its rows, what is refused, and that it learns with every algorithm."""

from dataclasses import replace

import numpy as np
import pytest

import mpisgd
from mpisgd.data import load
from mpisgd.models import build
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError


@pytest.fixture(scope="module")
def documents():
    return load("documents", samples=200, features=400, classes=3)


def test_no_other_row_has_a_part_in_the_loss_nor_a_gradient(documents):
    model = build("bag", documents, hidden=(5,))
    parameters = Parameters(model.shapes)
    model.initialise(parameters, np.random.default_rng(0))
    batch = documents.batch(np.arange(8))
    rows = model.rows(batch[0])
    assert np.array_equal(rows, np.unique(batch[0][batch[0] >= 0]))
    others = np.setdiff1d(np.arange(model.shapes[model.embedding][0]), rows)
    gradients = [parameters.like(), parameters.like()]
    losses = []
    for gradient in gradients:
        losses.append(model.gradient(parameters, *batch, gradient, lambda share: None))
        parameters[model.embedding][others] += 7
    assert losses[0] == losses[1]
    assert gradients[0].flat.tobytes() == gradients[1].flat.tobytes()
    assert not gradients[0][model.embedding][others].any()
    assert gradients[0][model.embedding][rows].any(axis=1).all()


def test_a_document_is_its_words_in_any_order(documents):
    model = build("bag", documents)
    parameters = Parameters(model.shapes, "float64")
    model.initialise(parameters, np.random.default_rng(0))
    words, classes = documents.batch(np.arange(20))
    turned = words[:, ::-1]
    twice = np.concatenate([words, words], axis=1)
    losses = [model.evaluate(parameters, each, classes).loss_sum for each in (words, turned, twice)]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-12)
    empty = np.full_like(words, -1)  # nothing but the bias
    assert model.evaluate(parameters, empty, classes).loss_sum == pytest.approx(20 * np.log(3))


def test_parts_are_ready_and_needed_from_layer_to_layer(documents):
    model = build("bag", documents)
    parameters = Parameters(model.shapes)
    told: list[tuple[str, int]] = []
    model.gradient(
        parameters, *documents.batch(np.arange(4)), parameters.like(), lambda share: None,
        lambda low: told.append(("ready", low)), lambda high: told.append(("needs", high)),
    )  # fmt: skip
    edge, size = parameters[model.embedding].size, parameters.size
    assert told == [("needs", edge), ("needs", size), ("ready", edge), ("ready", 0)]


@pytest.mark.parametrize(
    "algorithm",
    [
        {"algorithm": "minibatch"},
        {"algorithm": "dasgd", "tau": 4, "delay": 2},
        {"algorithm": "minibatch-overlap", "wire": "bfloat16"},
        {"algorithm": "async", "lr": 1.0, "momentum": 0.5, "push": "sparse", "pull": "sparse"},
    ],
    ids=lambda options: options["algorithm"],
)
def test_it_learns(algorithm, monkeypatch):
    monkeypatch.setattr("mpisgd.data.synthetic.WORDS", 300)
    options = {"data_samples": 1000, "batch": 8, "epochs": 4, "lr": 3.0, "evaluate_every": 0}
    run = mpisgd.run(model="bag", data="documents", ranks=4, **(options | algorithm))
    assert run.evaluation["accuracy"][-1] > 0.25  # of ten classes


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({"hidden": (8, 4)}, {}, "--hidden '8,4': bag takes one number"),
        ({"hidden": ()}, {}, "--hidden '': bag takes one number"),
        ({}, {"train_inputs": np.full((200, 4), 0.5, np.float32)}, "needs documents"),
        ({}, {"train_inputs": np.full((200, 4), -2.0, np.float32)}, "needs documents"),
        ({}, {"test_inputs": np.full((22, 4), np.nan, np.float32)}, "needs documents"),
        ({}, {"test_inputs": np.full((22, 4), 2.0**24, np.float32)}, "needs documents"),
        ({}, {"train_inputs": np.zeros((200, 4), np.uint8)}, "needs documents"),
        ({}, {"classes": 0}, "needs documents with classes"),
    ],
)
def test_what_is_no_document_is_refused_in_one_line(documents, options, data, message):
    with pytest.raises(UsageError, match=message) as caught:
        build("bag", replace(documents, **data), **options)
    assert "\n" not in str(caught.value)
