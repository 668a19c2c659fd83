"""`mpisgd.run`: the bits of the command line, in memory."""

import numpy as np
import pytest

import mpisgd
from mpisgd.cli import main
from mpisgd.store.reader import read
from mpisgd.training.parameters import digest
from mpisgd.values.errors import UsageError

COMMON = {"data_samples": 120, "hidden": "6", "batch": 8, "steps": 20, "evaluate_every": 7}
RUNS = {
    "dasgd": {"ranks": 3, "tau": 4, "delay": "auto", "ema": 0.9, "network": "titanx-20g"},
    "minibatch-overlap": {"ranks": 2, "bucket": "1K", "network": "ethernet-10g"},
    "async": {"ranks": 4, "servers": 2, "lr": 0.02, "straggler": "exponential"},
    "backup": {"ranks": 5, "lr": 0.05, "straggler": "0:3x", "stale": "abandon"},
}


def words(options: dict) -> list[str]:
    """Of a command line."""
    given = options | {"virtual": options["ranks"]}
    del given["ranks"]
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items()]
    return [word for pair in pairs for word in pair]


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    from mpisgd import cli

    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_in_memory_has_the_bits_of_the_command_line(name, tmp_path, capsys):
    options = COMMON | {"algorithm": name} | RUNS[name]
    result = mpisgd.run(**options)
    output = tmp_path / "run.h5"
    assert main(["train", *words(options), "--output", str(output)]) == 0
    with read(output) as told:
        assert result.complete
        assert result.experiment.config() | {"hidden": [6]} == told.config
        assert np.array_equal(result.record.reported, told.reported)
        for table in ("steps", "evaluation", "updates", "events"):
            mine, its = getattr(result, table), getattr(told, table)
            assert set(mine) == set(its), table
            for column in its:
                assert mine[column].dtype == its[column].dtype
                assert np.array_equal(mine[column], its[column], equal_nan=True), column
        flat = np.concatenate([array.ravel() for array in result.parameters.values()])
        assert digest(flat) == told.summary["parameters_sha256"]
        assert result.summary == told.summary


def test_a_run_into_a_file_goes_on_from_its_checkpoint(tmp_path):
    options = COMMON | {"algorithm": "local", "tau": 3, "ranks": 2}
    output = str(tmp_path / "run.h5")
    whole = mpisgd.run(**options)
    part = mpisgd.run(**options | {"steps": 11}, output=output, checkpoint_every=5)
    assert part.complete
    rest = mpisgd.run(**options, output=output, resume="auto")
    for column in ("step", "loss", "time_s"):
        assert np.array_equal(rest.evaluation[column][-1], whole.evaluation[column][-1])
    again = mpisgd.run(**options, output=output, resume="auto")  # nothing is left to do
    assert np.array_equal(again.steps["loss"], whole.steps["loss"])


def test_a_run_that_ends_early_says_why():
    failed = mpisgd.run(**COMMON, algorithm="local", ranks=3, rate=1e30)
    assert not failed.complete
    assert failed.code == 3
    assert "not finite on rank" in failed.reason
    assert 0 < failed.record.reported.max() < 20
    assert "not finite" in repr(failed)
    dead = mpisgd.run(**COMMON, ranks=3, straggler="1:die@3")
    assert dead.code == 1
    assert "waits for" in dead.reason


def test_a_run_stops_when_it_is_enough():
    options = COMMON | {"algorithm": "async", "ranks": 3, "evaluate_every": 2, "lr": 0.02}
    whole = mpisgd.run(**options)
    enough = mpisgd.run(**options, until=lambda row: row["step"] >= 6)
    assert enough.complete
    assert 6 <= enough.evaluation["step"][-1] < 12
    assert np.array_equal(enough.evaluation["loss"][:3], whole.evaluation["loss"][:3])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"taus": 3}, "no such option; there are"),
        ({"tau": 3}, "minibatch has none"),
        ({"ranks": 0}, "ranks"),
        ({"progress": "thread"}, "poll or perfect"),
        ({"network": "nowhere"}, "--network"),
        ({"resume": "auto"}, "needs --checkpoint FILE or --output FILE"),
        ({"output": "no/folder.h5"}, "no folder"),
    ],
)
def test_a_mistake_is_one_line(options, told):
    with pytest.raises(UsageError, match=told) as mistake:
        mpisgd.run(**COMMON | options)
    assert "\n" not in str(mistake.value)
