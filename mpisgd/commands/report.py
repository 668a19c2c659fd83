"""`mpisgd report`: compare result files in tables, figures, a page and a timeline."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpisgd.store.lock import save, stream
from mpisgd.store.target import check_not_read, check_target
from mpisgd.values import tables
from mpisgd.values.errors import UsageError

if TYPE_CHECKING:
    from mpisgd.report.reference import Curve
    from mpisgd.report.sections import Report

FORMATS = (*tables.FORMATS, "fom")

WIDTH = 132  # columns of a text table that goes to a file or a pipe
TABLES = (
    "runs", "runs-mean", "servers", "servers-mean", "shards", "staleness", "arrivals", "late",
    "targets", "targets-mean", "sweep", "scaling", "fits", "bench", "fastest", "auto",
    "evaluation", "steps", "reference",
)  # fmt: skip
LEGEND = True  # --columns without a value, which no text is
PICTURES = ("png", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd report`."""
    parser.add_argument(
        "files", nargs="*", metavar="FILES", help="result files, or folders of them"
    )
    parser.add_argument("--columns", nargs="?", const=LEGEND, metavar="all|A,B,...",
                        help="show all columns, or these; alone: say what each means "
                        "[text: the essential ones; other formats: all]")  # fmt: skip
    shown = "of what is printed [table; nothing when a file is written]"
    parser.add_argument("--format", choices=FORMATS, help=shown)
    parser.add_argument("--table", choices=TABLES, help="print this table only")
    parser.add_argument("--targets", metavar="A,B,...", default="0.9,0.95",
                        help="accuracies to reach, or loss:2.183 [0.9,0.95]")  # fmt: skip
    parser.add_argument("--reference", metavar="FILE.csv",
                        help="a curve of others: columns epochs, accuracy, ...")  # fmt: skip
    parser.add_argument("--thin", metavar="N",
                        help="rows of a run in the tables evaluation and steps")  # fmt: skip
    grouped = parser.add_mutually_exclusive_group()
    grouped.add_argument(
        "--group-by",
        metavar="A,B,...",
        help="average runs that agree in these settings [in all but the seed]",
    )
    grouped.add_argument("--no-group", action="store_true", help="show each run by itself")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page")
    parser.add_argument("--figures", metavar="DIR", help="write the figures to this folder")
    parser.add_argument("--picture", choices=PICTURES, default="svg", help="their form [svg]")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline for Perfetto (JSON)")
    parser.add_argument("--steps", metavar="A:B", help="of --trace: these steps [all]")
    parser.add_argument("--trace-limit", metavar="SIZE", help="cut --trace off at that size [64M]")
    parser.add_argument("--overwrite", action="store_true", help="replace what is written")


def run(arguments: argparse.Namespace) -> int:
    """Report; exit code 1 when a file could not be read and the rest was reported all the same,
    2 when none could."""
    explained = arguments.columns is LEGEND
    written = arguments.html or arguments.figures or arguments.trace
    if not arguments.files and (written or not explained):
        raise UsageError("FILES", None, "name result files, or folders of them")
    if explained:
        from mpisgd.report import curves, reference
        from mpisgd.report.sections import legend

        meant = legend((curves.EVALUATION, curves.STEPS, reference.COLUMNS))

        arguments.columns = None
        if not written:
            print(meant)
            return 0
    code = _report(arguments)
    if explained:
        print(meant)
    return code


def _report(arguments: argparse.Namespace) -> int:
    from mpisgd.report import reference
    from mpisgd.report.collect import collect, find
    from mpisgd.report.sections import report, shown
    from mpisgd.report.targets import parse
    from mpisgd.report.views import asked_for
    from mpisgd.values.options import whole

    wanted = parse(arguments.targets)
    thin = None if arguments.thin is None else whole(2, 10**9).read("--thin", arguments.thin)
    curves = [] if arguments.reference is None else reference.load(arguments.reference)
    columns = None if arguments.columns is None else asked_for(arguments.columns)
    by = None if arguments.group_by is None else asked_for(arguments.group_by, "--group-by")
    _check_outputs(arguments)
    _of_trace(arguments)
    files = find(arguments.files)
    _check_not_read(arguments, files)
    runs, problems = collect(files)
    for problem in problems:
        print(f"mpisgd report: {problem}", file=sys.stderr)
    if runs:
        tables_ = report(runs, wanted, problems, by, not arguments.no_group, columns or ())
        made = _with_curves(tables_, arguments, curves, thin)
        width, wrap = _widths()
        there_are = [section.name for section in made.sections]
        if arguments.table not in (None, *there_are):
            allowed = f"these files have no such table; there are {', '.join(there_are)}"
            raise UsageError("--table", arguments.table, allowed)
        text = shown(made, arguments.format or "table", arguments.table, width, columns, wrap)
        _write(made, arguments)
        written = arguments.html or arguments.figures or arguments.trace
        if arguments.format or arguments.table or arguments.columns or not written:
            print(text)
        if arguments.format in ("csv", "fom"):
            for note in made.notes:
                print(f"note: {note}", file=sys.stderr)
    return (1 if runs else 2) if problems else 0


