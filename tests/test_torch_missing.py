"""Where PyTorch is not installed, one line says so."""

import sys

import pytest

from mpisgd import cli


@pytest.mark.parametrize("name", ["torch:mlp", "torch:cnn"])
def test_one_line_says_what_to_install(monkeypatch, capsys, tmp_path, name):
    for module in [m for m in sys.modules if m.startswith("mpisgd.models.torch_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    output = tmp_path / "out.h5"
    words = ["train", "--virtual", "2", "--model", name, "--steps", "1", "--output", str(output)]
    assert cli.main(words) == 2
    assert capsys.readouterr().err.splitlines() == [
        "mpisgd train: error: --model torch:... needs PyTorch: install it with: "
        "pip install -e '.[torch]' where mpisgd was cloned"
    ]
    assert not list(tmp_path.iterdir())


def test_data_that_do_not_fit_are_told_before_pytorch_is_imported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    for model, reason in [
        ("torch:pixelcnn", "needs images of three colours, 8 bits"),
        ("torch:resnet50-cifar", "needs samples of 3x32x32; these are 1x8x8"),
    ]:
        assert cli.main(["train", "--virtual", "2", "--model", model, "--steps", "1"]) == 2
        assert reason in capsys.readouterr().err
