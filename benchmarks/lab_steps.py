"""Predicted against measured seconds per step, of whole training runs in the lab.

    python benchmarks/lab_steps.py results/reference/overlap-2-hosts-mpich-step-time.json ...

For each file of lab_overlap.py made with --step-time: calibrate the lab with messages between two
hosts, run the same algorithms on the virtual clock over that network, compare. A padded step
looks all the time, so the clock makes perfect progress. Writes steps-lab.json beside the first
file. Needs root.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_runs import ALONE, command_python, finished, run_in_lab, words

from mpisgd.cli import main as mpisgd
from mpisgd.mpi.lab import Lab
from mpisgd.values import tables

COLUMNS = (
    "mpi", "hosts", "algorithm", "launches", tables.Column("measured_ms", ".2f"),
    tables.Column("predicted_ms", ".2f"), tables.Column("error", "+.1%"),
)  # fmt: skip


def main(files: list[str]) -> int:
    rows: list[dict[str, Any]] = []
    for file in files:
        rows += _compare(json.loads(Path(file).read_text(encoding="utf-8")))
    print(tables.render(COLUMNS, rows, "table"))
    found = {"method": __doc__, "rows": rows, "worst_error": max(abs(r["error"]) for r in rows)}
    path = Path(files[0]).with_name("steps-lab.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _compare(measured: dict[str, Any]) -> list[dict[str, Any]]:
    options, hosts = measured["options"], measured["options"]["hosts"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        network = str(Path(folder) / "lab.toml")
        with Lab(hosts, options["rate"], mpiexec=options["mpiexec"]) as lab:
            python = command_python(options["mpiexec"])
            line = [python, "-m", "mpisgd", "calibrate", "--output", network]
            run_in_lab(lab, hosts, line, timeout=600)
        for row in measured["rows"]:
            name = row["algorithm"]
            if name == ALONE:
                continue
            output = Path(folder) / f"{name.replace(' ', '-')}.h5"
            line = words(name, argparse.Namespace(**options), output)
            line += ["--virtual", str(hosts), "--network", network, "--progress", "perfect"]
            if mpisgd(line):
                raise SystemExit(f"failed: mpisgd {' '.join(line)}")
            with finished(output) as (_, step_s):
                predicted_ms = step_s * 1e3
            rows.append({
                "mpi": row["mpi"], "hosts": hosts, "algorithm": name, "launches": row["launches"],
                "measured_ms": row["step_ms"], "predicted_ms": predicted_ms,
                "error": predicted_ms / row["step_ms"] - 1,
            })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
