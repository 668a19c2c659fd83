"""What the MNIST study runs, as data: parts, each a list of cells; a cell is one run.

A cell holds the fields of an Experiment that vary, `ranks`, and `seed`. Cells of several parts
that are equal are one run.
"""

from collections.abc import Iterator
from typing import Any

from mpisgd.training.effective import effective_share

Cell = dict[str, Any]

SEEDS = (1, 2, 3)
RANKS, BATCH, TAU = 32, 32, 4
DELAYS = (1, 2, 3, 4)
PROPORTIONS = (0.0, 0.25, 0.5, 0.75)  # xi
COMMON_RATE = 0.1
RATES = (0.1, 0.2, 0.4, 0.8)  # the one grid, for every algorithm
WORKERS, BATCHES, TAUS = (8, 16, 32, 64), (8, 16, 32, 64), (1, 2, 4, 8)
LARGE_BATCH, LARGE_RATES, LARGE_EPOCHS = 256, (0.1, 0.4), 12  # times 32 ranks: 8,192 a step

# Fixed from a pilot of three runs with another seed, before the study began.
TARGETS = (0.85, 0.90, 0.92, 0.94)  # validation accuracy

MINIBATCH: Cell = {"algorithm": "minibatch"}
LOCAL: Cell = {"algorithm": "local", "tau": TAU}


def convex(delay: int, xi: float, tau: int = TAU) -> Cell:
    """DaSGD with the paper's merge."""
    return {"algorithm": "dasgd", "tau": tau, "delay": delay, "xi": xi, "merge": "convex"}


def delta(delay: int, tau: int = TAU) -> Cell:
    """DaSGD with the merge that loses no work."""
    return {"algorithm": "dasgd", "tau": tau, "delay": delay, "merge": "delta"}


GRID = [MINIBATCH, LOCAL, *(delta(d) for d in DELAYS)]
GRID += [convex(d, xi) for d in DELAYS for xi in PROPORTIONS]
TUNED = [MINIBATCH, LOCAL, delta(2), *(convex(d, 0.25) for d in (1, 2))]
CORRECTED = [convex(d, 0.25) for d in DELAYS] + [convex(2, 0.0)]
ABLATED = [MINIBATCH, LOCAL, convex(2, 0.25), delta(2)]


def share(cell: Cell) -> float:
    """Effective steps per step of a long run."""
    if "merge" not in cell:
        return 1.0
    return effective_share(cell["tau"], cell["delay"], cell.get("xi"), cell["merge"])


def corrected_rate(cell: Cell) -> float:
    """The rate whose effective steps are worth what those of Local at COMMON_RATE are."""
    return COMMON_RATE / share(cell)


def part(name: str) -> list[Cell]:
    """The cells of one part, seed by seed."""
    return [
        {"ranks": RANKS, "batch": BATCH, "rate": COMMON_RATE, **cell, "seed": seed}
        for seed in (SEEDS if name != "large" else SEEDS[:1])
        for cell in PARTS[name]()
    ]


def _grid() -> Iterator[Cell]:
    yield from GRID


def _rates() -> Iterator[Cell]:
    for rate in RATES:
        for cell in TUNED:
            yield cell | {"rate": rate}


def _corrected() -> Iterator[Cell]:
    for cell in CORRECTED:
        yield cell | {"rate": corrected_rate(cell)}


def _taus() -> Iterator[Cell]:
    for tau in TAUS:
        for cell in (LOCAL, convex(2, 0.25), delta(2)):
            changed = cell | {"tau": tau}
            if "delay" in cell:
                changed["delay"] = min(2, tau)
            yield changed


def _workers() -> Iterator[Cell]:
    for ranks in WORKERS:
        for cell in ABLATED:
            yield cell | {"ranks": ranks}


def _batches() -> Iterator[Cell]:
    for batch in BATCHES:
        for cell in ABLATED:
            yield cell | {"batch": batch}


def _large() -> Iterator[Cell]:
    for rate in LARGE_RATES:
        for cell in ABLATED:
            yield cell | {"rate": rate, "batch": LARGE_BATCH, "epochs": LARGE_EPOCHS}


PARTS = {
    "grid": _grid,
    "rates": _rates,
    "corrected": _corrected,
    "tau": _taus,
    "large": _large,
    "workers": _workers,
    "batch": _batches,
}
