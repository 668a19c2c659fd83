"""Optimisers against their equations written out, schedules at their ends."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from allreduce import arrays
from mpisgd.training.learning_rates import warmed_up
from mpisgd.training.optimisers import (
    EMA,
    OPTIMISERS,
    SCHEDULES,
    SGD,
    Decoupled,
    RMSProp,
    build,
    schedule,
)
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError

SIZE = 11
LAYERS = [(slice(0, 6), True), (slice(6, 8), False), (slice(8, SIZE), True)]


def steps(count=6, size=SIZE):
    generator = np.random.default_rng(0)
    rates = 0.1 * generator.random(count)
    return generator.standard_normal(size), generator.standard_normal((count, size)), rates


def run(optimiser, x, gradients, rates):
    x = x.copy()
    for gradient, rate in zip(gradients, rates, strict=True):
        optimiser.step(x, gradient, rate)
    return x


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_is_its_equation(momentum, nesterov, decay):
    x, gradients, rates = steps()
    optimiser = SGD(np.zeros(SIZE), momentum, nesterov, decay)
    found = run(optimiser, x, gradients, rates)
    v = np.zeros(SIZE)
    for gradient, rate in zip(gradients, rates, strict=True):
        d = gradient + decay * x
        v = momentum * v + d
        x = x - rate * (d + momentum * v if nesterov else v)
    np.testing.assert_allclose(found, x, rtol=1e-13, atol=1e-15)
    if momentum:
        np.testing.assert_allclose(optimiser.state()["velocity"], v, rtol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_is_its_equation(momentum, decay):
    x, gradients, rates = steps()
    optimiser = RMSProp(np.zeros(SIZE), momentum, decay=0.8, epsilon=0.3, weight_decay=decay)
    found = run(optimiser, x, gradients, rates)
    s, v = np.ones(SIZE), np.zeros(SIZE)
    for gradient, rate in zip(gradients, rates, strict=True):
        d = gradient + decay * x
        s = 0.8 * s + 0.2 * d**2
        v = momentum * v + rate * d / np.sqrt(s + 0.3)
        x = x - v
    np.testing.assert_allclose(found, x, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(optimiser.state()["mean_square"], s, rtol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_lars_is_its_equation_in_each_layer_and_sgd_elsewhere(decay):
    x, gradients, rates = steps()
    options = {"momentum": 0.9, "weight_decay": decay, "trust": 0.02, "layers": LAYERS}
    found = run(build("lars", np.zeros(SIZE), **options), x, gradients, rates)
    plain = run(SGD(np.zeros(SIZE), 0.9, weight_decay=decay), x, gradients, rates)
    norm = np.linalg.norm
    v = np.zeros(SIZE)
    for gradient, rate in zip(gradients, rates, strict=True):
        for layer, adapts in LAYERS:
            w, g = x[layer], gradient[layer]
            local = 0.02 * norm(w) / (norm(g) + decay * norm(w)) if adapts else 1.0
            v[layer] = 0.9 * v[layer] + local * (g + decay * w)
        x = x - rate * v
    np.testing.assert_allclose(found, x, rtol=1e-13, atol=1e-15)
    assert np.array_equal(found[LAYERS[1][0]], plain[LAYERS[1][0]])
    assert not np.allclose(found, plain)


def test_a_lars_step_does_not_know_how_large_the_gradient_is_sgds_does():
    x, gradients, rates = steps(1)
    ways = [run(build("lars", np.zeros(SIZE)), x, k * gradients, rates) for k in (1, 1000)]
    np.testing.assert_allclose(*ways, rtol=1e-13)
    x = np.zeros(SIZE)  # layers of zeros do take a step
    assert run(build("lars", np.zeros(SIZE)), x, gradients, rates).any()


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "lars"])
def test_decoupled_decay_is_beside_the_update_and_momentum_does_not_hold_it(name):
    x, gradients, rates = steps()
    both = Decoupled(build(name, np.zeros(SIZE), momentum=0.9), 0.5)
    found = run(both, x, gradients, rates)
    plain = build(name, np.zeros(SIZE), momentum=0.9)
    for gradient, rate in zip(gradients, rates, strict=True):
        x = x * (1 - rate * 0.5)
        plain.step(x, gradient, rate)
    np.testing.assert_allclose(found, x, rtol=1e-14)


def test_without_momentum_decoupled_decay_of_sgd_is_the_one_in_the_gradient():
    x, gradients, rates = steps()
    beside = run(Decoupled(SGD(np.zeros(SIZE)), 0.3), x, gradients, rates)
    np.testing.assert_allclose(
        beside, run(SGD(np.zeros(SIZE), weight_decay=0.3), x, gradients, rates), rtol=1e-13
    )


def test_a_rate_warms_up_in_equal_steps_and_then_is_what_it_was():
    plain = schedule("step-decay", 0.8, 90)
    rate = warmed_up(plain, 5, 0.1)
    assert [rate(k) for k in range(1, 5)] == pytest.approx([0.24, 0.38, 0.52, 0.66])
    assert [rate(k) for k in range(5, 91)] == [plain(k) for k in range(5, 91)]


def test_step_decay_falls_after_a_third_two_thirds_and_eight_ninths():
    rate = schedule("step-decay", 1.0, 90)
    found = [rate(k) for k in (1, 30, 31, 60, 61, 80, 81, 90)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_rmsprop_starts_at_one():
    """TensorFlow's form: a first step of rate * g / sqrt(decay + (1 - decay) g^2 + epsilon)."""
    x = np.zeros(1)
    RMSProp(np.zeros(1)).step(x, np.array([2.0]), 0.1)
    assert x[0] == pytest.approx(-0.1 * 2 / math.sqrt(0.9 + 0.1 * 4 + 1), rel=1e-14)


