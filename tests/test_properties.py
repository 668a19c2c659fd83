"""Laws over all inputs: a mistake is a UsageError of one line, or there is none; never a crash."""

import math
import tomllib
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from allreduce.algorithms import ALGORITHMS, build
from allreduce.errors import AllreduceError
from allreduce.evaluate import evaluate
from allreduce.network import PRESETS
from allreduce.network import Network as Links
from allreduce.simulate import simulate
from allreduce.simulate.program import messages
from allreduce.verify import verify
from mpisgd.experiment import stragglers
from mpisgd.experiment.arguments import GROUPS
from mpisgd.experiment.experiment import Experiment, flag, from_file
from mpisgd.predict.costs import COSTS, allreduce_s
from mpisgd.predict.networks import TOPOLOGIES
from mpisgd.values import quantities, units
from mpisgd.values.errors import UsageError
from mpisgd.values.options import duration, number, whole

FEW = settings(max_examples=60, deadline=None)
OPTIONS = [option for option in fields(Experiment) if option.metadata]
NAMES = sorted({name for option in OPTIONS for name in (option.name, flag(option))})
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, 1, 2, 4, 0.5, 1e-320, 1e300, 10**400])
)
WORDS = st.sampled_from(
    [
        "local",
        "dasgd",
        "stale",
        "async",
        "backup",
        "softsync",
        "timeout",
        "convex",
        "delta",
        "ring",
        "perfect",
        "mlp",
        "softmax",
        "digits",
        "idx",
        "rmsprop",
        "one-cycle",
        "weak",
        "20ms",
        "1e9h",
        "64,32",
        "0:2x",
        "auto",
        "exponential",
        "trace:",
        "pareto:0.1",
        "resnet50@titanx",
        "x@y",
        "a.toml",
        "inf",
        "nan",
        "-1",
        "1_0",
        "３",
        "true",
    ]
)
SCALARS = st.one_of(NUMBERS, WORDS, st.text(max_size=8), st.booleans(), st.dates(), st.times())
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
)


def refused(call, *arguments, error=UsageError, **options):
    """What `call` gives, or None after an `error` that says it in one line."""
    try:
        return call(*arguments, **options)
    except error as mistake:
        line = str(mistake)
    assert line
    assert "\n" not in line
    assert len(line) < 3000
    return None


# --- experiments


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
    | st.dictionaries(st.text(max_size=6), VALUES, max_size=2),
    st.integers(1, 40), st.integers(1, 2000),
)  # fmt: skip
def test_any_mapping_is_an_experiment_or_a_mistake(values, ranks, samples):
    experiment = refused(Experiment.read, values)
    if experiment is None:
        return
    given_back = {
        option.name: getattr(experiment, option.name)
        for option in OPTIONS
        if getattr(experiment, option.name) is not None
    }
    assert Experiment.read(given_back) == experiment
    resolved = refused(experiment.resolved, ranks, samples)
    if resolved is not None:
        assert resolved.steps >= 1
        assert resolved.ranks == ranks
        assert resolved.config()["steps"] == resolved.steps


