"""The documentation as a site (mkdocs.yml): docs/, other pages of the repository, and references of
the command line and of Python that are generated from the code."""

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMAND_LINE, PYTHON = "reference/command-line.md", "reference/python-api.md"
# A page that is named nowhere comes under the last.
SECTIONS: dict[str, list[str]] = {
    "Start": ["index.md", "cluster.md"],
    "Tutorials": [
        "train.md", "walkthroughs.md", "overlap.md", "tune.md", "recipes.md", "plugins.md",
    ],
    "How-to": [
        "bench.md", "report.md", "compare.md", "submit.md", "harnesses.md", "checkpoints.md",
        "networks.md", "servers.md", "python.md", "gpu.md",
    ],
    "Explanation": [
        "algorithms.md", "curves.md", "simulate.md", "predict.md", "validate.md",
        "DESIGN.md", "results/README.md",
    ],
    "Reference": [
        COMMAND_LINE, PYTHON, "result-files.md", "allreduce.md", "CHANGELOG.md", "CONTRIBUTING.md",
    ],
}  # fmt: skip
SHOWN = (".md", ".csv", ".html", ".png", ".svg")  # of results
LINK = re.compile(r"(?<!!)\]\(([^)\s]+)\)")


def outside() -> list[str]:
    """Files of the repository that are shown too, by their paths there."""
    results = (ROOT / "results").rglob("*")
    shown = [p.relative_to(ROOT).as_posix() for p in results if p.suffix in SHOWN]
    pages = ["README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "packaging/README.md"]
    return [*pages, *sorted(shown)]


def placed(path: str) -> str:
    """Where a file of the repository lies in the site."""
    return {"README.md": "index.md"}.get(path, path.removeprefix("docs/"))


def moved(text: str, path: str) -> str:
    """`text` of the file `path` of the repository, with links as they are in the site."""

    def link(found: re.Match[str]) -> str:
        target, hash_, anchor = found[1].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        there = placed(os.path.normpath(os.path.join(os.path.dirname(path), target)))
        relative = os.path.relpath(there, os.path.dirname(placed(path)) or ".")
        return f"]({relative}{hash_}{anchor})"

    return LINK.sub(link, text)


def command_line() -> str:
    """Every command with all its options."""
    from mpisgd import cli
    from mpisgd.values import help as helps

    os.environ["COLUMNS"] = "100"
    parser = cli.parser_of(cli.COMMANDS)
    parts = [f"## {each.prog}\n\n```text\n{helps.whole(each)}```\n" for each in _parsers(parser)]
    return "# Command line\n\nGenerated from the code.\n\n" + "\n".join(parts)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _parsers(sub)


def python_api() -> str:
    """What `mpisgd` and `allreduce` offer to programs, by mkdocstrings."""
    import mpisgd

    names = [f"{module}.{name}" for name, module in mpisgd.PUBLIC.items()]
    lines = ["# Python", "", "Generated from the code; examples: [From Python](../python.md).", ""]
    for name in [*names, "mpisgd.report.collection.Collection", "allreduce"]:
        lines += [f"::: {name}", ""]
    return "\n".join(lines)


def on_config(config: Any) -> Any:
    """Sections, of the pages that there are."""
    there = {placed(path) for path in outside() if path.endswith(".md")}
    there |= {page.name for page in (ROOT / "docs").glob("*.md")} | {COMMAND_LINE, PYTHON}
    named = {page for pages in SECTIONS.values() for page in pages}
    nav = {title: [page for page in pages if page in there] for title, pages in SECTIONS.items()}
    nav["Reference"] += sorted(page for page in there - named if "/" not in page)
    config.nav = [{title: pages} for title, pages in nav.items()]
    config.validation.nav.omitted_files = 10  # studies are reached by links
    return config


def on_files(files: Any, config: Any) -> Any:
    """What lies elsewhere, and what is generated."""
    from mkdocs.structure.files import File

    for path in outside():
        if path.endswith(".md"):
            text = moved((ROOT / path).read_text(encoding="utf-8"), path)
            files.append(File.generated(config, placed(path), content=text))
        else:
            files.append(File.generated(config, placed(path), abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, COMMAND_LINE, content=command_line()))
    files.append(File.generated(config, PYTHON, content=python_api()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links of pages in docs/."""
    source = page.file.abs_src_path
    return moved(markdown, f"docs/{page.file.src_uri}") if source else markdown
