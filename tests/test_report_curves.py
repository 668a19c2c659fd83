"""Curves of runs as tables, beside those of others, and when they reached what was asked for."""

import csv
import io
import json

import numpy as np
import pytest
from test_report import made, opened

from mpisgd.cli import main
from mpisgd.report import curves, reference, targets
from mpisgd.report.targets import Target, parse
from mpisgd.store.schema import group
from mpisgd.store.writer import Writer
from mpisgd.values.errors import UsageError

TELLS = {"cpu": "fast", "cpus": 8, "training_samples": 40, "command": ["mpisgd"]}


# --- targets ------------------------------------------------------------------------------------


def test_targets_of_losses_and_accuracies(tmp_path):
    (named,) = opened(made(tmp_path / "a.h5", machine=TELLS))  # loss 1/4 and 1/8 at steps 4 and 8
    rows = targets.of(named, parse("0.8,loss:0.125,loss:0.2,loss:0.1,ema_loss:1"))
    told = [(row["metric"], row["target"], row["reached"], row["steps"]) for row in rows]
    assert told == [
        ("accuracy", 0.8, "reached", 8), ("loss", 0.125, "reached", 8), ("loss", 0.2, "reached", 8),
        ("loss", 0.1, "not reached", None), ("ema_loss", 1.0, "not reached", None),
    ]  # fmt: skip
    assert (rows[0]["epochs"], rows[0]["hours"]) == (160 / 40, 8 / 3600)
    assert (rows[3]["epochs"], rows[3]["hours"]) == (None, None)


def test_what_the_first_or_only_evaluation_finds_may_have_been_long_before(tmp_path):
    (named,) = opened(made(tmp_path / "a.h5"))
    assert targets.of(named, [Target(0.4)])[0]["reached"] == "reached by its first evaluation"
    with Writer(tmp_path / "b.h5", kind="train", config=named.run.config, environment={},
                ranks=1) as store:  # fmt: skip
        store.evaluation(step=8, time_s=1.0, accuracy=0.9, samples_used=10.0)
        store.complete({})
    (single,) = opened(str(tmp_path / "b.h5"))
    row = targets.of(single, [Target(0.4)])[0]
    assert (row["reached"], row["epochs"]) == ("reached by its only evaluation", None)


def test_rows_come_target_by_target_and_say_the_metric_where_it_varies(tmp_path, capsys):
    files = [made(tmp_path / f"{name}.h5", algorithm=name) for name in ("local", "minibatch")]
    assert main(["report", *files, "--table", "targets", "--targets", "0.8,0.9"]) == 0
    assert "metric" not in capsys.readouterr().out
    words = ["--table", "targets", "--targets", "0.8,loss:0.2", "--format", "json"]
    assert main(["report", *files, *words]) == 0
    rows = json.loads(capsys.readouterr().out)["targets"]
    assert [(row["metric"], row["algorithm"]) for row in rows] == [
        ("accuracy", "minibatch"), ("accuracy", "local"), ("loss", "minibatch"), ("loss", "local"),
    ]  # fmt: skip


def test_compare_takes_losses_too(tmp_path, capsys):
    before, after = made(tmp_path / "a.h5"), made(tmp_path / "b.h5", step_s=2.0)
    words = ["compare", before, after, "--single", "--targets", "loss:0.2,0.8"]
    assert main([*words, "--format", "json"]) == 1
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["time_s to loss 0.2"]["difference_percent"] == 100
    assert rows["time_s to 0.8"]["difference_percent"] == 100


@pytest.mark.parametrize("text", ["loss:", "loss:-1", "loss:inf", "speed:3", "1.5", "0", "a:b:0.5"])
def test_targets_that_are_none(text):
    with pytest.raises(UsageError, match="an accuracy above 0"):
        parse(text)


# --- curves -------------------------------------------------------------------------------------


