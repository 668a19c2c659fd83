"""A grid file: from lists of values to runs. Everything in it is checked before any is used.

scaling = "strong"             # or "weak": what is kept as ranks are added
[options]                      # of every run; a list varies the option
global-batch = 256
[options.dasgd]                # of runs of one algorithm
tau = [2, 4]
[[runs]]                       # a product of lists; there may be several, or none
algorithm = ["minibatch", "dasgd"]
ranks = [1, 2, 4]
[[exclude]]                    # runs that match all of these are left out
tau = 2
ranks = 4
[predict]                      # what the runs will cost, by the model of `mpisgd predict`
device = "titanx"
network = "eth20-pcie3"
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from mpisgd.algorithms import ALGORITHMS
from mpisgd.algorithms import OPTIONS as TAKES
from mpisgd.experiment.experiment import Experiment, flag, from_file
from mpisgd.submit import estimate, settings
from mpisgd.submit.runs import GridRun
from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.options import Kind, one_of, switch, whole
from mpisgd.values.plugins import as_text, is_path

if TYPE_CHECKING:
    from mpisgd.submit.search import Search

KEYS = ("scaling", "options", "runs", "exclude", "slurm", "predict", "search")
MOST_RUNS = 10_000
# What a grid takes beside the options of `mpisgd train`.
MORE: dict[str, tuple[str, Kind, Any]] = {
    "ranks": ("ranks", whole(1, 65536), None),
    "virtual": ("virtual", switch(), False),
    "global-batch": ("global_batch", whole(1), None),
}
FOR_ONE = "options of one algorithm go in [options.NAME] or [runs.NAME]"

SET = "set"  # a table of options for plug-ins

Choices = dict[str, list[Any]]
Values = dict[str, Any]


class Block(NamedTuple):
    """One table of options: the values to choose from, for every run and for each algorithm's."""

    place: str
    every: Choices
    each: dict[str, Choices]


@dataclass(frozen=True)
class Grid:
    """The runs of a grid file, each once, in its order, and its [slurm] and [predict] tables."""

    path: str
    runs: tuple[GridRun, ...]
    settings: settings.Settings | None
    cluster: estimate.Cluster | None = None
    search: "Search | None" = None


def read(path: str) -> Grid:
    """The grid in a TOML file. UsageError with the file and the key for anything not allowed."""
    table = from_file(path)
    for key in table:
        if key not in KEYS:
            raise UsageError(f"{path}: {key}", None, f"no such key; there are {', '.join(KEYS)}")
    scaling = one_of(("weak", "strong")).read(f"{path}: scaling", table.get("scaling"))
    common = _block(f"{path}: options", _table(path, "options", table.get("options", {})))
    blocks = [
        _block(f"{path}: runs[{i}]", each) for i, each in enumerate(_tables(path, "runs", table), 1)
    ] or [Block(f"{path}: options", {}, {})]
    _check_used(common, blocks)
    excluded = [
        _choices(f"{path}: exclude[{i}]", each)
        for i, each in enumerate(_tables(path, "exclude", table), 1)
    ]
    expanded = list(_expand(common, blocks))
    kept = _without(path, expanded, excluded)
    varied = [name for name in {n: 0 for _, values in expanded for n in values}
              if len({str(values.get(name)) for _, values in expanded}) > 1]  # fmt: skip
    runs = tuple(dict.fromkeys(_run(place, scaling, values, varied) for place, values in kept))
    slurm = None
    if "slurm" in table:
        slurm = settings.read(f"{path}: slurm.", _table(path, "slurm", table["slurm"]))
        _check_shapes(path, slurm, runs)
    cluster = None
    if "predict" in table:
        place = f"{path}: predict"
        cluster = estimate.read(place, _table(path, "predict", table["predict"]))
        estimate.check(place, cluster, runs)
    found = None
    if "search" in table:
        from mpisgd.submit import search

        found = search.read(f"{path}: search", _table(path, "search", table["search"]), runs)
    return Grid(path, runs, slurm, cluster, found)


