"""Initial rates, and iterations(N): `python studies/initial_rate.py run` trains, `figures` draws,
tabulates and writes iterations.json, which `mpisgd advise --backups` reads.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-initial-rate/runs.jsonl, and skips those.
"""

import sys
from pathlib import Path

import one_thread  # noqa: F401 - before anything imports NumPy
from command import add_data, parser, run_missing
from ledger import Ledger

HERE = Path(__file__).resolve().parent


def main() -> int:
    options = parser(__doc__, HERE.parent / "results" / "study-initial-rate")
    add_data(options, "mnist", "IDX files of MNIST")
    arguments = options.parse_args()
    if arguments.command == "run":
        from initial_rate_runs import cells, run_cell
        from mnist_runs import load

        datasets = load(arguments.data)
        run_missing(
            cells(), Ledger(arguments.results / "runs.jsonl"), lambda cell: run_cell(cell, datasets)
        )
    else:
        from initial_rate_tables import write

        write(arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
