"""A study: one device and network, several nets, rank counts and algorithms; its rows.

Every row says `source: model`. No row is a number of a paper: the published cells of the DaSGD
paper's Table II and Fig. 7 are not available to this project; these are their analogues.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from allreduce.compress import compresses
from allreduce.network import Network
from mpisgd.predict import costs, epoch, nets, networks, paleo, wires
from mpisgd.predict.devices import Device
from mpisgd.training.effective import DELAYED, KEEPING, effective_share
from mpisgd.values.errors import UsageError, among
from mpisgd.values.quantities import number, whole

SOURCE = "model"
SCALINGS = ("weak", "strong")


@dataclass(frozen=True)
class Study:
    """Everything a prediction depends on. Raises UsageError for nonsense values.

    batch: samples a worker and step (weak scaling), or of all workers together (strong).
    tau, delay: None takes the delay rule, and tau = d+1. nbytes: bytes of one all-reduce, None
    for 4 a parameter. wire: how it travels, see allreduce.wire and compress; None: in full.
    """

    device: Device
    network: Network
    nets: tuple[str, ...] = ("resnet50",)
    workers: tuple[int, ...] = (1,)
    allreduces: tuple[str, ...] = ("butterfly",)
    algorithms: tuple[str, ...] = epoch.ALGORITHMS
    batch: int = 64
    samples: int = 1_281_167
    scaling: str = "weak"
    tau: int | None = None
    delay: int | None = None
    xi: float = 0.25
    merge: str = "convex"
    nbytes: float | None = None
    wire: str | None = None
    bucket_bytes: float = 25e6
    topology: str = "leader"
    rounding: str = "ceil"
    peak_share: float = 1.0
    pipelined: bool = False
    compute: str = "paleo"
    conditions: epoch.Conditions = field(default_factory=epoch.Conditions)

    def __post_init__(self) -> None:
        whole("--batch", self.batch)
        whole("--samples", self.samples)
        networks.check(self.topology)
        epoch.check_merge(self.xi, self.merge)
        among("--scaling", self.scaling, SCALINGS)
        for name in self.algorithms:
            among("--algorithms", name, epoch.ALGORITHMS)
        if self.tau is not None:
            epoch.check_delay(self.tau, self.delay or 0)
        elif self.delay is not None:
            whole("--delay", self.delay, low=0)
        for name in self.algorithms if compresses(self.wire) else ():
            if name in KEEPING:
                allowed = f"for averages that all ranks go on from; {name} keeps ranks apart"
                raise UsageError("--wire", self.wire, allowed)
        for workers in self.workers:
            self.local_batch(workers)
            epoch.check_quorum(self.conditions.quorum, workers)

    def local_batch(self, workers: int) -> int:
        """Samples a worker and step: of the slowest worker where the batch does not divide."""
        whole("--ranks", workers)
        if self.scaling == "weak":
            return self.batch
        if workers > self.batch:
            raise UsageError("--ranks", workers, f"at most --batch {self.batch} when strong")
        return -(-self.batch // workers)

    @cached_property
    def _steps(self) -> dict[tuple[str, int], paleo.StepTime]:
        return {}

    def step(self, net: str, workers: int) -> paleo.StepTime:
        """The local step of `net` on the device, without communication."""
        batch = self.local_batch(workers)
        key = (net, batch)
        if key not in self._steps:
            self._steps[key] = paleo.step_time(
                nets.layers(net),
                self.device,
                batch,
                peak_share=self.peak_share,
                pipelined=self.pipelined,
                compute=self.compute,
            )
        return self._steps[key]

    def message_bytes(self, net: str) -> float:
        """Bytes of one all-reduce."""
        if self.nbytes is not None:
            return number("--bytes", self.nbytes, open_low=True)
        return epoch.gradient_bytes(self.step(net, self.workers[0]).parameters)


@dataclass(frozen=True)
class Case:
    """One net on so many workers with one all-reduce: its times and its rhythm."""

    study: Study
    net: str
    workers: int
    allreduce: str

    @cached_property
    def step(self) -> paleo.StepTime:
        """The local step."""
        return self.study.step(self.net, self.workers)

    def allreduce_s(self, nbytes: float) -> float:
        """Seconds of an all-reduce of `nbytes`."""
        return self._average_s(self.allreduce, self.workers, nbytes, self.study.topology)

    def exchange_s(self, nbytes: float) -> float:
        """Seconds of an average of two ranks on different servers: a message each way."""
        return self._average_s("butterfly", min(self.workers, 2), nbytes, "flat")

    def _average_s(self, allreduce: str, ranks: int, nbytes: float, topology: str) -> float:
        study = self.study
        how = (allreduce, ranks, nbytes, study.network, study.rounding, topology)
        if study.wire is None:
            return costs.allreduce_s(*how)
        return wires.allreduce_s(study.wire, self.shared, *how)

    def communication_s(self, algorithm: str) -> float:
        """Of a round's average of all parameters, whether of all ranks or of two."""
        pairs = epoch.rhythm(algorithm, *self.rhythm).pairs
        return (self.exchange_s if pairs else self.allreduce_s)(self.study.message_bytes(self.net))

    @cached_property
    def shared(self) -> float:
        """Of the bytes of an average, those that travel."""
        return 1.0 if self.study.wire is None else wires.share(self.study.wire, self.net)

    @cached_property
    def whole_allreduce_s(self) -> float:
        """t_c: seconds of the all-reduce of the whole gradient."""
        return self.allreduce_s(self.study.message_bytes(self.net))

    @cached_property
    def rule(self) -> int:
        """The delay rule's d."""
        return epoch.delay_rule(self.step.step_s, self.whole_allreduce_s, self.workers)

    @cached_property
    def rhythm(self) -> tuple[int, int]:
        """(tau, d): given, or by the rule. Raises UsageError when d > tau."""
        delay = self.rule if self.study.delay is None else self.study.delay
        tau = delay + 1 if self.study.tau is None else self.study.tau
        epoch.check_delay(tau, delay)
        return tau, delay

    def cost(self, algorithm: str) -> tuple[epoch.StepCost, int, int]:
        """The cost of a step of `algorithm`, and its tau and d."""
        rhythm = epoch.rhythm(algorithm, *self.rhythm)
        tau, delay, *_ = rhythm
        conditions = self.study.conditions.of(algorithm)
        if algorithm == "minibatch-overlap":
            parts = epoch.buckets(
                self.step, self.study.message_bytes(self.net), self.study.bucket_bytes
            )
            ready = self.step.forward_s + self.step.backward_s
            cost = epoch.overlap_cost(
                self.step.step_s, ready, parts, self.allreduce_s, self.workers, conditions
            )
        else:
            average_s = self.exchange_s if rhythm.pairs else self.allreduce_s
            part_s = average_s(self.study.message_bytes(self.net) / rhythm.parts)
            cost = epoch.rhythm_cost(self.step.step_s, part_s, self.workers, rhythm, conditions)
        return cost, tau, delay

    def share(self, algorithm: str, tau: int, delay: int) -> float:
        """Effective steps / steps of `algorithm`, those apart that miss their round."""
        in_time = self.study.conditions.of(algorithm).in_time(self.workers)
        if algorithm not in DELAYED:
            return in_time
        merge = self.study.merge if algorithm == "dasgd" else "convex"
        return in_time * effective_share(tau, delay, self.study.xi, merge)