@FEW
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_table_or_a_mistake(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    table = refused(from_file, str(path))
    if table is not None:
        assert table == tomllib.loads(path.read_text(encoding="utf-8"))
        refused(Experiment.read, table, "{}")


def test_help_groups_hold_every_option_once():
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= {option.name for option in OPTIONS}


TEXTS = st.one_of(
    st.text(max_size=9), st.text("0123456789.,:eE+-_ ksmhuxGiB/bpt", max_size=9), WORDS,
    NUMBERS.map(str),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(TEXTS | NUMBERS)
def test_numbers_are_those_that_people_write(value):
    """Within their bounds, or refused; the digits of a text are 0 to 9, without underscores."""
    text = str(value)
    found = [
        refused(whole(0, 99).read, "--x", value), refused(number(0, 99).read, "--x", value),
        refused(duration(0.5).read, "--x", value), refused(quantities.number, "--x", value),
        refused(quantities.whole, "--x", value), refused(quantities.duration, "--x", value),
        refused(units.parse_size, text, "--x"), refused(units.parse_rate, text, "--x"),
    ]  # fmt: skip
    for result in found:
        if result is not None:
            assert result >= 0
            assert math.isfinite(result) or text.strip() == "inf"
            assert text.isascii()
            assert "_" not in text


@FEW
@given(TEXTS, st.integers(0, 5))
def test_lists_of_numbers_are_bounded(text, low):
    ranks = refused(quantities.ranks, "--ranks", text)
    assert ranks is None or (1 <= len(ranks) <= 10_000 and min(ranks) >= 1)
    found = refused(units.parse_sizes, text, "--sizes")
    assert found is None or all(0 <= size <= 2**62 for size in found)


TERMS = st.one_of(
    TEXTS,
    st.builds("{}:{}x".format, st.integers(0, 9), NUMBERS),
    st.builds("{}:{}".format, st.sampled_from(["shifted", "lognormal", "pareto"]), NUMBERS),
    st.builds("pareto:{}:{}".format, NUMBERS, NUMBERS),
    st.builds("{}-{}:die@{}".format, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(TERMS, min_size=1, max_size=4).map(",".join), st.integers(0, 9))
def test_stragglers_are_slow_or_dead_never_in_between(text, rank):
    straggler = refused(stragglers.parse, text)
    if straggler is None:
        return
    for step in (1, 9):
        factor = straggler.factor(rank, step)
        dead = step >= straggler.deaths.get(rank, step + 1)
        assert dead if factor == math.inf else 0 <= factor <= stragglers.LONGEST
    named = [high for _, high, _ in straggler.slow] + list(straggler.deaths)
    assert (refused(straggler.check, max(named, default=-1)) is None) is True
    if named:
        with pytest.raises(UsageError, match="ranks that compute"):
            straggler.check(max(named))


# --- schedules


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([*ALGORITHMS, *(f"hierarchical:{name}" for name in ALGORITHMS)]),
    st.integers(1, 17), st.integers(1, 9), st.integers(0, 40), st.integers(1, 7), st.data(),
)  # fmt: skip
def test_any_schedule_is_right(name, size, per_node, count, chunks, data):
    """Verified; its bits are the sum on every rank; its messages carry all bytes in any chunks."""
    nodes = [rank // per_node for rank in range(size)] if data.draw(st.booleans()) else None
    schedule = build(name, size, nodes)
    verify(schedule)
    vectors = np.random.default_rng(0).integers(-99, 99, (size, count)).astype(np.float64)
    expected = vectors.sum(axis=0)
    evaluate(schedule, list(vectors))
    np.testing.assert_array_equal(vectors, np.broadcast_to(expected, vectors.shape))
    one = messages(schedule, 8 * count, itemsize=8)
    cut = messages(schedule, 8 * count, itemsize=8, chunks=chunks)
    assert cut.nbytes.sum() == one.nbytes.sum()
    assert cut.nbytes.max(initial=0) <= one.nbytes.max(initial=0)


# --- networks


FLOATS = ("latency_s", "bandwidth_Bps", "sum_s_per_B", "overhead_s", "look_s", "uplink_Bps",
          "node_latency_s", "node_bandwidth_Bps", "bus_Bps", "eager_limit_B", "noise")  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(FLOATS), NUMBERS | st.floats(0, 1e12), max_size=6),
    st.integers(-1, 4), st.integers(-1, 4), st.sampled_from(["full", "half", "none"]),
    st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 6), st.integers(0, 2**40),
)  # fmt: skip
def test_any_links_give_finite_times_or_a_mistake(
    numbers, per_node, per_bus, duplex, name, ranks, nbytes
):
    shape = {"ranks_per_node": per_node, "ranks_per_bus": per_bus, "duplex": duplex}
    links = refused(Links, error=AllreduceError, **numbers, **shape)
    if links is None:
        return
    seconds = simulate(build(name, ranks, links.nodes(ranks)), nbytes, links, seed=1)
    assert np.isfinite(seconds).all()
    assert (seconds >= 0).all()
    assert tomllib.loads(links.toml())["bandwidth_Bps"] == links.bandwidth_Bps


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {"bandwidth_Bps": NUMBERS | st.floats(1e-9, 1e15)},
        optional={
            "latency_s": NUMBERS, "sum_s_per_B": NUMBERS, "ranks_per_node": st.integers(-1, 64),
            "node_bandwidth_Bps": NUMBERS, "node_latency_s": NUMBERS, "uplink_Bps": NUMBERS,
        },
    ),
    st.sampled_from(TOPOLOGIES),
    st.sampled_from(sorted(COSTS)), st.integers(1, 10**6), st.floats(1, 2.0**62),
)  # fmt: skip
def test_any_servers_give_finite_times_or_a_mistake(values, topology, name, ranks, nbytes):
    network = refused(Links, "any", error=AllreduceError, **values)
    if network is not None:
        seconds = allreduce_s(name, ranks, nbytes, network, topology=topology)
        assert math.isfinite(seconds)
        assert seconds >= 0


@FEW
@given(st.sampled_from(sorted(PRESETS)), st.sampled_from(FLOATS), NUMBERS)
def test_a_preset_changed_is_a_network_or_a_mistake(name, key, value):
    assume(value != getattr(PRESETS[name], key))
    changed = refused(PRESETS[name].with_, error=AllreduceError, **{key: value})
    assert changed is None or getattr(changed, key) == value
