"""The recipes in jobs/: what they run, what that will cost, and the reduced forms here."""

import os
from pathlib import Path

import pytest

from mpisgd import cli
from mpisgd.experiment.experiment import Experiment
from mpisgd.predict import costs, epoch, nets, networks, paleo
from mpisgd.predict.devices import DEVICES
from mpisgd.predict.nets import small
from mpisgd.predict.nets.language import lower, macs, output_shape, parameters
from mpisgd.submit import estimate, grid
from mpisgd.values.errors import UsageError

CHECKOUT = Path(__file__).resolve().parent.parent
JOBS = CHECKOUT / "jobs"
NAMES = ("table-one", "ablations", "mnist-cnn", "pixelcnn", "inception")
SAMPLES = Path(os.environ.get("MPISGD_DATA", CHECKOUT.parent / "shared" / "data"))
GRID = """
scaling = "weak"
[options]
model = "torch:resnet50-cifar"
data = "cifar10"
data-path = "x"
ranks = {ranks}
batch = 32
steps = 100
algorithm = "{algorithm}"
allreduce = "halving-doubling"
{more}
[predict]
device = "titanx"
network = "eth20-pcie3"
"""


def runs(name):
    return grid.read(str(JOBS / f"{name}.toml")).runs


def test_table_one_is_that_of_the_paper():
    made = [run.experiment for run in runs("table-one")]
    assert len(made) == len({(e.model, e.algorithm) for e in made}) == 24
    assert len({e.model for e in made}) == 8
    assert {e.algorithm for e in made} == {"minibatch", "local", "dasgd"}
    common = {(e.ranks, e.batch, e.steps, e.rate, e.momentum, e.weight_decay) for e in made}
    assert common == {(32, 32, 2450, 0.01, 0.9, 0.01)}
    assert {e.rate_schedule for e in made} == {"one-cycle"}
    assert {(e.tau, e.delay) for e in made if e.algorithm == "dasgd"} == {(4, 1)}


def test_ablations_vary_one_thing_each():
    base = {"ranks": 32, "batch": 32, "tau": 4, "delay": 2, "xi": 0.25}
    varied = set()
    for run in runs("ablations"):
        found = {name: getattr(run.experiment, name) for name in base}
        others = {name for name in base if found[name] != base[name]}
        assert len(others) <= 1
        varied |= others
    assert varied == set(base)


def test_inception_has_the_papers_sizes():
    made = [run.experiment for run in runs("inception")]
    sizes = {(e.ranks, e.servers) for e in made}
    assert sizes == {(53, 17), (106, 27), (212, 37)}
    assert {e.epsilon for e in made} == {1.0}
    assert {e.resolved(e.ranks, 10**6).step_workers for e in made if e.algorithm == "backup"} == {
        50, 100, 200,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_its_cost_and_a_reduced_form(name, capsys, tmp_path):
    assert cli.main(["submit", str(JOBS / f"{name}.toml"), "--dry-run", "--folder",
                     str(tmp_path / "none"), "--format", "csv"]) == 0  # fmt: skip
    said = capsys.readouterr()
    assert "predicted by a model, not measured: " in said.err
    columns, *rows = (line.split(",") for line in said.out.splitlines())
    assert len(rows) == len(runs(name))
    at = columns.index("predicted_s")
    assert all(0 < float(row[at]) < 1e7 for row in rows)
    text = (JOBS / f"{name}-reduced.toml").read_text()
    assert text.startswith("# REDUCED: ")
    assert all(run.virtual for run in runs(f"{name}-reduced"))
    assert cli.main(["submit", str(JOBS / f"{name}-reduced.toml"), "--dry-run"]) == 0
    assert "% of peak; evaluation, " in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_reduced_form_begins_here(name, tmp_path, capsys):
    """One step of each algorithm of it, on real samples."""
    data = {"cifar10": SAMPLES / "cifar10", "mnist": SAMPLES / "mnist"}
    chosen = {run.experiment.algorithm: run for run in runs(f"{name}-reduced")}
    for run in chosen.values():
        e = run.experiment
        if not data[e.data].is_dir():
            pytest.skip(f"no samples of {e.data}; say where they are with MPISGD_DATA")
        if e.model.startswith("torch:"):
            pytest.importorskip("torch", reason="PyTorch is not installed")
        words = run.words(str(tmp_path / f"{run.name}.h5"))
        words = [w for w in words if not w.startswith(("--epochs", "--steps", "--data-path"))]
        words += ["--steps=1", f"--data-path={data[e.data]}", "--evaluate-every=0"]
        assert cli.main(words) == 0, capsys.readouterr().err


# The estimate


def predicted(tmp_path, algorithm="minibatch", ranks=8, more="", extra=""):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(algorithm=algorithm, ranks=ranks, more=more) + extra)
    read = grid.read(str(path))
    return [estimate.seconds(run, read.cluster) for run in read.runs]


