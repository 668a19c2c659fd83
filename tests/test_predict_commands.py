"""`mpisgd predict` and `mpisgd advise`: options, output, advice, figures, documentation."""

import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpisgd.cli import Parser
from mpisgd.commands import advise as advise_command
from mpisgd.commands import predict
from mpisgd.predict import networks, study, terms
from mpisgd.values.errors import MissingExtra, UsageError
from mpisgd.values.quantities import choices, duration, number, ranks, size, whole

DOCUMENT = Path(__file__).parents[1] / "docs" / "predict.md"


def parser_of(module):
    parser = Parser(prog="mpisgd", allow_abbrev=False)
    module.add_arguments(parser)
    return parser


def output(capsys, module, *words):
    assert module.run(parser_of(module).parse_args(list(words))) == 0
    return capsys.readouterr().out


def rows(capsys, module, *words):
    return json.loads(output(capsys, module, *words, "--format", "json"))


# A case in which everything matters: several servers, no power of two, latency, noise.
BASE = ("--ranks", "12", "--latency", "1us", "--noise", "0.02", "--net", "vgg16")
TINY = "name=t,peak_GFLOPS=1000,bandwidth_GBps=100,memory_GB=4"

# For every option: words that must change the results, beside other words they need.
CHANGES = {
    "show": ("--show", "delays"),
    "net": ("--net", "resnet50"),
    "ranks": ("--ranks", "13:14"),
    "allreduce": ("--allreduce", "ring"),
    "algorithms": ("--algorithms", "local"),
    "batch": ("--batch", "32"),
    "scaling": ("--scaling", "strong"),
    "samples": ("--samples", "1e5"),
    "device": ("--device", TINY),
    "network": ("--network", "eth10-pcie3"),
    "topology": ("--topology", "shared-nic"),
    "bandwidth": ("--bandwidth", "5"),
    "latency": ("--latency", "2us"),
    "sum_cost": ("--sum-cost", "1ns"),
    "server_size": ("--server-size", "4"),
    "server_bandwidth": ("--server-bandwidth", "8"),
    "rounding": ("--rounding", "fold"),
    "peak_share": ("--peak-share", "0.5"),
    "pipelined": ("--pipelined",),
    "compute": ("--compute", "flops"),
    "bytes": ("--bytes", "5M"),
    "wire": ("--wire", "bfloat16"),
    "bucket": ("--bucket", "1M"),
    "progress_share": ("--progress-share", "0.5"),
    "slowdown": ("--slowdown", "0.1"),
    "noise": ("--noise", "0.3"),
    "quorum": ("--quorum", "3"),
    "tau": ("--tau", "7"),
    "delay": ("--delay", "2"),
    "xi": ("--xi", "0.5"),
    "merge": ("--merge", "delta"),
}


def results(capsys, *words):
    """The rows without the columns that only repeat what was asked for."""
    kept = []
    asked = predict.study_of(parser_of(predict).parse_args(words))
    echo = set(study.assumptions(asked))
    echo |= {"source", "device", "network", "topology", "rounding", "scaling", "message_bytes"}
    for row in rows(capsys, predict, *words):
        kept.append({key: value for key, value in row.items() if key not in echo})
    return kept


def test_every_option_is_in_the_walk():
    known = {action.dest for action in parser_of(predict)._actions}
    assert known == set(CHANGES) | {"help", "help_all", "quiet", "format", "figure", "overwrite"}


@pytest.mark.parametrize("option", CHANGES)
def test_every_option_changes_the_results(capsys, option):
    # Folding is a matter of butterfly between servers whose number is no power of two.
    base = (*BASE, "--ranks", "24") if option == "rounding" else BASE
    assert results(capsys, *base, *CHANGES[option]) != results(capsys, *base)


def test_formats_hold_the_same_rows(capsys):
    parsed = rows(capsys, predict, *BASE)
    table = output(capsys, predict, *BASE)
    listed = list(csv.DictReader(io.StringIO(output(capsys, predict, *BASE, "--format", "csv"))))
    assert [row["algorithm"] for row in listed] == [row["algorithm"] for row in parsed]
    assert [float(row["epoch_s"]) for row in listed] == [row["epoch_s"] for row in parsed]
    assert f"{parsed[0]['epoch_s']:.4g}" in table


def test_every_row_says_that_it_is_a_model(capsys):
    for view in predict.VIEWS:
        table = output(capsys, predict, *BASE, "--show", view)
        assert table.startswith("# model, not measured, not from a paper")
        assert all(row["source"] == "model" for row in rows(capsys, predict, "--show", view))


def test_every_column_is_defined_and_documented(capsys):
    columns = set()
    for view in predict.VIEWS:
        columns |= set(rows(capsys, predict, *BASE, "--show", view)[0])
    columns |= set(rows(capsys, advise_command, "--net", "vgg16")[0])
    assert columns == set(terms.TERMS)
    assert terms.markdown() in DOCUMENT.read_text()
    for view, (_, narrow) in predict.VIEWS.items():
        assert set(narrow) <= set(rows(capsys, predict, *BASE, "--show", view)[0])


def test_what_gossip_waits_for_is_a_column_where_there_is_gossip(capsys):
    asked = ("--algorithms", "dasgd,gossip", "--ranks", "8", "--network", "bandwidth_Bps=1e9",
             "--bytes", "100M")  # fmt: skip
    found = {row["algorithm"]: row["exchange_s"] for row in rows(capsys, predict, *asked)}
    assert found == {"dasgd": None, "gossip": pytest.approx(0.1)}
    assert "exchange_s" in output(capsys, predict, *asked)
    assert "exchange_s" not in output(capsys, predict, "--algorithms", "dasgd")
    times = ("--step-time", "20ms", "--all-reduce-time", "30ms", "--ranks", "8")
    advised = {r["algorithm"]: r["exchange_s"] for r in rows(capsys, advise_command, *times)}
    assert advised.pop("gossip") == pytest.approx(0.01)  # of a butterfly's log2 8 rounds one
    assert set(advised.values()) == {None}