def cases(study: Study) -> Iterator[Case]:
    """Every case of `study`: nets, then all-reduces, then worker counts."""
    for net in study.nets:
        for allreduce in study.allreduces:
            yield from map(partial(_case, study, net, allreduce), study.workers)


def _case(study: Study, net: str, allreduce: str, workers: int) -> Case:
    return Case(study, net, workers, allreduce)


def setting(case: Case) -> dict[str, Any]:
    """The columns that say what a row is about."""
    study = case.study
    return {
        "source": SOURCE,
        "net": case.net,
        "device": study.device.name,
        "network": study.network.name,
        "topology": study.topology,
        "allreduce": case.allreduce,
        "rounding": study.rounding,
        "scaling": study.scaling,
        "ranks": case.workers,
        "local_batch": study.local_batch(case.workers),
        "message_bytes": study.message_bytes(case.net),
        **assumptions(study),
    }


def assumptions(study: Study) -> dict[str, Any]:
    """The columns that repeat what was asked for, so that a row can be read alone."""
    device, conditions = study.device, study.conditions
    between, inside = networks.between(study.network), networks.inside(study.network)
    return {
        "peak_GFLOPS": device.peak_GFLOPS,
        "memory_GBps": device.bandwidth_GBps,
        "peak_share": study.peak_share,
        "pipelined": study.pipelined,
        "compute": study.compute,
        "bandwidth_Gbps": between.gbps,
        "latency_s": between.latency_s,
        "sum_s_per_byte": between.sum_s_per_byte,
        "server_size": study.network.ranks_per_node,
        "server_bandwidth_GBps": inside.gbytes,
        "server_latency_s": inside.latency_s,
        "bucket_bytes": study.bucket_bytes,
        "samples": study.samples,
        "wire": study.wire,
        "merge": study.merge,
        "xi": study.xi,
        "progress_share": conditions.progress,
        "slowdown": conditions.slowdown,
        "noise": conditions.noise,
        "quorum": conditions.quorum,
    }