KINDS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.01}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("rmsprop", {"weight_decay": 0.01}),
    ("lars", {"momentum": 0.9, "weight_decay": 0.01, "layers": LAYERS}),
]
every_kind = pytest.mark.parametrize(("name", "options"), KINDS)


def test_every_row_of_the_table_is_tested_here():
    assert {name for name, _ in KINDS} == set(OPTIMISERS)


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_change_no_bit_and_the_gradient_stays(monkeypatch, name, options, dtype):
    x, gradients, rates = steps()
    x, gradients = x.astype(dtype), gradients.astype(dtype)
    before = gradients.tobytes()
    whole = run(build(name, np.zeros(SIZE, dtype), **options), x, gradients, rates)
    monkeypatch.setattr(arrays.Host, "block", 4)
    cut = run(build(name, np.zeros(SIZE, dtype), **options), x, gradients, rates)
    assert whole.dtype == dtype
    assert whole.tobytes() == cut.tobytes()
    assert gradients.tobytes() == before


@every_kind
def test_n_and_resume_and_n_is_2n_bit_for_bit(name, options):
    x, gradients, rates = steps(8)
    through = run(build(name, np.zeros(SIZE, "float64"), **options), x, gradients, rates)
    first, second = (build(name, np.zeros(SIZE, "float64"), **options) for _ in range(2))
    half = run(first, x, gradients[:4], rates[:4])
    for key, array in second.state().items():
        array[...] = first.state()[key]
    assert run(second, half, gradients[4:], rates[4:]).tobytes() == through.tobytes()


@every_kind
def test_a_model_of_no_parameters(name, options):
    build(name, np.zeros(0, "float32"), **options).step(np.empty(0, "f"), np.empty(0, "f"), 0.1)


@every_kind
def test_overflow_is_inf_without_a_warning(name, options):
    x = np.full(2, 3e38, "f")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimiser = build(name, np.zeros(2, "float32"), **options)
        optimiser.step(x, np.array([-3e38, np.nan], "f"), 10.0)
        optimiser.step(x, np.array([-3e38, np.inf], "f"), 10.0)
    assert np.isnan(x[1])


@every_kind
def test_law_2_averaging_parameters_or_gradients(name, options):
    """tau = 1: the same for SGD with any momentum and local buffers; not for RMSProp and LARS."""
    x, gradients, rates = steps(10, size=3 * SIZE)
    gradients = gradients.reshape(10, 3, SIZE)  # of 3 ranks
    start = x[:SIZE]
    together = run(
        build(name, np.zeros(SIZE, "float64"), **options), start, gradients.mean(axis=1), rates
    )
    ranks = [build(name, np.zeros(SIZE, "float64"), **options) for _ in range(3)]
    x = start.copy()
    for step, rate in zip(gradients, rates, strict=True):
        local = [
            run(optimiser, x, [gradient], [rate])
            for optimiser, gradient in zip(ranks, step, strict=True)
        ]
        x = np.mean(local, axis=0)
    difference = np.abs(x - together).max()
    unlike = {"rmsprop": 1e-4, "lars": 1e-7}
    assert difference > unlike[name] if name in unlike else difference < 1e-13


def test_steps_allocate_nothing_of_the_models_size():
    import tracemalloc

    parameters = Parameters({"x": (1 << 20,)})
    gradient = parameters.like()
    for name, options in KINDS:
        optimiser = build(name, np.zeros(parameters.size, "float32"), **options)
        tracemalloc.start()
        optimiser.step(parameters.flat, gradient.flat, 0.1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adam", {}, "--optimiser 'adam': one of sgd, rmsprop"),
        ("sgd", {"momentum": 1.0}, "--momentum 1.0"),
        ("sgd", {"momentum": -0.1}, "--momentum -0.1"),
        ("sgd", {"momentum": math.nan}, "--momentum nan"),
        ("sgd", {"weight_decay": -1.0}, "--weight-decay -1"),
        ("sgd", {"weight_decay": math.inf}, "--weight-decay inf"),
        ("sgd", {"nesterov": True}, "--nesterov: needs --momentum"),
        ("sgd", {"epsilon": 1.0}, "--optimiser sgd does not take the option 'epsilon'"),
        ("rmsprop", {"nesterov": True}, "--optimiser rmsprop does not take"),
        ("rmsprop", {"decay": 1.0}, "--rmsprop-decay 1"),
        ("rmsprop", {"epsilon": -1.0}, "--epsilon -1"),
    ],
)
def test_mistakes_are_one_line(name, options, message):
    with pytest.raises(UsageError, match=message):
        build(name, np.zeros(3, "float32"), **options)


