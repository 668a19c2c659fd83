"""Files that users might hand to a command and should not: name -> content, for tests."""

import gzip
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
from test_store import finished, writer

PIXELS = 3072
TEXTS = {
    "text": "not = = toml",
    "text.h5": "hello",
    "empty.h5": "",
    "twice.toml": "lr = 1\nrate = 2\n",
    "table.toml": "[lr]\nx = 1\n",
    "date.toml": "batch = 2020-01-01\n",
    "digits.toml": f"batch = {'9' * 5000}\n",
    "deep.toml": "x = " + "[" * 50_000,
    "same-key.toml": "lr = 1\nlr = 2\n",
    "key.toml": ".".join("a" * 20_000) + " = 1\n",
    "quoted-key.toml": "[" + " . ".join(["'a b'"] * 50) + "]\n",
    "large.json": "[" + " " * (1 << 20) + "]",
    "large.toml": "#" * (1 << 20) + "\n",
    "hex.toml": f"batch = 0x{'f' * 9000}\n",
    "near.toml": "shedule = 'constant'\n",
    "control.toml": "data-path = 'a\\u0000b'\n".replace("'", '"'),
    "local.toml": "algorithm = 'local'\ndelay = 1\n",
    "dasgd.toml": "algorithm = 'dasgd'\ntau = 4\n",
    "inf.toml": "lr = inf\n",
    "bool.toml": "batch = true\n",
    "float.toml": "batch = 32.0\n",
    "list.toml": "algorithm = ['local']\n",
    "network-negative.toml": "bandwidth_Bps = -1\n",
    "network-key.toml": "bandwith_Bps = 1\n",
    "network-text.toml": "latency_s = '1us'\n",
    "network-preset.toml": "preset = 'lan'\n",
    "network-whole.toml": f"bandwidth_Bps = {'9' * 400}\n",
    "device-text.toml": "peak_GFLOPS = 'fast'\nbandwidth_GBps = 1\nmemory_GB = 1\n",
    "device-key.toml": "peak_GFLOPS = 1\nbandwidth_GBps = 1\nmemory_GB = 1\ncolour = 'red'\n",
    "device-short.toml": "peak_GFLOPS = 1\n",
    "calibration-none.toml": "x = 1\n",
    "calibration-short.toml": "[calibration]\nbatches = [1, 2]\nstep_s = [1.0]\n",
    "calibration-zero.toml": "[calibration]\nbatches = [1]\nstep_s = [0.0]\n",
    "ragged.txt": "1 2\n3\n",
    "words.txt": "1 slow\n",
    "nothing.txt": "# only a comment\n",
    "endless.txt": "1 inf\n",
    "negative.txt": "1 -1\n",
    "grid-key.toml": "scaling = 'weak'\nrun = 1\n",
    "grid-none.toml": "[options]\nranks = 2\n",
    "grid-ranks.toml": "scaling = 'weak'\n[options]\nalgorithm = 'local'\n",
    "grid-option.toml": "scaling = 'weak'\n[options]\nranks = 2\nbatsh = 1\n",
    "grid-list.toml": "scaling = 'weak'\noptions = [1]\n",
    "grid-straggler.toml": "scaling = 'weak'\n[options]\nranks = 2\nstraggler = '5:2x'\n",
    "grid-time.toml": "scaling = 'weak'\n[options]\nranks = 2\n[slurm]\nlauncher = 'mpiexec'\n"
    "time = '99999999'\n",
    "grid-setting.toml": "scaling = 'weak'\n[options]\nranks = 2\n[slurm]\nlauncher = 'mpiexec'\n"
    "partitions = 'gpu'\n",
    "grid-line.toml": "scaling = 'weak'\n[options]\nranks = 2\n[slurm]\nlauncher = 'mpiexec'\n"
    'account = "a\\nb"\n',
    "grid-launcher.toml": "scaling = 'weak'\n[options]\nranks = 2\n[slurm]\nlauncher = 'rm -rf'\n",
}


