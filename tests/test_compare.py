"""What `mpisgd compare` says of results whose differences are known by construction."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
from test_report import DASGD, MACHINE, made

from mpisgd.cli import main
from mpisgd.report.comparison import BETTER, NEITHER, UNKNOWN, WORSE, verdict
from mpisgd.store.writer import Writer

SEEDS = (0, 1, 2, 3)
EQUAL = (1.0, 1.0, 1.0, 1.0)


def folder(path, factors=EQUAL, **options):
    """A run of DaSGD for each seed, and one of mini-batch SGD for each, which is always as fast."""
    path.mkdir()
    for seed, factor in zip(SEEDS, factors, strict=True):
        made(path / f"d{seed}.h5", step_s=factor * (1 + seed), seed=seed, **DASGD | options)
        made(path / f"m{seed}.h5", seed=seed, **options)
    return str(path)


def compared(capsys, *words):
    """Exit code, rows and the lines beside them."""
    code = main(["compare", *words, "--format", "json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err.splitlines()


def test_identical_folders_have_nothing_worse(tmp_path, capsys):
    before, after = folder(tmp_path / "a"), folder(tmp_path / "b")
    code, rows, lines = compared(capsys, before, after, "--targets", "0.5")
    assert code == 0
    assert {row["verdict"] for row in rows} == {NEITHER}
    assert {row["metric"] for row in rows} == {
        "step_s", "effective_step_s", "loss", "accuracy", "time_s to 0.5",
    }  # fmt: skip
    assert {row["difference_percent"] for row in rows} == {0.0}
    assert lines == ["mpisgd compare: nothing is known to be worse of 10 metrics"]


def test_a_planted_slower_copy_is_found_and_named(tmp_path, capsys):
    before, after = folder(tmp_path / "a"), folder(tmp_path / "b", (1.19, 1.20, 1.20, 1.21))
    code, rows, lines = compared(capsys, before, after)
    assert code == 1
    worse = [row for row in rows if row["verdict"] == WORSE]
    assert [(row["metric"], row["pairs"]) for row in worse] == [
        ("step_s", 4), ("effective_step_s", 4),
    ]  # fmt: skip
    for row in worse:  # pairs: the seeds' own paces, 1 to 4 s, are no noise
        assert "dasgd" in row["settings"]
        assert row["difference_percent"] == pytest.approx(20)
        deviation = math.sqrt(2 / 3)
        assert row["half_width_percent"] == pytest.approx(3.1824463 * deviation / 2)
    assert "2 of 8 metrics worse: step_s of dasgd" in lines[-1]
    assert main(["compare", after, before]) == 0
    assert main(["compare", before, after, "--threshold", "25%"]) == 0


def test_noise_within_its_interval_is_no_regression(tmp_path, capsys):
    before, after = folder(tmp_path / "a"), folder(tmp_path / "b", (0.8, 1.4, 0.9, 1.3))
    code, rows, _ = compared(capsys, before, after)  # 10 % slower on average, +- 47 %
    assert code == 0
    assert {row["verdict"] for row in rows} == {NEITHER}


@pytest.mark.parametrize(
    ("percents", "single", "said"),
    [
        ([20.0], False, UNKNOWN),
        ([20.0], True, WORSE),
        ([4.0], True, NEITHER),
        ([-20.0], True, BETTER),
        ([6.0, 6.0], False, WORSE),
        ([-6.0, -6.0], False, BETTER),
        ([4.0, 4.0], False, NEITHER),
        ([math.inf, math.inf], False, WORSE),  # a target that is reached no more
        ([-math.inf, -math.inf], False, BETTER),
        ([math.inf, 0.0], False, UNKNOWN),
        ([math.inf, -math.inf], False, UNKNOWN),
        ([math.nan, 1.0], False, UNKNOWN),
    ],
)
def test_verdicts_at_a_threshold_of_five_percent(percents, single, said):
    assert verdict(percents, 5.0, single) == said


def test_one_launch_cannot_be_told_unless_asked(tmp_path, capsys):
    before, after = made(tmp_path / "a.h5"), made(tmp_path / "b.h5", step_s=1.2)
    code, rows, lines = compared(capsys, before, after)
    assert code == 0
    assert {row["verdict"] for row in rows} == {UNKNOWN}
    assert {row["half_width_percent"] for row in rows} == {None}
    assert "4 cannot be told: one launch has no interval, see --single" in lines[-1]
    assert main(["compare", before, after, "--single"]) == 1


def test_lower_accuracy_and_a_target_out_of_reach_are_worse(tmp_path, capsys):
    before, after = made(tmp_path / "a.h5"), made(tmp_path / "b.h5", evaluated=False)
    words = (before, after, "--single", "--targets", "0.7")
    code, rows, lines = compared(capsys, *words)
    assert code == 1
    worse = {row["metric"] for row in rows if row["verdict"] == WORSE}
    assert worse == {"loss", "accuracy", "time_s to 0.7"}
    assert "accuracy of minibatch, ranks 2 has no number now" in lines[-1]


@pytest.mark.parametrize(
    "other",
    [
        {"virtual": True},
        {"machine": MACHINE | {"cpu": "slow"}},
        {"machine": MACHINE | {"cpus": 4}},
        {"machine": MACHINE | {"mpi_library": "Open MPI 5"}},
    ],
)
def test_other_machines_are_refused_unless_told(tmp_path, capsys, other):
    before, after = made(tmp_path / "a.h5"), made(tmp_path / "b.h5", **other)
    assert main(["compare", before, after]) == 2
    assert "is of other machines or clocks" in capsys.readouterr().err
    assert main(["compare", before, after, "--any-machine"]) == 0


def test_what_has_no_partner_is_named_and_counted(tmp_path, capsys):
    before, after = folder(tmp_path / "a"), folder(tmp_path / "b")
    made(tmp_path / "a" / "old.h5", batch=77)
    made(tmp_path / "b" / "new.h5", seed=9)
    made(tmp_path / "b" / "killed.h5", seed=5, complete=False)
    _, rows, lines = compared(capsys, before, after)
    assert {row["pairs"] for row in rows} == {4}
    assert any("1 before without a partner" in line and "old.h5" in line for line in lines)
    assert any("1 after without a partner" in line and "new.h5" in line for line in lines)
    assert any("1 partial" in line and "killed.h5" in line for line in lines)
    assert main(["compare", str(tmp_path / "a" / "old.h5"), after]) == 2
    assert "shares no complete run" in capsys.readouterr().err


def test_an_option_younger_than_the_file_is_its_default(tmp_path, capsys):
    before = made(tmp_path / "a.h5")
    assert main(["compare", before, made(tmp_path / "b.h5", chunks=1, deadline_s=5.0)]) == 0
    assert main(["compare", before, made(tmp_path / "c.h5", chunks=2)]) == 2


def test_cases_of_benchmarks_pair_by_their_keys(tmp_path, capsys):
    for side, factor in (("a", 1.0), ("b", 1.5)):
        (tmp_path / side).mkdir()
        for launch in range(2):
            path = tmp_path / side / f"{launch}.h5"
            with Writer(path, kind="bench", config={}, environment=MACHINE, ranks=2) as store:
                for size, seconds in ((4096, 1e-5 * factor), (8, 1e-6)):  # as it came
                    case = {"algorithm": "ring", "ranks": 2, "bytes": size}
                    store.case(case, [[seconds, seconds]] * 3)
                store.complete({})
    code, rows, _ = compared(capsys, str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 1
    assert [(row["settings"], row["verdict"]) for row in rows] == [
        ("ring, ranks 2, bytes 8", NEITHER), ("ring, ranks 2, bytes 4096", WORSE),
    ]  # fmt: skip


def test_a_file_that_cannot_be_read_passes_no_check(tmp_path, capsys):
    before, after = folder(tmp_path / "a"), folder(tmp_path / "b")
    (tmp_path / "b" / "x.h5").write_bytes(b"broken")
    assert main(["compare", before, after]) == 2
    assert "is not an HDF5 file" in capsys.readouterr().err


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parent.parent / "docs" / "compare.md"
    (block,) = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        assert main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out.endswith("nothing is known to be worse of 4 metrics\n")
