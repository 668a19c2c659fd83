"""The plug-ins of an experiment: which it names, what they take, and the digests of their files."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from inspect import isgeneratorfunction
from os import stat
from typing import TYPE_CHECKING, Any

from allreduce import collectives
from mpisgd.algorithms import ALGORITHMS, NAMES, OPTIONS
from mpisgd.data import DATASETS
from mpisgd.models import MODELS
from mpisgd.values import options, plugins, schedules
from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.plugins import NEEDED, Plugin, as_text, pairs

if TYPE_CHECKING:
    from mpisgd.experiment.experiment import Experiment

TABLES = {
    "algorithm": NAMES, "model": MODELS, "data": DATASETS,
    "allreduce": (*collectives.NAMES, schedules.AUTO),
}  # fmt: skip
ARRAYS = ".npz"  # a data set in a file of its own
NAMED = {
    registry: plugins.kind(registry, table, ARRAYS if registry == "data" else "")
    for registry, table in TABLES.items()
}
# Keywords that are no options: fields of an Experiment, by their names.
FIELDS = {
    "algorithm": {name for algorithm in ALGORITHMS for name in OPTIONS[algorithm]},
    "data": {"path", "seed"},
}
NO_OPTIONS = ("allreduce", "straggler")  # functions of what they are given


def takes(algorithm: str) -> tuple[str, ...]:
    """The fields of an Experiment that an algorithm takes; a plug-in: those it has as keywords."""
    if algorithm in OPTIONS:
        return OPTIONS[algorithm]
    found = plugins.find("algorithm", algorithm).parameters()
    return tuple(name for name in found if name in FIELDS["algorithm"])


def defaults(algorithm: str) -> dict[str, Any]:
    """Of the fields that a plug-in takes: those it has a default of its own for."""
    if algorithm in OPTIONS:
        return {}
    found = plugins.find("algorithm", algorithm).parameters()
    return {n: found[n].default for n in takes(algorithm) if found[n].default is not NEEDED}


def plugin(experiment: "Experiment", registry: str) -> Plugin | None:
    """What stands for `registry` in the experiment; None for a built-in name, or a data file."""
    name = getattr(experiment, registry)
    if name in TABLES[registry] or (registry == "data" and name.endswith(ARRAYS)):
        return None
    return plugins.find(registry, name, _digests(experiment).get(name))


def given(experiment: "Experiment", registry: str) -> dict[str, Any]:
    """The values of the options of the plug-in `registry`, typed."""
    found = plugin(experiment, registry)
    if found is None:
        return {}
    values = _values(found, registry, pairs(experiment.plugin_options or ()))
    if registry == "data":
        known = {"path": experiment.data_path, "seed": experiment.seed}
        values |= {name: known[name] for name in known if name in found.parameters()}
    return values


def kind() -> options.Kind:
    """How `--set` is read: as sorted texts NAME=VALUE."""

    def parse(value: Any) -> tuple[str, ...] | None:
        found = pairs(value)
        return tuple(f"{name}={found[name]}" for name in sorted(found)) or None

    return options.Kind("NAME=VALUE, each name once", parse)


def check(experiment: "Experiment") -> None:
    """UsageError for a plug-in that cannot be had, or an option that none of them has."""
    told = pairs(experiment.plugin_options or ())
    known: dict[str, str] = {}
    for registry, found in _named(experiment):
        _check_kind(experiment, registry, found)
        for name, option in _options(found, registry).items():
            if name in known:
                allowed = f"is an option of {known[name]} and of {found.name}: rename one"
                raise UsageError(f"--set {name}", None, allowed)
            known[name] = found.name
            if name in told:
                option.kind.read(f"--set {name}", told[name])
    for name in told:
        if name not in known:
            there = ", ".join(known) or "none"
            allowed = f"no plug-in has it; options of plug-ins: {there}{nearest(name, known)}"
            raise UsageError(f"--set {name}", None, allowed)


def settled(experiment: "Experiment", ranks: int) -> dict[str, Any]:
    """The fields `plugin_options`, with defaults, and `plugin_sha256`. UsageError for a needed
    option that is not given, and for an all-reduce of `ranks` that is none."""
    told = pairs(experiment.plugin_options or ())
    values: dict[str, Any] = {}
    digests = {}
    for registry, found in _named(experiment):
        values |= _values(found, registry, told)
        if registry == "allreduce":
            schedules.build(found.name, ranks, rounded=experiment.wire is not None)
        digests[found.name] = found.digest
    if experiment.data.endswith(ARRAYS):
        digests[experiment.data] = _of_arrays(experiment.data)
    return {
        "plugin_options": kind().parse({n: as_text(v) for n, v in values.items()}),
        "plugin_sha256": tuple(f"{name} {digests[name]}" for name in sorted(digests)) or None,
    }


def _check_kind(experiment: "Experiment", registry: str, found: Plugin) -> None:
    """UsageError for what is of another kind than it stands for."""
    if registry == "algorithm" and not isgeneratorfunction(found.target):
        raise UsageError(found.option, found.name, "is no generator function of a worker")
    if registry == "data" and experiment.data_path is not None and "path" not in found.parameters():
        raise UsageError("--data-path", experiment.data_path, f"{found.name} takes no path")


def _named(experiment: "Experiment") -> Iterator[tuple[str, Plugin]]:
    for registry in TABLES:
        if (found := plugin(experiment, registry)) is not None:
            yield registry, found
    for term in (experiment.straggler or "").split(","):
        if plugins.is_path(term.strip()) and not term.strip().startswith("trace:"):
            yield "straggler", plugins.find("straggler", term.strip())


def _options(found: Plugin, registry: str) -> dict[str, plugins.Option]:
    return {} if registry in NO_OPTIONS else found.options(FIELDS.get(registry, ()))


def _values(found: Plugin, registry: str, told: dict[str, str]) -> dict[str, Any]:
    values = {}
    for name, option in _options(found, registry).items():
        value = told.get(name, option.default)
        if value is NEEDED:
            raise UsageError(f"--set {name}", None, f"{found.name} needs it: {option.kind.allowed}")
        values[name] = option.kind.read(f"--set {name}", value)
    return values


def _digests(experiment: "Experiment") -> dict[str, str]:
    found = (each.rpartition(" ") for each in experiment.plugin_sha256 or ())
    return {name: digest for name, _, digest in found}


def _of_arrays(path: str) -> str:
    try:
        about = stat(path)
        return _hashed(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise UsageError("--data", path, error.strerror or str(error)) from None


@lru_cache(maxsize=64)
def _hashed(path: str, size: int, modified_ns: int) -> str:
    from allreduce.files import regular

    digest = hashlib.sha256()
    with regular(path) as file:
        while octets := file.read(1 << 20):
            digest.update(octets)
    return digest.hexdigest()
