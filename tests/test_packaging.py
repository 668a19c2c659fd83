"""What packagers and harnesses are given agrees with pyproject.toml and what commands print."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mpisgd import __version__

CHECKOUT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
PACKAGING, HARNESSES = CHECKOUT / "packaging", CHECKOUT / "harnesses"
RECIPES = {
    "spack": PACKAGING / "spack/packages/py_mpisgd/package.py",
    "conda": PACKAGING / "conda/recipe.yaml",
    "easybuild": PACKAGING / f"easybuild/mpisgd-{__version__}-foss-2024a.eb",
}


def bounds(requirements: list[str]) -> dict[str, str]:
    """Name -> lower bound."""
    found = (re.match(r"([\w-]+)>=([\d.]+)$", each) for each in requirements)
    return {match[1]: match[2] for match in found if match}


def test_the_oldest_versions_are_the_lower_bounds():
    extras = PROJECT["optional-dependencies"]
    wanted = bounds(PROJECT["dependencies"])
    for extra in ("mpi", "plot", "frames", "completion"):
        wanted |= bounds(extras[extra])
    lines = (PACKAGING / "oldest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins.keys() == wanted.keys()
    assert pins.pop("mpi4py") == "4.1.0"  # 4.0 has no wheel, and is built by those who want it
    del wanted["mpi4py"]
    for name, low in wanted.items():
        assert f"{pins[name]}.".startswith(f"{low}."), name


def test_one_version_everywhere():
    assert PROJECT["version"] == __version__
    assert f"\nversion: {__version__}\n" in (CHECKOUT / "CITATION.cff").read_text()
    assert json.loads((CHECKOUT / "codemeta.json").read_text())["version"] == __version__
    for recipe in RECIPES.values():
        assert __version__ in recipe.read_text()


@pytest.mark.parametrize("kind", RECIPES)
def test_a_recipe_names_what_the_package_needs(kind):
    text = RECIPES[kind].read_text().lower()
    if kind == "easybuild":
        text = text.replace("# numpy", "numpy")
    assert [name for name in bounds(PROJECT["dependencies"]) if name not in text] == []


@pytest.mark.parametrize(
    "path",
    [RECIPES["spack"], RECIPES["easybuild"], *HARNESSES.rglob("*.py")],
    ids=lambda path: path.name,
)
def test_what_is_python_compiles(path):
    compile(path.read_text(), str(path), "exec")


def test_the_patterns_of_harnesses_match_what_is_printed(tmp_path):
    words = [sys.executable, "-m", "mpisgd"]
    run = ["train", "--virtual", "2", "--steps", "3", "--output", str(tmp_path / "run.h5")]
    subprocess.run([*words, *run], check=True, capture_output=True)
    report = ["report", str(tmp_path / "run.h5"), "--format", "fom"]
    told = subprocess.run([*words, *report], check=True, capture_output=True, text=True).stdout
    told += "FOM name=bench.bench.ring.2.4096.float32.True.chunks1.median_s value=0.0125 unit=s\n"
    ramble = (HARNESSES / "ramble/applications/mpisgd/application.py").read_text()
    pattern = re.search(r'fom_regex=r"(.*)"', ramble)
    assert pattern is not None
    assert len(re.findall(pattern[1], told)) == len(told.splitlines())
    jube = re.search(r"_: '(FOM.*)'", (HARNESSES / "jube.yaml").read_text())
    assert jube is not None
    assert re.findall(jube[1], told) == ["0.0125"]


def test_reframe_reads_the_tests(tmp_path):
    pytest.importorskip("reframe", reason="needs ReFrame (pip install reframe-hpc)")
    words = ["-C", str(HARNESSES / "reframe_settings.py"), "-c", str(HARNESSES), "-L"]
    reframe = Path(sys.executable).with_name("reframe")
    done = subprocess.run(
        [reframe, *words, "--prefix", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Found 10 check(s)" in done.stdout
