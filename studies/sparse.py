"""Sparse sums: `python studies/sparse.py run` prices them, `figures` draws and tabulates.

Gradients of an embedding of 50,000 rows of 64 float32: which all-reduce is the fastest, gathered
rows, merged rows or the whole matrix, over the share of rows that a rank has, ranks and rate.
Nothing is measured: seconds are the simulator's. One line for each case is kept in
results/study-sparse/runs.jsonl.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, run_missing, study
from pages import fill_all, legend, panels, publish
from runs import made_with, significant

from allreduce import simulate
from allreduce.algorithms import allgather, build
from allreduce.network import Network, network
from allreduce.sparse import HEADER_B, ROW_B, Sparse, draw, traffic

Cell = Mapping[str, Any]
Row = dict[str, Any]

HEIGHT, WIDTH, ITEM_B = 50_000, 64, 4
SHARES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of the rows, of each rank
RANKS = (4, 16, 64)
MOST = 6.5  # ranks times share: beyond, the dense sum has won
RATES = (1, 10, 100)  # Gbit/s of a rank's port
KINDS = ("uniform", "words")  # any rows alike; row n with a chance as 1 / n, as of words
DENSE = ("butterfly", "halving-doubling", "ring")
COLOURS = {"gather": "#4477aa", "merge": "#ee6677", "dense": "#222222"}


def cells() -> list[Cell]:
    """All cases: a kind of rows, a number of ranks, a share, up to where the dense sum wins."""
    shares = [(ranks, share) for ranks in RANKS for share in SHARES if ranks * share < MOST]
    return [{"rows": k, "ranks": r, "share": s, "seed": 1} for k in KINDS for r, s in shares]


def drawn(cell: Cell) -> list[Sparse]:
    """Rows of each rank, without values: these only count."""
    count, words = round(cell["share"] * HEIGHT), cell["rows"] == "words"
    randoms = [np.random.default_rng((cell["seed"], rank)) for rank in range(cell["ranks"])]
    rows = [draw(HEIGHT, count, random, words=words) for random in randoms]
    return [Sparse(each, np.zeros((count, 0), np.float32)) for each in rows]


def links(rate: float) -> Network:
    """The preset ethernet-10g with ports of so many Gbit/s."""
    return network("ethernet-10g").with_(bandwidth_Bps=rate * 1e9 / 8)


def with_values(octets: tuple[int, ...]) -> tuple[int, ...]:
    """The bytes of transfers whose rows have values."""
    wide = 1 + WIDTH * ITEM_B // ROW_B
    return tuple(HEADER_B + (each - HEADER_B) * wide for each in octets)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Milliseconds of each method by rate, and the share of rows that the sum has."""
    began, parts, size = time.process_time(), drawn(cell), cell["ranks"]
    merging = traffic(build("butterfly", size), parts, HEIGHT)
    gathering = traffic(allgather(size), parts, HEIGHT)
    merged = np.unique(np.concatenate([part.rows for part in parts]))
    all_rows = sum(part.rows.size for part in parts) * WIDTH * ITEM_B
    found: dict[str, Any] = {"share_of_sum": significant(merged.size / HEIGHT)}
    for rate in RATES:
        ways = links(rate)
        merge_s = simulate(build("butterfly", size), with_values(merging), ways).max()
        gather_s = simulate(allgather(size), with_values(gathering), ways).max()
        gather_s += all_rows * ways.sum_s_per_B  # added when all have come
        dense = HEIGHT * WIDTH * ITEM_B
        dense_s = min(simulate(build(n, size), dense, ways, itemsize=ITEM_B).max() for n in DENSE)
        seconds = {"gather": gather_s, "merge": merge_s, "dense": dense_s}
        found[f"ms_{rate}"] = {n: significant(1e3 * float(s)) for n, s in seconds.items()}
    return found | {"cpu_s": round(time.process_time() - began, 2)} | made_with()


