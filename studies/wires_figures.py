"""Figures of the study of wires, from its ledger."""

from typing import Any

import numpy as np
from command import Ledger
from pages import legend, panels
from wires import (
    ALGORITHMS,
    FULL,
    HIDDEN,
    MLP_GBPS,
    RANKS,
    TARGET,
    WAYS,
    WIRES,
    WORKERS,
    lines,
    step_s,
    steps,
)


def use(ledger: Ledger) -> Any:
    """The share of compute over rate, a panel for each number of workers."""
    drawn, axes = panels(len(WORKERS), "share of compute, 102 MB, 100 ms a step, tau 4, d 1")
    styles = ("-", "--", ":")
    for one, ranks in zip(axes, WORKERS, strict=True):
        for index, name in enumerate(ALGORITHMS):
            found = lines(ledger, kind="use", name=name, ranks=ranks)
            points = sorted((line["cell"]["gbps"], line["use"]) for line in found)
            rates, shares = zip(*points, strict=True)
            one.plot(rates, shares, styles[index % 3], color=f"C{index % 10}", label=name)
        one.set_xscale("log")
        one.set_xlabel(f"Gbit/s a port, {ranks} workers")
    axes[0].set_ylabel("compute / time")
    legend(drawn, axes, 4)
    return drawn


def pays(ledger: Ledger) -> Any:
    """Seconds of a step, with coding and without, and to the target, over the link rate."""
    drawn, axes = panels(3, f"mini-batch SGD, mlp 784-{HIDDEN}-10, {RANKS} workers")
    rates = np.geomspace(*MLP_GBPS, 41)
    titles = ("a step, coding on the core", "a step, coding free", f"to {TARGET:.0%}, coding on it")
    for one, title, (coded, counted) in zip(axes, titles, WAYS, strict=True):
        for index, wire in enumerate(WIRES):
            count = steps(ledger, wire) if counted else 1
            seconds = [count * step_s(ledger, wire, gbps, coded) for gbps in rates]
            base = [
                (steps(ledger, FULL) if counted else 1) * step_s(ledger, FULL, g) for g in rates
            ]
            one.plot(rates, np.divide(seconds, base), color=f"C{index}", label=wire)
        one.set_xscale("log")
        one.set_xlabel(f"Gbit/s; {title}")
    axes[0].set_ylabel("seconds / those of float32")
    legend(drawn, axes, 6)
    return drawn


FIGURES = {"use": use, "pays": pays}
