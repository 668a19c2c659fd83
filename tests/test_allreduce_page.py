"""The public face of `allreduce`, and docs/allreduce.md, which is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import allreduce

PAGE = Path(__file__).parent.parent / "docs" / "allreduce.md"


def test_the_page_runs(capsys):
    scope: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert "mpi-persistent" in capsys.readouterr().out


def test_a_name_is_the_same_whatever_was_imported_before():
    """Some functions share their module's name, which an import would put in their place."""
    code = (
        "import allreduce; found = {name: getattr(allreduce, name) for name in allreduce.__all__}\n"
        "import allreduce.verify, allreduce.evaluate, allreduce.simulate.events\n"
        "assert all(getattr(allreduce, name) is it for name, it in found.items())\n"
        "from allreduce import arrays, simulate\n"
        "assert not hasattr(simulate, '__path__') and callable(simulate) and arrays.HOST\n"
        "assert set(allreduce.__all__) <= set(dir(allreduce))"
    )
    for first in ("", "import allreduce.simulate, allreduce.verify\n"):
        words = [sys.executable, "-c", first + code]
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr


def test_what_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'rings'"):
        _ = allreduce.rings
