"""Files that users might hand to a command and should not: name -> content, for tests."""

import gzip
import io
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
        "group.h5": lambda file: file.__delitem__("evaluation"),
    }.items():
        (folder / name).write_bytes(whole)
        with h5py.File(folder / name, "r+") as file:
            change(file)


def _replace(file: h5py.File, value: object) -> None:
    del file["steps/loss"]
    file["steps/loss"] = value
