"""Advice on backups as the command gives it: columns, text, figure, mistakes."""

import json
from pathlib import Path

import pytest
from test_backups import recorded

from mpisgd.cli import main
from mpisgd.predict import backup_advice

DOCUMENT = Path(__file__).parents[1] / "docs" / "servers.md"


BASE = ("advise", "--backups", "--step-time", "1s", "--ranks", "8")


def output(capsys, *words):
    assert main([*BASE, *words]) == 0
    return capsys.readouterr().out


def test_every_column_is_defined_and_documented(capsys):
    (*_, last) = json.loads(output(capsys, "--format", "json"))
    assert set(last) == set(backup_advice.TERMS)
    page = DOCUMENT.read_text(encoding="utf-8")
    for name, meaning in backup_advice.TERMS.items():
        assert f"| `{name}` | {meaning} |" in page


def test_the_text_names_the_best_split_its_margins_and_the_line_to_run(capsys):
    text = output(capsys, "--straggler", "exponential", "--iterations", "4:100,8:52")
    assert "# best: 5 + 3, expected" in text
    assert "# no backups: 8 + 0 takes" in text
    assert "sure: no sampling" in text
    assert [line.split()[:2] for line in text.splitlines() if line.endswith("<- best")] == [
        ["5", "3"]
    ]
    assert "mpiexec -n 9 mpisgd train --algorithm backup --servers 1 --backups 3" in text
    text = output(
        capsys, "--straggler", "lognormal:0.1", "--draws", "64", "--iterations", "power:1"
    )
    assert "sampled" in text
    assert "relative to those at N = M" in text
    assert "to converge" not in text  # relative iterations give no seconds
    assert "converge_s" not in text
    rows = json.loads(output(capsys, "--format", "json", "--iterations", "power:1"))
    assert {row["converge_s"] for row in rows} == {None}
    assert all(row["over_best"] >= 0 for row in rows)


@pytest.mark.parametrize(
    "words",
    [
        ("--straggler", "lognormal:0.7"), ("--stale", "abandon"), ("--iterations", "chen"),
        ("--draws", "640"), ("--seed", "1"), ("--ranks", "7"), ("--step-time", "2s"),
    ],
)  # fmt: skip
def test_every_option_changes_the_advice(capsys, words):
    base = ("--straggler", "lognormal:0.5", "--draws", "320", "--format", "csv")
    assert output(capsys, *base, *words) != output(capsys, *base)


def test_advice_from_a_recorded_run(tmp_path, capsys):
    path = recorded(tmp_path / "a.h5")
    assert main(["advise", "--backups", "--from", path, "--format", "json"]) == 0
    fewer, both = json.loads(capsys.readouterr().out)
    assert (fewer["update_s"], both["update_s"]) == (pytest.approx(1), pytest.approx(2))
    assert fewer["method"] == "measured"


def test_a_figure_is_drawn(tmp_path, capsys):
    target = tmp_path / "a.png"
    output(capsys, "--straggler", "pareto:0.9", "--stale", "abandon", "--figure", str(target))
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ranks", "0"), "--ranks"),
        (("--ranks", "9999"), "--ranks"),
        (("--straggler", "fast"), "--straggler"),
        (("--straggler", "1:die@3"), "who dies"),
        (("--iterations", "3"), "--iterations"),
        (("--draws", "3"), "--draws"),
        (("--from", "x.h5"), "not together with --from"),
        (("--tau", "4"), "--tau"),
        (("--net", "vgg16"), "--net"),
        (("--figure", "x.txt"), "--figure"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_mistakes_are_one_line(capsys, words, told):
    assert main([*BASE, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert told in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--backups",), "--step-time"),
        (("--backups", "--from", "none.h5"), "none.h5"),
        (("--backups", "--from", "a.toml"), "--from"),
        (
            ("--straggler", "exponential", "--step-time", "1s", "--all-reduce-time", "1s"),
            "--backups",
        ),
    ],
)
def test_mistakes_with_and_without_backups(capsys, words, told):
    assert main(["advise", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path, capsys):
    target = tmp_path / "a.png"
    target.mkdir()
    assert main([*BASE, "--straggler", "exponential", "--figure", str(target)]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert f"--figure '{target}'" in err


@pytest.mark.filterwarnings("error")
def test_a_time_that_no_split_makes_finite_is_no_advice(capsys):
    assert main([*BASE, "--straggler", "pareto:0.5", "--stale", "abandon", "--ranks", "1"]) == 2
    assert "no split has a finite expected time" in capsys.readouterr().err
