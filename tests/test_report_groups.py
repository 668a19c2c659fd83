"""Runs are told apart by what varies between them, and those of several seeds are one."""

import csv
import io
import json

import numpy as np
import pytest

from mpisgd.cli import main
from mpisgd.report.collect import Named, collect, find
from mpisgd.report.learning import curve, split
from mpisgd.report.settings import groups, label, labels, varying
from mpisgd.store.reader import read
from mpisgd.store.writer import Writer
from mpisgd.values.statistics import Spread, half_width


def made(folder, name, accuracy=0.5, ranks=2, complete=True, **config):
    """A run with two evaluations, the last of this accuracy."""
    config = {"algorithm": "local", "allreduce": "ring", "data": "mnist", "tau": 4, "seed": 0,
              "batch": 8, **config}  # fmt: skip
    path = folder / f"{name}.h5"
    with Writer(path, kind="train", config=config, environment={}, ranks=ranks) as store:
        for step, share in ((4, 0.5), (8, 1.0)):
            store.evaluation(step=step, time_s=step * accuracy, loss=1.0,
                             accuracy=share * accuracy, steps_effective=step)  # fmt: skip
        if complete:
            store.complete({})
    found = path if complete else path.with_suffix(".h5.partial")
    return Named(str(found), read(found))


def seeds(folder):
    """Three algorithms' runs: five seeds of local at two tau, one of minibatch."""
    runs = [made(folder, f"t{tau}-{seed}", 0.5 + 0.1 * seed, tau=tau, seed=seed)
            for tau in (4, 16) for seed in range(5)]  # fmt: skip
    return [*runs, made(folder, "minibatch", algorithm="minibatch", tau=None)]


def test_what_varies_is_what_those_before_it_do_not_tell():
    listed = [
        {"algorithm": "minibatch", "tau": None, "seed": 0},
        {"algorithm": "local", "tau": 4, "seed": 0},
    ]
    assert varying(listed) == ["algorithm"]
    listed.append({"algorithm": "local", "tau": 8, "seed": 0})
    assert varying(listed) == ["algorithm", "tau"]
    listed.append({"algorithm": "local", "tau": 8, "seed": 1})
    assert varying(listed) == ["algorithm", "tau", "seed"]
    assert varying(listed[:1]) == varying([]) == []


def test_a_label_is_made_of_what_varies_and_numbered_where_nothing_does(tmp_path):
    runs = [made(tmp_path, "a", tau=4), made(tmp_path, "b", tau=8), made(tmp_path, "c", tau=8)]
    assert labels(runs) == ["tau 4", "tau 8", "tau 8 (2)"]
    assert label({"algorithm": "dasgd", "ranks": 1, "xi": 0.25}, ["algorithm", "ranks", "xi"]) == (
        "dasgd, 1 rank, xi 0.25"
    )


def test_runs_that_differ_by_their_seed_are_one_group_and_nothing_else_is_mixed(tmp_path):
    found = groups(seeds(tmp_path))
    assert [(group.label, len(group.runs)) for group in found] == [
        ("local, tau 4", 5), ("local, tau 16", 5), ("minibatch", 1)
    ]  # fmt: skip
    cut = made(tmp_path, "cut", complete=False, seed=7)
    assert len(groups([*found[0].runs, cut])) == 2
    by = groups([named for group in found for named in group.runs], ["algorithm"])
    assert [(group.label, len(group.runs)) for group in by] == [("local", 10), ("minibatch", 1)]


