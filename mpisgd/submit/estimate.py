"""What the runs of a grid will cost on a cluster: the [predict] table of a grid file.

    [predict]
    device = "titanx"            # as mpisgd predict has them
    network = "eth20-pcie3"
    samples = 50000              # of an epoch, where runs are counted in epochs
    peak-share = 0.6             # PALEO's platform percent of peak [1.0]

Averages cost the closed form of their schedule; double-tree and plug-ins are simulated; `auto` and
the MPI library's calls are taken to be the cheapest closed form.
Seconds of training, without evaluation, start-up, waiting in the queue and, on GPUs, the copies to
and from the host. Averaging algorithms take the times of `mpisgd predict`. Parameter servers, which
that does not model, are taken to send and receive the shards of all workers one after the other,
once a step, behind the gradient; what servers add up is not counted. Runs on a virtual clock
compute the steps of all workers one after the other on one `device`, and send nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from allreduce import collectives
from allreduce.network import Network
from mpisgd.algorithms.policies import POLICIES
from mpisgd.experiment.experiment import Experiment
from mpisgd.predict import costs, devices, epoch, nets, networks, paleo
from mpisgd.predict.devices import Device
from mpisgd.predict.nets import small
from mpisgd.predict.nets.language import Layer, Net, lower
from mpisgd.submit.runs import GridRun
from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.quantities import number, whole
from mpisgd.values.schedules import AUTO, build

KEYS = ("device", "network", "samples", "peak-share")
# Models without a row in the table of `mpisgd predict`, and those of them that `--hidden` is for.
OTHERS: dict[str, Callable[..., Net]] = {
    "mnist-cnn": small.mnist_cnn, "resnet8": small.resnet8, "resnet20": small.resnet20,
    "torch:pixelcnn": small.pixelcnn,
}  # fmt: skip
DEFAULT_BUCKET = 256 * 1024.0
HOUR_S = 3600
FORMS = ("tree", "butterfly", "halving-doubling", "ring")  # closed forms of schedules
MOST_SIMULATED = 1024  # ranks: what has no closed form is played by the simulator
# Shapes of samples, for networks that take any; of other data they are taken to fit the network.
SHAPES = {
    "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "digits": (1, 8, 8), "cifar10": (3, 32, 32),
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """Where the runs will run. `samples`: of an epoch, None if all runs are counted in steps."""

    device: Device
    network: Network
    samples: int | None = None
    peak_share: float = 1.0


def read(place: str, table: Mapping[str, Any]) -> Cluster:
    """From a TOML table. UsageError, naming `place` and the key, for what is not allowed."""
    for key in table:
        if key not in KEYS:
            allowed = f"no such key; there are {', '.join(KEYS)}{nearest(key, KEYS)}"
            raise UsageError(f"{place}.{key}", None, allowed)
    for key in ("device", "network"):
        if not isinstance(table.get(key), str):
            raise UsageError(f"{place}.{key}", table.get(key), "a name, as mpisgd predict has them")
    samples = table.get("samples")
    return Cluster(
        devices.find(table["device"], f"{place}.device"),
        networks.find(table["network"], f"{place}.network"),
        None if samples is None else whole(f"{place}.samples", samples),
        number(f"{place}.peak-share", table.get("peak-share", 1.0), high=1.0, open_low=True),
    )


def check(place: str, cluster: Cluster, runs: Sequence[GridRun]) -> None:
    """UsageError where the cost of a run cannot be told."""
    for run in runs:
        experiment = run.experiment
        if layers_of(experiment) is None:
            allowed = f"no description of the model {experiment.model}; leave [predict] out"
            raise UsageError(place, None, allowed)
        if experiment.steps is None and cluster.samples is None:
            raise UsageError(f"{place}.samples", None, "say it: runs are counted in epochs")
        simulated = experiment.ranks > MOST_SIMULATED and not _is_open(experiment.allreduce)
        if simulated and experiment.allreduce.rpartition(":")[2] not in (*FORMS, "hierarchical"):
            allowed = f"cannot tell the cost of --allreduce {experiment.allreduce} beyond "
            raise UsageError(place, None, f"{allowed}{MOST_SIMULATED} ranks; leave it out")
        if experiment.delay == "auto":
            raise UsageError(place, None, "cannot tell the cost of --delay auto; leave it out")


def layers_of(experiment: Experiment) -> tuple[Layer, ...] | None:
    """The layers of its model; None if nothing describes it."""
    model = experiment.model
    if model in OTHERS:
        width = () if experiment.hidden is None else (experiment.hidden,)
        net = OTHERS[model](*width)
        return lower(replace(net, sample=SHAPES.get(experiment.data, net.sample)))
    name = model.removeprefix("torch:")
    return nets.layers(name) if name in nets.NETS and model != name else None


def seconds(run: GridRun, cluster: Cluster) -> float:
    """Predicted seconds of training."""
    e = run.experiment.resolved(run.experiment.ranks, cluster.samples or 1)
    layers = layers_of(e)
    assert layers is not None
    step = paleo.step_time(layers, cluster.device, e.batch, peak_share=cluster.peak_share)
    if run.virtual:
        return (e.steps or 0) * e.workers * step.step_s
    nbytes = epoch.gradient_bytes(step.parameters)
    if _has_servers(run):
        return (e.steps or 0) * _served_s(step.step_s, nbytes, e, cluster.network)

    def allreduce_s(size: float) -> float:
        return _allreduce_s(e.allreduce, e.ranks, size, cluster.network)

    if e.algorithm == "minibatch-overlap":
        parts = epoch.buckets(step, nbytes, e.bucket_bytes or DEFAULT_BUCKET)
        ready_s = step.forward_s + step.backward_s
        cost = epoch.overlap_cost(step.step_s, ready_s, parts, allreduce_s, e.ranks)
    else:
        delay = e.delay if isinstance(e.delay, int) else 0
        cost = epoch.averaging_cost(step.step_s, allreduce_s(nbytes), e.ranks, e.tau or 1, delay)
    return (e.steps or 0) * cost.step_s


def summary(runs: Sequence[GridRun], cluster: Cluster) -> str:
    """One line: what all runs cost together, and what that leaves out."""
    times = [seconds(run, cluster) for run in runs]
    served = ", sums of servers" if any(_has_servers(run) for run in runs) else ""
    chosen = any(_is_open(run.experiment.allreduce) and not _has_servers(run) for run in runs)
    told = "; an all-reduce that is chosen then is taken as the cheapest" if chosen else ""
    ranks = sum(t * run.tasks for t, run in zip(times, runs, strict=True))
    return (
        f"predicted by a model, not measured: {len(times)} runs of {sum(times) / HOUR_S:.3g} h "
        f"together, {ranks / HOUR_S:.3g} {cluster.device.name} hours (network "
        f"{cluster.network.name}) at {100 * cluster.peak_share:.3g} % of peak; evaluation, "
        f"start-up, waiting, copies between host and device{served} not included{told}"
    )


def _has_servers(run: GridRun) -> bool:
    return run.experiment.algorithm in POLICIES


@lru_cache(maxsize=256)
def _allreduce_s(name: str, ranks: int, nbytes: float, network: Network) -> float:
    """By closed forms, which know of servers by themselves; of the cheapest where who runs it will
    choose; by the simulator where there is none."""
    inner = "butterfly" if name == "hierarchical" else name.removeprefix("hierarchical:")
    if inner in FORMS:
        return costs.allreduce_s(inner, ranks, nbytes, network)
    if _is_open(name):
        return min(costs.allreduce_s(form, ranks, nbytes, network) for form in FORMS)
    from allreduce.simulate import simulate

    schedule = build(name, ranks, network.nodes(ranks))
    return float(simulate(schedule, round(nbytes), network).max())


def _is_open(allreduce: str) -> bool:
    """Whether the run, or the MPI library, chooses the algorithm."""
    return allreduce == AUTO or not collectives.carrier(allreduce).scheduled


def _served_s(step_s: float, nbytes: float, experiment: Any, network: Network) -> float:
    """A step's gradient, then the shards of all workers to and from each server in turn."""
    link = networks.between(network)
    shard = nbytes / experiment.servers
    messages = 2 * experiment.workers
    return step_s + messages * (shard / link.bandwidth + link.latency_s)
