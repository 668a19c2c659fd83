"""The experiment of a result file again."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mpisgd.experiment.experiment import Experiment
from mpisgd.values.errors import UsageError
from mpisgd.values.options import text, whole, words


def recorded(config: Mapping[str, Any], place: str) -> Experiment:
    """From a file's config. UsageError naming `place` and the field that is not an Experiment's."""
    kinds = {option.name: option.metadata.get("kind") for option in fields(Experiment)}
    kinds |= {"ranks": whole(1, 1 << 20), "step_time_from": text(), "allreduce_from": text(),
              "plugin_sha256": words()}  # fmt: skip
    values = {}
    for name, value in config.items():
        if name not in kinds:
            raise UsageError(f"{place}: /config {name}", None, "is no option of this version")
        if value is not None and (kind := kinds[name]) is not None:
            values[name] = kind.read(f"{place}: /config {name}", value)
    return Experiment(**values)
