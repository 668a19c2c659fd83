"""`--help` on one screen: the common options, a line each, by groups; `--help-all` tells all.

What is common stands in COMMON; of a command that is not there, its first options. A command whose
whole help fits a screen shows that.
"""

import argparse
import shutil
import textwrap
from collections.abc import Iterator

SCREEN = 24  # lines
LEFT = 26  # columns of an option's name, at most

# Program and command -> what most runs need, by groups of the whole help.
COMMON = {
    "mpisgd train": (
        "--algorithm", "--tau", "--delay", "--allreduce", "--network", "--model", "--data",
        "--batch", "--epochs", "--lr", "--step-time", "--virtual", "--output", "--resume",
    ),
    "mpisgd calibrate": (
        "--output", "--overwrite", "--repetitions", "--batches", "--model", "--hidden", "--data",
        "--dtype", "--deadline",
    ),
    "mpisgd bench allreduce": (
        "--algorithms", "--sizes", "--dtype", "--chunks", "--backend", "--time-budget", "--bind",
        "--output", "--overwrite", "--format",
    ),
    "mpisgd bench overlap": (
        "--algorithms", "--sizes", "--work", "--work-time", "--polls", "--progress",
        "--time-budget", "--bind", "--output", "--overwrite", "--format",
    ),
    "mpisgd simulate": (
        "--algorithm", "--ranks", "--bytes", "--network", "--latency", "--bandwidth", "--chunks",
        "--skew", "--repetitions", "--format",
    ),
    "mpisgd predict": (
        "--show", "--net", "--device", "--network", "--ranks", "--batch", "--scaling",
        "--allreduce", "--algorithms", "--peak-share", "--tau", "--delay", "--figure", "--format",
    ),
    "mpisgd advise": (
        "--from", "--step-time", "--all-reduce-time", "--net", "--device", "--network", "--ranks",
        "--batch", "--spread", "--backups", "--straggler", "--iterations", "--figure", "--format",
    ),
}  # fmt: skip


class HelpAll(argparse.Action):
    """Prints the whole help."""

    def __call__(self, parser, *_):
        print(whole(parser), end="")
        parser.exit()


def add_help(parser: argparse.ArgumentParser) -> None:
    """What every command has: the two options that print help, and `--quiet`."""
    parser.add_argument("-h", "--help", action="help", help="show the common options and exit")
    parser.add_argument("--help-all", action=HelpAll, nargs=0, help="show all options and exit")
    parser.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS,
                        help="no bars, and no lines of how far it is")  # fmt: skip


def usage(parser: argparse.ArgumentParser) -> str:
    """`PROGRAM [OPTION...] ARGUMENT...`: options are listed below it."""
    formatter = parser._get_formatter()
    told = [a for a in parser._actions if a.required or not a.option_strings]
    formatter.add_usage(None, told, (), prefix="")
    behind = formatter.format_help().strip().removeprefix(parser.prog).strip()
    return f"usage: {parser.prog} [OPTION...] {behind}".rstrip()


def whole(parser: argparse.ArgumentParser) -> str:
    """Every option in full, under a usage of one line."""
    _, _, behind = argparse.ArgumentParser.format_help(parser).partition("\n\n")
    return f"{usage(parser)}\n\n{behind}"


def screen(parser: argparse.ArgumentParser) -> str:
    """The whole help of `parser`, if it fits; else what is common, and where the rest is."""
    if (everything := whole(parser)).count("\n") <= SCREEN:
        return everything
    width = max(40, shutil.get_terminal_size().columns)
    lines = [usage(parser), parser.description or ""]
    room = SCREEN - len(lines) - 1
    for title, rows in _groups(parser, room):
        lines.append(f"{title}:")
        lines += [_line(left, told, width) for left, told in rows]
    count = sum(bool(action.option_strings) for action in parser._actions)
    lines.append(f"{parser.prog} --help-all tells all {count} options, and each in full.")
    return "\n".join(lines) + "\n"


def _groups(
    parser: argparse.ArgumentParser, room: int
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Title and rows of each group that has any; not more lines than there is room for."""
    common = COMMON.get(parser.prog)
    for group in parser._action_groups:
        rows: list[tuple[str, str]] = []
        for action in group._group_actions:
            wanted = common is None or action.required or {*action.option_strings} & {*common}
            if wanted and action.dest not in ("help", "help_all", "quiet", "version"):
                rows += _rows(parser, action)
        rows = rows[: max(0, room - 1)]
        if rows:
            room -= 1 + len(rows)
            yield group.title or "more", rows


def _rows(parser: argparse.ArgumentParser, action: argparse.Action) -> list[tuple[str, str]]:
    if isinstance(action, argparse._SubParsersAction):
        return [(each.dest, each.help or "") for each in action._choices_actions]
    formatter = parser._get_formatter()
    told = formatter._expand_help(action) if action.help else ""
    left = formatter._format_action_invocation(action)
    if action.choices is not None and action.metavar is None:  # too many for a name
        left = f"{action.option_strings[-1]} NAME" if action.option_strings else action.dest
        told = f"{', '.join(map(str, action.choices))}: {told}"
    return [(left, told)]


def _line(left: str, told: str, width: int) -> str:
    """One line, cut where the terminal ends."""
    text = textwrap.shorten(told, max(10, width - LEFT - 1), placeholder=" ...")
    return f"  {left:<{LEFT - 3}} {text}".rstrip()[:width]
