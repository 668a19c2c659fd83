"""What users give is read, and what commands write is written, through one door each."""

import pytest

from allreduce import files
from allreduce.network import network
from mpisgd.experiment.experiment import from_file

MARK = b"\xef\xbb\xbf"


def test_a_byte_order_mark_says_nothing(tmp_path):
    (tmp_path / "a.toml").write_bytes(MARK + b"latency_s = 1e-6\n")
    assert files.toml(tmp_path / "a.toml") == from_file(str(tmp_path / "a.toml"))
    assert network(str(tmp_path / "a.toml")).latency_s == 1e-6
    (tmp_path / "b.toml").write_text("lr = 1\n", encoding="utf-16")
    with pytest.raises(files.Unreadable, match=r"not UTF-8: .* 0xff"):
        files.toml(tmp_path / "b.toml")


@pytest.mark.parametrize("part", ["a", "'b c'", '"d.e"', "f - "])
def test_keys_are_as_deep_as_they_may_be(part, tmp_path):
    """The limit counts parts, not dots: those inside of quotes are none."""
    path = tmp_path / "x.toml"
    for parts, fits in ((files.DEEPEST_KEY, True), (files.DEEPEST_KEY + 1, False)):
        name = part.replace(" - ", "-")
        path.write_text(" . ".join([name] * parts) + " = 1\n")
        if fits:
            assert files.toml(path)
            continue
        with pytest.raises(files.Unreadable, match="a key of more than 32 parts"):
            files.toml(path)
    path.write_text("x = 'version 1.2.3.4 of " + "a sentence. " * 100 + "'\n")
    assert files.toml(path)


def test_a_link_to_a_file_is_read_and_one_to_a_device_is_not(tmp_path):
    (tmp_path / "x").write_text("content")
    (tmp_path / "link").symlink_to("x")
    assert files.text(tmp_path / "link") == "content"
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(files.Unreadable, match="is no regular file"):
        files.text(tmp_path / "zero")
