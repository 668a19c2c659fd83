"""The options that several algorithms take: type, how a value is read, what it means.

An option of one algorithm alone stands in that one's signature.
"""

from typing import Annotated

from mpisgd.algorithms.merges import MERGES
from mpisgd.values.options import number, one_of, or_word, switch, whole

_RANKS = or_word(or_word(or_word(whole(1), "solo"), "majority"), "all")

Tau = Annotated[int, whole(1), "local steps between averages"]
Delay = Annotated[int, or_word(whole(0), "auto"), "steps an average has time for"]
Merge = Annotated[str, one_of(MERGES), "how an average enters"]
Quorum = Annotated[
    str | int,
    _RANKS,
    "ranks a round waits for: first, one drawn, all [all; minibatch-partial: majority]",
]
Late = Annotated[str, one_of(("drop", "add")), "what becomes of work that misses its round [drop]"]
Xi = Annotated[float, number(0, 1), "local update proportion"]
OuterMomentum = Annotated[float, number(0, 1, below=True), "of the steps from average to average"]
OuterRate = Annotated[float, number(0, above=True), "how far these steps go"]
Stale = Annotated[str, one_of(("finish", "abandon")), "what becomes of out-of-date work"]
StalenessRate = Annotated[bool, switch(), "a gradient counts 1/max(1, staleness)"]
