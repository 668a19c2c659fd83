"""Opening a result file, as whoever wrote it left it, and the attributes of its root."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from allreduce.files import regular
from mpisgd.store import superblock
from mpisgd.store.layout import LOCKING
from mpisgd.store.schema import KINDS, ROOT, SCHEMA_VERSION
from mpisgd.store.target import CHECKPOINT, HEAD, SAVED
from mpisgd.values.errors import UsageError

MOST_RANKS = 1 << 20
# Columns are read whole, and once: HDF5's tables for chunks would cost 4 MB and 10 ms a file.
UNCACHED = {"rdcc_nslots": 1, "rdcc_nbytes": 0}


class DamagedFile(UsageError):
    """A file that cannot be read as a result: one line with the file and the reason."""


class ForeignFile(DamagedFile):
    """One that no run has written."""


def opened(path: Path) -> h5py.File:
    """The file, opened to read, also while it is written or as a killed writer left it."""
    try:
        with regular(path) as file:
            head = file.read(HEAD)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise DamagedFile(str(path), None, error.strerror or str(error)) from error
    if not head:
        raise DamagedFile(str(path), None, "is empty")
    block = head[: superblock.LENGTH]
    if not block.startswith(superblock.SIGNATURE):
        kind = ForeignFile if any(block) else DamagedFile
        told = _checkpoint(path) if SAVED.encode() in head else "is not an HDF5 file"
        raise kind(str(path), None, told)
    settled = superblock.settled(block, size)
    try:
        return _locked(path) if settled is None else h5py.File(superblock.Left(path, settled), "r")
    except (OSError, RuntimeError, ValueError) as error:
        raise DamagedFile(str(path), None, f"is damaged ({line(error)})") from error


def _checkpoint(path: Path) -> str:
    """What such a file is; whose, if it lies beside its result."""
    run, found, _ = path.name.partition(CHECKPOINT)
    whose = f" of the run {path.with_name(run)}" if run and found else ""
    return f"is a checkpoint{whose}, not a result; train --resume and export read it"


def _locked(path: Path) -> h5py.File:
    """Opened as others do, xarray among them: one process has to open a file in one way. Where its
    locks cannot be had, without."""
    try:
        return h5py.File(path, "r", locking="best-effort", **UNCACHED)
    except OSError as error:
        if "lock" not in str(error):
            raise
    return h5py.File(path, "r", locking=LOCKING, **UNCACHED)


def attributes(path: Path, file: h5py.File) -> dict[str, Any]:
    """The attributes of the root group, each of the schema's type."""
    attrs = file.attrs  # which opens the root each time
    values = {attribute.name: attrs.get(attribute.name) for attribute in ROOT}
    if values["schema_version"] is None or values["kind"] is None:
        raise ForeignFile(str(path), None, "is an HDF5 file, but no result of mpisgd")
    found: dict[str, Any] = {}
    for attribute in ROOT:
        value = values[attribute.name]
        value = value.item() if isinstance(value, np.generic) else value
        value = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        if type(value) is not attribute.kind:
            reason = f"attribute {attribute.name} is {value!r:.80}, not {attribute.kind.__name__}"
            raise DamagedFile(str(path), None, reason)
        if attribute.name == "schema_version" and value != SCHEMA_VERSION:
            reason = f"has schema version {value}; this program reads version {SCHEMA_VERSION}"
            raise DamagedFile(str(path), None, reason)
        found[attribute.name] = value
    if found["kind"] not in KINDS:
        raise DamagedFile(str(path), None, f"holds {found['kind']!r:.80}, not one of {KINDS}")
    if not 1 <= found["ranks"] <= MOST_RANKS:
        raise DamagedFile(str(path), None, f"has {found['ranks']} ranks")
    return found


def line(error: BaseException) -> str:
    """HDF5's complaint on one short line."""
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:160]
