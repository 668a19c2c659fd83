"""The command line: finds the command, sets up its process, turns mistakes into one line."""

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn, TextIO

from mpisgd import __version__
from mpisgd.mpi.announced import announced_tasks, check_alone, first_here
from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.help import add_help, screen
from mpisgd.values.options import whole
from mpisgd.values.processes import BLAS_VARIABLES
from mpisgd.values.progress import QUIET

COMMANDS = {
    "demo": (
        "mpisgd.commands.demo",
        "train three algorithms on real digits on 4 ranks and compare them",
    ),
    "doctor": ("mpisgd.commands.doctor", "what MPI and this machine can do, found by trying"),
    "train": ("mpisgd.commands.train", "train a model; run under mpiexec, or with --virtual"),
    "bench": ("mpisgd.commands.bench", "measure all-reduces; run under mpiexec"),
    "verify": ("mpisgd.commands.verify", "check all-reduce schedules symbolically"),
    "tune": ("mpisgd.commands.tune", "measure which all-reduce is fastest; run under mpiexec"),
    "calibrate": ("mpisgd.commands.calibrate", "measure a network and a step; run under mpiexec"),
    "validate": ("mpisgd.commands.validate", "by how much the model errs; run under mpiexec"),
    "simulate": ("mpisgd.commands.simulate", "price all-reduce schedules on a model of a network"),
    "predict": ("mpisgd.commands.predict", "model step and epoch times of networks on clusters"),
    "advise": (
        "mpisgd.commands.advise",
        "the delay that hides an all-reduce; the number of backups",
    ),
    "submit": ("mpisgd.commands.submit", "run a grid of experiments as Slurm jobs, or here"),
    "lab": ("mpisgd.mpi.lab", "run a command on hosts with a network of a chosen rate"),
    "replay": (
        "mpisgd.commands.replay",
        "repeat a run with servers or partial rounds to the same bits",
    ),
    "report": ("mpisgd.commands.report", "compare result files"),
    "sweep": ("mpisgd.commands.sweep", "which optimum of a sweep lies on an edge"),
    "export": ("mpisgd.commands.export", "the model that a run has learned, for other programs"),
    "compare": ("mpisgd.commands.compare", "what got worse between two sets of result files"),
    "completion": ("mpisgd.commands.completion", "print what makes a shell complete all this"),
}

ON_RANKS = {
    "train",
    "bench",
    "tune",
    "calibrate",
    "validate",
    "doctor",
}  # under mpiexec; all others are one process's affair

MOST_THREADS = 4096


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line. `command`: the one that was asked for."""

    command: str | None = None

    def __init__(self, **options: Any):
        super().__init__(**options, add_help=False)
        add_help(self)
        # -4M, -1ms, -inf are values, to be refused by the option that is given them.
        self._negative_number_matcher = re.compile(r"-(\.?\d|inf|nan)", re.ASCII)

    def format_help(self) -> str:
        return screen(self)

    def error(self, message: str) -> NoReturn:
        _, unknown, words = message.partition("unrecognized arguments: ")
        if unknown and words.startswith("--"):
            message += nearest(re.split("[= ]", words)[0], self.options())
        self.exit(_refuse(self.prog, message, self.command))

    def parse_known_args(self, args=None, namespace=None):
        """Of a sub-command, what it does not know is told in its name."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def options(self) -> list[str]:
        """All option strings, those of subcommands included."""
        names = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                names += [name for sub in action.choices.values() for name in sub.options()]
        return names


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, or 2 for a user's mistake."""
    _keep_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    _limit_blas_threads(words)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _check_values(words)
        named = next((word for word in words if not word.startswith("-")), None)
        parser = parser_of([named] if named in COMMANDS else [], named)
        arguments = parser.parse_args(words)
        if arguments.command is None:
            parser.print_help()
            return 0
        if getattr(arguments, "blas_threads", None) is not None:
            whole(1, MOST_THREADS).read("--blas-threads", arguments.blas_threads)
        if getattr(arguments, "quiet", False):
            os.environ[QUIET] = "1"
        if arguments.command not in ON_RANKS:
            check_alone()
        command = import_module(COMMANDS[arguments.command][0])
        return int(command.run(arguments) or 0)
    except UsageError as mistake:
        return _refuse(f"mpisgd {words[0]}", str(mistake), words[0])
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("mpisgd: interrupted", file=sys.stderr)
        return 130
    except (OSError, MemoryError) as error:
        print(f"mpisgd {words[0]}: {str(error) or 'out of memory'}", file=sys.stderr)
        return 1


class _Remarks(io.TextIOBase):
    """Standard error for remarks and bars: where it is closed or full, a run goes on without."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def _keep_streams() -> None:
    """A standard stream that the caller closed leads nowhere: its number must not become that of
    a result file. Nothing that is said on standard error ends a run."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if sys.stderr is sys.__stderr__ or sys.__stderr__ is None:
        sys.stderr = _Remarks(sys.stderr)


def _refuse(prog: str, mistake: str, command: str | None) -> int:
    """Say what the user got wrong, once for all that a launcher started; the exit code."""
    line = f"{prog}: error: {' '.join(mistake.split())}"
    if command in ON_RANKS and announced_tasks(os.environ) > 1:
        from mpisgd.mpi import session

        session.refuse_together(line)
        return 2
    with first_here() as speaks:
        if speaks:
            print(line, file=sys.stderr, flush=True)
    return 2


def parser_of(wanted: Collection[str], asked: str | None = None) -> Parser:
    """The parser, with the options of the commands `wanted`: only their modules are imported.

    `asked`: the command that a mistake is told of.
    """
    parser = Parser(prog="mpisgd", description="Distributed SGD on MPI, measured.")
    parser.command = asked
    parser.add_argument("--version", action="version", version=f"mpisgd {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=Parser
    )
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.command = asked
        if name in wanted:
            import_module(module).add_arguments(sub)
    return parser


def _check_values(words: Sequence[str]) -> None:
    """UsageError for `--OPTION=--`, of which argparse takes the value for its own sign."""
    for word in words:
        if word == "--":  # what follows is a command of the user's
            return
        if word.startswith("--") and word.endswith("=--"):
            raise UsageError(word.removesuffix("=--"), "--", "is no value")


def _limit_blas_threads(words: Sequence[str]) -> None:
    """One BLAS thread a rank unless `--blas-threads N`: the count changes bits and timings."""
    threads = "1"
    for i, word in enumerate(words):
        if word.startswith("--blas-threads="):
            threads = word.partition("=")[2]
        elif word == "--blas-threads" and i + 1 < len(words):
            threads = words[i + 1]
    if re.fullmatch("[0-9]{1,4}", threads) and 0 < int(threads) <= MOST_THREADS:
        for variable in BLAS_VARIABLES:
            os.environ[variable] = threads
