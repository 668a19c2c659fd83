"""The experiment: everything that decides a run's numbers, checked before anything starts."""

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from allreduce.algorithms import ALGORITHMS as SCHEDULES_OF
from mpisgd import options, step_times, stragglers
from mpisgd.algorithms import NAMES, OPTIONS
from mpisgd.data import DATASETS
from mpisgd.errors import UsageError
from mpisgd.models import MODELS
from mpisgd.schedules import SCHEDULES

ALLREDUCES = (*SCHEDULES_OF, *(f"hierarchical:{inner}" for inner in SCHEDULES_OF))


def _option(default: Any, kind: options.Kind, help: str, flag: str | None = None) -> Any:
    """A field with how it is read, what it means and, where it differs, its flag."""
    return field(default=default, metadata={"kind": kind, "help": help, "flag": flag})


def _step_time() -> options.Kind:
    """Seconds, or the text of a model that gives them once the batch is known."""
    plain = options.duration()
    return options.Kind(
        step_times.ALLOWED, lambda v: v if step_times.is_model(v) else plain.parse(v)
    )


@dataclass(frozen=True)
class Experiment:
    """One training run. `None` means not given; `resolved` fills in what follows from the rest."""

    algorithm: str = _option("minibatch", options.one_of(NAMES), "how ranks learn together")
    tau: int | None = _option(None, options.whole(1), "local steps between averages [4]")
    delay: int | str | None = _option(
        None, options.or_word(options.whole(0), "auto"), "steps an average has time for [1]"
    )
    xi: float | None = _option(None, options.number(0, 1), "local update proportion [0.25]")
    merge: str | None = _option(
        None, options.one_of(("convex", "delta", "overwrite")), "how an average enters [convex]"
    )
    servers: int | None = _option(None, options.whole(1, 4096), "shards of the parameters [1]")
    colocated: bool | None = _option(None, options.switch(), "shard s lives on worker s as well")
    backups: int | None = _option(None, options.whole(0), "workers an update does without [1]")
    group: int | None = _option(None, options.whole(1), "gradients in an update [workers]")
    timeout_s: float | None = _option(
        None, options.duration(), "from its first gradient to the update [1 s]", "timeout"
    )
    stale: str | None = _option(
        None, options.one_of(("finish", "abandon")), "what becomes of out-of-date work [finish]"
    )
    staleness_rate: bool | None = _option(
        None, options.switch(), "a gradient counts 1/max(1, staleness)"
    )
    requeue: bool | None = _option(None, options.switch(), "a dropped batch is computed again")
    staleness: int | None = _option(None, options.whole(0), "age of the gradients, in updates [0]")
    ramp: int | None = _option(
        None, options.whole(0), "steps in which staleness rises to that [3 epochs]"
    )
    allreduce: str = _option("butterfly", options.one_of(ALLREDUCES), "schedule of the averages")
    chunks: int = _option(1, options.whole(1, 200), "pieces a message is cut in")
    progress: str = _option(
        "poll",
        options.one_of(("poll", "thread", "perfect")),
        "who moves averages on during a step (perfect: with --virtual only)",
    )
    network: str | None = _option(
        None, options.text(), "network of --virtual, a preset or a .toml file [ideal]"
    )
    model: str = _option("mlp", options.one_of(MODELS), "what is trained")
    hidden: tuple[int, ...] | None = _option(
        None, options.wholes(1, 10**6), "units of mlp's layers [64]"
    )
    data: str = _option("digits", options.one_of(DATASETS), "what it is trained on")
    data_path: str | None = _option(None, options.text(), "folder or file of the data")
    data_samples: int | None = _option(None, options.whole(1, 10**9), "training samples to use")
    batch: int = _option(32, options.whole(1), "samples a rank and step")
    epochs: float | None = _option(
        None, options.number(0, 1e6, above=True), "passes through the data [10]"
    )
    steps: int | None = _option(None, options.whole(1, 10**9), "steps, instead of epochs")
    rate: float = _option(0.1, options.number(0), "learning rate", "lr")
    rate_schedule: str = _option(
        "constant", options.one_of(SCHEDULES), "how it changes", "schedule"
    )
    optimiser: str = _option("sgd", options.one_of(("sgd", "rmsprop")), "the update rule")
    momentum: float = _option(0.9, options.number(0, 1), "momentum")
    clip: float | None = _option(
        None, options.number(0, above=True), "largest norm of a rank's gradient"
    )
    nesterov: bool = _option(False, options.switch(), "Nesterov's momentum")
    weight_decay: float = _option(0.0, options.number(0), "added to the gradient, times x")
    ema: float | None = _option(None, options.number(0, 1), "decay of averaged parameters")
    dtype: str = _option("float32", options.one_of(("float32", "float64")), "of the parameters")
    seed: int = _option(0, options.whole(0), "of everything random")
    step_time_s: float | str | None = _option(
        None, _step_time(), "pad a step's gradient to this long", "step-time"
    )
    step_time_from: str | None = field(default=None, metadata={})
    straggler: str | None = _option(None, stragglers.kind(), "who is slow, and how")
    evaluate_every: int | None = _option(
        None, options.whole(0), "steps between evaluations, 0: at the end only [an epoch]"
    )
    deadline_s: float = _option(60.0, options.duration(0.1), "longest wait for a peer", "deadline")
    scaling: str | None = _option(
        None, options.one_of(("weak", "strong")), "what a set of runs is part of"
    )
    ranks: int = field(default=1, metadata={})

    @classmethod
    def read(cls, values: Mapping[str, Any], place: str = "--{}") -> "Experiment":
        """From field names (or flags) and values, text or typed.

        `place` says where a value stands, for messages. Raises UsageError for an unknown name,
        a value that is not allowed and values that do not go together.
        """
        known = {name: f for f in fields(cls) if f.metadata for name in (f.name, flag(f))}
        read = {}
        for name, value in values.items():
            if name not in known:
                allowed = ", ".join(sorted(flag(f) for f in fields(cls) if f.metadata))
                raise UsageError(place.format(name), None, f"no such option; there are {allowed}")
            option = known[name]
            where = place.format(flag(option))
            read[option.name] = option.metadata["kind"].read(where, value)
        experiment = cls(**read)
        experiment.check()
        return experiment

    def check(self) -> None:
        """UsageError for values that do not go together."""
        takes = OPTIONS[self.algorithm]
        takers = {name for names in OPTIONS.values() for name in names}
        for option in fields(self):
            name = option.name
            if name in takers and getattr(self, name) is not None and name not in takes:
                users = ", ".join(a for a in OPTIONS if name in OPTIONS[a])
                raise UsageError(
                    f"--{flag(option)}",
                    getattr(self, name),
                    f"{self.algorithm} has none; {users} do",
                )
        if self.hidden is not None and self.model != "mlp":
            raise UsageError("--hidden", self.hidden, f"--model {self.model} has no hidden layers")
        if self.steps is not None and self.epochs is not None:
            raise UsageError("--steps", self.steps, "give either --steps or --epochs")
        if self.merge == "overwrite" and self.xi not in (None, 0.0):
            raise UsageError("--xi", self.xi, "--merge overwrite keeps nothing local")
        if self.merge == "delta" and self.xi is not None:
            raise UsageError("--xi", self.xi, "--merge delta has no xi")
        if self.momentum == 1.0:
            raise UsageError("--momentum", self.momentum, "a number in [0, 1)")
        if self.ema == 1.0:
            raise UsageError("--ema", self.ema, "a number in [0, 1)")
        tau, delay = self.tau or 4, self.delay if self.delay is not None else 1
        if "delay" in takes and isinstance(delay, int) and delay > tau:
            raise UsageError("--delay", delay, f"at most --tau, which is {tau}")

    def resolved(self, ranks: int, samples: int) -> "Experiment":
        """With every default that depends on the rest, or on the data, filled in."""
        takes = OPTIONS[self.algorithm]
        defaults: dict[str, Any] = {"tau": 4, "delay": 1, "merge": "convex", "xi": 0.25}
        defaults |= {"backups": 1, "timeout_s": 1.0, "stale": "finish", "staleness_rate": False}
        defaults |= {"staleness": 0}
        if self.merge is not None:
            defaults["xi"] = {"convex": 0.25, "delta": 1.0, "overwrite": 0.0}[self.merge]
        values: dict[str, Any] = {
            name: default
            for name, default in defaults.items()
            if name in takes and getattr(self, name) is None
        }
        if "servers" in takes:
            values |= self._resolved_servers(ranks)
        if self.delay == "auto":
            values.pop("tau", None)  # follows from the delay, see tuning
        if self.model == "mlp" and self.hidden is None:
            values["hidden"] = (64,)
        resolved = replace(self, **values, ranks=ranks)
        steps_per_epoch = -(-samples // (resolved.step_workers * self.batch))
        if "ramp" in takes and self.ramp is None:
            values["ramp"] = 3 * steps_per_epoch
        epochs = self.epochs or 10
        steps = self.steps if self.steps is not None else max(1, round(epochs * steps_per_epoch))
        every = self.evaluate_every if self.evaluate_every is not None else steps_per_epoch
        if isinstance(self.step_time_s, str):
            values["step_time_from"] = self.step_time_s
            values["step_time_s"] = step_times.seconds(self.step_time_s, self.batch)
        return replace(resolved, **values, steps=steps, evaluate_every=every)

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
        named = {"servers": servers, "colocated": colocated, "requeue": bool(self.requeue)}
        if "group" in OPTIONS[self.algorithm]:
            named["group"] = self.group or workers
        return named

    @property
    def workers(self) -> int:
        """Ranks that compute gradients; of a resolved experiment."""
        if "servers" not in OPTIONS[self.algorithm] or self.colocated:
            return self.ranks
        return self.ranks - (self.servers or 1)

    @property
    def step_workers(self) -> int:
        """Workers whose gradients make a step: all but backups."""
        return self.workers - (self.backups or 0)

    @property
    def step_seconds(self) -> float | None:
        """`--step-time` in seconds, once resolved."""
        assert not isinstance(self.step_time_s, str), "not resolved yet"
        return self.step_time_s

    def config(self) -> dict[str, Any]:
        """Plain values, as the result file keeps them."""
        return asdict(self)


def flag(option: Any) -> str:
    """The option's name on the command line and in TOML, without dashes before it."""
    return option.metadata["flag"] or option.name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each field, and `--config FILE.toml` to read them from."""
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file of the options below; flags win"
    )
    for option in fields(Experiment):
        if option.metadata:
            kind, default = option.metadata["kind"], option.default
            shown = "" if default is None or default is False else f" [{default}]"
            extra: dict[str, Any] = {"metavar": _metavar(kind)}
            if kind.allowed == "true or false":
                extra = {"action": "store_const", "const": True}
            parser.add_argument(
                f"--{flag(option)}", dest=f"option_{option.name}", default=None,
                help=f"{option.metadata['help']}{shown}: {kind.allowed}".replace("%", "%%"),
                **extra,
            )  # fmt: skip


def from_arguments(arguments: argparse.Namespace) -> Experiment:
    """The experiment of parsed arguments: the file's values, then the flags'."""
    values: dict[str, Any] = {}
    if arguments.config is not None:
        values = {**from_file(arguments.config)}
        file = arguments.config.replace("{", "{{").replace("}", "}}")
        Experiment.read(values, place=f"{file}: {{}}")
    given = {
        flag(option): value
        for option in fields(Experiment)
        if option.metadata and (value := getattr(arguments, f"option_{option.name}")) is not None
    }
    names = {flag(option): option.name for option in fields(Experiment) if option.metadata}
    for name in given:
        values.pop(names[name], None)
    return Experiment.read(values | given)


def from_file(path: str) -> dict[str, Any]:
    """The values of a TOML file. UsageError if it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(path, None, error.strerror or "cannot be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(path, None, f"not TOML: {error}") from None


def _metavar(kind: options.Kind) -> str:
    allowed = kind.allowed
    if allowed.startswith("one of"):
        return "NAME"
    return {"a whole": "N", "a finite": "X", "a time": "TIME", "whole nu": "N,N"}.get(
        next(
            (p for p in ("a whole", "a finite", "a time", "whole nu") if allowed.startswith(p)), ""
        ),
        "TEXT",
    )
