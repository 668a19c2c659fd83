"""The model that a run has learned: kept in its result, taken from its checkpoint, exported."""

import os
import sys

import h5py
import numpy as np
import pytest
from checkpoint_runs import AVERAGING, SERVED

import mpisgd
from mpisgd.cli import main
from mpisgd.commands.export import ENDINGS, exported
from mpisgd.experiment.building import build_model, load
from mpisgd.store.opening import DamagedFile
from mpisgd.store.reader import read
from mpisgd.training.evaluation import means
from mpisgd.training.parameters import Parameters, digest
from mpisgd.values.errors import UsageError

PLAIN = {"data_samples": 53, "batch": 3, "steps": 7, "seed": 3}
TINY = {"model": "mlp", "hidden": (5,), **PLAIN}
RUNS = {name: AVERAGING[name] for name in ("minibatch", "dasgd", "slowmo")}
RUNS |= {name: SERVED[name] for name in ("async", "backup", "softsync-colocated")}
RUNS |= {"ring": {"algorithm": "local", "tau": 4, "allreduce": "ring"}}
RUNS |= {"normalised": {"model": "resnet8", "hidden": (2,), "algorithm": "local", "tau": 4}}
RUNS |= {"normalised, served": {"model": "resnet8", "hidden": (2,), "algorithm": "async"}}


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)


def made(output="run.h5", **options):
    result = mpisgd.run(**{"ranks": 5, **TINY, **options}, output=output, keep_parameters=True)
    assert result.complete
    return result


def same(one, other) -> bool:
    mine, its = one.arrays, other.arrays
    return list(mine) == list(its) and all(
        mine[n].tobytes() == its[n].tobytes() and mine[n].dtype == its[n].dtype for n in mine
    )


@pytest.mark.parametrize("name", RUNS)
def test_result_checkpoint_and_run_hold_the_same_bits(name):
    result = made(**RUNS[name], checkpoint_every=7)
    kept, saved = exported("run.h5"), exported("run.h5.checkpoint")
    assert same(kept.weights, result.weights)
    assert same(saved.weights, result.weights)
    assert saved.check == "the same bits as the last evaluation of run.h5"
    assert kept.step == saved.step == 7
    assert ("normalised" in name) == bool(kept.weights.statistics)


@pytest.mark.parametrize("name", ["dasgd", "normalised"])
def test_it_is_the_model_that_was_evaluated(name):
    made(**RUNS[name])
    found = mpisgd.load("run.h5")[0]
    dataset = load(found.experiment)
    model = build_model(found.experiment, dataset, 0, 1)
    parameters = Parameters(model.shapes, found.experiment.dtype)
    for key, array in found.parameters.items():
        parameters[key][...] = array
    for key, array in found.weights.statistics.items():
        model.statistics[key][...] = array
    assert digest(parameters.flat) == found.summary["parameters_sha256"]
    loss, accuracy = means(model, dataset, parameters)
    assert loss == pytest.approx(found.evaluation["loss"][-1], rel=1e-6)
    assert accuracy == found.evaluation["accuracy"][-1]


def test_every_format_holds_names_shapes_and_bits(capsys):
    made(**RUNS["normalised"])
    whole = exported("run.h5").weights.arrays
    assert main(["export", "run.h5"]) == 0
    assert "resnet" not in capsys.readouterr().err
    with np.load("run.npz", allow_pickle=False) as file:
        assert list(file) == list(whole)
        assert all(np.array_equal(file[name], whole[name]) for name in whole)
    numpy = pytest.importorskip("safetensors.numpy", reason="needs safetensors")
    assert main(["export", "run.h5", "--output", "x.safetensors"]) == 0  # by its ending
    found = numpy.load_file("x.safetensors")
    assert all(np.array_equal(found[name], whole[name]) for name in whole)
    assert all(found[name].dtype == whole[name].dtype for name in whole)


def test_torch_reads_its_own(capsys):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    result = made(**RUNS["dasgd"])
    assert main(["export", "run.h5", "--format", "torch"]) == 0
    found = torch.load("run.pt", weights_only=True)
    assert all(np.array_equal(found[n].numpy(), array) for n, array in result.parameters.items())


def test_a_run_that_goes_on_keeps_none_of_an_earlier_end():
    made(checkpoint_every=7)
    longer = mpisgd.run(**{**TINY, "steps": 9}, ranks=5, output="run.h5", resume="auto")
    assert longer.complete
    assert mpisgd.load("run.h5")[0].parameters is None
    with pytest.raises(UsageError, match="--keep-parameters"):
        exported("run.h5")


