"""The MNIST study: `python studies/mnist.py run` trains, `figures` draws and tabulates.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-mnist/runs.jsonl, and skips those.
"""

import argparse
import sys
from pathlib import Path

import one_thread  # noqa: F401 - before anything imports NumPy
from command import add_data, tell
from command import parser as parser_of

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "study-mnist"


def main() -> int:
    parser = parser_of(__doc__, RESULTS)
    add_data(parser, "mnist", "IDX files of MNIST")
    parser.add_argument(
        "--limit", type=float, default=2100.0, help="seconds of a core for all runs"
    )
    parser.add_argument("--parts", help="parts to run, as in grid,rates [all]")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments)
    else:
        from mnist_tables import write as write_tables

        write_tables(arguments.results)
        from mnist_figures import write as write_figures

        write_figures(arguments.results)
    return 0


def run(arguments: argparse.Namespace) -> None:
    """The parts asked for, or all in the order of their table."""
    import mnist_runs
    from ledger import Ledger
    from mnist_cells import PARTS, part

    ledger = Ledger(arguments.results / "runs.jsonl")
    names = list(PARTS) if arguments.parts is None else arguments.parts.split(",")
    cells = [cell for name in names for cell in part(name)]
    mnist_runs.run_all(cells, ledger, arguments.data, tell, arguments.limit)
    mnist_runs.time_all(ledger, arguments.data, tell)


if __name__ == "__main__":
    sys.exit(main())