def test_a_mean_is_shown_with_its_interval_and_spelt_out_for_programs(tmp_path, capsys):
    seeds(tmp_path)
    accuracies = [0.5 + 0.1 * seed for seed in range(5)]
    mean, half = np.mean(accuracies), half_width(accuracies)
    assert main(["report", str(tmp_path)]) == 0
    assert f"{mean:.4f} +- {half:.2g}" in capsys.readouterr().out
    words = ["report", str(tmp_path), "--format", "csv", "--table"]
    assert main([*words, "runs-mean"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["algorithm"], row["tau"], row["n"]) for row in rows] == [
        ("minibatch", "", "1"), ("local", "4", "5"), ("local", "16", "5")
    ]  # fmt: skip
    assert float(rows[1]["accuracy"]) == pytest.approx(mean)
    assert float(rows[1]["accuracy_half_width"]) == pytest.approx(half)
    assert rows[0]["accuracy_half_width"] == ""
    assert main([*words, "runs"]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 11


def test_a_target_that_some_seeds_missed_has_no_mean_time(tmp_path, capsys):
    seeds(tmp_path)
    words = ["report", str(tmp_path), "--targets", "0.5,0.7", "--format", "json"]
    assert main([*words, "--table", "targets-mean"]) == 0
    rows = json.loads(capsys.readouterr().out)["targets-mean"]
    found = {(row["tau"], row["target"]): row for row in rows}
    assert found[4, 0.5]["reached"] == "5 of 5"
    assert found[4, 0.5]["time_s_half_width"] > 0
    assert (found[4, 0.7]["reached"], found[4, 0.7]["time_s"]) == ("3 of 5", None)


def test_groups_are_made_as_asked_or_not_at_all(tmp_path, capsys):
    seeds(tmp_path)
    words = ["report", str(tmp_path), "--format", "json"]
    assert main([*words, "--no-group"]) == 0
    assert "runs-mean" not in json.loads(capsys.readouterr().out)
    assert main([*words, "--group-by", "algorithm"]) == 0
    means = json.loads(capsys.readouterr().out)["runs-mean"]
    assert [(row["algorithm"], row["n"]) for row in means] == [("minibatch", 1), ("local", 10)]
    assert main([*words, "--group-by", "taus"]) == 2
    err = capsys.readouterr().err
    assert "--group-by 'taus': no such setting here; did you mean tau?" in err
    assert len(err.splitlines()) == 1


def test_every_table_of_runs_carries_what_tells_its_rows_apart(tmp_path, capsys):
    for rate in (0.1, 0.2):
        made(tmp_path, f"r{rate}", rate=rate, scaling="weak", hidden=[8])
    assert main(["report", str(tmp_path), "--format", "json", "--targets", "0.2"]) == 0
    page = json.loads(capsys.readouterr().out)
    for table in ("runs", "targets"):
        assert [row["rate"] for row in page[table]] == [0.1, 0.2]
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    above = " ".join(out[out.index("everywhere: ") :].partition("\n\n")[0].split())
    assert ", scaling weak" in above
    assert "not reached by any run: accuracy 0.9, accuracy 0.95" in out
    assert "Time to targets" not in out  # a table without a word to say


def test_the_curve_of_a_group_is_the_mean_of_its_seeds_as_far_as_all_have_them(tmp_path):
    (group,) = groups([made(tmp_path, str(seed), 0.5 + 0.1 * seed, seed=seed) for seed in range(3)])
    xs, ys, half = curve(group, "time_s", "accuracy")
    np.testing.assert_allclose(xs, [4 * 0.6, 8 * 0.6])
    np.testing.assert_allclose(ys, [0.3, 0.6])
    assert half[1] == pytest.approx(half_width([0.5, 0.6, 0.7]))


def test_small_multiples_keep_few_curves_in_a_panel_and_lose_none(tmp_path):
    runs = [made(tmp_path, f"{tau}-{batch}", tau=tau, batch=batch)
            for tau in (1, 2, 4, 8) for batch in (8, 16, 32)]  # fmt: skip
    parts = split(groups(runs))
    assert list(parts) == ["tau 1", "tau 2", "tau 4", "tau 8"]
    assert sum(map(len, parts.values())) == 12
    assert list(split(groups(runs[:6]))) == [""]


def test_a_spread_is_a_number_that_shows_how_far_to_trust_it():
    spread = Spread([0.1, 0.2, 0.3])
    assert spread == pytest.approx(0.2)
    assert f"{spread:.1%}" == f"20.0% +- {half_width([0.1, 0.2, 0.3]):.1%}"
    assert json.loads(json.dumps(spread)) == spread


def test_notes_name_counts_where_files_are_many(tmp_path, capsys):
    for seed in range(3):
        made(tmp_path, str(seed), seed=seed, complete=False)
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "note: partial run, as far as it got: 3 files" in out
    assert len(collect(find([str(tmp_path)]))[0]) == 3


def test_where_a_choice_came_from_makes_no_other_experiment(tmp_path):
    runs = [made(tmp_path, name, seed=seed, allreduce_from=name, tuning=f"{name}.json")
            for seed, name in enumerate("ab")]  # fmt: skip
    assert [len(group.runs) for group in groups(runs)] == [2]
