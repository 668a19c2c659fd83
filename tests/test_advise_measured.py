"""Advice from what a calibration or a run has measured, and which cannot tell enough."""

import numpy as np
import pytest

from mpisgd.cli import main
from mpisgd.experiment import step_times
from mpisgd.experiment.delays import Times, tuned
from mpisgd.experiment.experiment import Experiment
from mpisgd.predict import measured
from mpisgd.store.writer import Writer
from mpisgd.values.errors import UsageError

FOREIGN = (
    "",
    "a = 1",
    "[calibration]",
    "[calibration]\nbatches = [1]\nstep_s = [0.0]",
    "[calibration]\nbatches = 3\nstep_s = 'x'",
)


@pytest.mark.parametrize("text", FOREIGN)
def test_a_foreign_file_is_no_step_time(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"x\.toml"):
        step_times.seconds(str(path), 8)


def test_advice_from_a_run(tmp_path, capsys):
    """Rank 1 is the last to start; both have the average 24 ms later."""
    path = tmp_path / "run.h5"
    config = {"algorithm": "minibatch", "batch": 16, "allreduce": "ring"}
    with Writer(path, kind="train", config=config, environment={}, ranks=2) as writer:
        for rank, compute in enumerate([0.010, 0.014]):
            columns = {"compute_s": compute, "update_s": 0.001}
            writer.steps(rank, 1, {name: np.full(5, value) for name, value in columns.items()})
            for step in range(1, 6):
                writer.event(rank, "flight", "mean", step + compute, step + 0.038, step)
        writer.complete({})
    found = measured.from_run(str(path))
    assert found[:5] == (pytest.approx(0.015), pytest.approx(0.024), 2, 16, "ring")
    assert main(["advise", "--from", str(path)]) == 0
    out = capsys.readouterr().out
    assert "measured t_p 0.015 s, t_c" in out
    assert "delay 2, tau 3" in out
    assert "# assumed of minibatch-overlap, not measured: 8 equal buckets" in out
    assert "--step-time" not in out


def test_advice_from_a_virtual_run_says_so_and_keeps_its_world(tmp_path, capsys):
    path = tmp_path / "v.h5"
    run = ["train", "--virtual", "2", "--steps", "4", "--hidden", "4", "--network", "lab"]
    assert main([*run, "--step-time", "20ms", "--output", str(path)]) == 0
    capsys.readouterr()
    assert main(["advise", "--from", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 ranks, simulated t_p 0.02 s, t_c " in out
    assert "\nmpisgd train --virtual 2 --network lab --step-time 0.02s --algorithm " in out
    assert "mpiexec" not in out
    assert main(["advise", "--from", str(path), "--format", "csv"]) == 0
    assert "assumed of minibatch-overlap" in capsys.readouterr().err


def test_advice_needs_a_run_that_exposes_its_all_reduce(tmp_path, capsys):
    path = tmp_path / "run.h5"
    with Writer(path, kind="train", config={"algorithm": "dasgd"}, environment={}, ranks=2) as w:
        w.complete({})
    assert main(["advise", "--from", str(path)]) == 2
    assert "a run of minibatch" in capsys.readouterr().err


RUN = {"algorithm": "minibatch", "batch": 16, "allreduce": "ring"}


NO_RUN = "does not say with which batch and all-reduce it was run"


NO_STEP = "holds no step that every rank has reported"


@pytest.mark.parametrize(
    ("config", "columns", "ranks", "told"),
    [
        (RUN, ("compute_s",), 2, NO_STEP),
        (RUN, ("compute_s", "update_s"), 1, NO_STEP),
        (RUN, ("compute_s", "update_s"), 2, NO_STEP),  # its averages are not there
        ({"algorithm": "minibatch"}, ("compute_s", "update_s"), 2, NO_RUN),
    ],
)
def test_a_run_that_does_not_tell_enough_is_refused(tmp_path, config, columns, ranks, told):
    path = tmp_path / "run.h5"
    with Writer(path, kind="train", config=config, environment={}, ranks=2) as writer:
        for rank in range(ranks):
            writer.steps(rank, 1, {name: np.full(5, 0.01) for name in columns})
        if ranks == 1:
            writer.event(0, "flight", "mean", 0.0, 1.0, 1)
        writer.complete({})
    with pytest.raises(UsageError, match=rf"--from '{path}': {told}"):
        measured.from_run(str(path))


def test_a_run_whose_averages_end_before_they_begin_is_refused(tmp_path):
    path = tmp_path / "run.h5"
    with Writer(path, kind="train", config=RUN, environment={}, ranks=2) as writer:
        for rank in range(2):
            writer.steps(rank, 1, {name: np.full(5, 0.01) for name in ("compute_s", "update_s")})
            for step, end in enumerate([2.0, 3.0, 0.5, 5.0, 6.0], 1):
                writer.event(rank, "flight", "mean", float(step), end, step)
        writer.complete({})
    with pytest.raises(UsageError, match="averages that end after they began"):
        measured.from_run(str(path))


@pytest.mark.parametrize(("seconds", "words"), [("0.5s", 1), ("40ms", 0)])
def test_a_delay_that_nobody_tried_has_a_word_of_caution(capsys, seconds, words):
    step = ["advise", "--step-time", "10ms", "--all-reduce-time", seconds, "--ranks", "8"]
    assert main(step) == 0
    assert capsys.readouterr().out.count("# caution: tau 51 is far beyond") == words


def test_the_caution_of_a_prediction(capsys):
    assert main(["predict", "--net", "vgg16", "--ranks", "8", "--network", "lab"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("# caution: tau ")


def test_the_delay_of_measured_times():
    experiment = Experiment(algorithm="dasgd", delay="auto", ranks=8)
    chosen = tuned(experiment, Times(0.01, 0.025))
    assert (chosen.delay, chosen.tau) == (3, 4)
    bounded = tuned(Experiment(algorithm="dasgd", delay="auto", tau=2, ranks=8), Times(0.01, 1.0))
    assert (bounded.delay, bounded.tau) == (2, 2)
