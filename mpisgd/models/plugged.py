"""A user's model: what a plug-in builds, tried for the members that workers ask for."""

import sys
from collections.abc import Mapping
from typing import Any

from mpisgd.data import Dataset
from mpisgd.models import Model
from mpisgd.values.errors import UsageError
from mpisgd.values.plugins import Plugin

MEMBERS = ("shapes", "initialise", "gradient", "evaluate")


def build(plugin: Plugin, dataset: Dataset, options: Mapping[str, Any]) -> Model:
    """The model that `plugin` makes for `dataset`: a Model, or a torch.nn.Module, which learns
    with its own `loss(outputs, targets)`, or else with softmax cross-entropy.

    Raises UsageError for what it raises, and for what is no model.
    """
    made = plugin(dataset, **options)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(made, torch.nn.Module):
        from mpisgd.models.torch_model import wrap

        return wrap(plugin.name, dataset, lambda: plugin(dataset, **options))
    lacking = [name for name in MEMBERS if not hasattr(made, name)]
    if lacking:
        raise UsageError(plugin.option, plugin.name, f"is no model: it has no {lacking[0]}")
    return made
