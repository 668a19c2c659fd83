"""`--delay auto` on the virtual clock: found before the run, kept by whoever goes on with it."""

import pytest

from mpisgd.cli import main
from mpisgd.store.reader import read

TRAIN = ["train", "--virtual", "3", "--algorithm", "dasgd", "--delay", "auto", "--hidden", "4",
         "--data-samples", "120", "--batch", "4", "--network", "lab"]  # fmt: skip


def delay(path):
    with read(path) as run:
        assert run.complete
        return run.config["delay"], run.config["tau"]


@pytest.mark.parametrize("given", [[], ["--tau", "9"]])
def test_a_run_goes_on_with_the_delay_that_was_found(tmp_path, capsys, given):
    words = [*TRAIN, *given, "--step-time", "0.1ms"]
    path = tmp_path / "a.h5"
    assert main([*words, "--steps", "12", "--output", str(path), "--checkpoint-every", "6"]) == 0
    found = delay(path)
    assert found[0] >= 1
    assert found[1] == (9 if given else found[0] + 1)
    more = ["--steps", "24", "--output", str(path), "--resume", "auto"]
    assert main([*words, *more]) == 0
    assert "goes on from" in capsys.readouterr().err
    assert delay(path) == found
    with read(path) as run:
        assert run.reported.tolist() == [24, 24, 24]
