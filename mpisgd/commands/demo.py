"""`mpisgd demo`: mini-batch SGD, Local SGD and DaSGD on real digits, on 4 ranks, compared."""

import argparse
import subprocess
import sys
from pathlib import Path

from mpisgd.mpi import mpiexec
from mpisgd.store.target import check_target
from mpisgd.values import tables
from mpisgd.values.errors import UsageError

RANKS = 4
NEXT = """
On one machine an average costs less than a step saves: DaSGD has little to hide here, and pays for
it with the steps that it discards (effective_step_s). A slow network, on a virtual clock:
  mpisgd train --virtual 8 --network ethernet-10g --step-time 100us \\
      --algorithm dasgd --output {folder}/slow.h5
All files as a page: mpisgd report {folder} --html {folder}/report.html"""
TIMEOUT = 120.0  # s for one run
COMMON = "--data digits --model mlp --hidden 64 --batch 8 --epochs 20 --lr 0.1 --momentum 0.9"
RUNS = {
    "minibatch": "--algorithm minibatch",
    "local": "--algorithm local --tau 4",
    "dasgd": "--algorithm dasgd --tau 4 --delay 1 --xi 0.25",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd demo`."""
    parser.add_argument("--folder", default="demo", help="where the result files go [demo]")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier result files")
    parser.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


def run(arguments: argparse.Namespace) -> int:
    """Three runs of `mpisgd train` under mpiexec, then `mpisgd report` on their files."""
    folder = Path(arguments.folder)
    files = {name: str(folder / f"{name}.h5") for name in RUNS}
    if folder.exists() and not folder.is_dir():
        raise UsageError("--folder", arguments.folder, "is not a folder")
    if folder.is_dir():
        for file in files.values():
            check_target(file, arguments.overwrite)
    launcher = mpiexec.find()
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in RUNS.items():
        words = ["train", *options.split(), *COMMON.split(), "--output", files[name], "--overwrite"]
        print("mpiexec -n", RANKS, "mpisgd", *words, file=sys.stderr, flush=True)
        done = launcher.run(RANKS, mpiexec.own(["mpisgd", *words]), timeout=TIMEOUT)
        if done.returncode:
            sys.stderr.write(done.stdout + done.stderr)
            return done.returncode
    report = ["report", *files.values(), "--format", arguments.format]
    print("mpisgd", *report, file=sys.stderr, flush=True)
    code = subprocess.run(mpiexec.own(["mpisgd", *report]), timeout=TIMEOUT).returncode
    print(NEXT.format(folder=folder), file=sys.stderr)
    return code
