"""`mpisgd demo`: mini-batch SGD, Local SGD and DaSGD on real digits, on 4 ranks, compared."""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from mpisgd.experiment.backends import BACKENDS, HOST
from mpisgd.mpi import mpiexec
from mpisgd.store.target import check_target
from mpisgd.values import progress, tables
from mpisgd.values.errors import MissingExtra, UsageError

RANKS = 4
NEXT = """
On one machine an average costs less than a step saves: DaSGD has little to hide here, and pays for
it with the steps that it discards (effective_step_s). A slow network, on a virtual clock:
  mpisgd train --virtual 8 --network ethernet-10g --step-time 100us \\
      --algorithm dasgd --output {folder}/slow.h5
"""
PAGE = "All files as a page: mpisgd report {folder} --html {folder}/report.html"
TIMEOUT = 120.0  # s for one run
COMMON = "--data digits --model mlp --hidden 64 --batch 8 --epochs 20 --lr 0.1 --momentum 0.9"
RUNS = {
    "minibatch": "--algorithm minibatch",
    "local": "--algorithm local --tau 4",
    "dasgd": "--algorithm dasgd --tau 4 --delay 1 --xi 0.25",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd demo`."""
    parser.add_argument(
        "--folder", default="demo", metavar="DIR", help="where the result files go [demo]"
    )
    parser.add_argument("--html", action="store_true", help="also write DIR/report.html, a page")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier result files")
    parser.add_argument("--backend", choices=BACKENDS, default="numpy", help="as of train [numpy]")
    parser.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


def run(arguments: argparse.Namespace) -> int:
    """Three runs of `mpisgd train` under mpiexec, `mpisgd report` on their files, a picture."""
    folder = Path(arguments.folder)
    files = {name: str(folder / f"{name}.h5") for name in RUNS}
    page = folder / "report.html"
    if folder.exists() and not folder.is_dir():
        raise UsageError("--folder", arguments.folder, "is not a folder")
    if folder.is_dir():
        for file in files.values():
            check_target(file, arguments.overwrite, option="--folder")
        if arguments.html and page.exists() and not arguments.overwrite:
            raise UsageError("--html", str(page), "exists; pass --overwrite to replace it")
    if arguments.html and not (find_spec("matplotlib") and find_spec("jinja2")):
        raise MissingExtra("matplotlib and Jinja2", "a page", "plot")
    launcher = mpiexec.find()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("--folder", arguments.folder, error.strerror or str(error)) from None
    for name, options in progress.over(list(RUNS.items()), "demo", "run"):
        words = ["train", *options.split(), *COMMON.split(), "--output", files[name], "--overwrite"]
        words += ["--backend", arguments.backend] if arguments.backend != HOST else []
        print("mpiexec -n", RANKS, "mpisgd", *words, file=sys.stderr, flush=True)
        done = launcher.run(RANKS, mpiexec.own(["mpisgd", *words]), timeout=TIMEOUT)
        if done.returncode:
            sys.stderr.write(done.stdout + done.stderr)
            return done.returncode
    code = _report([*files.values(), "--format", arguments.format])
    if arguments.html and not code:
        code = _report([*files.values(), "--html", str(page), "--overwrite"])
    print(NEXT.format(folder=folder), file=sys.stderr)
    print(f"The page: {page}" if arguments.html else PAGE.format(folder=folder), file=sys.stderr)
    if not code:
        print(f"\n{_picture(files.values())}", file=sys.stderr)
    return code


def _report(words: list[str]) -> int:
    print("mpisgd report", *words, file=sys.stderr, flush=True)
    return subprocess.run(mpiexec.own(["mpisgd", "report", *words]), timeout=TIMEOUT).returncode


def _picture(files: Iterable[str]) -> str:
    """As wide as the terminal, in blocks where it can show them."""
    from mpisgd.report import picture
    from mpisgd.report.collection import load

    told = getattr(sys.stderr, "encoding", None) or sys.getdefaultencoding()
    try:
        "".join(picture.BLOCKS).encode(told)
        characters = picture.BLOCKS
    except UnicodeEncodeError:
        characters = picture.ASCII
    width = min(100, shutil.get_terminal_size().columns)
    return picture.picture(picture.shown(load(*files)), width, characters)
