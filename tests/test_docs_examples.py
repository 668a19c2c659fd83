"""Each line of a page that begins with mpisgd is run, smaller and on virtual ranks, in the order of
the page; what only real ranks, a device or a user's own files can do is read and checked."""

import re
import shlex
from pathlib import Path

import pytest

from mpisgd import cli
from mpisgd.experiment.arguments import from_arguments

pytest.importorskip("matplotlib", reason="needs the extra plot")
pytest.importorskip("jinja2", reason="needs the extra plot")

CHECKOUT = Path(__file__).resolve().parent.parent
ALONE = {
    "allreduce.md",
    "plugins.md",
    "python.md",
    "walkthroughs.md",
}  # by tests of their own
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (CHECKOUT / "docs").glob("*.md")
                              if page.name not in ALONE)]  # fmt: skip
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"(?:(?:sudo|srun|mpiexec) (?:-\S+ )*(?:-n (\d+) )?)?mpisgd (.*)")
NAMES = {"$SCRATCH": ".", "$SLURM_ARRAY_TASK_ID": "1"}
# Behind what the page says, which it overrides.
SMALL = {
    "train": "--steps 4 --batch 4 --data-samples 64 --hidden 4 --evaluate-every 0",
    "verify": "--ranks 1:3",
    "simulate": "--ranks 4 --bytes 4K --repetitions 2",
    "advise --backups": "--draws 64",
    "export": "--overwrite --format npz",
    "submit": "--dry-run",
}
READ = (*sorted(cli.ON_RANKS - {"train"}), "lab")
# What a line needs that is not here -> why it is only read.
NEEDS = {
    "--backend cupy": "a device",
    "FOLDER": "data that are not in the package",
    "here.toml": "a table that real ranks make",
    "sync.h5": "a run of hours",
    "results/table-one": "runs of the grid above it",
    "further.toml": "a sweep of many runs",
}


def lines(page: str) -> list[tuple[int, list[str]]]:
    """Ranks and words of each line that starts mpisgd."""
    found = []
    for language, text in BLOCK.findall((CHECKOUT / page).read_text(encoding="utf-8")):
        for line in text.replace("\\\n", " ").splitlines() if language in ("", "sh") else ():
            match = LINE.match(line.split("#")[0].split(" > ")[0])
            if match is not None and "[" not in match[2]:
                told = match[2].removesuffix("...").strip()
                for name, value in NAMES.items():
                    told = told.replace(name, value)
                found.append((int(match[1] or 4), shlex.split(told)))
    return found


def read(words: list[str]) -> None:
    """As it stands: every option there is, and what belongs together."""
    parsed = cli.parser_of([words[0]]).parse_args(words)
    if words[0] == "train":
        from_arguments(parsed)


def smaller(ranks: int, words: list[str]) -> list[str]:
    line = " ".join(words)
    if words[0] == "submit":
        words = [*words[:2], *(words[2:] if "--folder" in words else ())]
        words = [word for word in words if word != "--local"]
    if words[0] == "report":
        words = [word for word in words if not word.endswith(".h5") or Path(word).exists()]
    added = [more for begins, more in SMALL.items() if line.startswith(begins)]
    virtual = ["--virtual", str(ranks)] if words[0] == "train" and "--virtual" not in words else []
    return [*words, *virtual, *" ".join(added).split()]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder in which pages find what they speak of."""
    (tmp_path / "jobs").symlink_to(CHECKOUT / "jobs")
    (tmp_path / "mine.toml").write_text('preset = "titanx-20g"\n')
    (tmp_path / "paper.csv").write_text("step,loss\n1,2.5\n4,2.1\n")
    (tmp_path / "results/cpu").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "results/cpu")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if lines(page)])
def test_what_a_page_shows_runs(page, desk, capsys):
    shown = lines(page)
    if any(word in ("runs/", "results/cpu") for _, words in shown for word in words):
        for seed in "01":
            words = ["train", "--seed", seed, "--output", f"runs/{seed}.h5"]
            assert cli.main(smaller(2, words)) == 0
    for ranks, words in shown:
        read(words)
        if words[0] not in READ and not any(each in " ".join(words) for each in NEEDS):
            code = cli.main(smaller(ranks, words))
            assert code == 0, (smaller(ranks, words), capsys.readouterr().err)


def test_the_lines_of_python_in_the_readme_run(desk, capsys):
    assert cli.main(smaller(2, ["train", "--output", "a.h5"])) == 0
    blocks = BLOCK.findall((CHECKOUT / "README.md").read_text(encoding="utf-8"))
    (code,) = (text for language, text in blocks if language == "python")
    exec(code.replace("steps=100", "steps=4, data_samples=64, evaluate_every=0"), {})


def test_every_reason_not_to_run_a_line_is_needed():
    told = " ".join(" ".join(words) for page in PAGES for _, words in lines(page))
    assert [each for each in (*READ, *NEEDS) if each not in told] == []
