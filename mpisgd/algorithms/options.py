"""The options that several algorithms take: type, how a value is read, what it means.

An option of one algorithm alone stands in that one's signature.
"""

from typing import Annotated

from mpisgd.values.options import number, one_of, or_word, switch, whole

Tau = Annotated[int, whole(1), "local steps between averages"]
Delay = Annotated[int, or_word(whole(0), "auto"), "steps an average has time for"]
Xi = Annotated[float, number(0, 1), "local update proportion"]
OuterMomentum = Annotated[float, number(0, 1, below=True), "of the steps from average to average"]
OuterRate = Annotated[float, number(0, above=True), "how far these steps go"]
Stale = Annotated[str, one_of(("finish", "abandon")), "what becomes of out-of-date work"]
StalenessRate = Annotated[bool, switch(), "a gradient counts 1/max(1, staleness)"]
