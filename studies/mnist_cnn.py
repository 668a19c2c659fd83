"""The study of the MNIST CNN: `python studies/mnist_cnn.py run` trains, `figures` draws.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-mnist-cnn/runs.jsonl, and skips those.
"""

import sys
from pathlib import Path

import one_thread  # noqa: F401 - before anything imports NumPy
from command import add_data, parser, run_missing
from ledger import Ledger

HERE = Path(__file__).resolve().parent


def main() -> int:
    options = parser(__doc__, HERE.parent / "results" / "study-mnist-cnn")
    add_data(options, "mnist", "IDX files of MNIST")
    arguments = options.parse_args()
    if arguments.command == "run":
        from mnist_cnn_runs import common, load, run_cell, sweep, tuned

        datasets, ledger = load(arguments.data), Ledger(arguments.results / "runs.jsonl")
        for cells in (common, sweep, lambda: tuned(ledger)):
            run_missing(cells(), ledger, lambda cell: run_cell(cell, datasets))
    else:
        from mnist_cnn_tables import write

        write(arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
