"""Simulation against reality: `mpisgd validate` in labs of several sizes, in one JSON file.

    python benchmarks/lab_model.py --hosts 2,4,8 --output FILE.json [--rate 200mbit] [-- WORDS...]

WORDS go to `mpisgd validate`, which calibrates, simulates and measures in turns; its page says how
errors are counted. Needs root, see `mpisgd lab`.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from lab_runs import command_python, run_in_lab

from mpisgd.mpi import mpiexec
from mpisgd.mpi.lab import Lab
from mpisgd.validation import errors
from mpisgd.values import tables

LONGEST_S = 3600  # of a validation
COLUMNS = ("mpi", "hosts", *errors.COLUMNS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mpiexec", help="of the MPI to measure; its python runs the ranks")
    parser.add_argument("--output")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- WORDS...")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    load_1min = os.getloadavg()[0]
    for hosts in map(int, options.hosts.split(",")):
        line = [command_python(options.mpiexec), "-m", "mpisgd", "validate", "--format", "json"]
        with Lab(hosts, options.rate, mpiexec=options.mpiexec) as lab:
            told = run_in_lab(lab, hosts, [*line, *options.words[1:]], timeout=LONGEST_S)
        found = {"mpi": mpiexec.find(options.mpiexec).kind, "hosts": hosts}
        rows += [found | row for row in json.loads(told)]
        if options.output:  # what is known so far: a run that is cut off has lost nothing
            told_of = {"method": __doc__, "options": vars(options), "load_1min": load_1min}
            text = json.dumps(told_of | {"groups": errors.summary(rows), "rows": rows}, indent=1)
            Path(options.output).write_text(text + "\n", encoding="utf-8")
    print(tables.render(COLUMNS, rows, "table"))
    print("\n" + tables.render(errors.SUMMARY, errors.summary(rows), "table"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
