"""Advice by hand, from a model and from measured times, and the options of advise."""

import pytest
from test_predict_commands import CHANGES, output, parser_of, rows

from mpisgd.commands import advise as advise_command
from mpisgd.commands import advise_backups, predict
from mpisgd.predict.advice import advise
from mpisgd.predict.epoch import ALGORITHMS, Conditions
from mpisgd.values.errors import UsageError


def by_algorithm(advice):
    return {row["algorithm"]: row for row in advice.rows}


def test_advice_by_hand():
    advice = advise(1.0, 1.5, 8, xi=0.25)
    assert (advice.delay, advice.tau, advice.ratio) == (2, 3, 1.5)
    assert (advice.lower_ratio, advice.upper_ratio) == (1.0, 2.0)
    steps = {name: row["step_s"] for name, row in by_algorithm(advice).items()}
    assert steps["minibatch"] == pytest.approx(2.5)
    assert steps["local"] == pytest.approx(1.5)
    assert steps["dasgd"] == pytest.approx(1.0)
    assert 1.0 < steps["minibatch-overlap"] < 2.5
    assert by_algorithm(advice)["dasgd"]["effective_step_s"] == pytest.approx(2.0)
    assert advice.fastest == "local"
    assert advise(1.0, 1.5, 8, merge="delta").fastest == "dasgd"


@pytest.mark.parametrize(
    ("ratio", "spread", "delays"),
    [(0.5, 0.1, (1, 1)), (1.05, 0.1, (1, 2)), (1.0, 0.0, (1, 1)), (0.0, 0.5, (1, 1))],
)
def test_how_sure(ratio, spread, delays):
    advice = advise(1.0, ratio, 8, spread=spread)
    assert (advice.delay_low, advice.delay_high) == delays
    assert advice.sure == (delays[0] == delays[1])


def test_advice_for_one_worker():
    advice = advise(1.0, 5.0, 1)
    assert (advice.delay, advice.tau, advice.ratio) == (0, 1, 0.0)
    assert {row["step_s"] for row in advice.rows} == {1.0}
    assert advice.command == "mpisgd train --algorithm minibatch"


def test_advice_command_line():
    advice = advise(0.02, 0.03, 16, xi=0.5, allreduce="ring", batch=32, bucket=25e6)
    common = "--allreduce ring --batch 32"
    for algorithm, own in {
        "minibatch": "",
        "minibatch-overlap": "--bucket 25000000 ",
        "local": "--tau 3 ",
        "dasgd": "--tau 3 --delay 2 --merge convex --xi 0.5 ",
    }.items():
        line = f"mpiexec -n 16 mpisgd train --algorithm {algorithm} {own}{common}"
        assert advice.command_of(algorithm) == line
    assert advice.command == advice.command_of(advice.fastest)
    assert "--xi" not in advise(1.0, 1.0, 4, merge="delta").command_of("dasgd")
    # A cost formula that no plan runs is not put on the command line.
    assert "--allreduce" not in advise(1.0, 1.0, 4, allreduce="linear").command


def test_advice_under_conditions():
    advice = advise(1.0, 0.8, 8, conditions=Conditions(progress=0.5))
    assert by_algorithm(advice)["dasgd"]["exposed_s"] == pytest.approx(0.4 / 2)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((0.0, 1.0, 4), {}),
        ((1.0, -1.0, 4), {}),
        ((float("nan"), 1.0, 4), {}),
        ((1.0, 1.0, 0), {}),
        ((1.0, 3.0, 4), {"tau": 2}),
        ((1.0, 1.0, 4), {"spread": 1.0}),
        ((1.0, 1.0, 4), {"xi": -0.1}),
        ((1.0, 1.0, 4), {"merge": "mean"}),
    ],
)
def test_advice_refuses(arguments, options):
    with pytest.raises(UsageError):
        advise(*arguments, **options)