def test_the_estimate_is_that_of_predict(tmp_path):
    step = paleo.step_time(nets.layers("resnet50-cifar"), DEVICES["titanx"], 32)
    nbytes = epoch.gradient_bytes(step.parameters)
    wire = costs.allreduce_s("halving-doubling", 8, nbytes, networks.find("eth20-pcie3"))
    assert predicted(tmp_path) == [pytest.approx(100 * (step.step_s + wire))]
    local = predicted(tmp_path, "local", more="[options.local]\ntau = 5")
    assert local == [pytest.approx(100 * (step.step_s + wire / 5))]
    assert predicted(tmp_path, ranks=1) == [pytest.approx(100 * step.step_s)]
    hidden = predicted(tmp_path, "minibatch-overlap")[0]
    assert 100 * step.step_s <= hidden < 100 * (step.step_s + wire)


def test_servers_cost_their_messages(tmp_path):
    one, two = (
        predicted(tmp_path, "backup", 9, f"servers = {n}\ncolocated = true")[0] for n in (1, 2)
    )
    alone = predicted(tmp_path, ranks=1)[0]
    assert (one - alone) == pytest.approx(2 * (two - alone))


@pytest.mark.parametrize(
    ("more", "extra", "message"),
    [
        ('model = "mlp"', "", "grid.toml: predict: no description of the model mlp"),
        ("", "devise = 3", r"predict.devise: no such key.*did you mean device"),
        ("", "peak-share = 2", "predict.peak-share 2"),
        ("epochs = 3", "", "predict.samples: say it"),
    ],
)
def test_mistakes_in_what_is_to_be_predicted(tmp_path, more, extra, message):
    path = tmp_path / "grid.toml"
    text = GRID.format(algorithm="minibatch", ranks=2, more=more) + extra
    if "model" in more:
        text = text.replace('model = "torch:resnet50-cifar"\n', "", 1)
    if "epochs" in more:
        text = text.replace("steps = 100\n", "", 1)
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        grid.read(str(path))


def test_the_small_networks_are_those_that_are_trained():
    net = small.pixelcnn()
    layers = lower(net)
    assert (parameters(layers), macs(layers)) == (248_736, 252_739_584)
    assert output_shape(net) == (768, 32, 32)
    layers = lower(small.mnist_cnn())
    assert output_shape(small.mnist_cnn())[0] == 10
    kernels = 9 * (16 + 16 * 16 + 16 * 32 + 32 * 32)
    assert parameters(layers) == kernels + 96 + 330


@pytest.mark.parametrize(("name", "parameters_of"), [("resnet8", 75_290), ("resnet20", 269_722)])
def test_the_small_residual_networks_have_the_papers_parameters(name, parameters_of):
    """0.27 million for 20 layers: He et al. 2015, Table 6."""
    assert parameters(estimate.layers_of(Experiment(model=name, data="cifar10"))) == parameters_of
    narrow = estimate.layers_of(Experiment(model=name, hidden=(8,), data="cifar10"))
    assert 3.8 < parameters_of / parameters(narrow) < 4.1


def test_on_a_virtual_clock_one_device_computes_all_steps(tmp_path):
    here = predicted(tmp_path, "minibatch", 8, "virtual = true")[0]
    assert here == pytest.approx(8 * predicted(tmp_path, ranks=1)[0])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('device = "titanx"', "device = 3", "predict.device 3: a name, as mpisgd predict has them"),
        ('network = "eth20-pcie3"', "", "predict.network: a name, as mpisgd predict has them"),
        ("steps = 100", 'steps = 100\ndelay = "auto"', "cannot tell the cost of --delay auto"),
    ],
)
def test_a_cost_that_cannot_be_told_is_refused(tmp_path, old, new, told):
    text = GRID.format(ranks=4, algorithm="dasgd", more="")
    path = tmp_path / "g.toml"
    path.write_text(text)
    grid.read(str(path))
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        grid.read(str(path))
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
