"""The algorithms, each a generator of a dozen lines that reads like its paper.

`ALGORITHMS`: name -> function, for those that average over all ranks. Those with parameter servers
are rows of policies.POLICIES. `OPTIONS`: the fields of an Experiment that each takes.
Adding one = one function and one row in each.
"""

from mpisgd.algorithms.policies import POLICIES

ALGORITHMS = {
    "minibatch": "mpisgd.algorithms.averaging:minibatch",
    "minibatch-overlap": "mpisgd.algorithms.overlap:overlap",
    "local": "mpisgd.algorithms.averaging:local",
    "dasgd": "mpisgd.algorithms.averaging:dasgd",
    "slowmo": "mpisgd.algorithms.slowmo:slowmo",
    "stale": "mpisgd.algorithms.stale:stale",
}

# What every policy takes beside its own options, and what is not the policy's but the workers'.
SERVERS = ("servers", "colocated", "requeue", "push", "reads")
WORKING = (*SERVERS, "prefetch")

OPTIONS: dict[str, tuple[str, ...]] = {
    "minibatch": (),
    "minibatch-overlap": ("bucket_bytes",),
    "local": ("tau",),
    "dasgd": ("tau", "delay", "xi", "merge"),
    "slowmo": ("tau", "outer_momentum", "outer_rate"),
    "stale": ("staleness", "ramp"),
    "async": (*SERVERS, "staleness_rate", "prefetch"),
    "backup": (*SERVERS, "backups", "stale"),
    "softsync": (*SERVERS, "group", "staleness_rate", "prefetch"),
    "timeout": (*SERVERS, "timeout_s", "stale"),
}

NAMES = (*ALGORITHMS, *POLICIES)