def test_advise_from_a_net_agrees_with_predict(capsys):
    words = ("--net", "vgg16", "--ranks", "32")
    advised = rows(capsys, advise_command, *words)
    predicted = rows(capsys, predict, *words, "--algorithms", "all")
    for mine, other in zip(advised, predicted, strict=True):
        assert mine["algorithm"] == other["algorithm"]
        assert mine["step_s"] == pytest.approx(other["step_s"], rel=1e-12)
        assert mine["hidden_share"] == pytest.approx(other["hidden_share"])
    assert [row["fastest"] for row in advised].count(True) == 1


def test_advise_prints_the_line_to_run(capsys):
    words = ("--step-time", "20ms", "--all-reduce-time", "25ms", "--ranks", "2,8")
    text = output(capsys, advise_command, *words)
    assert "delay 2, tau 3" in text
    assert "mpiexec -n 8 mpisgd train --algorithm dasgd --tau 3 --delay 2" in text
    assert len(rows(capsys, advise_command, *words)) == 2 * len(ALGORITHMS)


MEASURED = ("--step-time", "1s", "--all-reduce-time", "1.5s")


ADVISE_CHANGES = {
    "ranks": ("--ranks", "4"),
    "allreduce": ("--allreduce", "ring"),
    "batch": ("--batch", "8"),
    "spread": ("--spread", "0.5"),
    "progress_share": ("--progress-share", "0.5"),
    "slowdown": ("--slowdown", "0.1"),
    "noise": ("--noise", "0.3"),
    "quorum": ("--noise", "0.1", "--quorum", "3"),
    "tau": ("--tau", "7"),
    "xi": ("--xi", "0.5"),
    "merge": ("--merge", "delta"),
    "step_time": ("--step-time", "2s"),
    "all_reduce_time": ("--all-reduce-time", "2s"),
}


@pytest.mark.parametrize("option", ADVISE_CHANGES)
def test_every_option_changes_measured_advice(capsys, option):
    changed = rows(capsys, advise_command, *MEASURED, *ADVISE_CHANGES[option])
    assert changed != rows(capsys, advise_command, *MEASURED)


@pytest.mark.parametrize(
    "option",
    sorted({action.dest for action in parser_of(advise_command)._actions} & set(CHANGES)),
)
def test_every_option_changes_modelled_advice(capsys, option):
    base = ("--net", "vgg16", "--ranks", "24", "--latency", "1us", "--noise", "0.02")
    changed = rows(capsys, advise_command, *base, *CHANGES[option])
    assert changed != rows(capsys, advise_command, *base)


def test_every_option_of_advise_is_in_a_walk():
    known = {action.dest for action in parser_of(advise_command)._actions}
    own_tests = {"source"}  # tests/test_calibrate.py
    own_tests |= {"backups", *advise_backups.OWN}  # tests/test_backups.py
    assert (
        known
        <= set(CHANGES) | set(ADVISE_CHANGES) | {"help", "help_all", "quiet", "format"} | own_tests
    )


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ((), "--step-time"),
        (("--step-time", "1s"), "--all-reduce-time"),
        (("--step-time", "0", "--all-reduce-time", "1s"), "--step-time"),
        ((*MEASURED, "--net", "vgg16"), "not both"),
        ((*MEASURED, "--device", "k80"), "--device"),
        ((*MEASURED, "--pipelined"), "--pipelined"),
        ((*MEASURED, "--allreduce", "star"), "--allreduce"),
        ((*MEASURED, "--tau", "1"), "--delay 2"),
        ((*MEASURED, "--spread", "1"), "--spread"),
        (("--net", "all"), "--net 'all': one name"),
        (("--net", "vgg16", "--allreduce", "all"), "--allreduce"),
        (("--from", "run.h5", "--net", "vgg16"), "--net: not together with --from"),
        (("--from", "run.h5", "--step-time", "1"), "--step-time: not together with --from"),
        (("--from", "a.toml", "--ranks", "2"), "--from 'a.toml': needs one --ranks, --batch and"),
        (
            ("--from", "a.toml", "--ranks", "2,4", "--batch", "1", "--bytes", "1"),
            "needs one --ranks",
        ),
    ],
)
def test_advise_mistakes(words, place):
    with pytest.raises(UsageError) as caught:
        advise_command.run(parser_of(advise_command).parse_args(words))
    assert place in str(caught.value)
