"""`mpisgd export`: the averaged model of a run, for other programs."""

import argparse
import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from allreduce.files import regular
from mpisgd.checkpoint.file import MAGIC
from mpisgd.store import superblock
from mpisgd.store.lock import save
from mpisgd.store.target import CHECKPOINT, check_not_read, check_target
from mpisgd.store.weights import Weights, digest_of
from mpisgd.values import tables
from mpisgd.values.errors import MissingExtra, UsageError

ENDINGS = {"npz": ".npz", "safetensors": ".safetensors", "torch": ".pt"}
COLUMNS = ("name", "shape", "dtype")


class Exported(NamedTuple):
    """`step`: after which; `check`: by what its bits are known to be those of the run."""

    weights: Weights
    config: dict[str, Any]
    step: int
    check: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd export`."""
    parser.add_argument("file", metavar="RUN.h5|CHECKPOINT",
                        help="a result made with --keep-parameters, or a checkpoint")  # fmt: skip
    parser.add_argument("--format", choices=ENDINGS, help="[as --output ends, else npz]")
    parser.add_argument("--output", metavar="FILE", help="[the input's name, in this folder]")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    parser.add_argument("--data-path", metavar="PATH",
                        help="the data set of a checkpoint, whose model is built anew")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the file, print the arrays in it; exit code 0."""
    form, output = _target(arguments)
    check_target(output, arguments.overwrite)
    check_not_read(output, [arguments.file])
    found = exported(arguments.file, arguments.data_path)
    told = {"source": os.path.basename(arguments.file), "step": found.step,
            "parameters_sha256": digest_of(found.weights.parameters),
            "config": found.config}  # fmt: skip
    save(output, ENCODERS[form](found.weights.arrays, told), "--output")
    rows = [{"name": name, "shape": "x".join(map(str, array.shape)), "dtype": str(array.dtype)}
            for name, array in found.weights.arrays.items()]  # fmt: skip
    count = sum(array.size for array in found.weights.parameters.values())
    print(tables.render(COLUMNS, rows, "table"))
    print(f"{output}: {count} parameters after step {found.step}, averaged; {found.check}")
    return 0


def exported(file: str, data_path: str | None = None) -> Exported:
    """What a result or a checkpoint holds. UsageError for one that holds nothing, or is none."""
    try:
        with regular(file) as raw:
            head = raw.read(superblock.LENGTH)
    except OSError as error:
        raise UsageError(file, None, error.strerror or str(error)) from None
    if head.startswith(superblock.SIGNATURE):
        return _of_result(file, data_path)
    if not head.startswith(MAGIC):
        raise UsageError(file, None, "is neither a result file (HDF5) nor a checkpoint")
    return _of_checkpoint(file, data_path)


def _target(arguments: argparse.Namespace) -> tuple[str, str]:
    """The format, and where it goes."""
    given = arguments.output
    by_ending = {ending: form for form, ending in ENDINGS.items()}
    form = arguments.format or by_ending.get(Path(given or "").suffix, "npz")
    return form, given or f"{Path(arguments.file).stem}{ENDINGS[form]}"


def _of_result(file: str, data_path: str | None) -> Exported:
    from mpisgd.store.reader import read

    if data_path is not None:
        raise UsageError("--data-path", data_path, f"only for a checkpoint, and {file} is a result")
    with read(file) as result:
        if result.weights is None:
            allowed = "holds no parameters: train with --keep-parameters, or name a checkpoint"
            raise UsageError(file, None, allowed)
        step = int(result.evaluation["step"][-1])
        return Exported(result.weights, result.config, step, "checked: parameters_sha256")


def _of_checkpoint(file: str, data_path: str | None) -> Exported:
    from mpisgd.checkpoint.file import Checkpoint
    from mpisgd.checkpoint.weights import other_order, weights

    checkpoint = Checkpoint(file)
    found, meta = weights(checkpoint, data_path), checkpoint.meta
    check = _beside(checkpoint.path, meta, digest_of(found.parameters))
    if not check:
        check = "no complete result beside it to check against"
        if other_order(meta["config"]):
            check += ", and its run may have summed in another order: last bits may differ"
    return Exported(found, meta["config"], meta["step"], check)


def _beside(path: Path, meta: dict[str, Any], digest: str) -> str:
    """What the complete result of the run, which ended where the checkpoint is, says; "" if there
    is none."""
    from mpisgd.checkpoint.place import base
    from mpisgd.store.opening import DamagedFile
    from mpisgd.store.reader import read

    there = base(path)
    target = there.with_name(there.name.removesuffix(CHECKPOINT))
    if target == there or not target.exists():
        return ""
    try:
        with read(target) as result:
            step = result.evaluation.get("step", [None])[-1]
            same = result.complete and result.config == meta["config"] and step == meta["step"]
            if not same:
                return ""
            alike = result.summary.get("parameters_sha256") == digest
    except (DamagedFile, IndexError):
        return ""
    told = "the same bits as" if alike else "rounded otherwise than"
    return f"{told} the last evaluation of {target.name}"


def _npz(arrays: dict[str, np.ndarray], told: dict[str, Any]) -> bytes:
    """Arrays alone, so that every entry of numpy.load(FILE) is one."""
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def _safetensors(arrays: dict[str, np.ndarray], told: dict[str, Any]) -> bytes:
    try:
        from safetensors.numpy import save as encoded
    except ImportError:
        raise MissingExtra("safetensors", "--format safetensors", "export") from None
    return encoded(
        {name: np.ascontiguousarray(a) for name, a in arrays.items()}, {"mpisgd": json.dumps(told)}
    )


def _torch(arrays: dict[str, np.ndarray], told: dict[str, Any]) -> bytes:
    """A dict of tensors, as torch.load(FILE, weights_only=True) gives it back."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("PyTorch", "--format torch", "torch") from None
    out = io.BytesIO()
    torch.save({name: torch.from_numpy(a.copy()) for name, a in arrays.items()}, out)
    return out.getvalue()


ENCODERS = {"npz": _npz, "safetensors": _safetensors, "torch": _torch}