def test_evaluations_are_those_of_the_file(tmp_path, capsys):
    path = made(tmp_path / "a.h5", machine=TELLS)
    assert main(["report", path, "--table", "evaluation", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["step"], r["loss"], r["epochs"]) for r in rows] == [
        ("4", "0.25", "2.0"), ("8", "0.125", "4.0"),
    ]  # fmt: skip
    assert main(["report", path, "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in page["evaluation"]] == [4, 8]
    assert "steps" not in page  # asked for by name only


@pytest.mark.parametrize("thin", [2, 3, 7, 60, 61, 100])
def test_thinned_curves_keep_ends_and_means(tmp_path, thin):
    steps, ranks = 61, 3
    generator = np.random.default_rng(thin)
    loss, wait = generator.random((2, steps, ranks))
    samples = generator.integers(1, 5, (steps, ranks))
    path = tmp_path / "a.h5"
    with Writer(path, kind="train", config={"algorithm": "local"}, environment={},
                ranks=ranks) as store:  # fmt: skip
        for rank in range(ranks):
            store.steps(rank, 1, {"loss": loss[:, rank], "wait_s": wait[:, rank],
                                  "samples": samples[:, rank]})  # fmt: skip
        for step in range(1, steps + 1):
            store.evaluation(step=step, loss=1 / step)
        store.complete({})
    (named,) = opened(str(path))
    rows = list(curves.steps(named, thin))
    assert len(rows) == min(thin, steps)
    assert rows[-1]["step"] == steps
    assert sum(row["steps"] for row in rows) == steps
    assert sum(row["samples"] for row in rows) == samples.sum()
    low = 0
    for row in rows:
        part = slice(low, row["step"])
        assert row["wait_s"] == pytest.approx(wait[part].mean())
        weighted = (loss * samples)[part].sum() / samples[part].sum()
        assert row["loss"] == pytest.approx(weighted)
        low = row["step"]
    kept = [row["step"] for row in curves.evaluations(named, thin)]
    assert len(kept) == len(set(kept)) == min(thin, steps)
    assert (kept[0], kept[-1]) == (1, steps)


def test_a_killed_run_has_the_steps_that_anybody_reported(tmp_path):
    with Writer(tmp_path / "a.h5", kind="train", config={}, environment={}, ranks=2) as store:
        store.steps(0, 1, {"wait_s": [1.0, 2.0], "staleness": [3, -1]})
        store.steps(1, 1, {"wait_s": [3.0]})
        store.flush()
    (named,) = opened(str(tmp_path / "a.h5"))
    rows = list(curves.steps(named))
    assert [row["wait_s"] for row in rows] == [2.0, 2.0]
    assert rows[0]["staleness"] == 3.0
    assert np.isnan(rows[1]["staleness"])


def test_every_column_of_steps_is_told_each_with_its_mean(tmp_path):
    columns = {f.name: np.array([1, 3] * 2, f.dtype) for f in group("steps")}
    columns["used"], columns["polls"] = np.array([1, 0, 1, 1]), np.array([2, -1, 4, 4])
    with Writer(tmp_path / "a.h5", kind="train", config={}, environment={}, ranks=1) as store:
        store.steps(0, 1, columns)
        store.complete({})
    assert set(columns) <= {column.key for column in curves.STEPS}
    (row,) = curves.steps(*opened(str(tmp_path / "a.h5")), 1)
    odd = {"samples": 8, "start_s": 1, "loss": 2.5, "used": 3 / 4, "polls": 10 / 3}
    assert {n: row[n] for n in columns} == pytest.approx(dict.fromkeys(columns, 2) | odd)


# --- references ---------------------------------------------------------------------------------

PAPER = """# Somebody 2020, figure 3
series,epochs,error_percent,loss
A,2,90,0.5   # read by eye
A,3,50,
A,9,10,0.1

B,3,45,
"""


def test_a_reference_in_its_units_beside_ours(tmp_path):
    (tmp_path / "paper.csv").write_text(PAPER)
    found = reference.load(str(tmp_path / "paper.csv"))
    told = {(c.name, c.metric): c.points.round(9).tolist() for c in found}
    assert told == {
        ("paper: A", "accuracy"): [[2, 0.1], [3, 0.5], [9, 0.9]],
        ("paper: A", "loss"): [[2, 0.5], [9, 0.1]],
        ("paper: B", "accuracy"): [[3, 0.55]],
    }
    (named,) = opened(made(tmp_path / "a.h5", machine=TELLS))  # 0.4 at epoch 2, 0.8 at epoch 4
    rows = reference.rows(named, found)
    told = [(row["reference"], row["metric"], row["at"], round(row["ours"], 9)) for row in rows]
    assert told == [
        ("paper: A", "accuracy", 2, 0.4), ("paper: A", "accuracy", 3, 0.6),
        ("paper: A", "loss", 2, 0.25), ("paper: B", "accuracy", 3, 0.6),
    ]  # fmt: skip
    assert all(row["difference"] == row["ours"] - row["theirs"] for row in rows)


def test_hours_are_seconds_of_its_own_machine(tmp_path):
    (tmp_path / "p.csv").write_text("time_h,accuracy\n1,0.5\n")
    (curve,) = reference.load(str(tmp_path / "p.csv"))
    assert (curve.over, curve.points.tolist()) == ("time_s", [[3600.0, 0.5]])
    assert reference.notes([], [curve]) == ["reference: its seconds are of its own machine"]
    (tmp_path / "q.csv").write_text("epochs,accuracy\n1,0.5\n")
    mute = opened(made(tmp_path / "a.h5"))
    (told,) = reference.notes(mute, reference.load(str(tmp_path / "q.csv")))
    assert "1 of 1 runs do not tell" in told


def test_it_is_drawn_and_in_the_page(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    (tmp_path / "paper.csv").write_text(PAPER)
    path = made(tmp_path / "a.h5", machine=TELLS)
    words = ["report", path, "--reference", str(tmp_path / "paper.csv")]
    assert main([*words, "--figures", str(tmp_path / "f"), "--html", str(tmp_path / "p.html")]) == 0
    names = {file.stem for file in (tmp_path / "f").iterdir()}
    assert {"reference-accuracy-epochs-wall", "reference-loss-epochs-wall"} <= names
    assert "what others report" in (tmp_path / "p.html").read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names columns: time_s"),
        ("epochs,speed\n1,2\n", "names columns"),
        ("accuracy\n0.5\n", "names columns"),
        ("epochs,accuracy\n1\n", "line 2: has 1 cells, and its heading 2"),
        (
            "epochs,accuracy\n# no\n1,x\n",
            "line 3: accuracy 'x': a number of at least 0 and at most 1",
        ),
        ("epochs,accuracy\n1,97\n", "at most 1"),
        ("epochs,error_percent\n-1,97\n", "epochs '-1': a number of at least 0"),
        ("epochs,loss\n1,nan\n", "loss 'nan'"),
    ],
)
def test_references_that_are_none(tmp_path, capsys, text, said):
    (tmp_path / "p.csv").write_text(text)
    path = made(tmp_path / "a.h5")
    assert main(["report", path, "--reference", str(tmp_path / "p.csv")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_other_mistakes(tmp_path, capsys):
    path = made(tmp_path / "a.h5")
    for words in (["--reference", "none.csv"], ["--thin", "1"], ["--thin", "x"]):
        assert main(["report", path, *words]) == 2
        assert words[0] in capsys.readouterr().err