def table(ledger: Ledger, kind: str) -> list[Row]:
    """A row for each number of ranks and rate, a column for each share: who wins, and by how much
    over the next best."""
    rows = []
    for ranks in RANKS:
        for rate in RATES:
            row: Row = {"ranks": ranks, "Gbit/s": rate}
            for share in SHARES:
                cell = {"rows": kind, "ranks": ranks, "share": share, "seed": 1}
                if cell in ledger:
                    first, second = sorted(ledger[cell][f"ms_{rate}"].items(), key=_ms)[:2]
                    row[f"{share:.2%}"] = (
                        f"{first[0]} {first[1]:.3g} ms, {second[1] / first[1]:.2f}x"
                    )
            rows.append(row)
    return rows


def _ms(item: tuple[str, float]) -> float:
    return item[1]


def crossover(ledger: Ledger, kind: str, ranks: int, rate: int) -> float:
    """The share at which the better sparse method takes as long as the dense one: on a straight
    line in the logarithms between the two shares around it; NaN if none."""
    shares = [cell["share"] for cell in cells() if (cell["rows"], cell["ranks"]) == (kind, ranks)]
    lines = [ledger[{"rows": kind, "ranks": ranks, "share": s, "seed": 1}] for s in shares]
    times = [line[f"ms_{rate}"] for line in lines]
    over = np.log([min(t["gather"], t["merge"]) / t["dense"] for t in times])
    for low, high, x, y in zip(shares, shares[1:], over, over[1:], strict=False):
        if x < 0 <= y:
            return float(np.exp(np.log(low) + np.log(high / low) * x / (x - y)))
    return float("nan")


def crossovers(ledger: Ledger) -> list[Row]:
    """A row for each kind and number of ranks, a column for each rate."""
    rows = []
    for kind, ranks in ((kind, ranks) for kind in KINDS for ranks in RANKS):
        row: Row = {"rows": kind, "ranks": ranks}
        for rate in RATES:
            share = crossover(ledger, kind, ranks, rate)
            row[f"{rate} Gbit/s"] = "beyond" if share != share else f"{share:.1%}"
        rows.append(row)
    return rows


def summary(ledger: Ledger) -> list[Row]:
    """One row for each case and rate."""
    return [
        {**cell, "share_of_sum": ledger[cell]["share_of_sum"], "Gbit_s": rate,
         **{f"{n}_ms": ms for n, ms in ledger[cell][f"ms_{rate}"].items()}}
        for cell in cells() if cell in ledger for rate in RATES
    ]  # fmt: skip


def figure(ledger: Ledger) -> Any:
    """Milliseconds over the share of rows, at 10 Gbit/s; words dashed."""
    figure, axes = panels(len(RANKS), "all-reduce of 50,000 x 64 float32, 10 Gbit/s, simulated")
    for one, ranks in zip(axes, RANKS, strict=True):
        for kind, line in zip(KINDS, ("-", "--"), strict=True):
            for name, colour in COLOURS.items():
                shown = [c for c in cells() if (c["rows"], c["ranks"]) == (kind, ranks)]
                shares = [cell["share"] for cell in shown]
                found = [ledger[cell] for cell in shown]
                label = f"{name}, {kind}" if name != "dense" else name
                times = [line["ms_10"][name] for line in found]
                one.loglog(shares, times, line, color=colour, label=label)
        one.set_title(f"{ranks} ranks", fontsize="small")
        one.set_xlabel("share of the rows that a rank has")
    axes[0].set_ylabel("ms")
    legend(figure, axes, 5)
    return figure


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {f"winners-{kind}": table(ledger, kind) for kind in KINDS}
    return fill_all(text, {"crossovers": crossovers(ledger), **tables})


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, summary, {"sparse": figure})


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    run_missing(cells(), ledger, run_cell)


def main() -> int:
    return study(__doc__, "study-sparse", run, write)


if __name__ == "__main__":
    sys.exit(main())
