"""Links of the documentation lead somewhere; the references of the site have every option."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "results/*.md", "results/*/*.md", "packaging/*.md")
    for page in CHECKOUT.glob(pattern)
)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def site():
    spec = importlib.util.spec_from_file_location("docs_site", CHECKOUT / "docs/_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as renderers make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_to_files_and_headings(page):
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_a_link_of_the_repository_is_one_of_the_site():
    moved = site().moved
    assert (
        moved("[a](docs/train.md#x) [b](DESIGN.md)", "README.md")
        == "[a](train.md#x) [b](DESIGN.md)"
    )
    assert moved("[a](../results/README.md)", "docs/servers.md") == "[a](results/README.md)"
    assert moved("[a](study/README.md)", "results/README.md") == "[a](study/README.md)"
    assert (
        moved("[a](https://x.org/a.md) [b](#c)", "README.md") == "[a](https://x.org/a.md) [b](#c)"
    )


def test_what_pages_of_the_site_link_to_is_in_it():
    """Pictures, tables and pages alike: a strict build asks for them."""
    made = site()
    docs = (CHECKOUT / "docs").rglob("*")
    there = {*made.outside(), *(page.relative_to(CHECKOUT).as_posix() for page in docs)}
    missing = [
        (page, target)
        for page in sorted(each for each in there if each.endswith(".md"))
        for target in LINK.findall(FENCE.sub("", (CHECKOUT / page).read_text()))
        if "://" not in target and not target.startswith(("#", "mailto:"))
        if os.path.normpath(Path(page).parent / target.partition("#")[0]) not in there
    ]
    assert missing == []


def test_the_reference_has_every_option(monkeypatch):
    from mpisgd import cli

    monkeypatch.setenv("COLUMNS", "80")
    told = site().command_line()
    assert [name for name in cli.parser_of(cli.COMMANDS).options() if name not in told] == []
    assert all(f"## mpisgd {command}\n" in told for command in cli.COMMANDS)


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-d",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=CHECKOUT, env={**os.environ})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "--checkpoint-every" in (tmp_path / "site/reference/command-line/index.html").read_text()
    assert "arXiv" in (tmp_path / "site/index.html").read_text()
