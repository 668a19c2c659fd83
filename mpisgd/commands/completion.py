"""`mpisgd completion SHELL`: a script by which a shell completes commands, options and names."""

import argparse
import re
from typing import Any

from mpisgd.values.errors import MissingExtra

SHELLS = ("bash", "zsh", "fish", "tcsh")
FOLDERS = ("DIR", "FOLDER")
FILES = ("FILE", "PATH", "GRID", "RUN", "BEFORE", "AFTER")
NAMES = re.compile(r"(?:one|some) of ([\w:,.\- ]+?)(?:,? or |, [A-Z]|$| \(| \[)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd completion`."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")


def run(arguments: argparse.Namespace) -> int:
    """Print the script. UsageError without shtab, of the extra `completion`."""
    try:
        import shtab
    except ImportError:
        raise MissingExtra("shtab", "mpisgd completion", "completion") from None
    from mpisgd import cli

    parser = cli.parser_of(cli.COMMANDS)
    _prepare(parser, shtab)
    print(shtab.complete(parser, arguments.shell))
    return 0


def _prepare(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Say of each option what stands behind it; this parser parses nothing."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _prepare(sub, shtab)
        elif action.choices is None and action.nargs != 0:
            word = re.split(r"[^A-Z]", str(action.metavar or ""))[0]
            if word in FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif word in FILES or action.dest == "folder":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif found := NAMES.search(action.help or ""):
                action.choices = found[1].split(", ")
