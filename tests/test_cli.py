"""The command line: users' mistakes become one line and exit code 2, and nothing is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_ranks import Ranks

from mpisgd import __version__, cli

HEAVY = ("h5py", "mpi4py", "matplotlib", "cupy", "jinja2", "torch")

# The words after `mpisgd`, and what the line must hold: the option, the value, what is allowed.
MISTAKES: list[tuple[str, list[str]]] = [
    ("train --evaluate sometimes", ["--evaluate", "'sometimes'", "after", "during"]),
    ("train --algorithm adam", ["--algorithm", "'adam'", "minibatch", "local", "dasgd"]),
    ("train --algorithm local --tau 0", ["--tau", "'0'", "a whole number >= 1"]),
    ("train --algorithm local --tau 1.5", ["--tau", "'1.5'", "a whole number >= 1"]),
    ("train --tau 4", ["--tau", "4", "minibatch has none", "local, dasgd, slowmo"]),
    ("train --algorithm local --delay 1", ["--delay", "1", "local has none; dasgd"]),
    ("train --algorithm dasgd --delay 5", ["--delay", "5", "at most --tau, which is 4"]),
    ("train --algorithm dasgd --tau 2 --delay 3", ["--delay", "3", "which is 2"]),
    ("train --algorithm dasgd --delay=-1", ["--delay", "'-1'", ">= 0"]),
    ("train --algorithm dasgd --xi 1.5", ["--xi", "'1.5'", ">= 0 and <= 1"]),
    ("train --algorithm dasgd --xi nan", ["--xi", "'nan'", "finite"]),
    ("train --algorithm dasgd --merge mean", ["--merge", "'mean'", "convex, delta, overwrite"]),
    ("train --algorithm dasgd --merge delta --xi 0.5", ["--xi", "0.5", "delta has no xi"]),
    ("train --algorithm dasgd --merge overwrite --xi 0.5", ["--xi", "0.5", "keeps nothing"]),
    ("train --allreduce star", ["--allreduce", "'star'", "tree", "butterfly", "ring"]),
    ("train --virtual 2 --allreduce mpi", ["--allreduce 'mpi'", "a schedule", "--price-as"]),
    ("train --virtual 2 --price-as ring", ["--allreduce butterfly is priced as itself"]),
    ("train --allreduce mpi --price-as ring", ["--price-as 'ring'", "only with --virtual"]),
    ("train --virtual 2 --allreduce mpi --price-as mpi", ["--price-as 'mpi'", "one of tree, "]),
    ("train --allreduce mpi-persistent --chunks 2", ["--chunks 2", "cuts messages by itself"]),
    ("train --chunks 0", ["--chunks", "'0'", "1..200"]),
    ("train --chunks 1000", ["--chunks", "'1000'", "1..200"]),
    ("train --progress fast", ["--progress", "'fast'", "poll, thread"]),
    ("train --virtual 2 --progress thread", ["--progress", "'thread'", "poll"]),
    ("train --progress perfect", ["--progress", "'perfect'", "poll or thread"]),
    ("train --network ideal", ["--network", "'ideal'", "only with --virtual"]),
    ("train --virtual 2 --network carrier-pigeon", ["--network", "carrier-pigeon", "choose"]),
    ("train --model transformer", ["--model", "'transformer'", "softmax, mlp"]),
    ("train --hidden 64,x", ["--hidden", "'64,x'", "whole numbers in 1..1000000"]),
    ("train --hidden 0", ["--hidden", "'0'", "whole numbers in 1..1000000"]),
    ("train --model softmax --hidden 9", ["--hidden", "9", "softmax has no hidden layers"]),
    ("train --virtual 2 --hidden=", ["--hidden", "whole numbers >= 1", "--model softmax"]),
    ("train --data tabletops", ["--data", "'tabletops'", "digits", "mnist"]),
    ("train --virtual 2 --data mnist", ["--data-path", "needs it", "folder"]),
    ("train --virtual 2 --data mnist --data-path nowhere", ["nowhere", "not found", "folder"]),
    ("train --virtual 2 --data-path here", ["digits takes no path", "here"]),
    ("train --data-samples 0", ["--data-samples", "'0'", "1..1000000000"]),
    ("train --virtual 2 --data-samples 99999", ["99999", "1437"]),
    ("train --virtual 2 --data noise", ["--data", "'noise'", "needs data with classes"]),
    ("train --batch 0", ["--batch", "'0'", ">= 1"]),
    ("train --epochs 0", ["--epochs", "'0'", "> 0"]),
    ("train --epochs inf", ["--epochs", "'inf'", "finite"]),
    ("train --steps 0", ["--steps", "'0'", "1..1000000000"]),
    ("train --steps 5 --epochs 2", ["--steps", "5", "either --steps or --epochs"]),
    ("train --lr nan", ["--lr", "'nan'", "finite"]),
    ("train --lr inf", ["--lr", "'inf'", "finite"]),
    ("train --lr=-1", ["--lr", "'-1'", ">= 0"]),
    ("train --schedule cosine", ["--schedule", "'cosine'", "constant, one-cycle"]),
    ("train --virtual 2 --schedule one-cycle --lr 1e-6", ["start", "0.0001", "1e-06"]),
    ("train --optimiser adam", ["--optimiser", "'adam'", "sgd, rmsprop"]),
    ("train --wire int4", ["--wire", "'int4'", "bfloat16, float16, int8"]),
    ("train --wire int8 --allreduce mpi", ["--wire", "int8", "--allreduce mpi", "schedule"]),
    ("train --wire int8 --algorithm async", ["--wire", "int8", "async has none"]),
    ("train --wire topk:2", ["--wire", "'topk:2'", "topk:SHARE in (0, 1]"]),
    ("train --wire topk:0.1 --algorithm dasgd", ["--wire", "dasgd keeps ranks apart"]),
    ("train --wire topk:0.1 --allreduce mpi", ["--wire", "--allreduce mpi", "schedule"]),
    (
        "train --wire powersgd:4 --algorithm local --initial own",
        ["--wire", "powersgd:4", "--initial equal"],
    ),
    ("train --error-feedback", ["--error-feedback", "needs --wire"]),
    ("train --warm-up=-1", ["--warm-up", "'-1'", "0.."]),
    ("train --trust 0.1", ["--trust", "0.1", "sgd has none", "lars does"]),
    ("train --decoupled", ["--decoupled", "needs --weight-decay"]),
    ("train --initial own", ["--initial", "own", "local, dasgd, gossip"]),
    ("train --optimiser lars --algorithm async", ["--optimiser", "lars", "shards"]),
    ("train --clip 0", ["--clip", "'0'", "> 0"]),
    ("train --momentum 1", ["--momentum '1'", "< 1"]),
    ("train --momentum=-0.5", ["--momentum", "'-0.5'", ">= 0"]),
    ("train --virtual 2 --nesterov --momentum 0", ["--nesterov", "needs --momentum above 0"]),
    ("train --virtual 2 --nesterov --optimiser rmsprop", ["--nesterov", "rmsprop has none"]),
    ("train --weight-decay=-1", ["--weight-decay", "'-1'", ">= 0"]),
    ("train --ema 1", ["--ema '1'", "< 1"]),
    ("train --ema-warm-up", ["--ema-warm-up", "needs --ema"]),
    ("train --augment cutout", ["--augment", "'cutout'", "none, rotate-zoom, crop-flip"]),
    ("train --rmsprop-decay 0.5", ["--rmsprop-decay", "0.5", "sgd has none; rmsprop does"]),
    ("train --optimiser rmsprop --rmsprop-decay 1", ["--rmsprop-decay '1'", "< 1"]),
    ("train --epsilon=-1", ["--epsilon", "'-1'", ">= 0"]),
    ("train --backend gpu", ["--backend", "'gpu'", "numpy, cupy"]),
    ("train --device 1", ["--device 1", "--backend numpy has none; cupy does"]),
    ("train --backend cupy --device first", ["--device", "'first'", "a whole number", "auto"]),
    ("train --backend cupy --model quadratic", ["--model", "'quadratic'", "not with --backend"]),
    (
        "train --backend cupy --algorithm async --push layerwise",
        ["--push", "'layerwise'", "not with --backend cupy"],
    ),
    ("train --backend cupy --wire int8", ["--wire", "'int8'", "not with --backend cupy"]),
    (
        "train --cuda-aware no",
        ["--cuda-aware", "'no'", "--backend numpy has no memory of a device"],
    ),
    ("train --backend cupy --cuda-aware maybe", ["--cuda-aware", "'maybe'", "auto, yes, no"]),
    ("train --allreduce nccl", ["--allreduce", "'nccl'", "with --backend cupy only"]),
    ("train --backend cupy --virtual 2", ["--backend", "'cupy'", "only without --virtual"]),
    ("train --dtype float16", ["--dtype", "'float16'", "float32, float64"]),
    ("train --seed=-1", ["--seed", "'-1'", ">= 0"]),
    ("train --seed once", ["--seed", "'once'", "a whole number"]),
    ("train --step-time soon", ["--step-time", "'soon'", "20ms"]),
    ("train --step-time=-1ms", ["--step-time", "'-1ms'", "20ms"]),
    ("train --evaluate-every=-1", ["--evaluate-every", "'-1'", ">= 0"]),
    ("train --deadline 0", ["--deadline", "'0'", "at least 0.1 s"]),
    ("train --set beta", ["--set", "'beta'", "NAME=VALUE"]),
    ("train --scaling big", ["--scaling", "'big'", "weak, strong"]),
    ("train --virtual 0", ["--virtual", "'0'", "1..8192"]),
    ("train --virtual many", ["--virtual", "'many'", "1..8192"]),
    ("train --blas-threads 0", ["--blas-threads", "'0'", "1..4096"]),
    ("train --format xml", ["--format", "'xml'", "table", "json", "csv"]),
    ("train --learning-rate 1", ["--learning-rate", "unrecognized"]),
    ("train fast", ["fast", "unrecognized"]),
    ("train --lr", ["--lr", "expected one argument"]),
    ("train --conf run.toml", ["--conf", "unrecognized"]),
    ("train --config nowhere.toml", ["nowhere.toml", "No such file"]),
    ("train --config here", ["here", "Is a directory"]),
    ("train --config text", ["text", "not TOML"]),
    ("train --config odd.toml", ["odd.toml", "lerning_rate", "no such option", "lr"]),
    ("train --config typed.toml", ["typed.toml", "batch", "[32]", "whole number"]),
    ("train --virtual 2 --output here", ["--output", "'here'", "is a folder"]),
    ("train --virtual 2 --output here/", ["--output", "'here/'", "must name a file"]),
    ("train --virtual 2 --output no/run.h5", ["--output", "'no/run.h5'", "no folder 'no'"]),
    ("train --virtual 2 --output old.h5", ["--output", "'old.h5'", "exists", "--overwrite"]),
    ("train --virtual 2 --output left.h5", ["--output", "left.h5.partial", "--overwrite"]),
    ("verify --ranks 0", ["--ranks", "'0'", "1:64"]),
    ("verify --ranks 5:3", ["--ranks", "'5:3'", "5:3 goes down; write 3:5"]),
    (f"train --batch {2**63}", ["--batch", "a whole number >= 1, at most 9223372036854775807"]),
    ("verify --algorithms star", ["--algorithms", "'star'", "butterfly"]),
    ("doctor --limit 1s", ["--limit", "'1s'", "at least 5 s"]),
    ("doctor --ranks 0", ["--ranks", "'0'", "1..1024"]),
    ("demo --folder text", ["--folder", "'text'", "is not a folder"]),
    ("demo --folder done", ["--folder", "done/local.h5", "exists", "--overwrite"]),
    ("train --virtual 2 --tuning t.toml", ["--tuning", "only with --allreduce auto"]),
    ("demo --folder other.h5/in", ["--folder 'other.h5/in'", "Not a directory"]),
    ("train --virtual 2 --hidden 64,,32", ["--hidden '64,,32'", "with commas, such as 64,32"]),
    ("train --virtual 2 --step-time 5", ["--step-time '5'", "a time such as 20ms"]),
    ("train --virtual 2 --deadline 5", ["--deadline '5'", "a time such as 20ms"]),
    ("train --virtual 2 --data-samples 99999", ["--data-samples 99999: at most the 1437"]),
    ("train --virtual 2 --config no.toml", ["--config no.toml: No such file"]),
    ("train --virtual 2 --data no.npz", ["--data no.npz: No such file"]),
    ("train --virtual 2 --data mnist --data-path no", ["--data-path no: not found"]),
    ("tune --from no.toml", ["--from no.toml: No such file"]),
    ("simulate --arrival no.h5", ["--arrival no.h5: No such file"]),
    ("bench allreduce --sizes 0,4", ["--sizes '0,4'", "at least 1 byte"]),
    ("train --backups 2", ["--backups 2: minibatch has none; backup does"]),
    ("train more", ["mpisgd train: error: unrecognized arguments: more"]),
    ("bench overlap --arrival a.h5", ["mpisgd bench overlap: error: unrecognized arguments"]),
    ("trian", ["'trian'", "train"]),
    ("--fast", ["--fast"]),
]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder of files that no mistake may change."""
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    (tmp_path / "here").mkdir()
    (tmp_path / "done").mkdir()
    for name, text in {
        "old.h5": "precious",
        "left.h5.partial": "\0" * 8,  # of a run whose machine died
        "text": "not = = toml",
        "odd.toml": "lerning_rate = 0.1",
        "typed.toml": "batch = [32]",
        "done/local.h5": "precious",
        "other.h5": "precious",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def outcome(words: list[str]) -> int:
    """The exit code, whichever way it comes."""
    try:
        return cli.main(words)
    except SystemExit as left:
        return int(left.code or 0)


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line_that_says_what_is_allowed(words, said, workplace, capsys):
    before = contents(workplace)
    assert outcome(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mpisgd")
    assert ": error: " in err
    assert err.count("\n") == 1
    assert [part for part in said if part not in err] == []
    assert contents(workplace) == before


def test_each_option_of_train_that_takes_a_value_has_a_mistake():
    from dataclasses import fields

    from mpisgd.algorithms import OPTIONS
    from mpisgd.experiment.experiment import Experiment, flag

    elsewhere = {name for algorithm in OPTIONS for name in OPTIONS[algorithm]} | {"straggler"}
    text = " ".join(words for words, _ in MISTAKES).replace("=", " ")
    for option in fields(Experiment):
        if not option.metadata or option.metadata["kind"].allowed == "true or false":
            continue
        if option.name not in elsewhere:
            assert f"--{flag(option)} " in text, option.name


def test_overwrite_replaces_both(workplace, capsys):
    for name in ("old.h5", "left.h5"):
        words = f"train --virtual 2 --steps 1 --overwrite --output {name} --format json".split()
        assert outcome(words) == 0
        assert json.loads(capsys.readouterr().out)[0]["steps"] == 1
        assert (workplace / name).read_bytes()[1:4] == b"HDF"
        assert not (workplace / f"{name}.partial").exists()


@pytest.mark.parametrize(
    "words",
    ["--tau 0 --algorithm local", "--nonsense 1", "--data mnist", "--output old.h5"],
    ids=["value", "option", "found after MPI started", "target"],
)
def test_several_ranks_say_it_once(mpi: Ranks, words, workplace):
    before = contents(workplace)
    done = mpi.run(3, ["mpisgd", "train", *words.split()], check=False)
    assert done.returncode == 2
    assert done.stdout.strip() == ""
    assert done.stderr.count("error: ") == 1
    assert words.split()[0] in done.stderr
    assert contents(workplace) == before


def test_help_and_versions_need_nothing_heavy():
    """In one process: whatever a command imports to describe itself stays imported."""
    program = f"""
import sys
import mpisgd
assert not {{"numpy", *{HEAVY}}} & {{*sys.modules}}, "import mpisgd"
from mpisgd import cli
for command in [*cli.COMMANDS, None]:
    try:
        cli.main([command, "--help"] if command else ["--version"])
    except SystemExit as left:
        assert left.code == 0, command
    found = {{*{HEAVY}}} & {{*sys.modules}}
    assert not found, (command, found)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"mpisgd {__version__}" in done.stdout
    for command, (_, summary) in cli.COMMANDS.items():
        assert f"usage: mpisgd {command}" in done.stdout
        assert summary in " ".join(done.stdout.split())


def test_no_command_prints_what_there_is(capsys, workplace):
    assert outcome([]) == 0
    assert "train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "threads"),
    [("train", "1"), ("train --blas-threads 3", "3"), ("train --blas-threads=4", "4")],
)
def test_blas_threads_are_set_before_numpy_loads(words, threads):
    program = f"""
import os, sys
from mpisgd import cli
try:
    cli.main({[*words.split(), "--help"]!r})
except SystemExit:
    pass
print(*(os.environ.get(name) for name in cli.BLAS_VARIABLES))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].split() == 5 * [threads]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (MemoryError("Unable to allocate 9 TiB"), "Unable to allocate 9 TiB"),
        (MemoryError(), "out of memory"),
    ],
)
def test_what_the_machine_lacks_is_one_line_too(error, told, monkeypatch, capsys):
    from mpisgd.commands import verify

    def fail(_):
        raise error

    monkeypatch.setattr(verify, "run", fail)
    assert outcome(["verify"]) == 1
    assert capsys.readouterr() == ("", f"mpisgd verify: {told}\n")


def test_a_reader_who_has_left_is_no_traceback():
    """As in `mpisgd verify | head`."""
    words = [sys.executable, "-m", "mpisgd", "simulate", "--algorithm", "all", "--ranks", "2:40"]
    words.append("--quiet")  # on a busy machine it would say how far it is
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