def test_values_that_are_not_the_runs_are_damage():
    made()
    with h5py.File("run.h5", "r+") as file:
        file["parameters/values"][0] += 1
    with pytest.raises(DamagedFile, match="not what /summary says"):
        exported("run.h5")
    made("other.h5")
    with h5py.File("other.h5", "r+") as file:
        del file["parameters/values"]
        file["parameters/values"] = np.zeros(3)
    with read("other.h5") as run, pytest.raises(DamagedFile):
        _ = run.weights


def test_a_memory_result_has_them_too():
    result = mpisgd.run(**TINY, ranks=2, keep_parameters=True)
    assert same(result.record.weights, result.weights)


MISTAKES = {
    "nothing.h5": "nothing.h5: No such file",
    "plain.h5": "plain.h5: holds no parameters: train with --keep-parameters, or name a checkpoint",
    "text": "text: is neither a result file (HDF5) nor a checkpoint",
    "run.h5 --output there": "--output 'there': exists",
    "run.h5 --output run.h5 --overwrite": "is 'run.h5', which is read",
    "run.h5 --output no/folder.npz": "there is no folder",
    "run.h5 --data-path x": "only for a checkpoint",
}


def test_mistakes_are_one_line_and_write_nothing(tmp_path, capsys):
    made()
    mpisgd.run(**TINY, output="plain.h5")
    for name in ("text", "there"):
        (tmp_path / name).write_text("text")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    for words, said in MISTAKES.items():
        assert main(["export", *words.split()]) == 2
        error = capsys.readouterr().err
        assert said in error, words
        assert error.count("\n") == 1
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_plug_in_model_needs_its_file(tmp_path, capsys, monkeypatch):
    (tmp_path / "own.py").write_text(
        "from mpisgd import models\n\n\n"
        "def net(dataset):\n    return models.build('mlp', dataset, hidden=(3,))\n"
    )
    words = {"model": "own.py:net", "ranks": 3, "checkpoint_every": 7, **PLAIN}
    result = mpisgd.run(**words, output="run.h5", keep_parameters=True)
    assert same(exported("run.h5.checkpoint").weights, result.weights)
    (tmp_path / "own.py").write_text("")
    for name in [name for name in sys.modules if name.startswith("_mpisgd")]:
        monkeypatch.delitem(sys.modules, name)  # as in a new process
    assert same(exported("run.h5").weights, result.weights)
    assert main(["export", "run.h5.checkpoint"]) == 2
    assert "'own.py': has changed" in capsys.readouterr().err


def test_only_with_an_output(capsys):
    assert main(["train", "--virtual", "2", "--keep-parameters"]) == 2
    assert "--keep-parameters: needs --output" in capsys.readouterr().err


@pytest.mark.parametrize("form", ENDINGS)
def test_the_same_run_makes_the_same_file(form):
    pytest.importorskip({"torch": "torch", "safetensors": "safetensors"}.get(form, "numpy"))
    made()
    for name in ("a", "b"):
        assert main(["export", "run.h5", "--format", form, "--output", name]) == 0
    with open("a", "rb") as one, open("b", "rb") as other:
        assert one.read() == other.read()


def test_batches_are_those_of_the_rule_in_the_documentation():
    """docs/train.md: the permutation of epoch e, cut into steps, and these into ranks."""
    result = made(batch=4, steps=9)
    samples, workers, batch, seed = 53, 5, 4, 3
    steps_per_epoch = -(-samples // (workers * batch))
    for step in range(1, 10):
        epoch, place = divmod(step - 1, steps_per_epoch)
        order = np.random.default_rng((seed, epoch)).permutation(samples)
        these = order[place * workers * batch : (place + 1) * workers * batch]
        for worker in range(workers):
            low, high = (len(these) * k // workers for k in (worker, worker + 1))
            assert result.batch(step, worker).tolist() == these[low:high].tolist()
    for step, worker in ((0, 0), (10, 0), (1, 5)):
        with pytest.raises(UsageError):
            result.batch(step, worker)


def test_batches_are_what_was_computed():
    result = mpisgd.run(**{**TINY, "steps": 10}, ranks=5, output="run.h5")
    counted = [[len(result.batch(step, rank)) for rank in range(5)] for step in range(1, 11)]
    assert counted == result.steps["samples"].tolist()
