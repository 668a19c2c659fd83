"""The algorithms, each a generator of a dozen lines that reads like its paper.

`ALGORITHMS`: name -> function, for those that average over all ranks. Those with parameter servers
are rows of policies.POLICIES. Adding one = one function and one row. What an algorithm takes stands
in its signature: `SIGNATURES`, name -> options; `OPTIONS`, name -> fields of an Experiment.
"""

from typing import Any

from mpisgd.algorithms.policies import POLICIES
from mpisgd.values.registry import resolve
from mpisgd.values.signatures import NEEDED, Option, options

ALGORITHMS = {
    "minibatch": "mpisgd.algorithms.averaging:minibatch",
    "minibatch-overlap": "mpisgd.algorithms.overlap:overlap",
    "minibatch-partial": "mpisgd.algorithms.partial:partial",
    "local": "mpisgd.algorithms.partial:local",
    "dasgd": "mpisgd.algorithms.partial:dasgd",
    "slowmo": "mpisgd.algorithms.slowmo:slowmo",
    "diloco": "mpisgd.algorithms.diloco:diloco",
    "streaming-diloco": "mpisgd.algorithms.diloco:streaming",
    "post-local": "mpisgd.algorithms.post_local:post_local",
    "easgd": "mpisgd.algorithms.easgd:easgd",
    "gossip": "mpisgd.algorithms.gossip:gossip",
    "stale": "mpisgd.algorithms.stale:stale",
}

# What every policy takes beside its own options, and what is not the policy's but the workers'.
SERVERS = ("servers", "cut", "colocated", "requeue", "push", "pull", "reads")
WORKING = (*SERVERS, "prefetch")
PREFETCHING = ("async", "softsync")

NAMES = (*ALGORITHMS, *POLICIES)

SIGNATURES: dict[str, dict[str, Option]] = {
    name: options(resolve(ALGORITHMS | POLICIES, name, "--algorithm")) for name in NAMES
}

OPTIONS: dict[str, tuple[str, ...]] = {
    name: (
        *(SERVERS if name in POLICIES else ()),
        *SIGNATURES[name],
        *(("prefetch",) if name in PREFETCHING else ()),
    )
    for name in NAMES
}


# Name -> the option of the first algorithm that takes it.
DECLARED: dict[str, Option] = {}
for _signature in SIGNATURES.values():
    DECLARED |= {name: each for name, each in _signature.items() if name not in DECLARED}


def defaults(algorithm: str) -> dict[str, Any]:
    """Of all options that have one: the algorithm's own, or the first one's that takes it."""
    all_ = DECLARED | SIGNATURES.get(algorithm, {})
    return {name: option.default for name, option in all_.items() if option.default is not NEEDED}


def help(option: str) -> str:
    """What it means, and its defaults unless that says them."""
    said = DECLARED[option].help
    takers = {name: found[option].default for name, found in SIGNATURES.items() if option in found}
    told = {
        name: f"{value:g}" if isinstance(value, float) else f"{value}"
        for name, value in takers.items()
        if value is not NEEDED and value is not False and value is not None
    }
    if said.endswith("]") or not told:
        return said
    if len(set(told.values())) == 1:
        return f"{said} [{next(iter(told.values()))}]"
    return f"{said} [{', '.join(f'{name} {value}' for name, value in told.items())}]"
