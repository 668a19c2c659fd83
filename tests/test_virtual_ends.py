"""How virtual runs end that cannot go on: one line, a code, a file that says why."""

import pytest

from mpisgd.cli import main
from mpisgd.mpi.session import LEFT_EARLY, NOT_FINITE
from mpisgd.store.reader import read

TRAIN = ["train", "--data-samples", "120", "--hidden", "4", "--batch", "4", "--steps", "30",
         "--step-time", "5ms", "--virtual", "3", "--evaluate-every", "0"]  # fmt: skip
ENDS = [
    ("--algorithm local --tau 4 --lr 1e30", NOT_FINITE, "not finite on rank"),
    ("--algorithm async --lr 1e30", NOT_FINITE, "not finite on worker"),
    ("--algorithm backup --backups 1 --lr 1e30", NOT_FINITE, "not finite on worker"),
    ("--algorithm minibatch --straggler 1:die@3", LEFT_EARLY, "waits for butterfly, and nothing"),
    (
        "--algorithm minibatch --straggler 0-2:die@3",
        LEFT_EARLY,
        "ranks 0, 1, 2 wait for what nobody",
    ),
    ("--algorithm backup --backups 0 --straggler 1:die@3", LEFT_EARLY, "2 gradients"),
]


@pytest.mark.parametrize(("words", "code", "told"), ENDS, ids=[words for words, *_ in ENDS])
def test_the_end_is_told_and_recorded(words, code, told, tmp_path, capsys):
    output = tmp_path / "run.h5"
    assert main([*TRAIN, *words.split(), "--output", str(output)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if not line.startswith("mpisgd: note: ")]
    assert told in line
    assert not output.exists()
    with read(output) as run:
        assert not run.complete
        assert run.reason
        assert run.reason in line
        assert 0 < run.reported.max() < 30
    assert main([*TRAIN, *words.split()]) == code  # and the same without a file
    assert told in capsys.readouterr().err
