"""The record of what a run was made with is made wherever it runs, and guesses nothing."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpisgd.store import environment


def of(monkeypatch, numpy=None, cpuinfo=None):
    """`_blas` and `_cpu` where NumPy or the kernel say what they are made to say."""
    read = Path.read_text

    def read_text(path, *arguments, **options):
        if str(path) != "/proc/cpuinfo" or cpuinfo is None:
            return read(path, *arguments, **options)
        if isinstance(cpuinfo, OSError):
            raise cpuinfo
        return cpuinfo

    monkeypatch.setattr(Path, "read_text", read_text)
    return SimpleNamespace(show_config=lambda mode: numpy)


def test_the_blas_is_named_as_numpy_names_it(monkeypatch):
    told = {"Build Dependencies": {"blas": {"name": "openblas", "version": "0.3"}}}
    assert environment._blas(of(monkeypatch, told)) == "openblas 0.3"


@pytest.mark.parametrize("told", [None, {}, {"Build Dependencies": {"blas": {"name": "mkl"}}}])
def test_a_blas_that_is_not_told_is_unknown(monkeypatch, told):
    assert environment._blas(of(monkeypatch, told)) == "unknown"


def test_the_processor_is_the_kernels_first(monkeypatch):
    of(monkeypatch, cpuinfo="processor: 0\nmodel name\t: Abacus: 9\nmodel name\t: Other\n")
    assert environment._cpu() == "Abacus: 9"


@pytest.mark.parametrize("cpuinfo", [OSError("no /proc"), "processor: 0\nFeatures: none\n"])
def test_without_the_kernels_word_there_is_that_of_python(monkeypatch, cpuinfo):
    of(monkeypatch, cpuinfo=cpuinfo)
    monkeypatch.setattr(environment.platform, "processor", lambda: "riscv64")
    assert environment._cpu() == "riscv64"
    monkeypatch.setattr(environment.platform, "processor", lambda: "")
    assert environment._cpu() == "unknown"


def test_the_commit_is_that_of_the_codes_own_repository(tmp_path, monkeypatch):
    """Not that of a folder around an installed package; and `+` when files differ."""
    place = tmp_path / "checkout" / "mpisgd"
    place.mkdir(parents=True)
    monkeypatch.setattr(environment, "PACKAGE", place)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C"]
    subprocess.run([*git, str(tmp_path), "init", "-q"], check=True)
    assert environment._commit() == ""
    inner = [*git, str(place.parent)]
    (place / "environment.py").write_text("1")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*inner, *words], check=True, capture_output=True)
    words = [*inner, "rev-parse", "--short=12", "HEAD"]
    head = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    assert environment._commit() == head
    (place / "environment.py").write_text("2")
    assert environment._commit() == head + "+"


def test_the_package_is_where_its_repository_is_looked_for():
    import mpisgd

    assert environment.PACKAGE.samefile(Path(mpisgd.__file__).parent)


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 10)])
def test_without_an_answer_of_git_there_is_no_commit(tmp_path, monkeypatch, error):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "PACKAGE", tmp_path / "mpisgd")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert environment.environment()["git_commit"] == ""