def test_all_nets_ranks_and_algorithms_take_under_five_seconds(capsys):
    started = time.process_time()
    found = rows(capsys, predict, "--net", "all", "--allreduce", "butterfly,ring")
    assert len(found) == 18 * 9 * 4 * 2
    assert time.process_time() - started < 5


def test_nothing_heavy_is_imported():
    code = (
        "import sys, mpisgd.commands.predict, mpisgd.commands.advise;"
        "print([m for m in ('mpi4py', 'h5py', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--ranks", "0"), "--ranks '0'"),
        (("--ranks", "4:2"), "--ranks '4:2'"),
        (("--ranks", "x"), "--ranks"),
        (("--net", "resnet"), "--net 'resnet'"),
        (("--allreduce", "star"), "--allreduce 'star'"),
        (("--device", "abacus"), "--device 'abacus'"),
        (("--network", "string"), "--network 'string'"),
        (("--topology", "star"), "--topology 'star'"),
        (("--show", "all"), "--show 'all'"),
        (("--tau", "2", "--delay", "3"), "--delay 3: at most tau = 2"),
        (("--tau", "0"), "--tau"),
        (("--delay", "-1"), "--delay"),
        (("--batch", "nan"), "--batch"),
        (("--batch", "1.5"), "--batch"),
        (("--samples", "-3"), "--samples"),
        (("--peak-share", "2"), "--peak-share"),
        (("--bandwidth", "0"), "--bandwidth"),
        (("--latency=-1us",), "--latency '-1us'"),
        (("--bytes", "0"), "--bytes"),
        (("--bytes", "5T"), "--bytes '5T'"),
        (("--bucket", "inf"), "--bucket"),
        (("--xi", "nan"), "--xi"),
        (("--noise", "-1"), "--noise"),
        (("--progress-share", "1.01"), "--progress-share"),
        (("--merge", "mean"), "--merge 'mean'"),
        (("--compute", "guess"), "--compute 'guess'"),
        (("--figure", "x.gif"), "--figure 'x.gif'"),
        (("--figure", "/no/such/folder/x.png"), "--figure"),
        (("--figure", "x.png", "--show", "layers"), "--figure"),
    ],
)
def test_mistakes(words, place):
    with pytest.raises(UsageError) as caught:
        predict.run(parser_of(predict).parse_args(words))
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


# --- figures


@pytest.mark.parametrize(
    ("view", "suffix", "magic"),
    [("epochs", "png", b"\x89PNG"), ("delays", "svg", b"<?xml"), ("delays", "pdf", b"%PDF")],
)
def test_figures(capsys, tmp_path, view, suffix, magic):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"figure.{suffix}"
    words = ("--show", view, "--net", "vgg16,resnet50", "--ranks", "2,8", "--figure", str(path))
    output(capsys, predict, *words)
    assert path.read_bytes().startswith(magic)


def test_too_many_panels(tmp_path):
    pytest.importorskip("matplotlib")
    words = ("--net", "all", "--allreduce", "all", "--figure", str(tmp_path / "x.png"))
    with pytest.raises(UsageError, match="panels"):
        predict.run(parser_of(predict).parse_args(words))
    assert not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.png"
    path.mkdir()
    words = ("--net", "vgg16", "--ranks", "2", "--figure", str(path))
    with pytest.raises(UsageError, match=rf"--figure '{path}': .*is a folder"):
        predict.run(parser_of(predict).parse_args(words))


def test_missing_matplotlib(monkeypatch, tmp_path):
    from mpisgd.predict import figures

    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[plot\]'"):
        figures.check(str(tmp_path / "x.png"), "epochs")


# --- advice


# --- quantities


def test_quantities():
    assert [size("--x", text) for text in ("102M", "1.5K", "4", "2G")] == [102e6, 1500, 4, 2e9]
    assert duration("--x", "20ms") == 0.02
    assert [duration("--x", text) for text in ("3s", "0", "1us")] == [3, 0, 1e-6]
    assert ranks("--x", "1,2,4:6,5") == [1, 2, 4, 5, 6]
    assert choices("--x", "b,a,b", "abc") == ["b", "a"]
    assert choices("--x", "all", "abc") == ["a", "b", "c"]
    assert number("--x", "0.5", high=1.0) == 0.5
    assert whole("--x", "64") == 64


@pytest.mark.parametrize("text", ["", "nan", "inf", "M", "-1M", "0", "1e400", "1 2"])
def test_sizes_refuse(text):
    with pytest.raises(UsageError, match="--x"):
        size("--x", text)


def test_a_number_too_small_for_its_unit_is_told_the_smallest():
    with pytest.raises(UsageError, match="--x '1e-310s': too small: at least 1e-30"):
        duration("--x", "1e-310s", open_low=True)
    with pytest.raises(UsageError, match=r"--x '-1': a time such as .* more than 0 s"):
        duration("--x", "-1", open_low=True)


def test_links_that_are_none_are_named(tmp_path):
    path = tmp_path / "links.toml"
    path.write_text('preset = "titanx-20g"\nbandwidth_Bps = -1\n')
    with pytest.raises(UsageError, match=rf"^--network '{path}': bandwidth_Bps -1: "):
        networks.find(str(path))
    with pytest.raises(
        UsageError, match=r"^--network 'lap': choose from .*lab.*; did you mean lab\?$"
    ):
        networks.find("lap")