def _options() -> dict[str, tuple[str, Kind, Any]]:
    """Key in a grid -> field, how it is read, default."""
    known = dict(MORE)
    for option in fields(Experiment):
        if option.metadata and option.name != "scaling":
            entry = (option.name, option.metadata["kind"], option.default)
            known |= {option.name: entry, flag(option): entry}
    return known


OPTIONS = _options()


def _table(path: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {key}", value, f"a table: [{key}]")
    return value


def _tables(path: str, key: str, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UsageError(f"{path}: {key}", value, f"tables: [[{key}]]")
    return value


def _block(place: str, table: Mapping[str, Any]) -> Block:
    plain = {key: v for key, v in table.items() if not isinstance(v, dict) or key == SET}
    each = {}
    for name, options in table.items():
        if isinstance(options, dict) and name != SET:
            if name not in ALGORITHMS and not is_path(name):
                allowed = f"no algorithm, so it can't be a table; there are {', '.join(ALGORITHMS)}"
                raise UsageError(f"{place}.{name}", None, allowed)
            if "algorithm" in options:
                raise UsageError(f"{place}.{name}.algorithm", None, f"is {name} already")
            each[name] = _choices(f"{place}.{name}", options)
    return Block(place, _choices(place, plain), each)


def _choices(place: str, table: Mapping[str, Any]) -> Choices:
    """Field -> its values. A list in the file is a list of values; anything else is one value."""
    choices: Choices = {}
    for key, given in table.items():
        where = f"{place}.{key}"
        if key == SET:
            choices |= _set_choices(where, given)
            continue
        if key == "scaling":
            raise UsageError(where, None, "stands at the top of the file, for all its runs")
        if key not in OPTIONS:
            names = {flag(o) for o in fields(Experiment) if o.metadata} | set(MORE)
            there = sorted(names - {"scaling"})
            allowed = f"no such option; there are {', '.join(there)}{nearest(key, there)}"
            raise UsageError(where, None, allowed)
        name, kind, _ = OPTIONS[key]
        if name in choices:
            raise UsageError(where, None, f"given twice: it is {name} too")
        listed = given if isinstance(given, list) else [given]
        if not listed:
            raise UsageError(where, "[]", "at least one value")
        if any(isinstance(value, dict) for value in listed):
            raise UsageError(where, None, f"no table, but {kind.allowed}")
        choices[name] = [kind.read(where, value) for value in listed]
    return choices


def _set_choices(place: str, table: Any) -> Choices:
    """`set.NAME` -> texts, of a table of plug-ins' options."""
    if not isinstance(table, dict):
        raise UsageError(place, table, "a table of plug-ins' options")
    choices = {}
    for name, given in table.items():
        listed = given if isinstance(given, list) else [given]
        if not listed or any(isinstance(value, list | dict) for value in listed):
            raise UsageError(f"{place}.{name}", None, "a value, or a list of at least one")
        choices[f"{SET}.{name}"] = [as_text(value) for value in listed]
    return choices


def _algorithms(common: Block, block: Block) -> list[str]:
    return {"algorithm": ["minibatch"], **common.every, **block.every}["algorithm"]


def _check_used(common: Block, blocks: list[Block]) -> None:
    """A table for an algorithm that no run has is a mistake."""
    everywhere = [name for block in blocks for name in _algorithms(common, block)]
    used = [(common, everywhere), *((block, _algorithms(common, block)) for block in blocks)]
    for block, names in used:
        for name in block.each:
            if name not in names:
                raise UsageError(f"{block.place}.{name}", None, "none of its runs has algorithm "
                                 f"{name}, only {', '.join(dict.fromkeys(names))}")  # fmt: skip


def _expand(common: Block, blocks: list[Block]) -> Iterator[tuple[str, Values]]:
    """The place and the values of every run, excluded ones too: the more special table wins."""
    total = 0
    for block in blocks:
        for algorithm in _algorithms(common, block):
            layers = (
                common.every, common.each.get(algorithm, {}),
                block.every, block.each.get(algorithm, {}),
            )  # fmt: skip
            choices: Choices = {}
            for layer in layers:
                choices |= layer
            choices["algorithm"] = [algorithm]
            total += math.prod(map(len, choices.values()))
            if total > MOST_RUNS:
                raise UsageError(block.place, None, f"more than {MOST_RUNS} runs; vary less")
            for values in product(*choices.values()):
                yield block.place, dict(zip(choices, values, strict=True))


def _without(
    path: str, runs: list[tuple[str, Values]], excluded: list[Choices]
) -> list[tuple[str, Values]]:
    """The runs that no exclusion matches; each must match some, and leave some."""
    defaults = {name: default for name, _, default in OPTIONS.values()}
    kept = runs
    for number, exclusion in enumerate(excluded, 1):

        def matches(values: Values, exclusion: Choices = exclusion) -> bool:
            return all(values.get(n, defaults.get(n)) in v for n, v in exclusion.items())

        place = f"{path}: exclude[{number}]"
        if not exclusion:
            raise UsageError(place, None, "name at least one option, or all runs are left out")
        if not any(matches(values) for _, values in runs):
            raise UsageError(place, None, "matches no run")
        kept = [(where, values) for where, values in kept if not matches(values)]
    if not kept:
        raise UsageError(f"{path}: exclude", None, "leaves no run")
    return kept


def _run(place: str, scaling: str, values: Values, varied: Sequence[str]) -> GridRun:
    """One run, its batch by the rule of `scaling`. UsageError for what does not go together, with
    the [[exclude]] that leaves it out, of the `varied` options."""
    try:
        return _checked_run(place, scaling, values)
    except UsageError as mistake:
        own = [name for name in varied if name in values]
        meant = [name for name in own if f"--{_flag(name)}" in str(mistake)] or own
        told = [f"{_flag(name)} = {json.dumps(values[name])}" for name in meant]
        named = f"; or leave it out: [[exclude]] with {', '.join(told)}" if told else ""
        raise UsageError(f"{mistake}{named}") from None


def _flag(name: str) -> str:
    """What an option is called in a grid."""
    named = {option.name: flag(option) for option in fields(Experiment) if option.metadata}
    return named.get(name, name.replace("_", "-"))


def _checked_run(place: str, scaling: str, values: Values) -> GridRun:
    given = {name: value for name, value in values.items() if not name.startswith(f"{SET}.")}
    own = {name.partition(".")[2]: values[name] for name in values if name not in given}
    given |= {SET: own} if own else {}
    ranks, virtual = given.pop("ranks", None), given.pop("virtual", False)
    whole_batch = given.pop("global_batch", None)
    if ranks is None:
        raise UsageError(f"{place}.ranks", None, "say on how many ranks, one number or a list")
    if scaling == "weak" and whole_batch is not None:
        raise UsageError(f"{place}.global-batch", whole_batch, "weak scaling keeps batch, a rank's")
    if scaling == "strong":
        if "batch" in given:
            allowed = "strong scaling keeps global-batch, that of all ranks together"
            raise UsageError(f"{place}.batch", given["batch"], allowed)
        if whole_batch is None:
            raise UsageError(f"{place}.global-batch", None, "strong scaling needs it")
        if whole_batch % ranks:
            allowed = f"must be a multiple of ranks, {ranks}"
            raise UsageError(f"{place}.global-batch", whole_batch, allowed)
        given["batch"] = whole_batch // ranks
    try:
        experiment = Experiment.read({**given, "scaling": scaling})
        experiment.check_world(virtual)
        experiment.resolved(ranks, 1)  # what the number of ranks does not allow
    except UsageError as mistake:
        taken = TAKES.get(str(given["algorithm"]))
        foreign = taken is not None and set(given) & set().union(*TAKES.values()) - set(taken)
        raise UsageError(f"{place}: {mistake}" + (f"; {FOR_ONE}" if foreign else "")) from None
    return GridRun(replace(experiment, ranks=ranks), virtual)


def _check_shapes(path: str, slurm: settings.Settings, runs: tuple[GridRun, ...]) -> None:
    for run in runs:
        try:
            slurm.shape(run.tasks)
        except ValueError as reason:
            raise UsageError(f"{path}: slurm.nodes", slurm.nodes, str(reason)) from None
