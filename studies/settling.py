"""Rates by one rule, the same for all that a study compares: by factors from a start on, until the
best has worse neighbours on both sides. The runs that judge a rate have seeds of their own.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from command import Cell, Ledger, run_missing
from pages import last

Judged = Callable[[float], float | None]
Made = Callable[[float, int], Cell]


def settled(start: float, loss: Judged, factor: float = 2.0) -> tuple[list[float], float | None]:
    """(rates that are judged, rising; the best of them once it is no edge, or else None).

    loss(rate): None while it is not known, infinite for a rate that does not train.
    """
    rates = [start / factor, start, start * factor]
    while True:
        losses = [loss(rate) for rate in rates]
        if None in losses:
            return rates, None
        at = losses.index(min(losses))  # type: ignore[type-var]
        if 0 < at < len(rates) - 1:
            return rates, rates[at]
        rates = [*rates, rates[-1] * factor] if at else [rates[0] / factor, *rates]


def mean_loss(ledger: Ledger, cells: Sequence[Cell], column: str = "loss") -> float | None:
    """Mean of a column at the ends of these runs; None while one is missing, infinite if one was
    not finite."""
    if not all(cell in ledger for cell in cells):
        return None
    losses = [last(ledger[cell], column) for cell in cells]
    return math.inf if any(map(math.isnan, losses)) else float(np.mean(losses))


def judged(
    ledger: Ledger, start: float, make: Made, tuning: Sequence[int], column: str
) -> tuple[list[float], float | None]:
    """`settled` by the tuning runs in the ledger; make(rate, seed): a cell."""
    return settled(
        start, lambda rate: mean_loss(ledger, [make(rate, seed) for seed in tuning], column)
    )


def run_wanted(
    names: Iterable[Any],
    wanted: Callable[[Any], Sequence[Cell]],
    ledger: Ledger,
    run_cell: Callable[[Cell], Mapping[str, Any]],
) -> None:
    """Run what `wanted` asks for under each name, until it asks for nothing that is missing."""
    for name in names:
        while missing := [cell for cell in wanted(name) if cell not in ledger]:
            run_missing(missing, ledger, run_cell)


def table(
    found: Mapping[str, tuple[list[float], float | None]],
    loss: Callable[[str, float], float | None],
    what: str,
    digits: int,
) -> list[dict[str, str]]:
    """A row for each name whose search has begun: what each rate came to, and the one chosen."""
    rows = []
    for name, (judged, chosen) in found.items():
        losses = {rate: loss(name, rate) for rate in judged}
        known = {rate: value for rate, value in losses.items() if value is not None}
        told = [f"{rate:.3g}: {_shown(value, digits)}" for rate, value in known.items()]
        if told:
            best = "not settled" if chosen is None else f"{chosen:.3g}"
            rows.append({what: name, "loss at each rate": "; ".join(told), "chosen": best})
    return rows


def _shown(loss: float, digits: int) -> str:
    return f"{loss:.{digits}f}" if math.isfinite(loss) else "not finite"
