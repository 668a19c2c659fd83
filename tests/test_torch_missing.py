"""Where PyTorch is not installed, one line says so."""

import sys

import pytest

from mpisgd import cli


@pytest.mark.parametrize("name", ["torch:mlp", "torch:pixelcnn"])
def test_one_line_says_what_to_install(monkeypatch, capsys, tmp_path, name):
    for module in [m for m in sys.modules if m.startswith("mpisgd.models.torch_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    output = tmp_path / "out.h5"
    words = ["train", "--virtual", "2", "--model", name, "--steps", "1", "--output", str(output)]
    assert cli.main(words) == 2
    assert capsys.readouterr().err.splitlines() == [
        "mpisgd train: error: --model torch:... needs PyTorch: install it with: "
        "pip install 'mpisgd[torch]'"
    ]
    assert not list(tmp_path.iterdir())
