"""Plug-ins for tests: the files of their page and its commands, and one of all that is wrong."""

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = (CHECKOUT / "docs" / "plugins.md").read_text(encoding="utf-8")
TYPED = '''
from typing import Literal, Optional
import numpy

def every(worker, needed: "int", *, number: float = 1, flag=False, word="a",
          one: Literal[1, "b"] = 1, some: Optional[int] = None, other: "str | None" = "x",
          array=numpy.zeros(3)):
    yield
def bad(worker, array: numpy.ndarray):
    yield
def broken(worker, x: Unknown = 1):
    yield
def few():
    yield
plain = 3
class Loose:
    def __init__(self, dataset):
        self.shapes = {}
def load():
    return 3
def load_path(path):
    return path
def refuses(dataset):
    raise RuntimeError("no such\\ncolour")
class Noisy:
    def __init__(self, dataset, noise=1.0):
        pass
def wrong(size):
    from allreduce.schedule import Schedule
    return Schedule(size, 1, ())
def slow(rank, step):
    return -1
'''  # fmt: skip


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(start):
    lines = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(start)]


def write_files(folder: Path) -> None:
    """The files of the page."""
    for block in blocks(PAGE, "python"):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name, "each block says its file's name"
        (folder / name[1]).write_text(block)
