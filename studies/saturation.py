"""Servers saturated by 16 workers: `python studies/saturation.py run` trains, `figures` tabulates.

`run` runs the virtual cells, and the real ones with --real (mpiexec, 17 to 20 ranks); it keeps one
line for each run in results/study-saturation/runs.jsonl, and skips those.
"""

import sys
import tempfile
from pathlib import Path

import one_thread  # noqa: F401 - before anything imports NumPy
from command import parser, run_missing
from ledger import Ledger

HERE = Path(__file__).resolve().parent


def main() -> int:
    options = parser(__doc__, HERE.parent / "results" / "study-saturation")
    options.add_argument("--real", action="store_true", help="runs on real ranks instead")
    options.add_argument("--mpiexec", help="which mpiexec [the one beside this Python]")
    arguments = options.parse_args()
    ledger = Ledger(arguments.results / "runs.jsonl")
    if arguments.command == "figures":
        from saturation_tables import write

        write(arguments.results)
    elif arguments.real:
        from saturation_runs import real_cells, run_real

        from mpisgd.mpi.mpiexec import find

        mpiexec = find(arguments.mpiexec)
        with tempfile.TemporaryDirectory() as folder:
            run_missing(real_cells(mpiexec.kind), ledger,
                        lambda cell: run_real(cell, mpiexec, Path(folder)))  # fmt: skip
    else:
        from saturation_runs import run_set_up, run_virtual, set_up_cells, virtual_cells

        run_missing(set_up_cells(), ledger, run_set_up)
        run_missing(virtual_cells(), ledger, run_virtual)
    return 0


if __name__ == "__main__":
    sys.exit(main())
