"""`mpisgd train --virtual`: from the words of a command to a result file."""

import json

import numpy as np
import pytest

from mpisgd import cli
from mpisgd.store.reader import read
from mpisgd.store.target import partial_path

SAMPLES = "--batch 20 --data-samples 100 --seed 2"
WORDS = f"train --virtual 3 --hidden 9 {SAMPLES} --format json".split()


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")


def train(capsys, *words: str) -> tuple[int, list[dict], str]:
    """Exit code, the rows of the summary, what stood on standard error."""
    code = cli.main([*WORDS, *words])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else [], err


def test_a_result_file_holds_the_run(tmp_path, capsys):
    path = tmp_path / "run.h5"
    learn = "--algorithm dasgd --epochs 4 --lr 0.2"
    words = f"{learn} --step-time 10ms --ema 0.9 --output".split()
    code, (summary,), err = train(capsys, *words, str(path))
    assert code == 0
    assert err.splitlines() == ["mpisgd: note: without --network messages take no virtual time"]
    assert not partial_path(path).exists()
    with read(path) as run:
        assert run.complete
        assert run.virtual
        assert (run.kind, run.ranks) == ("train", 3)
        expected = {
            "algorithm": "dasgd", "tau": 4, "delay": 1, "xi": 0.25, "merge": "convex",
            "hidden": [9], "batch": 20, "steps": 8, "evaluate_every": 2, "rate": 0.2, "ranks": 3,
            "seed": 2, "step_time_s": 0.01, "allreduce": "butterfly", "momentum": 0.9,
        }  # fmt: skip
        assert {name: run.config[name] for name in expected} == expected
        assert {"python", "packages", "blas", "host", "command", "started_utc"} <= {
            *run.environment
        }
        assert run.steps["loss"].shape == (8, 3)
        assert run.reported.tolist() == [8, 8, 8]
        assert run.steps["samples"].sum(axis=1).tolist() == [60, 40] * 4
        assert run.steps["compute_s"] == pytest.approx(np.full((8, 3), 0.01))
        assert run.steps["rate"] == pytest.approx(8 * [0.2])
        rows = run.evaluation
        assert rows["step"].tolist() == [2, 4, 6, 8]
        assert rows["samples_computed"].tolist() == [100, 200, 300, 400]
        assert rows["steps_effective"] == pytest.approx([2, 4, 6 - 0.75, 8 - 0.75])
        share = rows["steps_effective"] / rows["step"]
        assert rows["samples_effective"] == pytest.approx(rows["samples_computed"] * share)
        assert (np.diff(rows["time_s"]) > 0).all()
        assert rows["loss"][-1] == pytest.approx(summary["loss"])
        assert rows["accuracy"][-1] == pytest.approx(summary["accuracy"])
        assert rows["train_loss"][-1] < rows["train_loss"][0]
        assert np.isfinite(rows["ema_loss"]).all()
        assert run.summary["accuracy"] == pytest.approx(summary["accuracy"])
    assert {"algorithm": "dasgd", "ranks": 3, "steps": 8}.items() <= summary.items()
    assert summary["time_s"] == pytest.approx(0.08, rel=0.2)


def test_the_same_words_give_the_same_bits_and_another_seed_others(tmp_path, capsys):
    losses = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        path = str(tmp_path / f"{name}.h5")
        train(capsys, "--steps", "5", "--seed", seed, "--output", path)
        with read(path) as run:
            losses.append(run.steps["loss"])
    assert np.array_equal(losses[0], losses[1])
    assert not np.array_equal(losses[0], losses[2])


def test_a_loss_that_is_not_finite_ends_with_its_own_code_and_a_readable_file(tmp_path, capsys):
    path = tmp_path / "run.h5"
    words = ["--algorithm", "local", "--tau", "4", "--steps", "40", "--lr", "1e30", "--output"]
    code, rows, err = train(capsys, *words, str(path))
    assert (code, rows) == (3, [])
    assert [line.partition("mpisgd: ")[2][:4] for line in err.splitlines()] == ["note", "loss"]
    assert "not finite on rank " in err
    assert not path.exists()
    with read(path) as run:
        assert not run.complete
        assert run.reason is not None
        assert run.reason in err
        steps = run.reported.tolist()
        assert 0 < min(steps) == max(steps) < 40


def test_no_file_is_written_without_output(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, (summary,), _ = train(capsys, "--steps", "2", "--algorithm", "minibatch")
    assert (code, summary["steps"]) == (0, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_the_summary_comes_in_three_forms(form, capsys):
    assert cli.main([*WORDS, "--steps", "2", "--format", form]) == 0
    out = capsys.readouterr().out
    assert "steps_per_s" in out
    assert len(out.splitlines()) == {"table": 2, "csv": 2}.get(form, len(out.splitlines()))


def test_many_ranks_learn_digits(capsys):
    words = "train --virtual 16 --batch 8 --epochs 12 --algorithm local --tau 2 --format json"
    assert cli.main(words.split()) == 0
    assert json.loads(capsys.readouterr().out)[0]["accuracy"] > 0.9
