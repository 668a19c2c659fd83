"""The experiment: everything that decides a run's numbers, checked before anything starts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from allreduce import collectives, compress, files
from mpisgd import algorithms
from mpisgd.algorithms import OPTIONS
from mpisgd.algorithms.policies import POLICIES
from mpisgd.data.augment import AUGMENTS
from mpisgd.experiment import backends, checks, own, step_times, stragglers
from mpisgd.models import HIDDEN
from mpisgd.training.learning_rates import OPTIMISERS, SCHEDULES
from mpisgd.values import options
from mpisgd.values.errors import UsageError, nearest


def _option(default: Any, kind: options.Kind, help: str, flag: str | None = None) -> Any:
    """A field with how it is read, what it means and, where it differs, its flag."""
    return field(default=default, metadata={"kind": kind, "help": help, "flag": flag})


def _taken(name: str) -> Any:
    """A field for an option that algorithms have in their signatures."""
    flag = name.removesuffix("_s").removesuffix("_bytes").replace("_", "-")
    return _option(None, algorithms.DECLARED[name].kind, algorithms.help(name), flag)


def _step_time() -> options.Kind:
    """Seconds, or the text of a model that gives them once the batch is known."""
    plain = options.duration()
    return options.Kind(
        step_times.ALLOWED, lambda v: v if step_times.is_model(v) else plain.parse(v)
    )


@dataclass(frozen=True)
class Experiment:
    """One training run. `None` means not given; `resolved` fills in what follows from the rest."""

    algorithm: str = _option("minibatch", own.NAMED["algorithm"], "how ranks learn together")
    tau: int | None = _taken("tau")
    delay: int | str | None = _taken("delay")
    xi: float | None = _taken("xi")
    merge: str | None = _taken("merge")
    bucket_bytes: int | None = _taken("bucket_bytes")
    quorum: int | str | None = _taken("quorum")
    late: str | None = _taken("late")
    backups: int | None = _taken("backups")
    group: int | None = _taken("group")
    timeout_s: float | str | None = _taken("timeout_s")
    patience: float | None = _taken("patience")
    stale: str | None = _taken("stale")
    staleness_rate: bool | None = _taken("staleness_rate")
    staleness: int | None = _taken("staleness")
    ramp: int | None = _taken("ramp")
    switch: int | None = _taken("switch")
    servers: int | None = _option(None, options.whole(1, 4096), "shards of the parameters [1]")
    cut: str | None = _option(
        None,
        options.one_of(("equal", "layers")),
        "shards of equal size, or of whole layers [equal]",
    )
    colocated: bool | None = _option(None, options.switch(), "shard s lives on worker s as well")
    push: str | None = _option(
        None,
        options.one_of(("whole", "layerwise", "sparse")),
        "when a shard's gradient leaves, or the batch's rows of an embedding alone [whole]",
    )
    pull: str | None = _option(
        None,
        options.one_of(("answer", "start", "layerwise", "sparse")),
        "when a shard's parameters come: with the answer to its gradient (sparse: the next "
        "batch's rows of an embedding alone), or asked for [answer]",
    )
    reads: str | None = _option(
        None,
        options.one_of(("independent", "consistent")),
        "versions of a worker's shards [independent]",
    )
    prefetch: bool | None = _option(
        None, options.switch(), "the next gradient is computed while parameters are under way"
    )
    requeue: bool | None = _option(None, options.switch(), "a dropped batch is computed again")
    allreduce: str = _option("butterfly", own.NAMED["allreduce"], "who carries the averages")
    allreduce_from: str | None = field(default=None, metadata={})
    tuning: str | None = _option(
        None, options.text(), "what auto chooses by: a table of tune, or a network [MPISGD_TUNING]"
    )
    price_as: str | None = _option(
        None, options.one_of(collectives.SCHEDULES), "what --virtual takes for a library's"
    )
    wire: str | None = _option(
        None,
        options.Kind(compress.ALLOWED, compress.known),
        "how averages travel: in another format, or in part (topk, powersgd) [in full]",
    )
    error_feedback: bool = _option(
        False, options.switch(), "what rounding leaves out of an average goes into the next"
    )
    chunks: int = _option(1, options.whole(1, 200), "pieces a message is cut in")
    progress: str = _option(
        "poll",
        options.one_of(("poll", "thread", "perfect")),
        "who moves averages on during a step (perfect: with --virtual only)",
    )
    network: str | None = _option(
        None, options.text(), "network of --virtual, a preset or a .toml file [ideal]"
    )
    model: str = _option("mlp", own.NAMED["model"], "what is trained")
    hidden: tuple[int, ...] | None = _option(
        None, options.wholes(1, 10**6), "units of mlp's layers [64], channels of convolutions"
    )
    data: str = _option("digits", own.NAMED["data"], "what it is trained on")
    data_path: str | None = _option(None, options.text(), "folder or file of the data")
    data_samples: int | None = _option(
        None,
        options.whole(1, 10**9),
        "training samples to use; the test set of real data stays whole",
    )
    augment: str = _option(
        "none", options.one_of(AUGMENTS), "what is done to the images of a batch, drawn anew"
    )
    batch: int = _option(32, options.whole(1), "samples a rank and step")
    epochs: float | None = _option(
        None, options.number(0, 1e6, above=True), "passes through the data [10]"
    )
    steps: int | None = _option(None, options.whole(1, 10**9), "steps, instead of epochs")
    rate: float = _option(0.1, options.number(0), "learning rate", "lr")
    linear_scaling: bool = _option(
        False, options.switch(), "the rate times the gradients that an update is the mean of"
    )
    warm_up: int = _option(
        0, options.whole(0, 10**9), "steps in which it rises to that, from the unscaled one or 0"
    )
    rate_schedule: str = _option(
        "constant", options.one_of(SCHEDULES), "how it changes", "schedule"
    )
    optimiser: str = _option("sgd", options.one_of(OPTIMISERS), "the update rule")
    momentum: float = _option(0.9, options.number(0, 1, below=True), "momentum")
    rmsprop_decay: float | None = _option(
        None, options.number(0, 1, below=True), "rmsprop: of the mean square [0.9]"
    )
    epsilon: float | None = _option(None, options.number(0), "rmsprop: under the root [1.0]")
    trust: float | None = _option(
        None, options.number(0, above=True), "lars: a layer's move over its norm [0.001]"
    )
    clip: float | None = _option(
        None, options.number(0, above=True), "largest norm of a rank's gradient"
    )
    nesterov: bool = _option(False, options.switch(), "Nesterov's momentum")
    weight_decay: float = _option(0.0, options.number(0), "added to the gradient, times x")
    decoupled: bool = _option(
        False, options.switch(), "weight decay beside the update, not in the gradient"
    )
    ema: float | None = _option(
        None, options.number(0, 1, below=True), "decay of averaged parameters"
    )
    ema_warm_up: bool = _option(
        False, options.switch(), "decay min(--ema, (1 + t) / (10 + t)) at update t"
    )
    backend: str = _option(
        "numpy", options.one_of(backends.BACKENDS), "what computes: the host, or a device by CuPy"
    )
    device: int | str = _option(
        "auto", options.or_word(options.whole(0, 4095), "auto"), "which, with --backend cupy"
    )
    cuda_aware: str = _option(
        "auto", options.one_of(("auto", "yes", "no")), "whether MPI gets device memory as it is, "
        "not through the host; auto: if the library says so and a process of its own proves it"
    )  # fmt: skip
    dtype: str = _option("float32", options.one_of(("float32", "float64")), "of the parameters")
    initial: str = _option(
        "equal", options.one_of(("equal", "own")), "parameters of all ranks, or drawn by each"
    )
    seed: int = _option(0, options.whole(0), "of everything random")
    step_time_s: float | str | None = _option(
        None,
        _step_time(),
        "pad a step's gradient to this long [with --network FILE: as calibrated]",
        "step-time",
    )
    step_time_from: str | None = field(default=None, metadata={})
    straggler: str | None = _option(None, stragglers.kind(), "who is slow, and how")
    evaluate_every: int | None = _option(
        None, options.whole(0), "steps between evaluations, 0: at the end only [an epoch]"
    )
    evaluate: str = _option("after", options.one_of(("after", "during")), "training, on real ranks")
    deadline_s: float = _option(60.0, options.duration(0.1), "longest wait for a peer", "deadline")
    scaling: str | None = _option(
        None, options.one_of(("weak", "strong")), "what a set of runs is part of"
    )
    plugin_options: tuple[str, ...] | None = _option(
        None, own.kind(), "an option of a plug-in, several times for several", "set"
    )
    plugin_sha256: tuple[str, ...] | None = field(default=None, metadata={})
    ranks: int = field(default=1, metadata={})

    @classmethod
    def read(cls, values: Mapping[str, Any], place: str = "--{}", hint: str = "") -> Self:
        """From field names or flags (also with underscores) and values, text or typed.

        `place` says where a value stands, for messages; `hint` is said behind them where an option
        is not one of the algorithm's. Raises UsageError for an unknown name, a value that is not
        allowed and values that do not go together.
        """
        options = [f for f in fields(cls) if f.metadata]
        known = {name: f for f in options for name in (f.name, flag(f), flag(f).replace("-", "_"))}
        read = {}
        for name, value in values.items():
            if name not in known:
                flags = sorted(map(flag, options))
                allowed = f"no such option; there are {', '.join(flags)}{nearest(name, flags)}"
                raise UsageError(place.format(name), None, allowed)
            option = known[name]
            where = place.format(flag(option))
            if option.name in read:
                raise UsageError(where, value, "is given twice, under both of its names")
            read[option.name] = option.metadata["kind"].read(where, value)
        experiment = cls(**read)
        experiment.check(place, hint)
        return experiment

    def check(self, place: str = "--{}", hint: str = "") -> None:
        """UsageError for values that do not go together; `place` and `hint` as in `read`."""
        self._check_taken(place, hint)
        for mistake in checks.mistakes(self):
            raise mistake
        own.check(self)

    def check_world(self, virtual: bool) -> None:
        """UsageError for what only the other world can do."""
        backends.check_world(self, virtual)
        if not virtual and self.step_time_s is None:
            stragglers.check_timed(self.straggler)
        other, where = ("perfect", "with") if virtual else ("thread", "without")
        if self.progress not in ("poll", other):
            raise UsageError("--progress", self.progress, f"poll or {other} {where} --virtual")
        given = {"network": self.network, "price-as": self.price_as}
        for name, value in ({"evaluate": self.evaluate} if virtual else given).items():
            if value not in (None, "after"):
                raise UsageError(f"--{name}", value, f"only with{'out' * virtual} --virtual")
        if virtual and not collectives.carrier(self.price_as or self.allreduce).scheduled:
            allowed = "with --virtual a schedule, or name with --price-as one that stands for it"
            raise UsageError("--allreduce", self.allreduce, allowed)

    def _check_taken(self, place: str, hint: str) -> None:
        """UsageError for an option that the algorithm does not have and others do."""
        takes = own.takes(self.algorithm)
        takers = {name for names in OPTIONS.values() for name in names}
        for option in fields(self):
            name = option.name
            if name in takers and getattr(self, name) is not None and name not in takes:
                users = ", ".join(a for a in OPTIONS if name in OPTIONS[a])
                allowed = f"{self.algorithm} has none; {users} do{'es' * (', ' not in users)}{hint}"
                given = getattr(self, name)
                told = None if given is True else given  # a switch has no value on a command line
                raise UsageError(place.format(flag(option)), told, allowed)

    def resolved(self, ranks: int, samples: int) -> Self:
        """With every default that depends on the rest, or on the data, filled in."""
        takes = own.takes(self.algorithm)
        values = self.defaults()
        if "servers" in takes:
            values |= self._resolved_servers(ranks)
        resolved = replace(self, **values, ranks=ranks)
        if self.straggler is not None:
            stragglers.parse(self.straggler).check(resolved.workers)
        if isinstance(resolved.quorum, int) and resolved.quorum > ranks:
            raise UsageError("--quorum", resolved.quorum, f"at most the ranks, {ranks}")
        steps_per_epoch = -(-samples // (resolved.step_workers * self.batch))
        if "ramp" in takes and self.ramp is None:
            values["ramp"] = 3 * steps_per_epoch
        epochs = self.epochs or 10
        steps = self.steps if self.steps is not None else max(1, round(epochs * steps_per_epoch))
        if "switch" in takes and self.switch is None:
            values["switch"] = steps // 2
        every = self.evaluate_every if self.evaluate_every is not None else steps_per_epoch
        if isinstance(self.step_time_s, str):
            values["step_time_from"] = self.step_time_s
            values["step_time_s"] = step_times.seconds(self.step_time_s, self.batch)
        elif self.step_time_s is None and (calibrated := resolved._calibrated_step()) is not None:
            values |= {"step_time_from": self.network, "step_time_s": calibrated}
        values |= own.settled(self, ranks)
        return replace(resolved, **values, steps=steps, evaluate_every=every)

    def defaults(self) -> dict[str, Any]:
        """Of the options that were not given: those that depend on neither ranks nor data."""
        defaults = algorithms.defaults(self.algorithm)
        if self.merge is not None:
            defaults["xi"] = {"convex": 0.25, "delta": 1.0, "overwrite": 0.0}[self.merge]
        if self.delay == "auto":
            del defaults["tau"]  # follows from the delay, see tuning
        defaults |= own.defaults(self.algorithm)
        takes = own.takes(self.algorithm)
        values = {
            name: default
            for name, default in defaults.items()
            if name in takes and getattr(self, name) is None
        }
        if self.model in HIDDEN and self.hidden is None:
            values["hidden"] = HIDDEN[self.model]
        return values

    def _calibrated_step(self) -> float | None:
        """A step's seconds by the file of `--network`, if it was calibrated with this model."""
        return step_times.of_network(
            self.network, self.batch, model=self.model, hidden=list(self.hidden or ()),
            data=self.data, dtype=self.dtype,
        )  # fmt: skip

    def _resolved_servers(self, ranks: int) -> dict[str, Any]:
        """Servers and what follows from the number of workers; UsageError if that is too small."""
        servers, colocated = self.servers or 1, bool(self.colocated)
        workers = ranks if colocated else ranks - servers
        if workers < 1 or servers > ranks:
            fits = "at most one server a rank" if colocated else "leave a rank for a worker"
            more = "start more with mpiexec -n, or --virtual"
            raise UsageError("--servers", servers, f"{fits}; ranks: {ranks}; {more}")
        if "backups" in OPTIONS[self.algorithm]:
            backups = 1 if self.backups is None else self.backups
            if backups >= workers:
                raise UsageError("--backups", backups, f"fewer than the workers, {workers}")
        if (self.group or 1) > workers:
            raise UsageError("--group", self.group, f"at most the workers, {workers}")
        named: dict[str, Any] = {"servers": servers, "colocated": colocated}
        named |= {"requeue": bool(self.requeue), "push": self.push or "whole"}
        named |= {"pull": self.pull or "answer", "cut": self.cut or "equal"}
        named |= {"reads": self.reads or "independent", "evaluate": "during"}
        if "prefetch" in OPTIONS[self.algorithm]:
            named["prefetch"] = bool(self.prefetch)
        if "group" in OPTIONS[self.algorithm]:
            named["group"] = self.group or workers
        return named

    @property
    def partial(self) -> bool:
        """Whether rounds of its averages may begin without those who are late."""
        return self.algorithm == "minibatch-partial" or self.quorum not in (None, "all")

    @property
    def workers(self) -> int:
        """Ranks that compute gradients; of a resolved experiment."""
        if self.algorithm not in POLICIES or self.colocated:
            return self.ranks
        return self.ranks - (self.servers or 1)

    @property
    def step_workers(self) -> int:
        """Workers whose gradients make a step: all but backups."""
        return self.workers - (self.backups or 0)

    @property
    def update_gradients(self) -> int:
        """Ranks' gradients that an update is the mean of; of a resolved experiment."""
        if self.algorithm == "async":
            return 1
        return self.group or self.step_workers

    @property
    def scaled_rate(self) -> float:
        """The learning rate, times `update_gradients` with `--linear-scaling` (Goyal et al. 2017;
        Chen et al. 2016: 0.045 in async, 0.045 N in sync); of a resolved experiment."""
        return self.rate * self.update_gradients if self.linear_scaling else self.rate

    @property
    def step_seconds(self) -> float | None:
        """`--step-time` in seconds, once resolved."""
        assert not isinstance(self.step_time_s, str), "not resolved yet"
        return self.step_time_s

    def config(self) -> dict[str, Any]:
        """Plain values, as the result file keeps them."""
        return asdict(self)


if not TYPE_CHECKING:  # and a field for each option that none but its algorithms ask for
    named = {option.name for option in fields(Experiment)}
    more = [(name, Any, _taken(name)) for name in algorithms.DECLARED if name not in named]
    about = {"__doc__": Experiment.__doc__, "__module__": __name__}
    Experiment = make_dataclass(
        "Experiment", more, bases=(Experiment,), namespace=about, frozen=True
    )


def flag(option: Any) -> str:
    """The option's name on the command line and in TOML, without dashes before it."""
    return option.metadata["flag"] or option.name.replace("_", "-")


def from_file(path: str) -> dict[str, Any]:
    """The values of a TOML file. UsageError if it cannot be read."""
    try:
        return files.toml(path)
    except files.Unreadable as error:
        raise UsageError(path, None, str(error)) from None
