"""Whose checkpoint it is: what must be equal for a run to go on to the same bits, and what not."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from mpisgd import __version__
from mpisgd.data import Dataset
from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import AUTO

OTHERWISE = (
    "choose another --output or --checkpoint, or begin anew with --overwrite and no --resume"
)
# Fields of an Experiment that do not change a bit of what is to come, or were resolved to others.
MAY_DIFFER = (
    "epochs", "steps", "deadline_s", "scaling", "data_path", "step_time_from", "evaluate", "device",
    "cuda_aware",
    "tuning", "allreduce_from",
)  # fmt: skip
CHOSEN = ("allreduce", "chunks")  # by --allreduce auto
LONGEST = 80  # characters of a value that is shown
CHUNK = 1 << 22  # octets hashed at once


def identity(experiment: Experiment, dataset: Dataset, virtual: bool) -> dict[str, Any]:
    """What a checkpoint says of its run. `experiment` is resolved."""
    return {
        "program": __version__,
        "virtual": virtual,
        "config": experiment.config(),
        "data_sha256": fingerprint(dataset),
    }


def adopted(experiment: Experiment, meta: Mapping[str, Any]) -> Experiment:
    """The experiment with what the saved run has measured: `--delay auto`, `--allreduce auto`."""
    config = meta["config"]
    if experiment.allreduce == AUTO:
        known = {name: config.get(name, getattr(experiment, name)) for name in CHOSEN}
        experiment = replace(experiment, **known, allreduce_from="the checkpoint")
    if experiment.delay != "auto":
        return experiment
    tau = config.get("tau") if experiment.tau is None else experiment.tau
    return replace(experiment, delay=config.get("delay"), tau=tau)


def check(
    experiment: Experiment, mine: Mapping[str, Any], meta: Mapping[str, Any], file: str
) -> None:
    """UsageError that names the first difference between this run, `mine`, and a checkpoint's."""
    differs = difference(experiment, mine, meta)
    if differs is not None:
        raise UsageError("--resume", file, f"{differs}; {OTHERWISE}")
    if (differs := _steps(experiment, meta)) is not None:
        raise UsageError("--resume", file, differs)


def difference(
    experiment: Experiment, mine: Mapping[str, Any], meta: Mapping[str, Any]
) -> str | None:
    """In what another run differs, so that neither can go on from the other; None: in nothing."""
    if mine["virtual"] != meta["virtual"]:
        was = "is of virtual ranks" if meta["virtual"] else "is of ranks under MPI"
        return f"{was}, and these are not"
    config = meta["config"]
    for option in sorted(fields(Experiment), key=lambda option: option.name != "ranks"):
        name = option.name
        if name == "plugin_sha256":
            if changed := _changed(config.get(name), getattr(experiment, name)):
                return changed
            continue
        found, wanted = _plain(config.get(name, option.default)), _plain(getattr(experiment, name))
        if name not in MAY_DIFFER and found != wanted:
            what = "number of ranks" if name == "ranks" else f"--{flag(option)}"
            return f"its {what} is {_shown(found)}, not {_shown(wanted)}"
    if mine["data_sha256"] != meta["data_sha256"]:
        return f"it was made with other samples of --data {experiment.data}"
    return None


def fingerprint(dataset: Dataset) -> str:
    """A digest of all samples."""
    digest = hashlib.sha256(repr((dataset.classes, dataset.scale)).encode())
    for array in (
        dataset.train_inputs, dataset.train_targets, dataset.test_inputs, dataset.test_targets,
    ):  # fmt: skip
        digest.update(repr((array.shape, array.dtype.str)).encode())
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for low in range(0, octets.size, CHUNK):
            digest.update(octets[low : low + CHUNK].tobytes())
    return digest.hexdigest()


def _steps(experiment: Experiment, meta: Mapping[str, Any]) -> str | None:
    steps, saved, done = experiment.steps or 0, meta["config"]["steps"], meta["step"]
    if done > steps:
        return f"it is at step {done}, beyond the {steps} asked for"
    if steps != saved and (experiment.servers or 1) > 1:
        return f"it is of {saved} steps: with --servers above 1 a run cannot be extended"
    if steps != saved and experiment.rate_schedule != "constant":
        return (
            f"its --schedule {experiment.rate_schedule} was laid out for {saved} steps, not "
            f"{steps}; only a constant one can be extended"
        )
    return None


def _changed(found: Any, wanted: tuple[str, ...] | None) -> str | None:
    """Which plug-in's code, of those that both name alike, is another's."""
    known = found if isinstance(found, list | tuple) else ()
    for each in [each for each in wanted or () if each not in known]:
        name, _, digest = each.rpartition(" ")
        return f"{name} has changed since: its sha256 is now {digest:.12}"
    return None


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
