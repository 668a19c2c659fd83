"""The options of an experiment on the command line, and in a file that stands for them."""

import argparse
from contextlib import suppress
from dataclasses import fields
from typing import Any

from mpisgd.algorithms import DECLARED, OPTIONS
from mpisgd.experiment.experiment import Experiment, flag, from_file
from mpisgd.values import options
from mpisgd.values.errors import named
from mpisgd.values.plugins import pairs

# How `--help` orders the options: title -> fields.
GROUPS: dict[str, tuple[str, ...]] = {
    "algorithm, and what which takes": (
        "algorithm", *DECLARED, "requeue",
    ),
    "parameter servers": ("servers", "cut", "colocated", "push", "pull", "reads", "prefetch"),
    "communication": (
        "allreduce", "tuning", "price_as", "wire", "error_feedback", "chunks", "progress",
        "cuda_aware", "network", "deadline_s",
    ),
    "model and data": (
        "model", "hidden", "data", "data_path", "data_samples", "augment", "batch", "epochs",
        "steps", "backend", "device", "dtype", "initial", "seed", "plugin_options",
    ),
    "optimiser": (
        "rate", "warm_up", "rate_schedule", "optimiser", "momentum", "nesterov", "weight_decay",
        "decoupled", "clip", "ema",
        "ema_warm_up", "linear_scaling", "rmsprop_decay", "epsilon", "trust",
    ),
    "time and measurement": ("step_time_s", "straggler", "evaluate_every", "evaluate", "scaling"),
}  # fmt: skip
# A file that lists options of other algorithms would hide which of them count.
SET = "plugin_options"
SHARING = (
    ". A --config file is for one algorithm: give other algorithms' options on the command line, "
    "or run them from a grid with [options.NAME] tables (mpisgd submit --local)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each field, in GROUPS, and `--config FILE.toml` to read them from."""
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file of the options below; flags win"
    )
    known = {option.name: option for option in fields(Experiment) if option.metadata}
    grouped = [name for names in GROUPS.values() for name in names]
    rest = tuple(name for name in known if name not in grouped)
    for title, names in (GROUPS | ({"more": rest} if rest else {})).items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_flag(group, known[name])


def _add_flag(group: Any, option: Any) -> None:
    """The flag of one field: its help says what it means, its default, who takes it, its values."""
    kind, default = option.metadata["kind"], option.default
    shown = "" if default is None or default is False else f" [{default}]"
    takers = ", ".join(name for name in OPTIONS if option.name in OPTIONS[name])
    told = f"{option.metadata['help']}{shown}{f' ({takers})' if takers else ''}"
    extra: dict[str, Any]
    if kind.allowed == "true or false":
        extra = {"action": "store_const", "const": True}
    elif option.name == SET:
        extra = {"action": "append", "metavar": "NAME=VALUE"}
    else:
        told, extra = f"{told}: {kind.allowed}", {"metavar": _metavar(kind)}
    group.add_argument(
        f"--{flag(option)}", dest=f"option_{option.name}", default=None,
        help=told.replace("%", "%%"), **extra,
    )  # fmt: skip


def from_arguments(arguments: argparse.Namespace) -> Experiment:
    """The experiment of parsed arguments: the file's values, then the flags'."""
    values: dict[str, Any] = {}
    hint = ""
    if arguments.config is not None:
        with named("--config"):
            values, hint = {**from_file(arguments.config)}, SHARING
        place = arguments.config.replace("{", "{{").replace("}", "}}")
        Experiment.read(values, f"{place}: {{}}", hint)
    given = {
        flag(option): value
        for option in fields(Experiment)
        if option.metadata and (value := getattr(arguments, f"option_{option.name}")) is not None
    }
    names = {flag(option): option.name for option in fields(Experiment) if option.metadata}
    if (told := values.get("set", values.get(SET))) is not None and "set" in given:
        values["set"] = told
        with suppress(ValueError):  # what they do not read as is told below
            given["set"] = pairs(told) | pairs(given["set"])
    for name in given:
        values.pop(names[name], None)
    return Experiment.read(values | given, hint=hint)


def is_given(arguments: argparse.Namespace, *names: str) -> bool:
    """Whether any of these fields has a value from a flag or from the --config file."""
    options_ = {option.name: flag(option) for option in fields(Experiment) if option.metadata}
    told = {} if arguments.config is None else from_file(arguments.config)
    return any(
        getattr(arguments, f"option_{name}") is not None or name in told or options_[name] in told
        for name in names
    )


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
