"""What is saved is sound: neither a rate that is too high nor a sum of finite gradients that
overflows leaves a checkpoint from which nobody can go on. Exit code 3 names rank and step."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpisgd import cli
from mpisgd.algorithms import NAMES
from mpisgd.checkpoint.file import Checkpoint
from mpisgd.models.mlp import MLP
from mpisgd.mpi.session import NOT_FINITE

COMMON = "train --virtual 6 --hidden 5 --data-samples 90 --batch 3 --steps 9 --momentum 0"
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # one line is told, no more
SUMMED = ["minibatch", "minibatch-overlap", "stale", "softsync", "backup", "timeout"]


@pytest.fixture(autouse=True)
def _fast(monkeypatch, tmp_path):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)


def train(*words: str) -> int:
    return cli.main([*COMMON.split(), "--checkpoint-every", "1", "--output", "a.h5", *words])


def told(capsys: Any) -> str:
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "not finite" in one]
    return line


@pytest.mark.parametrize("algorithm", NAMES)
def test_a_rate_that_is_too_high_leaves_no_checkpoint(algorithm, capsys):
    for resume in ([], ["--resume", "auto"]):
        assert train("--algorithm", algorithm, "--lr", "1e300", *resume) == NOT_FINITE
        assert re.search(r"not finite on (rank|worker) 0 at step 1\b", told(capsys))
        assert not Path("a.h5.checkpoint").exists()


def huge(monkeypatch: Any, gradient: float) -> None:
    """The fifth gradient of everyone is that, in each element."""
    true, calls = MLP.gradient, dict[int, int]()

    def spoilt(
        self: MLP, parameters: Any, inputs: Any, targets: Any, result: Any, *more: Any
    ) -> float:
        loss = true(self, parameters, inputs, targets, result, *more[:-1], None)
        calls[id(self)] = calls.get(id(self), 0) + 1
        if calls[id(self)] == 5:
            result.flat[:] = gradient
        if more[-1] is not None:
            more[-1](0)
        return loss

    monkeypatch.setattr(MLP, "gradient", spoilt)


@pytest.mark.parametrize("algorithm", SUMMED)
def test_finite_gradients_whose_sum_is_not_keep_the_checkpoint_before(
    algorithm, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        huge(patch, 1e38)
        assert train("--algorithm", algorithm) == NOT_FINITE
    assert "at step 5" in told(capsys)
    assert Checkpoint("a.h5.checkpoint").meta["step"] == 4
    assert train("--algorithm", algorithm, "--resume", "auto") == 0
    assert Checkpoint("a.h5.checkpoint").meta["step"] == 9


@pytest.mark.parametrize("algorithm", ["local", "dasgd", "slowmo"])
def test_parameters_of_one_rank_whose_mean_is_not(algorithm, monkeypatch, capsys):
    """1e38 on each of 6 ranks, then averaged."""
    huge(monkeypatch, 1e38)
    assert train("--algorithm", algorithm, "--lr", "1", "--tau", "5") == NOT_FINITE
    assert "on rank 0 at step " in told(capsys)
    assert Checkpoint("a.h5.checkpoint").meta["step"] in (4, 5)
    assert np.isfinite(Checkpoint("a.h5.checkpoint").state("0")["worker"]["parameters"]).all()


def test_what_belongs_to_the_optimiser_is_saved_finite_or_not_at_all(monkeypatch, capsys):
    """Squares overflow where parameters do not."""
    huge(monkeypatch, 1e30)
    assert train("--algorithm", "local", "--optimiser", "rmsprop") == NOT_FINITE
    assert "on rank 0 at step 5" in told(capsys)
    assert Checkpoint("a.h5.checkpoint").meta["step"] == 4
