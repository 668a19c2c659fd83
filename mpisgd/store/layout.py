"""Lay the schema's datasets out in an HDF5 file: to be appended to, or compact and checksummed."""

import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from mpisgd.store.schema import Field, fields

ROW_WIDTH = 2048  # bytes of a JSON row: variable-length strings cannot be appended kill-safely
CHUNK_BYTES = 1 << 15
LOCKING = False  # HDF5's fail on parallel file systems, even to read; runs have `store.lock`


def create(
    path: str | os.PathLike,
    attributes: Mapping[str, Any],
    arrays: Iterable[tuple[Field, np.ndarray]],
    *,
    live: bool,
) -> None:
    """A new file with every dataset of the schema, filled from `arrays` (field, values).

    live: datasets that rows can be appended to, neither compressed nor checksummed (a kill may
    tear a chunk whose old part is rewritten unchanged, and that must stay readable). Otherwise
    compressed and checksummed ones of their final size, in the format of HDF5 1.10.
    """
    version = "latest" if live else ("v110", "v110")
    with Patient(path, "r+" if os.path.exists(path) else "x+") as raw:
        with h5py.File(raw, "w", libver=version) as file:
            for name, value in attributes.items():
                file.attrs[name] = _attribute(value)
            _fill(file, attributes, arrays, live)
        if raw.failure is not None:
            raise raw.failure
        os.fsync(raw.fileno())  # a rename must not overtake what it renames


class Patient(io.FileIO):
    """A file for HDF5, which does not survive that a write fails: it is not told of it. `failure`:
    the first one, after which nothing is written any more."""

    failure: OSError | None = None

    def write(self, octets: Any) -> int:
        """All of it, as far as HDF5 knows."""
        left = memoryview(octets).cast("B")
        size = len(left)
        try:
            while left and self.failure is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """To `size` bytes, as far as HDF5 knows."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


def _fill(
    file: h5py.File,
    attributes: Mapping[str, Any],
    arrays: Iterable[tuple[Field, np.ndarray]],
    live: bool,
) -> None:
    """All datasets: those of `arrays`, then empty ones."""
    ranks, given = int(attributes["ranks"]), set()

    def every() -> Iterator[tuple[Field, np.ndarray]]:
        for field, values in arrays:
            given.add(field.path)
            yield field, values
        for field in fields(attributes["kind"]):
            if field.path not in given:
                yield field, _empty(field, ranks)

    for field, values in every():
        dataset = _dataset(file, field, values, ranks, live)
        if not live:
            _name_dimensions(file, field, dataset)


def _empty(field: Field, ranks: int) -> np.ndarray:
    """What a dataset holds when a run begins."""
    if field.group == "rows":
        return np.zeros(ranks if field.dims == ("rank",) else 1, dtype=field.dtype)
    if field.dtype == "json":
        return np.zeros(0 if field.dims else 1, dtype=f"S{ROW_WIDTH}")
    return np.zeros((0, *((ranks,) if "rank" in field.dims[1:] else ())), dtype=field.dtype)


def _name_dimensions(file: h5py.File, field: Field, dataset: h5py.Dataset) -> None:
    """Dimension scales, by which xarray and netCDF know the dimensions of a finished file: steps
    count from 1, all else from 0. A column that nobody reported has one of its own, 0 long."""
    for axis, (dim, length) in enumerate(zip(field.dims or ("one",), dataset.shape, strict=True)):
        scale = f"{dim}s" if dim == "evaluation" else dim  # the other is a group
        scale = scale if length else f"no_{scale}"
        if scale not in file:
            file[scale] = np.arange(length, dtype=np.int32) + (dim == "step")
            file[scale].make_scale(scale)
        dataset.dims[axis].attach_scale(file[scale])


def _dataset(
    file: h5py.File, field: Field, values: np.ndarray, ranks: int, live: bool
) -> h5py.Dataset:
    grows = bool(field.dims) and field.group != "rows"
    options: dict[str, Any] = {}
    if live and grows:
        row = max(1, values.dtype.itemsize * (ranks if values.ndim == 2 else 1))
        rows = max(16, min(1024, CHUNK_BYTES // row))
        options = {"maxshape": (None, *values.shape[1:]), "chunks": (rows, *values.shape[1:])}
    elif not live and values.size:
        options = {"compression": 4, "shuffle": True, "fletcher32": True}
    fill = np.array(field.fill, dtype=values.dtype)[()]
    dataset = file.create_dataset(field.path, values.shape, values.dtype, fillvalue=fill, **options)
    dataset.attrs["unit"] = _attribute(field.unit or "-")
    dataset.attrs["meaning"] = _attribute(field.meaning)
    if values.size:
        dataset[...] = values
    return dataset


def _attribute(value: Any) -> Any:
    """Texts of fixed length: others live in a heap that HDF5 does not checksum."""
    return np.bytes_(value.encode("ascii")) if isinstance(value, str) else value


def text(value: Mapping[str, Any]) -> np.ndarray:
    """One JSON text as a dataset of one row."""
    return np.array([encode(value)])


def encode(value: Mapping[str, Any], width: int | None = None) -> bytes:
    """`value` as ASCII JSON. Raises ValueError when it is longer than `width` bytes."""
    encoded = json.dumps(plain(value), allow_nan=False).encode("ascii")
    if width is not None and len(encoded) > width:
        raise ValueError(f"a JSON row of {len(encoded)} bytes: at most {width} fit")
    return encoded


def plain(value: Any) -> Any:
    """`value` in JSON's terms: what is not finite becomes null, what JSON lacks its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
