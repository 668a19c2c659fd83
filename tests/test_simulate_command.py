"""`mpisgd simulate`: every option counts, mistakes are one line, the page explains the columns."""

import argparse
import json
import re
from pathlib import Path

import pytest

from allreduce.network import Network, network
from mpisgd.cli import main
from mpisgd.commands.simulate import COLUMNS, CROSSED, add_arguments, run
from mpisgd.values.errors import UsageError

DOCUMENT = Path(__file__).parent.parent / "docs" / "simulate.md"


def parser():
    made = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(made)
    return made


def output(capsys, *words):
    assert run(parser().parse_args(list(words))) == 0
    return capsys.readouterr().out


def rows(capsys, *words):
    return json.loads(output(capsys, *words, "--format", "json"))


SERVERS = ("--ranks", "16", "--bytes", "64KiB")  # of titanx-20g, 8 ranks a node
COMPUTING = (*SERVERS, "--look-every", "50us")

# A value that must change the output, and the options beside which it does.
CHANGES = {
    "--algorithm": ("ring", SERVERS),
    "--ranks": ("4", ()),
    "--bytes": ("101M", ()),
    "--network": ("k80-10g", SERVERS),
    "--latency": ("50us", SERVERS),
    "--bandwidth": ("1Gbps", SERVERS),
    "--uplink": ("40Gbps", SERVERS),
    "--ranks-per-node": ("4", SERVERS),
    "--node-latency": ("50us", SERVERS),
    "--node-bandwidth": ("1GB/s", SERVERS),
    "--ranks-per-bus": ("4", (*SERVERS, "--bus", "1GB/s")),
    "--bus": ("1GB/s", (*SERVERS, "--ranks-per-bus", "4")),
    "--sum-rate": ("1GB/s", SERVERS),
    "--encode-rate": ("1GB/s", (*SERVERS, "--wire", "int8")),
    "--decode-rate": ("1GB/s", (*SERVERS, "--wire", "int8")),
    "--overhead": ("1us", SERVERS),
    "--look-time": ("5us", COMPUTING),
    "--duplex": ("half", SERVERS),
    "--rendezvous-duplex": ("half", ("--ranks", "2", "--ranks-per-node", "1")),
    "--sharing": (
        "fair",
        ("--algorithm", "tree", "--ranks", "4", "--ranks-per-node", "1", "--bytes", "64KiB"),
    ),
    "--burst": (
        "18K",
        ("--ranks", "2", "--ranks-per-node", "1", "--bytes", "64KiB", "--uplink", "90Gbps"),
    ),
    "--eager-limit": ("1K", SERVERS),
    "--noise": ("0.2", SERVERS),
    "--progress": ("perfect", COMPUTING),
    "--chunks": ("3", SERVERS),
    "--wire": ("bfloat16", ()),
    "--skew": ("1ms", SERVERS),
    "--look-every": ("1ms", SERVERS),
    "--repetitions": ("5", (*SERVERS, "--noise", "0.2")),
    "--seed": ("7", (*SERVERS, "--noise", "0.2")),
    "--format": ("csv", ()),
}


@pytest.mark.parametrize("option", CHANGES)
def test_every_option_changes_the_output(option, capsys):
    value, beside = CHANGES[option]
    usual, changed = output(capsys, *beside), output(capsys, *beside, option, value)
    assert usual.split() != changed.replace("*", "").split()  # the star alone is no change


def test_a_network_that_was_changed_has_a_star_and_a_note(capsys):
    words = ["--ranks", "2", "--bytes", "4", "--format", "json", "--network", "lab"]
    assert run(parser().parse_args([*words, "--sharing", "fair", "--burst", "18K"])) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["network"] == "lab*"
    note = "mpisgd simulate: note: lab* is lab with sharing fair, burst_B 18000"
    assert printed.err.strip().startswith(note)
    same = str(network("lab").ranks_per_node)
    assert run(parser().parse_args([*words, "--ranks-per-node", same])) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["network"] == "lab"
    assert printed.err == ""


def test_no_option_is_left_out_above():
    options = {o for action in parser()._actions for o in action.option_strings} - {"-h", "--help"}
    assert options == {*CHANGES, "--goal", "--msccl", "--cross", "--overwrite", "--arrival"}


def test_every_field_of_a_network_has_an_option():
    from mpisgd.commands.simulate import OVERRIDES

    fields = {override.field for override in OVERRIDES.values()}
    assert fields == set(Network.__dataclass_fields__) - {"name"}


def test_goal_is_written(tmp_path, capsys):
    path = tmp_path / "ring.goal"
    output(capsys, "--algorithm", "ring", "--ranks", "4", "--goal", str(path))
    text = path.read_text()
    assert text.startswith("num_ranks 4\n")
    assert "send 25500000b to 1 tag 0" in text
    again = ["simulate", "--algorithm", "tree", "--ranks", "4", "--goal", str(path)]
    assert main(again) == 2
    assert "exists; pass --overwrite" in capsys.readouterr().err
    assert path.read_text() == text
    assert main([*again, "--overwrite"]) == 0
    assert path.read_text() != text