def make(folder: Path) -> None:
    """All of them."""
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "bytes.toml").write_bytes(b"\xff = 1")
    (folder / "here").mkdir()
    os.mkfifo(folder / "pipe.toml")
    os.mkfifo(folder / "pipe.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    _arrays(folder)
    _bombs(folder)
    _idx(folder)
    _npz(folder)
    _cifar(folder)
    _results(folder)


def idx(shape: tuple[int, ...], data: bytes | None = None) -> bytes:
    """An IDX file of zeros, or of `data`."""
    head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    return head + (bytes(int(np.prod(shape))) if data is None else data)


def _idx(folder: Path) -> None:
    images, labels = idx((4, 2, 2)), idx((4,), bytes([0, 1, 2, 3]))
    train = {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels}
    packed = gzip.compress(images)
    test = {"t10k-images-idx3-ubyte": idx((1, 2, 2)), "t10k-labels-idx1-ubyte": idx((1,), b"\7")}
    cases: dict[str, dict[str, bytes | None]] = {
        "idx-none": {},
        "idx-magic": {**train, "train-images-idx3-ubyte": b"\x89PNG\r\n\x1a\n"},
        "idx-header": {**train, "train-images-idx3-ubyte": images[:7]},
        "idx-cut": {**train, "train-images-idx3-ubyte": images[:-1]},
        "idx-long": {**train, "train-images-idx3-ubyte": images + b"x"},
        "idx-huge": {**train, "train-images-idx3-ubyte": idx((2**32 - 1,) * 3, b"")},
        "idx-zero": {
            "train-images-idx3-ubyte": idx((0, 2, 2)), "train-labels-idx1-ubyte": idx((0,)),
        },
        "idx-alone": {"train-images-idx3-ubyte": images},
        "idx-count": {**train, "train-labels-idx1-ubyte": idx((3,))},
        "idx-gzip-cut": {**train, "train-images-idx3-ubyte": packed[:-9]},
        "idx-gzip-sum": {**train, "train-images-idx3-ubyte": packed[:-8] + bytes(8)},
        "idx-label": {**train, "train-labels-idx1-ubyte": idx((4,), bytes([0, 1, 2, 99]))},
        "idx-test-label": {**train, **test},
        "idx-test-size": {**train, **test, "t10k-images-idx3-ubyte": idx((1, 3, 3))},
    }  # fmt: skip
    for name, files in cases.items():
        (folder / name).mkdir()
        for file, content in files.items():
            (folder / name / file).write_bytes(content or b"")


def _npz(folder: Path) -> None:
    images, labels = np.zeros((4, 2, 2), np.uint8), np.arange(4)
    np.savez(folder / "npz-keys.npz", x=images)
    np.savez(folder / "npz-float.npz", x_train=images / 2, y_train=labels)
    np.savez(folder / "npz-labels.npz", x_train=images, y_train=labels - 1)
    np.savez(folder / "npz-pickle.npz", x_train=images, y_train=np.array([{}] * 4, object))
    (folder / "npz-text.npz").write_text("hello")
    whole = io.BytesIO()
    np.savez(whole, x_train=images, y_train=labels)
    (folder / "npz-cut.npz").write_bytes(whole.getvalue()[:-30])
    with zipfile.ZipFile(folder / "npz-outside.npz", "w") as archive:
        archive.writestr("../../outside.npy", "x")


LABELS = {
    "signed": np.array([0, 2**63], np.uint64), "all": np.array([0, 2**64 - 1], np.uint64),
    "many": np.array([0, 2_000_000_000]), "negative": np.array([-1, 0]),
    "float": np.array([0.5, 1.0]),
}  # fmt: skip


def _arrays(folder: Path) -> None:
    images = np.zeros((2, 1, 2, 2), np.uint8)
    for name, labels in LABELS.items():
        np.savez(folder / f"idx-labels-{name}.npz", x_train=images[:, 0], y_train=labels)
        there = folder / f"arrays-labels-{name}"
        there.mkdir()
        for split in ("train", "test"):
            np.save(there / f"{split}_inputs.npy", images)
            np.save(there / f"{split}_targets.npy", labels)
    (folder / "endless").mkdir()
    for name, make in (("zero", lambda p: p.symlink_to("/dev/zero")), ("pipe.toml", os.mkfifo)):
        (folder / "endless" / name).mkdir()
        make(folder / "endless" / name / "train_inputs.npy")
        make(folder / "endless" / name / "train-labels-idx1-ubyte")
        (folder / "endless" / name / "train-images-idx3-ubyte").write_bytes(idx((1, 2, 2)))


def _bombs(folder: Path) -> None:
    """Small files that unpack to gigabytes: members of a gzip file follow one another."""
    zeros = gzip.compress(bytes(1 << 24), 1)
    for name in ("idx-bomb", "cifar-bomb"):
        (folder / name).mkdir()
    head = gzip.compress(idx((6_500_000, 28, 32), b""))
    (folder / "idx-bomb" / "train-images-idx3-ubyte.gz").write_bytes(head + zeros * 348)
    labels = gzip.compress(idx((6_500_000,), b""))
    (folder / "idx-bomb" / "train-labels-idx1-ubyte.gz").write_bytes(labels)
    (folder / "cifar-bomb" / "a.bin.gz").write_bytes(zeros * 348)
    images = np.zeros((300_000, 30, 30), np.uint8)
    np.savez_compressed(folder / "npz-bomb.npz", x_train=images, y_train=np.zeros(300_000, int))


class Evil:
    """Unpickled with pickle.load, it would make a file."""

    def __reduce__(self):
        return open, ("pickle-was-run", "w")


def _cifar(folder: Path) -> None:
    record = bytes(1 + PIXELS)
    data, labels = np.zeros((2, PIXELS), np.uint8), [0, 1]
    binary = {
        "cifar-size": record[:-1],
        "cifar-empty-file": b"",
        "cifar-label": b"\x0b" + record[1:],
        "cifar-hundred": bytes(2 + PIXELS),
    }
    pickles: dict[str, object] = {
        "cifar-evil": Evil(),
        "cifar-inside": {b"data": data, b"labels": labels, b"more": Evil()},
        "cifar-list": [1, 2],
        "cifar-keys": {b"data": data},
        "cifar-shape": {b"data": data[:, :9], b"labels": labels},
        "cifar-type": {b"data": data.astype(float), b"labels": labels},
        "cifar-count": {b"data": data, b"labels": [0]},
        "cifar-ragged": {b"data": data, b"labels": [0, [1]]},
        "cifar-fine": {b"data": data, b"fine_labels": labels},
        "cifar-range": {b"data": data, b"labels": [0, 10**30]},
    }
    contents = {name: ("a.bin", content) for name, content in binary.items()}
    contents |= {n: ("data_batch_1", pickle.dumps(value)) for n, value in pickles.items()}
    contents["cifar-text"] = "data_batch_1", b"hello"
    contents["cifar-cut"] = "data_batch_1", pickle.dumps({b"data": data, b"labels": labels})[:200]
    contents["cifar-test-only"] = "test_batch", pickle.dumps({b"data": data, b"labels": labels})
    (folder / "cifar-none").mkdir()
    for name, (file, content) in contents.items():
        (folder / name).mkdir()
        (folder / name / file).write_bytes(content)


def _results(folder: Path) -> None:
    whole = finished(folder / "whole.h5").read_bytes()
    (folder / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (folder / "pickle.h5").write_bytes(pickle.dumps(Evil()))
    with h5py.File(folder / "foreign.h5", "w") as file:
        file["x"] = 1
    with writer(folder / "bench.h5", kind="bench", ranks=2) as store:
        store.case({"algorithm": "ring", "bytes": 4}, [[1.0, 2.0]])
        store.complete({})
    for name, change in {
        "newer.h5": lambda file: file.attrs.__setitem__("schema_version", 999),
        "type.h5": lambda file: _replace(file, np.zeros((40, 3), "f4")),
        "shape.h5": lambda file: _replace(file, np.zeros((40, 4))),
        "link.h5": lambda file: _replace(file, h5py.ExternalLink("whole.h5", "/steps/loss")),
        "bomb.h5": _bomb,
        "group.h5": lambda file: file.__delitem__("evaluation"),
    }.items():
        (folder / name).write_bytes(whole)
        with h5py.File(folder / name, "r+") as file:
            change(file)


def _bomb(file: h5py.File) -> None:
    """Rows of zeros, each of which is there."""
    for name in ("loss", "wait_s", "poll_s"):
        del file[f"steps/{name}"]
        file.create_dataset(
            f"steps/{name}", (4_000_000, 3), "f8", chunks=(100_000, 3), compression=9
        )
    file["rows/steps"][...] = 4_000_000


def _replace(file: h5py.File, value: object) -> None:
    del file["steps/loss"]
    file["steps/loss"] = value