def test_options_that_are_none_are_not_given():
    optimiser = build("rmsprop", np.zeros(3, np.float32), nesterov=None, momentum=None)
    assert isinstance(optimiser, RMSProp)
    assert optimiser.momentum == 0.9


@pytest.mark.parametrize("warm_up", [False, True])
def test_ema_is_its_equation(monkeypatch, warm_up):
    monkeypatch.setattr(arrays.Host, "block", 4)
    x, others, _ = steps(30)
    ema = EMA(np.zeros(SIZE), 0.7, warm_up)
    ema.update(x)
    assert ema.average.tobytes() == x.tobytes()
    average = x
    for t, other in enumerate(others, 1):
        ema.update(other)
        decay = min(0.7, (1 + t) / (10 + t)) if warm_up else 0.7
        average = decay * average + (1 - decay) * other
        np.testing.assert_allclose(ema.average, average, rtol=1e-12)


def test_ema_resumes_bit_for_bit():
    _, others, _ = steps(6)
    through, first, second = (EMA(np.zeros(SIZE, np.float32), 0.99, True) for _ in range(3))
    for part in others:
        through.update(part)
    for part in others[:3]:
        first.update(part)
    for key, array in second.state().items():
        array[...] = first.state()[key]
    for part in others[3:]:
        second.update(part)
    assert second.average.tobytes() == through.average.tobytes()


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_ema_refuses(decay):
    with pytest.raises(UsageError, match="--ema"):
        EMA(np.zeros(3), decay)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 200), st.floats(1e-4, 10))
@example("one-cycle", 4, 1e-4)
@settings(max_examples=80, deadline=None)
def test_every_schedule_stays_between_zero_and_its_rate(name, count, rate):
    scheduled = schedule(name, rate, count)
    rates = [scheduled(k) for k in range(1, count + 1)]
    assert all(0 <= r <= rate for r in rates)
    assert max(rates) == rate  # reached, exactly


def test_constant():
    assert {schedule("constant", 0.1, 9)(k) for k in range(1, 10)} == {0.1}


def test_one_cycle_is_the_papers():
    rate = schedule("one-cycle", 1e-2, 100)
    assert (rate(1), rate(30), rate(100)) == (1e-4, 1e-2, 1e-4)
    rises = np.diff([rate(k) for k in range(1, 101)])
    np.testing.assert_allclose(rises[:29], (1e-2 - 1e-4) / 29)
    np.testing.assert_allclose(rises[29:], -(1e-2 - 1e-4) / 70)


@pytest.mark.parametrize("expected", [[0.5], [0.5, 0.1], [0.5, 0.3, 0.1]])
def test_one_cycle_of_few_steps(expected):
    rate = schedule("one-cycle", 0.5, len(expected), start=0.1)
    assert [rate(k) for k in range(1, len(expected) + 1)] == pytest.approx(expected)


def test_linear_tail():
    rate = schedule("linear-tail", 0.1, 25, share=0.4)
    assert {rate(k) for k in range(1, 16)} == {0.1}
    np.testing.assert_allclose([rate(k) for k in range(15, 26)], np.linspace(0.1, 0, 11))
    assert rate(25) == 0
    assert schedule("linear-tail", 0.1, 5, share=0.0)(5) == 0.1


def test_exponential():
    rate = schedule("exponential", 0.045, 1000, period=50)
    assert rate(1) == 0.045
    assert rate(51) == pytest.approx(0.045 * 0.94)
    assert rate(501) == pytest.approx(0.045 * 0.94**10)
    assert schedule("exponential", 1.0, 400)(401) == pytest.approx(0.94**40)


@pytest.mark.parametrize(
    ("name", "rate", "count", "options", "message"),
    [
        ("cosine", 0.1, 10, {}, "--schedule 'cosine': one of constant"),
        ("constant", math.nan, 10, {}, "--lr nan"),
        ("constant", math.inf, 10, {}, "--lr inf"),
        ("constant", -0.1, 10, {}, "--lr -0.1"),
        ("constant", 0.1, -1, {}, "--steps -1"),
        ("constant", 0.1, 10, {"share": 0.1}, "--schedule constant does not take"),
        ("one-cycle", 0.1, 10, {"period": 3}, "--schedule one-cycle does not take"),
        ("one-cycle", 1e-5, 10, {}, "--lr 1e-05: at least 0.0001"),
        ("one-cycle", 0.1, 10, {"start": -1.0}, "start -1"),
        ("one-cycle", 0.1, 10, {"share": 0.0}, "share 0"),
        ("linear-tail", 0.1, 10, {"share": 1.5}, "share 1.5"),
        ("exponential", 0.1, 10, {"factor": 0.0}, "factor 0"),
        ("exponential", 0.1, 10, {"period": 0}, "period 0"),
        ("exponential", 0.1, 10, {"factor": math.nan}, "factor nan"),
    ],
)
def test_wrong_schedules_are_refused_at_once(name, rate, count, options, message):
    with pytest.raises(UsageError, match=message):
        schedule(name, rate, count, **options)
