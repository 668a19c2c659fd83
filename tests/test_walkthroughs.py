"""The commands of docs/walkthroughs.md, on grids that are cut down; each run in this process."""

import re
import shlex
from pathlib import Path

import pytest

from mpisgd.cli import main
from mpisgd.submit import local

PAGE = Path(__file__).parent.parent / "docs" / "walkthroughs.md"
FEWER = {"steps = 40": "steps = 12", "steps = 60": "steps = 12", "steps = 200": "steps = 12",
         "evaluate-every = 20": "evaluate-every = 4", "[2, 4, 8, 16]": "[2, 4]",
         "[0.0, 0.25, 0.5]": "[0.0, 0.5]", "[0, 1, 2, 3, 4]": "[0, 1]", "[0, 1, 2]": "[0, 1]",
         'data-path = "FOLDER"\n': "", '"mnist"': '"digits"'}  # fmt: skip


def in_process(run, folder, mpiexec, jobs=None):
    code = main(run.words(str(folder / f"{run.name}.h5")))
    return f"exit code {code}" if code else None


@pytest.fixture(scope="module")
def parts() -> dict[str, str]:
    """Title -> text."""
    found = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def played(part: str, capsys) -> list[tuple[int, str]]:
    """Exit code and output of each command, in a folder with the files of the part."""
    for name, text in re.findall(r"^`(\S+)`[^`]*```\w+\n(.*?)^```", part, re.DOTALL | re.MULTILINE):
        for long, short in FEWER.items():
            text = text.replace(long, short)
        Path(name).write_text(text)
    (block,) = re.findall(r"^```sh\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
    found = []
    for words in map(shlex.split, block.splitlines()):
        if words[0] == "sed":
            path = Path(words[-1])
            path.write_text(path.read_text().replace(*words[2].split("/")[1:3]))
            continue
        if "--jobs" in words:
            words = words[: words.index("--jobs")]
        capsys.readouterr()
        found.append((main(words[1:]), capsys.readouterr().out))
    return found


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "execute", in_process)


def test_scaling(parts, capsys):
    (ran, _), (told, table) = played(parts["How does it scale?"], capsys)
    assert (ran, told) == (0, 0)
    assert "speedup  efficiency" in table
    assert {"speedup-virtual.svg", "step-parts-virtual.svg"} <= {
        path.name for path in Path("scaling").iterdir()
    }


def test_the_best_of_a_sweep(parts, capsys):
    told = played(parts["Which tau, d and xi are best?"], capsys)
    assert [code for code, _ in told] == [0] * 4
    assert "best" in told[1][1]
    assert "The grid of a sweep" in Path("sweep.html").read_text()
    assert "lie on an edge" in told[3][1]


def test_algorithms_beside_a_reference(parts, capsys):
    title = "Three algorithms, five seeds, and what a paper reports"
    told = played(parts[title], capsys)
    assert [code for code, _ in told] == [0] * 3
    assert "what others report" in Path("mnist.html").read_text()
    assert told[2][1].startswith("file,algorithm")


def test_a_regression(parts, capsys):
    told = played(parts["Did my change make it slower?"], capsys)
    assert [code for code, _ in told] == [0, 0, 1]
    assert "worse" in told[2][1].splitlines()[-1]
