"""What studies' command lines share: `run` trains what a ledger lacks, `figures` writes pages.

A ledger has one JSON line for each finished run: a study that is stopped goes on where it was.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SHARED = ROOT.parent / "shared" / "data"
# A cell without its seed, and what the runs of all its seeds left.
Group = tuple[dict[str, Any], list[dict[str, Any]]]


class Ledger:
    """The finished runs in `path`, by their key. A last line that was cut off is dropped."""

    def __init__(self, path: Path):
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            replaced = path.with_name(path.name + ".new")
            replaced.write_text(whole, encoding="utf-8")
            os.replace(replaced, path)
        self._take(whole)

    def refresh(self) -> None:
        """Take in what another process has added since."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        self._take(text[: text.rfind("\n") + 1])

    def _take(self, whole: str) -> None:
        for line in whole.splitlines():
            row = json.loads(line)
            self.lines[key(row["cell"])] = row

    def __contains__(self, cell: Mapping[str, Any]) -> bool:
        return key(cell) in self.lines

    def __getitem__(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        return self.lines[key(cell)]

    def add(self, cell: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Write one finished run at once."""
        row = {"cell": dict(cell), **result}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self.lines[key(cell)] = row


def key(cell: Mapping[str, Any]) -> str:
    """What decides whether two cells are the same run: all their values, in no order."""
    return json.dumps(dict(cell), sort_keys=True)


def groups(ledger: Ledger, cells: Iterable[Mapping[str, Any]]) -> list[Group]:
    """(cell without its seed, the finished lines of all seeds), in the order of `cells`."""
    found: dict[str, Group] = {}
    for cell in cells:
        shared = {name: value for name, value in cell.items() if name != "seed"}
        lines = found.setdefault(str(sorted(shared.items())), (shared, []))[1]
        if cell in ledger:
            lines.append(ledger[cell])
    return [(cell, lines) for cell, lines in found.values() if lines]


def add_data(options: argparse.ArgumentParser, folder: str, help: str) -> None:
    """--data: by default `folder` of MPISGD_DATA, or of the data beside the checkout."""
    shared = os.environ.get("MPISGD_DATA", str(SHARED))
    options.add_argument("--data", default=os.path.join(shared, folder), help=help)


def add_mnist(options: argparse.ArgumentParser) -> None:
    """--data: MNIST's files."""
    add_data(options, "mnist", "IDX files of MNIST")


def tell(text: str) -> None:
    """How far the study is, on standard error."""
    print(text, file=sys.stderr, flush=True)


def run_missing(
    cells: Iterable[Cell],
    ledger: Ledger,
    run_cell: Callable[[Cell], Mapping[str, Any]],
    limit_s: float = math.inf,
) -> None:
    """Run the cells that the ledger lacks, in their order, each written as soon as it is done,
    until `limit_s` seconds of a core are spent in all lines."""
    missing = [cell for cell in cells if cell not in ledger]
    for index, cell in enumerate(missing):
        ledger.refresh()
        if cell in ledger:
            continue
        spent = sum(line.get("cpu_s", 0.0) for line in ledger.lines.values())
        if spent > limit_s:
            tell(f"stopped: {spent:.0f} s of a core spent, {len(missing) - index} cells left")
            return
        result = run_cell(cell)
        ledger.add(cell, result)
        tell(f"{index + 1}/{len(missing)} {dict(cell)} ({result.get('cpu_s')} s)")


def study(
    description: str | None,
    name: str,
    run: Callable[[argparse.Namespace, Ledger], object],
    write: Callable[[Path], object],
    add: Callable[[argparse.ArgumentParser], object] = lambda options: None,
) -> int:
    """The command line of a study that keeps its ledger and its page in results/`name`: `run`
    trains what the ledger lacks, `write` makes page and figures of a folder, `add` adds options."""
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument("command", choices=("run", "figures"))
    options.add_argument(
        "--results", type=Path, default=RESULTS / name, help="folder of ledger and figures"
    )
    add(options)
    arguments = options.parse_args()
    if arguments.command == "run":
        run(arguments, Ledger(arguments.results / "runs.jsonl"))
    else:
        write(arguments.results)
    return 0
