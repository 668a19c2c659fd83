"""The rate study: `python studies/rate.py run` trains, `figures` draws and tabulates.

Keeps one line for each finished run in results/study-rate/runs.jsonl, and skips those.
"""

import sys
from pathlib import Path

import one_thread  # noqa: F401 - before anything imports NumPy
from command import parser, tell

RESULTS = Path(__file__).resolve().parent.parent / "results" / "study-rate"


def main() -> int:
    arguments = parser(__doc__, RESULTS).parse_args()
    if arguments.command == "run":
        from ledger import Ledger
        from rate_runs import run_all

        run_all(Ledger(arguments.results / "runs.jsonl"), tell)
    else:
        from rate_figures import write

        write(arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
