"""Help: on a screen, with units; all of it by --help-all; shells complete it."""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mpisgd import cli
from mpisgd.values import help as helps

UNIT = re.compile(r"\d ?(?:ns|us|ms|s|min)\b|seconds|epoch")
SIZE = re.compile(r"\d ?(?:[KMG]i?B?|B)\b|bytes")


def parsers(parser: argparse.ArgumentParser | None = None) -> Iterator[argparse.ArgumentParser]:
    """That of `mpisgd` and all below it."""
    parser = parser or cli.parser_of(cli.COMMANDS)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from parsers(sub)


EVERY = list(parsers())


@pytest.mark.parametrize("parser", EVERY, ids=lambda parser: parser.prog)
def test_help_fits_a_screen_and_all_of_it_names_every_option(parser, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = parser.format_help().splitlines()
    assert len(shown) <= helps.SCREEN
    assert max(map(len, shown)) <= 80
    everything = helps.whole(parser)
    assert [
        name for a in parser._actions for name in a.option_strings if name not in everything
    ] == []


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_help_in_other_terminals(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    train = next(parser for parser in EVERY if parser.prog == "mpisgd train")
    shown = train.format_help().splitlines()
    assert len(shown) <= helps.SCREEN
    assert any(line.startswith("  --algorithm NAME") for line in shown)


def test_what_is_common_is_there():
    known = {parser.prog: set(parser.options()) for parser in EVERY}
    for program, names in helps.COMMON.items():
        assert set(names) <= known[program], program


def test_every_option_says_what_it_is_and_in_which_unit():
    for parser in EVERY:
        for action in parser._actions:
            if not action.option_strings:
                continue
            told = action.help or ""
            where = (parser.prog, action.option_strings[-1])
            assert told, where
            if action.metavar in ("T", "TIME"):
                assert UNIT.search(told), where
            if action.metavar in ("SIZE", "SIZES"):
                assert SIZE.search(told), where


def test_help_all_is_printed_and_needs_no_required_argument(capsys):
    for words in (["train"], ["submit"], ["bench", "overlap"]):
        with pytest.raises(SystemExit) as left:
            cli.main([*words, "--help-all"])
        assert left.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: mpisgd {' '.join(words)}")


def test_bash_completes_commands_options_and_names(tmp_path):
    pytest.importorskip("shtab", reason="needs the extra completion")
    script = tmp_path / "completion"
    words = [sys.executable, "-m", "mpisgd", "completion"]
    done = subprocess.run([*words, "bash"], capture_output=True, text=True, check=True)
    script.write_text(done.stdout)
    for typed, last, wanted in (
        ("mpisgd", "tr", "train"),
        ("mpisgd train --algorithm", "das", "dasgd"),
        ("mpisgd train", "--checkpoint-e", "--checkpoint-every"),
        ("mpisgd bench", "over", "overlap"),
    ):
        ask = (
            f"source {script}; COMP_WORDS=({typed} {last}); "
            "COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _shtab_mpisgd; echo ${COMPREPLY[*]}"
        )
        told = subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout.split()
        assert told == [wanted]
    for shell in ("zsh", "fish", "tcsh"):
        done = subprocess.run([*words, shell], capture_output=True, text=True, check=True)
        assert "checkpoint-every" in done.stdout


def test_without_its_library_completion_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert "pip install -e '.[completion]'" in capsys.readouterr().err
