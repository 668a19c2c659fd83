"""What studies' command lines share: `run` trains what a ledger lacks, `figures` writes pages."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ledger import Ledger

Cell = Mapping[str, Any]
SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


def parser(description: str | None, results: Path) -> argparse.ArgumentParser:
    """Of a study that keeps its ledger and its page in the folder `results`."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("command", choices=("run", "figures"))
    made.add_argument("--results", type=Path, default=results, help="folder of ledger and figures")
    return made


def add_data(options: argparse.ArgumentParser, folder: str, help: str) -> None:
    """--data: by default `folder` of MPISGD_DATA, or of the data beside the checkout."""
    shared = os.environ.get("MPISGD_DATA", str(SHARED))
    options.add_argument("--data", default=os.path.join(shared, folder), help=help)


def tell(text: str) -> None:
    """How far the study is, on standard error."""
    print(text, file=sys.stderr, flush=True)


def run_missing(
    cells: Iterable[Cell], ledger: Ledger, run_cell: Callable[[Cell], Mapping[str, Any]]
) -> None:
    """Run the cells that the ledger lacks, in their order, each written as soon as it is done."""
    missing = [cell for cell in cells if cell not in ledger]
    for index, cell in enumerate(missing):
        if cell not in ledger:
            result = run_cell(cell)
            ledger.add(cell, result)
            tell(f"{index + 1}/{len(missing)} {dict(cell)} ({result.get('cpu_s')} s)")