def _with_curves(
    made: "Report", arguments: argparse.Namespace, curves: "list[Curve]", thin: int | None
) -> "Report":
    """With evaluations and steps, where they are asked for, and a reference beside them. JSON has
    evaluations anyway; steps are many."""
    from mpisgd.report import reference
    from mpisgd.report.curves import NAMES, section

    asked = [arguments.table] + ["evaluation"] * (arguments.format == "json")
    found = [section(name, made.runs, thin) for name in NAMES if name in asked]
    found += reference.sections(made.runs, curves)
    told = made.notes + reference.notes(made.runs, curves)
    sections = made.sections + [each for each in found if each.rows]
    return made._replace(sections=sections, notes=told, reference=curves)


def _widths() -> tuple[int, int]:
    """Of tables, and of notes: those of a file or a pipe are not wrapped, for who searches them."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return WIDTH, 0
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    return width, width


def _write(made: "Report", arguments: argparse.Namespace) -> None:
    """What goes to files, each written beside its target and renamed."""
    if arguments.figures:
        from mpisgd.report.figures import draw, encoded

        Path(arguments.figures).mkdir(exist_ok=True)
        for name, figure in draw(made).items():
            path = Path(arguments.figures) / f"{name}.{arguments.picture}"
            _save(path, encoded(figure, arguments.picture), "--figures")
    if arguments.html:
        from mpisgd.report.html import page

        _save(Path(arguments.html), page(made).encode(), "--html")
    if arguments.trace:
        from mpisgd.report.trace import Timeline

        trace = Timeline(made.runs, *_of_trace(arguments))
        stream(arguments.trace, map(str.encode, trace), "--trace")
        print(f"mpisgd report: wrote {arguments.trace}", file=sys.stderr)
        if trace.left_out:
            print(f"mpisgd report: note: {trace.left_out}", file=sys.stderr)


def _save(path: Path, content: bytes, option: str) -> None:
    save(path, content, option)
    print(f"mpisgd report: wrote {path}", file=sys.stderr)


def _of_trace(arguments: argparse.Namespace) -> tuple[tuple[int, int] | None, int]:
    """Its steps, and its size in bytes."""
    from mpisgd.report.trace import LARGEST, steps_of
    from mpisgd.values.options import size

    for option, value in (("--steps", arguments.steps), ("--trace-limit", arguments.trace_limit)):
        if value is not None and arguments.trace is None:
            raise UsageError(option, value, "is of --trace FILE")
    steps = None if arguments.steps is None else steps_of(arguments.steps)
    limit = arguments.trace_limit
    return steps, LARGEST if limit is None else size().read("--trace-limit", limit)


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Everything that will be written can be, before anything is read."""
    for option, path in (("--html", arguments.html), ("--trace", arguments.trace)):
        if path is not None:
            check_target(path, arguments.overwrite, option=option)
    folder = arguments.figures
    if folder is None:
        return
    if os.path.isdir(folder):
        if os.listdir(folder) and not arguments.overwrite:
            raise UsageError("--figures", folder, "is not empty; pass --overwrite or name another")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError("--figures", folder, "cannot be written to")
    elif os.path.lexists(folder):
        raise UsageError("--figures", folder, "is a file; name a folder, which may be new")
    else:
        check_target(folder.rstrip("/"), option="--figures")


def _check_not_read(arguments: argparse.Namespace, files: Sequence[str]) -> None:
    """Nothing that is written is one of the `files`, nor the same as something else written."""
    read = list(files)
    if arguments.figures is not None and os.path.isdir(arguments.figures):
        for path in Path(arguments.figures).glob(f"*.{arguments.picture}"):
            check_not_read(path, read, "--figures")
    for option, path in (("--html", arguments.html), ("--trace", arguments.trace)):
        if path is not None:
            check_not_read(path, read, option)
    pair = [path for path in (arguments.html, arguments.trace) if path is not None]
    if len(pair) == 2 and len(set(map(os.path.realpath, pair))) == 1:
        raise UsageError("--trace", arguments.trace, "is --html too; name another file")
