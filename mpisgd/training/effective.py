"""Effective steps: those whose work outlived the merges. Compare algorithms by them.

An average started after a step k = 0 mod tau is merged d steps later. A convex merge throws away
the share 1 - xi of the d steps that were in flight, overwrite (xi = 0) all of them, delta none. So
K steps, with as many merges as have happened by then, are worth

    K - (1 - xi) d floor((K - d) / tau)

and of a long run the share is (tau - (1 - xi) d) / tau.
"""

from collections.abc import Mapping
from typing import Any

DELAYED = ("dasgd", "streaming-diloco")  # merge averages late, and so lose work
KEEPING = (*DELAYED, "easgd", "gossip")  # and in these ranks stay apart
AVERAGING = (*KEEPING, "local", "post-local", "slowmo", "diloco")  # every tau steps
MERGES = ("convex", "delta", "overwrite")


def lost_share(merge: str | None, xi: float | None) -> float:
    """Of the steps in flight, what a merge throws away; a convex one where none is said."""
    if merge == "delta":
        return 0.0
    return 1.0 if merge == "overwrite" else 1.0 - (xi or 0.0)


def effective_share(tau: int, delay: int, xi: float | None, merge: str | None = "convex") -> float:
    """Effective steps / steps in the limit of a long run: what a round of tau steps is worth."""
    return (tau - lost_share(merge, xi) * delay) / tau


def effective_steps(config: Mapping[str, Any], steps: int) -> float:
    """Of the first `steps` steps of a run with these settings, as a result file keeps them."""
    tau = config.get("tau")
    if config.get("algorithm") not in DELAYED or not tau:
        return float(steps)
    delay, parts = config.get("delay") or 0, config.get("fragments") or 1
    lost = lost_share(config.get("merge"), config.get("xi")) * delay
    merged = [averages(config, steps - part * tau // parts) for part in range(parts)]
    return steps - lost * sum(merged) / parts


def averages(config: Mapping[str, Any], steps: int) -> int:
    """How many averages every tau steps have entered the parameters after `steps` steps."""
    before = (config.get("switch") or 0) + (config.get("delay") or 0)
    return max(0, (steps - before) // (config.get("tau") or 1))


def idle(config: Mapping[str, Any]) -> str | None:
    """Why a run with these settings does not do what its name says; None where it does.

    It never averages, or it averages and every merge throws all that was learnt away.
    """
    algorithm, steps, tau = config.get("algorithm"), config.get("steps"), config.get("tau")
    delay = config.get("delay") or 0
    if algorithm not in AVERAGING or not tau or not steps or isinstance(delay, str):
        return None
    if config.get("ranks", 2) > 1 and not averages(config, steps):
        told = [f"--{n} {config[n]}" for n in ("switch", "tau", "delay") if config.get(n)]
        first = " + ".join(told)
        return f"{algorithm} never averages: {steps} steps, and the first average enters at {first}"
    merge, xi = config.get("merge"), config.get("xi")
    if algorithm in DELAYED and not effective_share(tau, delay, xi, merge):
        return (
            f"{algorithm} learns nothing after its first {tau} steps: with --delay {delay}, all of "
            f"--tau {tau}, a merge that keeps nothing local throws every other step away"
        )
    return None
