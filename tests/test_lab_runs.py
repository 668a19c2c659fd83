"""Comparisons of training runs in the lab, without a lab: what they ask for, count and write."""

import json
import sys
from argparse import ArgumentParser, Namespace
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mpisgd.commands import train
from mpisgd.experiment.arguments import from_arguments

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
MEASURED = sorted((ROOT / "results" / "reference").glob("overlap-*.json"))
SCRIPTS = ("lab_overlap", "ddp_gloo")


pytestmark = pytest.mark.usefixtures("benchmarks_on_the_path")


def options_of(script, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", [script, *words])
    return vars(__import__(script)._options())


def experiment(words):
    parser = ArgumentParser()
    train.add_arguments(parser)
    return from_arguments(parser.parse_args(words))


@pytest.mark.parametrize("script", SCRIPTS)
def test_both_comparisons_take_the_options_of_the_lab(script, monkeypatch):
    words = "--hosts 3 --rate 1gbit --launches 2 --steps 20 --batch 8 --allreduce ring --seed 5"
    found = options_of(script, monkeypatch, *words.split(), "--output", "x.json")
    assert found["mpiexec"] is None
    expected = dict(zip(*[iter(words.replace("--", "").split())] * 2, strict=True))
    assert {key: str(found[key]) for key in expected} == expected
    assert found["output"] == "x.json"


def test_each_has_the_batch_of_its_own_page(monkeypatch):
    batches = {script: options_of(script, monkeypatch)["batch"] for script in SCRIPTS}
    assert batches == {"lab_overlap": 1408, "ddp_gloo": 256}


def launched(monkeypatch, seed):
    import lab_runs

    @contextmanager
    def lab(hosts, rate, mpiexec):
        assert (hosts, rate, mpiexec) == (2, "1gbit", None)
        yield "lab"

    monkeypatch.setattr(lab_runs, "Lab", lab)
    order: list[str] = []

    def launch(lab, name):
        assert lab == "lab"
        order.append(name)
        return float(len(order))

    options = Namespace(hosts=2, rate="1gbit", mpiexec=None, launches=3, seed=seed)
    return lab_runs.measured("abcd", options, launch), order


def test_each_launch_has_every_run_once_in_an_order_of_its_own(monkeypatch, capsys):
    samples, order = launched(monkeypatch, 1)
    turns = [order[at : at + 4] for at in range(0, 12, 4)]
    assert all(sorted(turn) == list("abcd") for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert {n: [order[int(s) - 1] for s in seconds] for n, seconds in samples.items()} == {
        name: [name] * 3 for name in "abcd"
    }
    assert launched(monkeypatch, 1)[1] == order
    assert launched(monkeypatch, 2)[1] != order
    assert "launch 3" in capsys.readouterr().err


def test_a_measurement_leaves_out_the_steps_that_warm_up(monkeypatch):
    import lab_runs

    seconds = np.r_[np.full(lab_runs.FIRST, 9.0), np.full(4, 0.5)]
    step_s = np.stack([seconds, seconds / 2], axis=1)
    steps = {"step_s": step_s, "start_s": np.cumsum(step_s, axis=0) - step_s}

    @contextmanager
    def read(path):
        yield SimpleNamespace(steps=steps, path=path)

    monkeypatch.setattr(lab_runs, "read", read)
    with lab_runs.finished("run.h5") as (run, found):
        assert run.path == "run.h5"
        assert found == 0.5  # of the rank that took longest


def test_the_file_holds_the_method_all_samples_and_the_table_s_rows(tmp_path, capsys):
    import lab_runs

    samples = {"one": [0.2, 0.1, 0.4], "two": [1.0]}
    rows = [{"run": name, **lab_runs.timing(times)} for name, times in samples.items()]
    options = Namespace(output=str(tmp_path / "found.json"), hosts=2)
    lab_runs.finish(["run", "step_ms"], rows, samples, options, "How.", runs={"one": "--x"})
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert list(found) == ["method", "options", "runs", "samples_s", "rows"]
    assert (found["method"], found["samples_s"], found["rows"]) == ("How.", samples, rows)
    assert found["options"] == vars(options)
    assert rows[0] == {
        "run": "one", "launches": 3, "step_ms": 200.0, "spread_ms": pytest.approx(300.0)
    }  # fmt: skip
    assert capsys.readouterr().out.split() == ["run", "step_ms", "one", "200", "two", "1000"]


@pytest.mark.parametrize("file", MEASURED, ids=lambda path: path.stem)
def test_the_runs_of_a_committed_file_can_still_be_predicted(file):
    """Their options are enough for the command lines."""
    import lab_runs

    found = json.loads(file.read_text(encoding="utf-8"))
    options = Namespace(**found["options"])
    for row in found["rows"]:
        made = experiment(lab_runs.words(row["algorithm"], options, "x.h5")[1:])
        assert made.allreduce == options.allreduce
        assert made.data_samples == lab_runs.STEPS_PER_EPOCH * made.batch * options.hosts
        assert made.steps == options.steps
        assert (made.step_seconds is None) == (options.step_time is None)


def test_ours_and_ddp_s_have_the_same_buckets_data_and_batch(monkeypatch):
    import ddp_gloo

    options = Namespace(**options_of("ddp_gloo", monkeypatch, "--bucket", "4096"))
    made = [
        experiment([*ddp_gloo.algorithm_words(name, options), *ddp_gloo.experiment_words(options)])
        for name in ddp_gloo.OURS
    ]
    assert [one.bucket_bytes for one in made] == [None, None, 4096]
    assert {(one.model, one.batch, one.data_samples) for one in made} == {
        ("torch:mlp", 256, 4 * 256 * 2)
    }
