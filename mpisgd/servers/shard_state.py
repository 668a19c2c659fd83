"""What a checkpoint holds of a server: its shard, its counts, gradients that are not answered."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.checkpoint.state import copy_into
from mpisgd.servers.messages import Push

if TYPE_CHECKING:
    from mpisgd.servers.server import Server

# Beside arrays and gradients: numbers, and sets of workers.
NUMBERS = (
    "version", "used", "samples_computed", "samples_used", "loss_sum", "loss_samples", "_ended",
    "_dismissing", "_owes",
)  # fmt: skip
WORKERS = ("lost", "_open", "_noticed", "_greets", "_answers")


def state(server: "Server") -> dict[str, Any]:
    """What the rest of the run depends on, while every worker waits: see checkpoint.state."""
    return {
        "numbers": {name: getattr(server, name) for name in NUMBERS},
        "workers": {name: np.array(sorted(getattr(server, name)), int) for name in WORKERS},
        "versions": np.array([server._versions[w] for w in sorted(server._versions)]),
        "steps_done": server.steps_done,
        "parameters": server.parameters,
        "optimiser": server.optimiser.state(),
        "patience": server.patience.state(),
        "ema": None if server.ema is None else server.ema.state(),
        "waiting": {str(i): p._asdict() for i, p in enumerate(server.waiting.values())},
    }


def restore(server: "Server", state: Mapping[str, Any]) -> None:
    """Go on from there: before it serves. Raises BadState."""
    for name in NUMBERS:
        setattr(server, name, state["numbers"][name])
    for name in WORKERS:
        kind = type(getattr(server, name))
        setattr(server, name, kind(state["workers"][name].tolist()))
    server._versions = dict(enumerate(state["versions"].tolist()))
    live = {"parameters": server.parameters, "steps_done": server.steps_done}
    copy_into(live, {name: state[name] for name in live}, "shard")
    copy_into(server.optimiser.state(), state.get("optimiser", {}), "optimiser")
    if server.ema is not None:
        copy_into(server.ema.state(), state.get("ema", {}), "moving average")
    server.patience.restore(state.get("patience", {}))
    waiting = state.get("waiting", {})
    pushes = [Push(**waiting[order]) for order in sorted(waiting, key=int)]
    for push in (push for push in pushes if push.samples):
        part = server._scratch if push.at is None else server._scratch[push.at]
        copy_into({"it": part}, {"it": push.gradient}, "gradient held")
    server.waiting = {push.worker: push for push in pushes}
    server._again.clear()
    if not server.follows:
        server._again.extend(push for push in pushes if push.worker not in server._answers)
