"""The algorithms, each a generator of a dozen lines that reads like its paper.

`ALGORITHMS`: name -> function. `OPTIONS`: the fields of an Experiment that a function takes.
Adding one = one function and one row in each.
"""

ALGORITHMS = {
    "minibatch": "mpisgd.algorithms.averaging:minibatch",
    "local": "mpisgd.algorithms.averaging:local",
    "dasgd": "mpisgd.algorithms.averaging:dasgd",
}

OPTIONS: dict[str, tuple[str, ...]] = {
    "minibatch": (),
    "local": ("tau",),
    "dasgd": ("tau", "delay", "xi", "merge"),
}
