"""The straggler study: `python studies/stragglers.py run` plays, `figures` draws and tabulates.

Keeps one line for each finished cell in results/study-stragglers/runs.jsonl, and skips those.
"""

import sys
from pathlib import Path

import one_thread  # noqa: F401 - before anything imports NumPy
from command import parser, run_missing
from ledger import Ledger

RESULTS = Path(__file__).resolve().parent.parent / "results" / "study-stragglers"


def main() -> int:
    arguments = parser(__doc__, RESULTS).parse_args()
    if arguments.command == "run":
        from stragglers_runs import cells, run_cell

        run_missing(cells(), Ledger(arguments.results / "runs.jsonl"), run_cell)
    else:
        from stragglers_figures import write

        write(arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
