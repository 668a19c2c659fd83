"""Backup workers on real ranks: `python studies/backup_real.py run` trains, `figures` tabulates.

`run` starts 1 server and 8 workers with mpiexec, one worker slowed 5 times, keeps one line for each
launch in results/study-backup-real/runs.jsonl, and skips those. Files go to --files.
"""

import sys
import tempfile
from pathlib import Path

from command import parser, run_missing
from ledger import Ledger

HERE = Path(__file__).resolve().parent


def main() -> int:
    options = parser(__doc__, HERE.parent / "results" / "study-backup-real")
    options.add_argument("--mpiexec", help="which mpiexec [the one beside this Python]")
    options.add_argument("--files", type=Path, help="folder of result files [a temporary one]")
    arguments = options.parse_args()
    if arguments.command == "run":
        from backup_real_runs import cells, run_cell

        from mpisgd.mpi.mpiexec import find

        mpiexec = find(arguments.mpiexec)
        with tempfile.TemporaryDirectory() as temporary:
            folder = arguments.files or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            run_missing(
                cells(mpiexec.kind), Ledger(arguments.results / "runs.jsonl"),
                lambda cell: run_cell(cell, mpiexec, folder),
            )  # fmt: skip
    else:
        from backup_real_tables import write

        write(arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