def delay_rows(study: Study) -> Iterator[dict[str, Any]]:
    """The analogue of the DaSGD paper's Table II: d and tau of each net, by the rule."""
    for case in cases(study):
        t_p, t_c = case.step.step_s, case.whole_allreduce_s
        memory = paleo.memory_bytes(nets.layers(case.net), case.step.batch)
        tau = case.rule + 1
        yield setting(case) | {
            "parameters": case.step.parameters,
            "forward_s": case.step.forward_s,
            "backward_s": case.step.backward_s,
            "update_s": case.step.update_s,
            "compute_s": t_p,
            "allreduce_s": t_c,
            "ratio": t_c / t_p,
            "delay": case.rule,
            "tau": tau,
            "effective_share": effective_share(tau, case.rule, study.xi, study.merge),
            "memory_share": memory / (study.device.memory_GB * 1e9),
        }


def epoch_rows(study: Study) -> Iterator[dict[str, Any]]:
    """The analogue of the DaSGD paper's Fig. 7: epoch time and breakdown by algorithm."""
    for case in cases(study):
        for algorithm in study.algorithms:
            yield setting(case) | epoch_columns(case, algorithm)


def epoch_columns(case: Case, algorithm: str) -> dict[str, Any]:
    """Times of one algorithm in one case: a step, an effective step, an epoch by cause."""
    study = case.study
    cost, tau, delay = case.cost(algorithm)
    share = case.share(algorithm, tau, delay)
    local_batch = study.local_batch(case.workers)
    # Strong scaling keeps the global batch, whatever the slowest worker's part of it.
    together = study.batch if study.scaling == "strong" else case.workers * local_batch
    count = epoch.iterations(study.samples, 1, together)
    own_s = case.communication_s(algorithm)
    pairs = epoch.rhythm(algorithm, *case.rhythm).pairs
    return {
        "algorithm": algorithm,
        "tau": tau,
        "delay": delay,
        "iterations": count,
        "compute_s": cost.compute_s,
        "allreduce_s": case.whole_allreduce_s,
        "exchange_s": own_s if pairs else None,
        "exposed_s": cost.exposed_s,
        "slowed_s": cost.slowed_s,
        "noise_s": cost.noise_s,
        "step_s": cost.step_s,
        "round_s": tau * cost.step_s,
        "round_bytes": case.shared * study.message_bytes(case.net),
        "effective_share": share,
        "effective_step_s": cost.effective_s(share),
        "hidden_share": cost.hidden_share(tau, own_s),
        "samples_per_s": together / cost.step_s,
        "epoch_s": count * cost.step_s,
        "epoch_compute_s": count * cost.compute_s,
        "epoch_exposed_s": count * cost.exposed_s,
        "epoch_waiting_s": count * (cost.slowed_s + cost.noise_s),
    }


def layer_rows(study: Study) -> Iterator[dict[str, Any]]:
    """The layers of every net, with PALEO's times: one worker's local step."""
    for net in study.nets:
        for workers in study.workers[:1]:
            for layer in study.step(net, workers).layers:
                yield {
                    "source": SOURCE,
                    "net": net,
                    "device": study.device.name,
                    "local_batch": study.local_batch(workers),
                    **layer._asdict(),
                }
