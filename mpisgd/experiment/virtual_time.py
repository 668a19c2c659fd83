"""What an experiment says of virtual time: network, schedule of averages, a step's seconds."""

from allreduce.network import Network
from allreduce.schedule import Schedule
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.stragglers import StepTimer, step_timer
from mpisgd.predict import coding, networks
from mpisgd.values.schedules import build

VIRTUAL_STEP_S = 1e-3  # seconds of a virtual step when --step-time does not say


def virtual_steps(experiment: Experiment) -> StepTimer:
    """Seconds of a gradient, by rank and step."""
    seconds = VIRTUAL_STEP_S if experiment.step_seconds is None else experiment.step_seconds
    return step_timer(experiment.straggler, seconds, experiment.seed)


def virtual_network(experiment: Experiment) -> Network:
    """The network that `--network` names, with `--progress perfect` if asked for."""
    named = networks.find(experiment.network or "ideal")
    named = coding.priced(named, experiment.network, experiment.wire)
    return named.with_(progress="perfect") if experiment.progress == "perfect" else named


def virtual_nodes(experiment: Experiment, cluster: Network) -> list[int]:
    """The node of each rank: the network's, one for all where no network is given, as for ranks
    that mpiexec starts on one host."""
    ranks = experiment.ranks
    return [0] * ranks if experiment.network is None else cluster.nodes(ranks)


def virtual_schedule(experiment: Experiment, cluster: Network) -> Schedule:
    """The averages' schedule."""
    nodes = virtual_nodes(experiment, cluster)
    return build(experiment.price_as or experiment.allreduce, experiment.ranks, nodes)
