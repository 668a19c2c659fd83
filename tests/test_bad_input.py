"""What users and files can get wrong, beside the options of `train` (test_cli): one table.

Each row: the words after `mpisgd`, and what the one line must hold: where, what, what is allowed.
"""

import os
from pathlib import Path

import bad_files
import pytest
from bad_words import (
    ADVISE,
    BOMBS,
    CHECKPOINTS,
    CIFAR,
    CIFARS,
    DATA,
    ENDLESS,
    GRID,
    GRIDS,
    IDX,
    LABELS,
    NETWORKS,
    NUMBERS,
    OTHERS,
    PREDICT,
    RESULTS,
    RUN,
    SIMULATE,
    STEP_TIMES,
    STRAGGLERS,
    TOGETHER,
    TOML,
    WORDS,
)
from test_cli import outcome

from mpisgd import cli


def with_words(before: str, rows: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    return [(before + words, said) for words, said in rows]


TABLE = [
    *with_words(RUN, [*TOML, *NUMBERS, *TOGETHER, *CHECKPOINTS]),
    *with_words(RUN + "--straggler ", STRAGGLERS),
    *with_words(RUN + "--step-time ", STEP_TIMES),
    *with_words(DATA, IDX),
    (RUN + "--data mnist --data-path idx-label", ["label 99", "idx-label", "the labels 0 to 9"]),
    *with_words(CIFAR, CIFARS),
    *with_words(RUN + "--network ", NETWORKS),
    *with_words("simulate --network ", NETWORKS),
    *with_words("simulate ", SIMULATE),
    *with_words("predict ", PREDICT),
    *with_words("advise ", ADVISE),
    *with_words(GRID, GRIDS),
    *RESULTS,
    *ENDLESS,
    *BOMBS,
    *LABELS,
    *WORDS,
    *OTHERS,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("bad") / "work"
    made.mkdir()
    bad_files.make(made)
    return made


@pytest.fixture
def workplace(folder, monkeypatch):
    """The folder of bad files, which no command may change: not even beside it."""
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    monkeypatch.chdir(folder)
    before = state(folder.parent)
    yield folder
    assert state(folder.parent) == before


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """All that is there, by size and time of the last change."""
    found = {}
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            told = os.stat(os.path.join(path, name))
            found[os.path.join(path, name)] = told.st_size, told.st_mtime_ns
    return found


@pytest.mark.parametrize(("words", "said"), TABLE, ids=[words[:90] for words, _ in TABLE])
def test_bad_input_is_one_line_and_nothing_is_written(words, said, workplace, capsys):
    given = words.split()
    assert outcome(given) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mpisgd")
    assert ": error: " in err
    assert err.count("\n") == 1
    assert len(err) < 1200
    assert [part for part in said if part not in err] == []


def test_the_table_is_as_long_as_promised():
    assert len({words for words, _ in TABLE}) == len(TABLE) >= 120


DAMAGED = ["text", "empty", "cut", "pickle", "foreign", "newer", "type", "shape", "link", "group"]


def test_a_report_names_the_files_it_cannot_read_and_shows_the_rest(workplace, capsys):
    assert outcome(["report", "whole.h5", *(f"{name}.h5" for name in DAMAGED)]) == 1
    out, err = capsys.readouterr()
    assert "whole.h5" in out
    assert [line.split(":")[1].strip() for line in err.splitlines()] == [
        f"{name}.h5" for name in DAMAGED
    ]
