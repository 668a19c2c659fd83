"""What does not fit in memory is told with its option, before anything is begun."""

from typing import Any

import pytest

from mpisgd.bench import options
from mpisgd.cli import main
from mpisgd.experiment import building
from mpisgd.values.errors import UsageError, affordable, named


def full(*_: Any, **__: Any) -> None:
    raise MemoryError("Unable to allocate 3 TiB")


@pytest.mark.parametrize(
    ("function", "words", "told"),
    [
        ("build_parameters", "", "--hidden (64,)"),
        ("build_parameters", "--model softmax", "--model softmax"),
        ("build_rule", "--hidden 9", "--hidden (9,)"),
        ("data.load", "", "--data digits"),
        ("data.load", "--data-samples 90", "--data-samples 90"),
    ],
)
def test_train_names_what_was_too_large(function, words, told, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(f"mpisgd.{function}" if "." in function else building, *(
        [full] if "." in function else [function, full]
    ))  # fmt: skip
    output = tmp_path / "a.h5"
    line = ["train", "--virtual", "2", *words.split(), "--output", str(output)]
    assert main(line) == 2
    said = told.replace(" ", " '", 1) + "'" if told.split()[0] in ("--model", "--data") else told
    assert capsys.readouterr().err == (
        f"mpisgd train: error: {said}: needs more memory than there is (Unable to allocate 3 TiB)\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_benchmark_names_its_sizes(monkeypatch):
    import numpy as np

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(UsageError, match=r"^--sizes '4:8': needs more memory than there is"):
        options.counts("4:8", np.dtype("float32"))


def test_a_file_is_told_with_its_option_unless_the_mistake_names_another():
    with pytest.raises(UsageError, match=r"^--config a\.toml: is empty$"), named("--config"):
        raise UsageError("a.toml", None, "is empty")
    with pytest.raises(UsageError, match=r"^--seed 1: no$"), named("--config"):
        raise UsageError("--seed", 1, "no")
    with pytest.raises(UsageError, match=r"^--data 'x': needs more memory than there is$"):
        with affordable("--data", "x"):
            raise MemoryError
