"""The experiment: from flags or TOML to the same frozen values, or to one line."""

import argparse
from dataclasses import FrozenInstanceError, fields
from typing import Annotated

import pytest

from mpisgd.algorithms import NAMES, OPTIONS, SIGNATURES
from mpisgd.experiment.arguments import add_arguments, from_arguments
from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.values import signatures
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole

OPTIONS_OF = [option for option in fields(Experiment) if option.metadata]


def parsed(*words: str) -> Experiment:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(words))


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return str(path)

    return write


def test_flags_and_toml_say_the_same(written):
    words = (
        "--algorithm dasgd --tau 6 --delay 2 --xi 0.5 --merge convex --allreduce ring --chunks 3 "
        "--model mlp --hidden 64,32 --data digits --batch 16 --steps 40 --lr 0.05 --momentum 0.8 "
        "--nesterov --weight-decay 0.001 --ema 0.99 --dtype float64 --seed 3 --step-time 20ms "
        "--evaluate-every 7 --deadline 2min --scaling weak --progress thread --schedule one-cycle"
    )
    toml = """
        algorithm = "dasgd"
        tau = 6
        delay = 2
        xi = 0.5
        merge = "convex"
        allreduce = "ring"
        chunks = 3
        model = "mlp"
        hidden = [64, 32]
        data = "digits"
        batch = 16
        steps = 40
        lr = 0.05
        momentum = 0.8
        nesterov = true
        weight-decay = 0.001
        ema = 0.99
        dtype = "float64"
        seed = 3
        step-time = "20ms"
        evaluate-every = 7
        deadline = "2min"
        scaling = "weak"
        progress = "thread"
        schedule = "one-cycle"
    """
    assert parsed(*words.split()) == parsed("--config", written(toml)) != Experiment()


def test_the_names_of_the_result_file_are_read_too():
    experiment = Experiment.read({"rate": 0.5, "rate_schedule": "linear-tail", "step_time_s": 0.1})
    assert experiment == Experiment.read({"lr": 0.5, "schedule": "linear-tail", "step-time": 0.1})
    config = {key: value for key, value in experiment.config().items() if value is not None}
    del config["ranks"]
    assert Experiment.read(config) == experiment


def test_flags_win_over_the_file(written):
    path = written('lr = 0.5\nseed = 3\nstep_time_s = "1s"')
    experiment = parsed("--config", path, "--lr", "0.25", "--step-time", "2s")
    assert (experiment.rate, experiment.seed, experiment.step_time_s) == (0.25, 3, 2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lerning_rate = 1", r"run.toml: lerning_rate: no such option; there are .*\blr\b"),
        ("[train]\nlr = 1", r"run.toml: train: no such option"),
        ('tau = "four"\nalgorithm = "local"', r"run.toml: tau 'four': a whole number >= 1"),
        ('algorithm = "local"\ntau = 4.0', r"run.toml: tau 4.0: a whole number >= 1"),
        ('algorithm = "local"\ntau = true', r"run.toml: tau True: a whole number >= 1"),
        ("batch = [32]", r"run.toml: batch \[32\]: a whole number >= 1"),
        ("lr = nan", r"run.toml: lr nan: a finite number >= 0"),
        ("algorithm = 7", r"run.toml: algorithm 7: one of minibatch, "),
        ('nesterov = "maybe"', r"run.toml: nesterov 'maybe': true or false"),
        ("lr = ", r"run.toml: not TOML: "),
        ("lr = 1\nlr = 2", r"run.toml: not TOML: "),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_key(text, said, written):
    with pytest.raises(UsageError, match=said) as refusal:
        parsed("--config", written(text))
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.toml: No such file"):
        parsed("--config", str(tmp_path / "nowhere.toml"))
    with pytest.raises(UsageError, match="Is a directory"):
        parsed("--config", str(tmp_path))
    (tmp_path / "latin").write_bytes(b"\xe9 = 1")
    with pytest.raises(UsageError, match="not UTF-8"):
        parsed("--config", str(tmp_path / "latin"))


def test_every_option_says_what_it_is_and_what_is_allowed():
    names = [name for option in OPTIONS_OF for name in {option.name, flag(option)}]
    assert len(names) == len(set(names))
    for option in OPTIONS_OF:
        assert option.metadata["help"]
        assert option.metadata["kind"].allowed
        if option.default is not None:  # what is not given is allowed
            kind = option.metadata["kind"]
            assert kind.read(flag(option), option.default) == option.default


def test_what_an_algorithm_takes_is_a_field():
    assert list(OPTIONS) == list(NAMES)
    names = {option.name for option in OPTIONS_OF}
    assert all(set(taken) <= names for taken in OPTIONS.values())


def test_a_new_algorithms_options_stand_in_its_signature_alone():
    def lonely(worker, reach: Annotated[int, whole(2), "how far"] = 3, bold: bool = False):
        yield from ()

    found = signatures.options(lonely)
    assert list(found) == ["reach", "bold"]
    assert (found["reach"].default, found["reach"].help) == (3, "how far")
    with pytest.raises(UsageError, match="a whole number >= 2"):
        found["reach"].kind.read("--reach", "1")
    for name, signature in SIGNATURES.items():
        taken = {option.name for option in OPTIONS_OF} & set(signature)
        assert taken == set(signature), name


def test_an_experiment_cannot_change():
    with pytest.raises(FrozenInstanceError):
        Experiment().batch = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"steps": 50, "evaluate_every": 5, "hidden": (64,), "tau": None, "ranks": 3}),
        ({"epochs": 2}, {"steps": 10}),
        ({"epochs": 0.01}, {"steps": 1}),
        ({"steps": 7}, {"steps": 7}),
        ({"evaluate_every": 0}, {"evaluate_every": 0}),
        ({"hidden": ()}, {"hidden": ()}),
        ({"model": "softmax"}, {"hidden": None}),
        ({"algorithm": "local"}, {"tau": 4, "delay": None, "xi": None, "merge": None}),
        ({"algorithm": "dasgd"}, {"tau": 4, "delay": 1, "xi": 0.25, "merge": "convex"}),
        ({"algorithm": "dasgd", "merge": "delta"}, {"xi": 1.0}),
        ({"algorithm": "dasgd", "merge": "overwrite"}, {"xi": 0.0}),
        ({"algorithm": "dasgd", "delay": 0}, {"delay": 0}),
    ],
)
def test_what_follows_from_the_data_is_filled_in(given, expected):
    resolved = Experiment(**given).resolved(ranks=3, samples=450)
    assert {name: getattr(resolved, name) for name in expected} == expected
    again = resolved.resolved(ranks=3, samples=450)
    assert again == resolved


def test_a_file_may_have_braces_in_its_name(tmp_path):
    path = tmp_path / "a{b}{}.toml"
    path.write_text("taw = 4\n")
    with pytest.raises(UsageError, match=r"a\{b\}\{\}\.toml: taw"):
        parsed("--config", str(path))
