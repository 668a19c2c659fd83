"""The reduced Table I: `python studies/table_one.py run` trains, `figures` draws and tabulates.

`run` takes CIFAR-10's binary files from --data (or the variable MPISGD_DATA, a folder with
`cifar10` in it), keeps one line for each finished run in results/study-table-one/runs.jsonl, and
skips those.
"""

import sys
from pathlib import Path

import one_thread  # noqa: F401 - before anything imports NumPy
from command import add_data, parser, run_missing
from ledger import Ledger

HERE = Path(__file__).resolve().parent


def main() -> int:
    options = parser(__doc__, HERE.parent / "results" / "study-table-one")
    add_data(options, "cifar10", "CIFAR-10's files")
    arguments = options.parse_args()
    if arguments.command == "run":
        from table_one_runs import common, load, run_cell, sweep, tuned

        datasets, ledger = load(arguments.data), Ledger(arguments.results / "runs.jsonl")
        for cells in (sweep, lambda: tuned(ledger), common):
            run_missing(cells(), ledger, lambda cell: run_cell(cell, datasets))
    else:
        from table_one_tables import write

        write(arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