def test_the_paper_s_message(capsys):
    (row,) = rows(capsys, "--ranks", "2", "--latency", "0", "--node-latency", "0")
    assert row["bytes"] == 102_000_000
    assert row["median_s"] == pytest.approx(6.375e-3 + 102e6 * 3 / 336.5e9)
    assert row["algbw_GBps"] == pytest.approx(row["busbw_GBps"])


def test_rows_are_algorithms_times_ranks_times_sizes(capsys):
    found = rows(capsys, "--algorithm", "all", "--ranks", "1,2,5:6", "--bytes", "4:16,1K")
    assert len(found) == 8 * 4 * 4
    assert all(tuple(row) == COLUMNS for row in found)
    assert found[0]["median_s"] == 0
    assert found[0]["algbw_GBps"] is None


def test_counts_of_a_ring(capsys):
    (row,) = rows(capsys, "--algorithm", "ring", "--ranks", "4", "--bytes", "400", "--chunks", "2")
    assert (row["rounds"], row["messages"], row["busiest_B"]) == (6, 48, 600)


def test_with_a_wire_messages_carry_what_they_would_of_fewer_bytes(capsys, tmp_path):
    common = ("--algorithm", "ring,butterfly", "--ranks", "6")
    for name, nbytes in (("float32", "4000"), ("bfloat16", "2000"), ("int8", "1008")):
        coded = rows(capsys, *common, "--bytes", "4000", "--wire", name)
        plain = rows(capsys, *common, "--bytes", nbytes)
        for one, other in zip(coded, plain, strict=True):
            assert (one["bytes"], one["wire"], other["wire"]) == (4000, name, None)
            assert one["busiest_B"] == pytest.approx(other["busiest_B"], abs=40)  # whole elements
            assert one["median_s"] == pytest.approx(other["median_s"], rel=0.01)
    path = tmp_path / "coded.goal"
    words = ("--algorithm", "ring", "--ranks", "4", "--bytes", "400", "--wire", "bfloat16")
    output(capsys, *words, "--goal", str(path))
    assert "send 50b to 1 tag 0" in path.read_text()


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_a_wire_makes_sums_no_cheaper(capsys, tmp_path, name):
    """Where nothing but sums takes time, it changes nothing."""
    words = ("--network", "ideal", "--sum-rate", "1GB/s", "--ranks", "4", "--bytes", "4MB")
    for more in ((), ("--chunks", "2")):  # columns, and events
        plain, coded = (rows(capsys, *words, *more, *w) for w in ((), ("--wire", name)))
        assert plain[0]["median_s"] > 0
        assert coded[0]["median_s"] == pytest.approx(plain[0]["median_s"], rel=1e-4)
    path, sums = tmp_path / "sums.goal", []
    for more in ((), ("--wire", name)):
        output(capsys, *words, *more, "--goal", str(path))
        path, text = path.with_name("coded.goal"), path.read_text()
        sums.append([int(line.split("calc ")[1]) for line in text.splitlines() if "calc" in line])
    assert sums[1] == pytest.approx(sums[0], rel=1e-4)


def test_spread_is_over_repetitions(capsys):
    words = ("--ranks", "4", "--noise", "0.3", "--bytes", "1K")
    (row,) = rows(capsys, *words, "--repetitions", "20")
    assert row["p10_s"] < row["median_s"] < row["p90_s"]
    single = [rows(capsys, *words, "--seed", str(seed))[0]["median_s"] for seed in range(20)]
    assert min(single) < row["p10_s"]
    assert sorted(single)[9] <= row["median_s"] <= sorted(single)[10]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--algorithm", "butterfy"), "butterfy"),
        (("--algorithm", "mpi"), "mpi"),
        (("--ranks", "0"), "--ranks"),
        (("--ranks", "two"), "--ranks"),
        (("--bytes", "10Q"), "--bytes"),
        (("--network", "nowhere"), "nowhere"),
        (("--network", "/no/such.toml"), "No such file"),
        (("--latency", "fast"), "--latency"),
        (("--latency", "-1us"), "--latency"),
        (("--bandwidth", "0"), "--bandwidth"),
        (("--ranks-per-bus", "3"), "ranks_per_bus"),
        (("--duplex", "both"), "duplex"),
        (("--progress", "some"), "progress"),
        (("--noise", "-1"), "--noise"),
        (("--eager-limit", "x"), "--eager-limit"),
        (("--chunks", "0"), "--chunks"),
        (("--skew", "x"), "--skew"),
        (("--look-every", "0"), "--look-every"),
        (("--repetitions", "0"), "--repetitions"),
        (("--seed", "-1"), "--seed"),
        (("--goal", "g", "--ranks", "2,4"), "--goal"),
        (("--goal", "/no/such/place"), "--goal"),
        (("--format", "yaml"), "--format"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_printed(
    words, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        run(parser().parse_args([words[0] + "=" + words[1], *words[2:]]))
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_page_defines_every_column_option_and_preset():
    from allreduce.network import PRESETS

    text = DOCUMENT.read_text()
    for term in (*COLUMNS, *CROSSED, *CHANGES, "--goal", *PRESETS, *Network.__dataclass_fields__):
        assert f"`{term}`" in text, term
